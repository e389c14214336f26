/* A mark that all threads set under one lock with their work, to the same value. The fix: an atomic
 * store without the lock. */
#include "pair.h"

static uint64_t used;
static pthread_mutex_t lock UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
#if FIXED
        self->sum += work(inside, round);
        __atomic_store_n(&used, 1, __ATOMIC_RELAXED);
#else
        pthread_mutex_lock(&lock);
        self->sum += work(inside, round);
        used = 1;
        pthread_mutex_unlock(&lock);
#endif
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    uint64_t sum = run_all(argc, argv);
    printf("%llu\n", (unsigned long long)(sum + used));
    return 0;
}
