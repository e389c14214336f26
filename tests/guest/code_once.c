// Code that is generated once, with a loop in it, and executed by two threads that race meanwhile.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int (*loop)(int);
static volatile int racing;

static void *run(void *arg) {
    int sum = 0;
    for (int i = 0; i < 200; i++) {
        sum += loop(i % 9 + 1);
        racing = racing * 3 + sum;
    }
    return (void *)(long)sum;
}

int main(void) {
    // xor eax, eax; again: add eax, 2; dec edi; jnz again; ret
    static const unsigned char code[] = {0x31, 0xc0, 0x83, 0xc0, 0x02, 0xff, 0xcf, 0x75, 0xf9, 0xc3};
    int prot = PROT_READ | PROT_WRITE | PROT_EXEC;
    void *memory = mmap(0, 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(memory, code, sizeof code);
    loop = (int (*)(int))memory;
    pthread_t thread;
    void *other;
    pthread_create(&thread, 0, run, 0);
    long sum = (long)run(0);
    pthread_join(thread, &other);
    fprintf(stderr, "%d\n", racing);
    printf("%ld %ld\n", sum, (long)other);
}
