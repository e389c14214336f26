/* ex_mutex: every mutex type and every way to take one. */
#include "common.h"

#include <errno.h>
#include <time.h>

static pthread_mutex_t normal, recursive, errorcheck, adaptive, timed, clocked, tried;
static unsigned long counts[6] ALIGNED;
static int inside ALIGNED;

static struct timespec soon(clockid_t clock, long milliseconds) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += milliseconds / 1000;
    t.tv_nsec += milliseconds % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

static void init(pthread_mutex_t *mutex, int type) {
    pthread_mutexattr_t attr;
    CHECK(pthread_mutexattr_init(&attr) == 0);
    CHECK(pthread_mutexattr_settype(&attr, type) == 0);
    CHECK(pthread_mutex_init(mutex, &attr) == 0);
    CHECK(pthread_mutexattr_destroy(&attr) == 0);
}

static uint64_t hammer(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        CHECK(pthread_mutex_lock(&normal) == 0);
        counts[0]++;
        CHECK(pthread_mutex_unlock(&normal) == 0);

        CHECK(pthread_mutex_lock(&recursive) == 0);
        CHECK(pthread_mutex_lock(&recursive) == 0);
        CHECK(pthread_mutex_trylock(&recursive) == 0);
        counts[1]++;
        for (int depth = 0; depth < 3; depth++)
            CHECK(pthread_mutex_unlock(&recursive) == 0);

        CHECK(pthread_mutex_lock(&errorcheck) == 0);
        CHECK(pthread_mutex_lock(&errorcheck) == EDEADLK);
        counts[2]++;
        CHECK(pthread_mutex_unlock(&errorcheck) == 0);
        CHECK(pthread_mutex_unlock(&errorcheck) == EPERM);

        CHECK(pthread_mutex_lock(&adaptive) == 0);
        counts[3]++;
        CHECK(pthread_mutex_unlock(&adaptive) == 0);

        struct timespec deadline = soon(CLOCK_REALTIME, 60000);
        CHECK(pthread_mutex_timedlock(&timed, &deadline) == 0);
        counts[4]++;
        CHECK(pthread_mutex_unlock(&timed) == 0);

        /* ThreadSanitizer does not know this call; atomics show exclusion. */
        deadline = soon(CLOCK_MONOTONIC, 60000);
        CHECK(pthread_mutex_clocklock(&clocked, CLOCK_MONOTONIC, &deadline) == 0);
        CHECK(__atomic_exchange_n(&inside, 1, __ATOMIC_RELAXED) == 0);
        __atomic_store_n(&inside, 0, __ATOMIC_RELAXED);
        CHECK(pthread_mutex_unlock(&clocked) == 0);

        int busy;
        while ((busy = pthread_mutex_trylock(&tried)) == EBUSY)
            work(self, 20);
        CHECK(busy == 0);
        counts[5]++;
        CHECK(pthread_mutex_unlock(&tried) == 0);
    }
    return 0;
}

/* What another thread sees of mutexes that main holds. */
static void *refused(void *unused) {
    (void)unused;
    struct timespec deadline = soon(CLOCK_REALTIME, 5);
    CHECK(pthread_mutex_trylock(&tried) == EBUSY);
    CHECK(pthread_mutex_timedlock(&timed, &deadline) == ETIMEDOUT);
    CHECK(pthread_mutex_trylock(&recursive) == EBUSY);
    CHECK(pthread_mutex_unlock(&errorcheck) == EPERM);
    return NULL;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 20000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 3);
    init(&normal, PTHREAD_MUTEX_NORMAL);
    init(&recursive, PTHREAD_MUTEX_RECURSIVE);
    init(&errorcheck, PTHREAD_MUTEX_ERRORCHECK);
    init(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
    init(&timed, PTHREAD_MUTEX_NORMAL);
    init(&clocked, PTHREAD_MUTEX_NORMAL);
    init(&tried, PTHREAD_MUTEX_NORMAL);
    run_crew(threads, rounds, hammer);

    pthread_mutex_t *held[] = {&tried, &timed, &recursive, &errorcheck};
    pthread_t other;
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_mutex_lock(held[i]) == 0);
    CHECK(pthread_create(&other, NULL, refused, NULL) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_mutex_unlock(held[i]) == 0);

    printf("ex_mutex");
    for (unsigned i = 0; i < 6; i++) {
        CHECK(counts[i] == rounds * threads);
        printf(" %lu", counts[i]);
    }
    printf("\n");
    return 0;
}
