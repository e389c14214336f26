/* queue: a thread pool's queue behind a condition variable, taken by wrappers.
 *
 * Every section writes `waiting` or `queued`, so every hand-over is a true
 * contention. `while (queued == 0)` makes the loads of `queued` ordered events:
 * an analysis that forgets these sees empty sections and calls them null-locks.
 * The line of a section is its caller's, not the wrapper's. */
#include "common.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    int waiting, least, queued, stopped;
} pool ALIGNED = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, 0};

static NOINLINE int take(void) {
    int error = pthread_mutex_lock(&pool.lock);
    __asm__ volatile("");
    return error;
}

static NOINLINE int give_back(void) {
    int error = pthread_mutex_unlock(&pool.lock);
    __asm__ volatile("");
    return error;
}

static uint64_t produce(unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        CHECK(take() == 0); /* @site put: tlcp with put, enter, woken */
        pool.queued++;
        pool.waiting++;
        pthread_cond_signal(&pool.filled);
        CHECK(give_back() == 0);
        work(i, 20000);
    }
    CHECK(take() == 0); /* @site stop */
    pool.stopped = 1;
    pthread_cond_broadcast(&pool.filled);
    CHECK(give_back() == 0);
    return 0;
}

static uint64_t role(unsigned self, unsigned long rounds) {
    if (self == 0)
        return produce(rounds);
    for (;;) {
        CHECK(take() == 0); /* @site enter: tlcp with enter */
        /* Looked at: a mere decrement would be benign. */
        if (--pool.waiting < pool.least)
            pool.least = pool.waiting;
        while (pool.queued == 0 && !pool.stopped)
            pthread_cond_wait(&pool.filled, &pool.lock); /* @site woken */
        int done = pool.queued == 0;
        if (!done)
            pool.queued--;
        CHECK(give_back() == 0);
        if (done)
            return 0;
        work(self, 5000);
    }
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 500);
    run_crew(3, rounds, role);
    printf("queue rounds %lu left %d\n", rounds, pool.queued);
    return 0;
}
