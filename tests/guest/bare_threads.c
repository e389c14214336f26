/* Threads that no library makes: who waits for one waits for the word that the kernel clears. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK 65536

static int running;
static long sum;

static int body(void *count) {
    for (long i = 0; i < 1000; i++) sum += (long)count;
    return 0;
}

int main(void) {
    char *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM
        | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    long rounds = 0;
    for (long i = 0; i < 50; i++) {
        if (clone(body, stack + STACK, flags, (void *)i, &running, 0, &running) < 0) return 1;
        int now;
        for (; (now = *(volatile int *)&running) != 0; rounds++) {
            if (i % 2) syscall(SYS_futex, &running, FUTEX_WAIT, now, 0, 0, 0);
        }
    }
    printf("%ld\n", sum);
    return rounds < 0;
}
