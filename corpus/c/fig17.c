/* fig17: PerfPlay Figure 17, a timed wait that nobody signals (MySQL #68573).
 *
 * Each thread takes the guard, waits on the condition until its timeout and
 * lets the guard go. Neither half touches shared data: the lock protects an
 * empty section, and so does the re-acquisition at the end of the wait. The
 * wait for the guard comes on top of the timeout. Fix: wait without a guard. */
#include "common.h"

#include <errno.h>
#include <time.h>

#define TIMEOUT_NS 100000

#if !FIXED
static pthread_mutex_t guard ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t status_changed ALIGNED = PTHREAD_COND_INITIALIZER;
#endif

static struct timespec deadline_of(long nanoseconds) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += nanoseconds;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

/* Gives up the query cache after the timeout; returns how often it gave up. */
static NOINLINE unsigned try_lock(void) {
#if FIXED
    struct timespec deadline = deadline_of(TIMEOUT_NS);
    clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &deadline, NULL);
    work(1, 2000);
    work(2, 2000);
#else
    pthread_mutex_lock(&guard); /* @site enter: null-lock with enter, woken */
    work(1, 2000);
    struct timespec deadline = deadline_of(TIMEOUT_NS);
    int result;
    do
        result = pthread_cond_timedwait(&status_changed, &guard, &deadline); /* @site woken: null-lock with woken */
    while (result != ETIMEDOUT);
    work(2, 2000);
    pthread_mutex_unlock(&guard);
#endif
    return 1;
}

static uint64_t select_statements(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        if (i % 2 == 0)
            in_step(i); /* enter meets enter; in other rounds it meets woken */
        digest = work(digest, 1000);
        digest += try_lock();
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 400);
    unsigned threads = threads_arg(argc, argv, 2, 2, 3);
    uint64_t digest = run_crew(threads, rounds, select_statements);
    printf("fig17 timeouts %lu digest %016" PRIx64 "\n", rounds * threads,
           digest);
    return 0;
}
