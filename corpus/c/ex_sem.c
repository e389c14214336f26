/* ex_sem: semaphores: ping-pong by wait and post, polling by trywait, timed
 * waits that end both ways, and the value. */
#include "common.h"

#include <errno.h>
#include <semaphore.h>
#include <time.h>

static sem_t ping, pong, quota;
static unsigned long turns ALIGNED;

static struct timespec in_milliseconds(long milliseconds) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += milliseconds / 1000;
    t.tv_nsec += milliseconds % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

static void play(sem_t *mine, sem_t *theirs, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        struct timespec deadline = in_milliseconds(60000);
        CHECK((i % 2 ? sem_wait(mine) : sem_timedwait(mine, &deadline)) == 0);
        turns++;
        CHECK(sem_post(theirs) == 0);
    }
}

/* Two players alternate; then everybody takes and returns the quota. */
static uint64_t role(unsigned self, unsigned long rounds) {
    if (self < 2)
        play(self ? &pong : &ping, self ? &ping : &pong, rounds);
    for (unsigned long i = 0; i < rounds; i++) {
        while (sem_trywait(&quota) != 0) {
            CHECK(errno == EAGAIN);
            work(self, 20);
        }
        CHECK(sem_post(&quota) == 0);
    }
    return rounds;
}

static void expect_value(sem_t *semaphore, int expected) {
    int value = -1;
    CHECK(sem_getvalue(semaphore, &value) == 0);
    CHECK(value == expected);
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 3000);
    unsigned threads = threads_arg(argc, argv, 2, 2, 3);
    CHECK(sem_init(&ping, 0, 1) == 0);
    CHECK(sem_init(&pong, 0, 0) == 0);
    CHECK(sem_init(&quota, 0, 2) == 0);
    run_crew(threads, rounds, role);
    CHECK(turns == 2 * rounds);
    expect_value(&ping, 1);
    expect_value(&pong, 0);
    expect_value(&quota, 2);
    struct timespec deadline = in_milliseconds(3);
    CHECK(sem_timedwait(&pong, &deadline) == -1 && errno == ETIMEDOUT);
    CHECK(sem_trywait(&pong) == -1 && errno == EAGAIN);
    CHECK(sem_destroy(&ping) == 0 && sem_destroy(&pong) == 0 &&
          sem_destroy(&quota) == 0);
    printf("ex_sem turns %lu\n", turns);
    return 0;
}
