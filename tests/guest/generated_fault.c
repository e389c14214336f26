/* A thread generates code that reads where nothing is, as the code of virtual machines does in place of looking
 * for null pointers: the handler of the fault goes on behind the instruction. The read is neither the first nor
 * the last access of its block, and is made with a lock held. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { ROUNDS = 50, LENGTH_OF_READ = 3 };

static const unsigned char code[] = {
    0x8b, 0x07,       /* mov eax, [rdi] */
    0x48, 0x8b, 0x0e, /* mov rcx, [rsi] */
    0x03, 0x07,       /* add eax, [rdi] */
    0xc3,             /* ret */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int faults;
static int sum;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += LENGTH_OF_READ;
    faults++;
}

static void *computes(void *generated) {
    int (*function)(const int *, const long *) = (int (*)(const int *, const long *))generated;
    const long somewhere = 0;
    const int one = 1;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&lock);
        sum += function(&one, i % 5 == 0 ? NULL : &somewhere);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    int rights = PROT_READ | PROT_WRITE | PROT_EXEC;
    void *generated = mmap(NULL, 4096, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(generated, code, sizeof code);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, computes, generated);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("%d %d\n", sum, faults);
    return 0;
}
