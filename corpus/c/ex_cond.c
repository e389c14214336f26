/* ex_cond: condition variables: a bounded buffer by signal, phases by
 * broadcast, and timed waits that end both ways. */
#include "common.h"

#include <errno.h>
#include <time.h>

#define SLOTS 4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER;
static pthread_cond_t not_full = PTHREAD_COND_INITIALIZER;
static uint64_t buffer[SLOTS];
static unsigned long put_count, take_count, expected;

static pthread_cond_t phase_over = PTHREAD_COND_INITIALIZER;
static unsigned arrived, phases, crew_size;

static struct timespec in_milliseconds(clockid_t clock, long milliseconds) {
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

/* All threads wait for each other; the last one wakes them all. */
static void meet(void) {
    pthread_mutex_lock(&lock);
    unsigned phase = phases;
    if (++arrived == crew_size) {
        arrived = 0;
        phases++;
        pthread_cond_broadcast(&phase_over);
    }
    while (phase == phases)
        pthread_cond_wait(&phase_over, &lock);
    pthread_mutex_unlock(&lock);
}

static uint64_t produce(unsigned long rounds) {
    for (unsigned long i = 1; i <= rounds; i++) {
        pthread_mutex_lock(&lock);
        while (put_count - take_count == SLOTS)
            pthread_cond_wait(&not_full, &lock);
        buffer[put_count++ % SLOTS] = i;
        pthread_cond_signal(&not_empty);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

/* Waits with a deadline that never passes: the signalled path. */
static uint64_t consume(void) {
    uint64_t sum = 0;
    for (;;) {
        struct timespec deadline = in_milliseconds(CLOCK_REALTIME, 60000);
        pthread_mutex_lock(&lock);
        while (put_count == take_count && take_count < expected)
            CHECK(pthread_cond_timedwait(&not_empty, &lock, &deadline) == 0);
        if (take_count == expected) {
            pthread_cond_broadcast(&not_empty);
            pthread_mutex_unlock(&lock);
            return sum;
        }
        sum += buffer[take_count++ % SLOTS];
        pthread_cond_signal(&not_full);
        pthread_mutex_unlock(&lock);
    }
}

static uint64_t role(unsigned self, unsigned long rounds) {
    for (unsigned i = 0; i < 50; i++)
        meet();
    uint64_t sum = self == 0 ? produce(rounds) : consume();
    meet();
    return sum;
}

/* Nobody signals: the timeout path, on both clocks. */
static void time_out(clockid_t clock) {
    pthread_condattr_t attr;
    pthread_cond_t silent;
    CHECK(pthread_condattr_init(&attr) == 0);
    CHECK(pthread_condattr_setclock(&attr, clock) == 0);
    CHECK(pthread_cond_init(&silent, &attr) == 0);
    struct timespec deadline = in_milliseconds(clock, 2);
    int result;
    pthread_mutex_lock(&lock);
    do
        result = pthread_cond_timedwait(&silent, &lock, &deadline);
    while (result == 0);
    CHECK(result == ETIMEDOUT);
    deadline = in_milliseconds(clock, 2);
    do
        result = pthread_cond_clockwait(&silent, &lock, clock, &deadline);
    while (result == 0);
    CHECK(result == ETIMEDOUT);
    pthread_mutex_unlock(&lock);
    CHECK(pthread_cond_destroy(&silent) == 0);
    CHECK(pthread_condattr_destroy(&attr) == 0);
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 10000);
    crew_size = threads_arg(argc, argv, 2, 2, 3);
    expected = rounds;
    uint64_t sum = run_crew(crew_size, rounds, role);
    CHECK(sum == (uint64_t)rounds * (rounds + 1) / 2);
    CHECK(phases == 51);
    time_out(CLOCK_REALTIME);
    time_out(CLOCK_MONOTONIC);
    printf("ex_cond sum %" PRIu64 "\n", sum);
    return 0;
}
