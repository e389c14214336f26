// What calls that had to wait leave in dead stack frames and in registers that a call may change,
// written to a file: a replay that differs there differs in what it writes.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 256, REGISTERS = 8 };

// int call(function, arguments[2], residue): calls it, and keeps the registers and the words below
// the stack pointer as they are right behind it.
int call(void *function, void *const *arguments, unsigned long *residue);
__asm__(".globl call\n"
        "call:\n"
        "push %rbx\n"
        "mov %rdx, %rbx\n"
        "mov %rdi, %rax\n"
        "mov (%rsi), %rdi\n"
        "mov 8(%rsi), %rsi\n"
        "xor %ecx, %ecx\n xor %edx, %edx\n xor %r8d, %r8d\n xor %r9d, %r9d\n"
        "xor %r10d, %r10d\n xor %r11d, %r11d\n pxor %xmm5, %xmm5\n"
        "call *%rax\n"
        "mov %rcx, (%rbx)\n mov %rdx, 8(%rbx)\n mov %rsi, 16(%rbx)\n mov %rdi, 24(%rbx)\n"
        "mov %r8, 32(%rbx)\n mov %r9, 40(%rbx)\n mov %r10, 48(%rbx)\n movq %xmm5, 56(%rbx)\n"
        "mov $1, %ecx\n"
        "1: mov %rcx, %rdx\n neg %rdx\n mov (%rsp,%rdx,8), %rdx\n mov %rdx, 56(%rbx,%rcx,8)\n"
        "inc %ecx\n cmp $256, %ecx\n jbe 1b\n"
        "pop %rbx\n"
        "ret\n");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;
static int file;
static int handled;

static int keep(void *function, void *first, void *second) {
    unsigned long residue[REGISTERS + WORDS];
    int result = call(function, (void *[]){first, second}, residue);
    write(file, residue, sizeof residue);
    return result;
}

static void count(int signal) {
    keep(sem_post, &semaphore, 0);
    handled++;
}

static void *wait_for_all(void *_) {
    for (int i = 0; i < 20; i++) {
        keep(pthread_mutex_lock, &mutex, 0);
        usleep(500);
        keep(pthread_mutex_unlock, &mutex, 0);
    }
    keep(pthread_barrier_wait, &barrier, 0);
    keep(pthread_mutex_lock, &mutex, 0);
    keep(pthread_cond_wait, &condition, &mutex);
    keep(pthread_mutex_unlock, &mutex, 0);
    struct timespec past = {1, 0};
    errno = 0;
    int result = keep(sem_timedwait, &semaphore, &past);
    printf("%d %d\n", result, errno == ETIMEDOUT);
    return 0;
}

int main(void) {
    file = open("/dev/null", O_WRONLY);
    setvbuf(stdout, 0, _IONBF, 0);
    sem_init(&semaphore, 0, 0);
    pthread_barrier_init(&barrier, 0, 3);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, wait_for_all, 0);
    keep(pthread_barrier_wait, &barrier, 0);
    usleep(20000);
    keep(pthread_mutex_lock, &mutex, 0);
    keep(pthread_cond_broadcast, &condition, 0);
    keep(pthread_mutex_unlock, &mutex, 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);

    // A handler in the middle of a wait; it calls what has a body, too.
    signal(SIGALRM, count);
    alarm(1);
    while (handled == 0) keep(sem_wait, &semaphore, 0);
    printf("handled %d\n", handled);
    return 0;
}
