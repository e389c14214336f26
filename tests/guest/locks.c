// Mutexes that are robust or inherit priorities; threads that end, or never run.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t robust, inheriting;
static int shared;

static void *abandon(void *_) {
    pthread_mutex_lock(&robust);
    shared++;
    return 0;
}

static void *add(void *_) {
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&inheriting);
        shared++;
        pthread_mutex_unlock(&inheriting);
    }
    return 0;
}

static void *nothing(void *_) { return 0; }

int main(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    pthread_t threads[3];
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[0], 0, abandon, 0);
        pthread_join(threads[0], 0);
        printf("lock %d, ", pthread_mutex_lock(&robust));
        printf("consistent %d, ", pthread_mutex_consistent(&robust));
        printf("unlock %d\n", pthread_mutex_unlock(&robust));
    }
    pthread_create(&threads[0], 0, abandon, 0);
    pthread_join(threads[0], 0);
    printf("lock %d, ", pthread_mutex_lock(&robust));
    printf("unlock %d, ", pthread_mutex_unlock(&robust));
    printf("lost %d\n", pthread_mutex_lock(&robust));

    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    printf("init %d\n", pthread_mutex_init(&inheriting, &attributes));
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, add, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("shared %d\n", shared);
    fflush(stdout);
    pthread_create(&threads[0], 0, nothing, 0);
    return 0;
}
