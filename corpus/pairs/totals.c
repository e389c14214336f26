/* Totals of all threads, added to under one lock with the work that finds out what to add. The fix:
 * the work without the lock, and atomic additions. */
#include "pair.h"

static struct {
    uint64_t requests, bytes;
} totals;
static pthread_mutex_t lock UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
#if FIXED
        uint64_t bytes = work(inside, round) & 1023;
        __atomic_fetch_add(&totals.requests, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&totals.bytes, bytes, __ATOMIC_RELAXED);
#else
        pthread_mutex_lock(&lock);
        uint64_t bytes = work(inside, round) & 1023;
        totals.requests++;
        totals.bytes += bytes;
        pthread_mutex_unlock(&lock);
#endif
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    uint64_t sum = run_all(argc, argv);
    printf("%llu\n", (unsigned long long)(sum + totals.requests + totals.bytes));
    return 0;
}
