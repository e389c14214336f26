// Code that is written at one address and executed at another, in one thread and then in two.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char *written;
static int (*executed)(void);

static void returns(int number) {
    unsigned char code[] = {0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(code + 1, &number, 4);
    memcpy(written, code, sizeof code);
}

// As compilers change a constant while others execute the code.
static void *change(void *arg) {
    for (int32_t i = 0; i < 300; i++)
        *(volatile int32_t *)(written + 4 + 1) = i;
    return 0;
}

int main(void) {
    int fd = memfd_create("code", 0);
    ftruncate(fd, 4096);
    executed = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    written = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < 5; i++) {
        returns(i * 11);
        printf("%d\n", executed());
    }
    written += 59; // The constant is 4-byte aligned: 59 + 5 = 64.
    unsigned char code[] = {0x90, 0x90, 0x90, 0x90, 0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(written, code, sizeof code);
    executed = (int (*)(void))((char *)executed + 59);
    pthread_t thread;
    pthread_create(&thread, 0, change, 0);
    unsigned sum = 0, last = 0;
    for (int i = 0; i < 300; i++) {
        unsigned now = executed();
        if (now < last)
            puts("an earlier constant came back");
        sum += last = now;
    }
    pthread_join(thread, 0);
    fprintf(stderr, "%u\n", sum);
    printf("%d\n", executed());
}
