/* case09: PerfPlay Appendix, Case 9: the stretched timeout (MySQL #68573).
 *
 * A SELECT means to wait for the query cache no longer than its timeout, but
 * has to take the guard both to begin the wait and to end it, while a slow
 * statement holds that guard to rewrite the cache. Its own critical sections
 * are empty: null-locks against the holder and against each other. (fig17
 * shows the waiting threads alone, this case the holder that stretches them.)
 * Fix: sleep out the timeout without the guard, asking an atomic status.
 *
 * Whether the cache is used depends on timing, the answer of a SELECT never. */
#include "common.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#define TIMEOUT_NS 50000
#define CACHE 64

static pthread_mutex_t guard ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static uint64_t cache[CACHE] ALIGNED;
#if FIXED
static atomic_int cache_locked ALIGNED;
#else
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

static NOINLINE void rewrite_cache(uint64_t round) {
#if FIXED
    atomic_store(&cache_locked, 1);
#endif
    pthread_mutex_lock(&guard); /* @site rewrite */
    for (unsigned i = 0; i < CACHE; i++)
        cache[i] += work(round + i, 200);
    pthread_mutex_unlock(&guard);
#if FIXED
    atomic_store(&cache_locked, 0);
#endif
}

/* Waits for the cache until the timeout. */
static NOINLINE void try_lock(void) {
    struct timespec deadline = deadline_of(TIMEOUT_NS);
#if FIXED
    if (atomic_load(&cache_locked))
        clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &deadline, NULL);
#else
    pthread_mutex_lock(&guard); /* @site enter: null-lock with enter, woken, rewrite */
    int result;
    do
        result = pthread_cond_timedwait(&status_changed, &guard, &deadline); /* @site woken: null-lock with woken, rewrite */
    while (result != ETIMEDOUT);
    pthread_mutex_unlock(&guard);
#endif
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        if (i % 2 == 0)
            in_step(i); /* enter meets enter; in other rounds it meets woken */
        if (self == 0) {
            rewrite_cache(i);
            work(i, 5000);
        } else {
            try_lock();
            digest = work(digest, 1000);
        }
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 800);
    unsigned threads = threads_arg(argc, argv, 2, 3, 3);
    uint64_t digest = run_crew(threads, rounds, role), sum = 0;
    for (unsigned i = 0; i < CACHE; i++)
        sum ^= cache[i];
    printf("case09 cache %016" PRIx64 " digest %016" PRIx64 "\n", sum, digest);
    return 0;
}
