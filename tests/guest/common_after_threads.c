// A program that has had a second thread shares memory with a process that it forks. The same
// instructions access that memory and the program's own, which the thread had before.
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static long own[64];

__attribute__((noinline)) static long add(volatile long *word, long n) {
    long before = *word;
    *word = before + n;
    return before;
}

static void *work(void *unused) {
    for (int i = 0; i < 64; i++) add(&own[i], i);
    return unused;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    pthread_join(thread, NULL);
    long *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), sum = 0;
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 64; i++) add(&shared[i], round);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        for (int i = 0; i < 64; i++) sum += add(&shared[i], i) + add(&own[i], sum % 7);
        printf("%ld\n", sum);
        fflush(stdout);
    }
    return 0;
}
