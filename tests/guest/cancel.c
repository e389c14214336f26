// Threads that are cancelled: where they wait, where they look, and where they do not want it.
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore, begun;
static int ends[2];
static pthread_t sleeper;
static const char *cleaned;
static volatile int turns;

static void clean(void *what) { cleaned = what; }

static void unlock(void *what) {
    cleaned = what;
    // It is held again.
    if (pthread_mutex_trylock(&mutex) == 0) cleaned = "the mutex was free";
    pthread_mutex_unlock(&mutex);
}

static void *reads(void *name) {
    char byte;
    pthread_cleanup_push(clean, name);
    sem_post(&begun);
    (void)!read(ends[0], &byte, 1);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *sleeps(void *name) {
    struct timespec hour = {3600, 0};
    pthread_cleanup_push(clean, name);
    sem_post(&begun);
    nanosleep(&hour, NULL);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *waits(void *name) {
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(unlock, name);
    sem_post(&begun);
    for (;;) pthread_cond_wait(&condition, &mutex);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *takes(void *name) {
    pthread_cleanup_push(clean, name);
    sem_post(&begun);
    sem_wait(&semaphore);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *joins(void *name) {
    pthread_cleanup_push(clean, name);
    sem_post(&begun);
    pthread_join(sleeper, NULL);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *tests(void *name) {
    pthread_cleanup_push(clean, name);
    sem_post(&begun);
    for (;;) {
        pthread_testcancel();
        usleep(1000);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

// Cancelled while it may not be, and at its next look when it may.
static void *refuses(void *name) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_cleanup_push(clean, name);
    sem_post(&begun);
    struct timespec moment = {0, 50000000};
    nanosleep(&moment, NULL);
    while (sem_trywait(&semaphore) != 0) usleep(1000);
    turns++;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    sem_wait(&semaphore);
    turns++;
    pthread_cleanup_pop(0);
    return NULL;
}

static void *itself(void *name) {
    pthread_cleanup_push(clean, name);
    sem_post(&begun);
    pthread_cancel(pthread_self());
    turns++;
    pthread_testcancel();
    turns++;
    pthread_cleanup_pop(0);
    return NULL;
}

static void *at_once(void *name) {
    int before;
    pthread_cleanup_push(clean, name);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    sem_post(&begun);
    for (;;) getppid();
    pthread_cleanup_pop(0);
    return NULL;
}

// Neither has an event.
static void *looks(void *name) {
    pthread_cleanup_push(clean, name);
    sem_post(&begun);
    for (;;) pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *computes(void *name) {
    static volatile long number;
    int before;
    pthread_cleanup_push(clean, name);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    sem_post(&begun);
    for (;;) number++;
    pthread_cleanup_pop(0);
    return NULL;
}

static void *returns(void *name) {
    sem_post(&begun);
    return name;
}

static void run(void *(*body)(void *), const char *name) {
    pthread_t thread;
    void *result;
    cleaned = "nothing";
    pthread_create(&thread, NULL, body, (void *)name);
    sem_wait(&begun);
    usleep(20000);
    int said = pthread_cancel(thread);
    if (body == refuses) {
        usleep(100000);
        sem_post(&semaphore);
    }
    pthread_join(thread, &result);
    printf("%s: %d, %s, cleaned %s\n", name, said,
           result == PTHREAD_CANCELED ? "cancelled" : "returned", cleaned);
}

int main(void) {
    sem_init(&semaphore, 0, 0);
    sem_init(&begun, 0, 0);
    (void)!pipe(ends);
    for (int round = 0; round < 3; round++) {
        run(reads, "read");
        run(sleeps, "nanosleep");
        run(waits, "condition");
        run(takes, "semaphore");
        run(tests, "test");
        run(refuses, "refuses");
        run(itself, "itself");
        run(at_once, "at once");
        run(looks, "looks");
        run(computes, "computes");
        run(returns, "returns");
        pthread_create(&sleeper, NULL, sleeps, (void *)"inner");
        sem_wait(&begun);
        run(joins, "join");
        pthread_cancel(sleeper);
        pthread_join(sleeper, NULL);
    }
    printf("%d %d\n", turns, pthread_mutex_trylock(&mutex));
    return 0;
}
