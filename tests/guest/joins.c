// Joins that the library refuses: of threads that nobody joins, and by clocks that it does not know.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t end;

static void *waits(void *_) {
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return 0;
}

static void *meets(void *_) {
    pthread_barrier_wait(&end);
    return 0;
}

static void by_clocks(void) {
    const clockid_t clocks[] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_BOOTTIME, 99, -1, CLOCK_MONOTONIC, CLOCK_REALTIME};
    struct timespec past = {0, 5};
    pthread_t thread;
    pthread_mutex_lock(&gate);
    pthread_create(&thread, 0, waits, 0);
    for (int i = 0; i < 6; i++) {
        printf("clock %d: %d", clocks[i], pthread_clockjoin_np(thread, 0, clocks[i], &past));
        if (i < 4) printf(" %d", pthread_clockjoin_np(thread, 0, clocks[i], 0));
        printf("\n");
    }
    printf("itself %d\n", pthread_join(pthread_self(), 0));
    pthread_mutex_unlock(&gate);
    printf("no clock %d\n", pthread_clockjoin_np(thread, 0, 99, 0));
    printf("joined %d\n", pthread_clockjoin_np(thread, 0, CLOCK_MONOTONIC, 0));
}

static void of_detached(int from_the_start) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, from_the_start ? PTHREAD_CREATE_DETACHED : PTHREAD_CREATE_JOINABLE);
    pthread_barrier_init(&end, 0, 2);
    pthread_create(&thread, &attributes, meets, 0);
    if (!from_the_start) printf("detach %d\n", pthread_detach(thread));
    printf("again %d", pthread_detach(thread));
    printf(", join %d, try %d\n", pthread_join(thread, 0), pthread_tryjoin_np(thread, 0));
    pthread_barrier_wait(&end);
}

int main(void) {
    by_clocks();
    of_detached(0);
    of_detached(1);
    return 0;
}
