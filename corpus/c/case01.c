/* case01: PerfPlay Appendix, Case 1: the null-lock inside pthread_cond_wait.
 *
 * Workers wait for the next tick. pthread_cond_wait takes the mutex again
 * before it returns, and this program then only gives it back: a critical
 * section without a shared access, at the line of the wait. No program can
 * leave that lock out, so the pair is reported as it is and never removed. So are
 * two sections that only look before they wait.
 * Fix: each worker has a semaphore of its own.
 *
 * The wait stands under an `if` on purpose: with a `while` the woken thread
 * would read the tick. A spurious wake-up only starts a worker early. */
#include "common.h"

#include <semaphore.h>

static sem_t idle ALIGNED;
static unsigned workers;
#if FIXED
static sem_t ticks[MAX_THREADS];
#else
static pthread_mutex_t lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ticked ALIGNED = PTHREAD_COND_INITIALIZER;
static unsigned long tick ALIGNED;
static pthread_barrier_t round_end ALIGNED;
#endif

static uint64_t give_ticks(unsigned long rounds) {
    for (unsigned long i = 1; i <= rounds; i++) {
        for (unsigned w = 0; w < workers; w++)
            CHECK(sem_wait(&idle) == 0);
        /* Time for the workers to fall asleep in their wait. */
        work(i, 5000);
#if FIXED
        for (unsigned w = 1; w <= workers; w++)
            CHECK(sem_post(&ticks[w]) == 0);
#else
        pthread_mutex_lock(&lock); /* @site publish: null-lock with woken; conflict with enter */
        tick = i;
        pthread_mutex_unlock(&lock);
        pthread_cond_broadcast(&ticked);
#endif
    }
    return 0;
}

static NOINLINE void wait_for_tick(unsigned self, unsigned long mine) {
#if FIXED
    (void)mine;
    CHECK(sem_post(&idle) == 0);
    CHECK(sem_wait(&ticks[self]) == 0);
    work(self, 2000);
#else
    pthread_mutex_lock(&lock); /* @site enter: read-read with enter; null-lock with woken */
    CHECK(sem_post(&idle) == 0); /* here, so that the tick finds all of them in their wait */
    if (tick < mine)
        pthread_cond_wait(&ticked, &lock); /* @site woken: null-lock with woken */
    work(self, 2000);
    pthread_mutex_unlock(&lock);
#endif
}

static uint64_t role(unsigned self, unsigned long rounds) {
    if (self == 0)
        return give_ticks(rounds);
    uint64_t digest = self;
    for (unsigned long i = 1; i <= rounds; i++) {
        wait_for_tick(self, i);
        digest = work(digest, 1000);
#if !FIXED
        if (i % 2 == 0)
            pthread_barrier_wait(&round_end); /* all woken before one enters; or as it comes */
#endif
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 800);
    unsigned threads = threads_arg(argc, argv, 2, 3, 3);
    workers = threads - 1;
    CHECK(sem_init(&idle, 0, 0) == 0);
#if FIXED
    for (unsigned w = 1; w <= workers; w++)
        CHECK(sem_init(&ticks[w], 0, 0) == 0);
#else
    CHECK(pthread_barrier_init(&round_end, NULL, workers) == 0);
#endif
    uint64_t digest = run_crew(threads, rounds, role);
    printf("case01 ticks %lu digest %016" PRIx64 "\n", rounds, digest);
    return 0;
}
