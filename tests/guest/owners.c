// Threads that die with robust mutexes, one of them recursive, after having worked under them.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

enum { SIZE = 4096, ROUNDS = 200, THREADS = 4 };

static pthread_mutex_t normal, recursive;
static unsigned table[SIZE], other[SIZE];

// The last round decides what the table holds.
__attribute__((noinline)) static void fill(unsigned *words, unsigned seed) {
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned at = 0; at < SIZE; at++)
            words[at] = words[at] * 3 + seed + round;
}

__attribute__((noinline)) static unsigned sum(const unsigned *words) {
    unsigned sum = 0;
    for (unsigned at = 0; at < SIZE; at++) sum = sum * 5 + words[at];
    return sum;
}

static int take(pthread_mutex_t *mutex) {
    int result = pthread_mutex_lock(mutex);
    if (result == EOWNERDEAD) pthread_mutex_consistent(mutex);
    return result;
}

static void *die(void *number) {
    int first = take(&normal);
    unsigned before = sum(table);
    fill(table, before);
    int second = take(&recursive);
    pthread_mutex_lock(&recursive);
    fill(other, sum(other));
    fill(table, before);
    printf("%d %d\n", first, second);
    return number;
}

int main(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&normal, &attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recursive, &attributes);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, die, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    printf("%u %u\n", sum(table), sum(other));
    return 0;
}
