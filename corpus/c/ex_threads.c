/* ex_threads: the life of a thread: created, joined for its value or in time,
 * ended by pthread_exit deep in a call, with cleanup handlers, detached. */
#include "common.h"

#include <errno.h>
#include <semaphore.h>
#include <time.h>

static sem_t detached_done, may_end;
static unsigned long cleanups;

static void cleanup(void *amount) {
    __atomic_fetch_add(&cleanups, (uintptr_t)amount, __ATOMIC_RELAXED);
}

static NOINLINE void leave(unsigned depth, uint64_t value) {
    if (depth == 0)
        pthread_exit((void *)(uintptr_t)value);
    if (value != 0) /* as it always is; the way out quiets the compiler */
        leave(depth - 1, mix(value));
}

static void *returns(void *argument) { return argument; }

static void *exits(void *argument) {
    pthread_cleanup_push(cleanup, (void *)1);
    leave(10, (uintptr_t)argument);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *detaches_itself(void *argument) {
    CHECK(pthread_detach(pthread_self()) == 0);
    cleanup(argument);
    CHECK(sem_post(&detached_done) == 0);
    return NULL;
}

static void *waits(void *argument) {
    CHECK(sem_wait(&may_end) == 0);
    return argument;
}

/* A join gives up when its time is over, and not before the thread has ended if
 * there is time. */
static void join_in_time(void) {
    struct timespec past = {.tv_sec = 1};
    struct timespec later = {.tv_sec = (time_t)1 << 40};
    pthread_t thread;
    void *value = NULL;
    CHECK(pthread_create(&thread, NULL, waits, &value) == 0);
    CHECK(pthread_timedjoin_np(thread, &value, &past) == ETIMEDOUT);
    CHECK(pthread_clockjoin_np(thread, &value, CLOCK_MONOTONIC, &past) == ETIMEDOUT);
    CHECK(pthread_tryjoin_np(thread, &value) == EBUSY && value == NULL);
    CHECK(sem_post(&may_end) == 0);
    CHECK(pthread_timedjoin_np(thread, &value, &later) == 0 && value == &value);
}

static void *detached(void *argument) {
    cleanup(argument);
    CHECK(sem_post(&detached_done) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 150);
    uint64_t digest = 0;
    pthread_attr_t attr;
    CHECK(sem_init(&detached_done, 0, 0) == 0 && sem_init(&may_end, 0, 0) == 0);
    CHECK(pthread_attr_init(&attr) == 0);
    CHECK(pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0);
    CHECK(pthread_attr_setstacksize(&attr, 256 * 1024) == 0);
    for (uintptr_t i = 1; i <= rounds; i++) {
        pthread_t a, b, c, d;
        void *value_a, *value_b;
        CHECK(pthread_create(&a, NULL, returns, (void *)i) == 0);
        CHECK(pthread_create(&b, NULL, exits, (void *)i) == 0);
        CHECK(pthread_create(&c, NULL, detaches_itself, (void *)1) == 0);
        CHECK(pthread_create(&d, &attr, detached, (void *)1) == 0);
        CHECK(pthread_join(b, &value_b) == 0);
        CHECK(pthread_join(a, &value_a) == 0);
        CHECK(value_a == (void *)i);
        digest += (uintptr_t)value_b;
        CHECK(sem_wait(&detached_done) == 0);
        CHECK(sem_wait(&detached_done) == 0);
    }
    join_in_time();
    CHECK(pthread_attr_destroy(&attr) == 0);
    CHECK(pthread_join(pthread_self(), NULL) == EDEADLK);
    CHECK(cleanups == 3 * rounds);
    printf("ex_threads %lu digest %016" PRIx64 "\n", 4 * rounds, digest);
    return 0;
}
