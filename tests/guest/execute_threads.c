// A program that executes itself while other threads of it wait and compute.
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static sem_t none;
static int ends[2];
static pthread_t computes;

static void *reads(void *unused) {
    char byte;
    return (void *)read(ends[0], &byte, 1);
}

static void *waits(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) pthread_cond_wait(&never, &lock);
}

static void *locks(void *unused) {
    pthread_mutex_lock(&held);
    return 0;
}

static void *sleeps(void *unused) {
    struct timespec hour = {3600, 0};
    nanosleep(&hour, 0);
    return 0;
}

static void *counts(void *unused) {
    sem_wait(&none);
    return 0;
}

static void *runs(void *unused) {
    for (volatile unsigned long n = 0;; n++) {}
}

static void *joins(void *unused) {
    pthread_join(computes, 0);
    return 0;
}

static void *adds(void *sum) {
    *(int *)sum += 1;
    return sum;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc == 2) {
        char line[256];
        FILE *status = fopen("/proc/self/status", "r");
        while (fgets(line, sizeof line, status)) {
            if (!strncmp(line, "Threads:", 8)) fputs(line, stdout);
        }
        int sum = 0;
        for (int i = 0; i < 3; i++) {
            pthread_create(&thread, 0, adds, &sum);
            pthread_join(thread, 0);
        }
        printf("%s: first thread %d, sum %d\n", argv[1], gettid() == getpid(), sum);
        return 0;
    }
    if (pipe(ends)) return 1;
    sem_init(&none, 0, 0);
    pthread_mutex_lock(&held);
    pthread_create(&computes, 0, runs, 0);
    void *(*others[])(void *) = {reads, waits, locks, sleeps, counts, joins};
    for (int i = 0; i < 6; i++) pthread_create(&thread, 0, others[i], 0);
    struct timespec while_they_begin = {0, 30000000};
    nanosleep(&while_they_begin, 0);
    puts("executes");
    fflush(stdout);
    execl("/proc/self/exe", "program", "again", (char *)0);
    return 2;
}
