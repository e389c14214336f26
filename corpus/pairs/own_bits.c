/* A word with a bit for each thread, which it turns under one lock with its work. The fix: the work
 * without the lock, and an atomic instruction. */
#include "pair.h"

static uint64_t busy;
static pthread_mutex_t lock UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    uint64_t mine = 1ul << self->id;
    for (unsigned long round = 0; round < rounds; round++) {
#if FIXED
        self->sum += work(inside, round);
        __atomic_fetch_xor(&busy, mine, __ATOMIC_RELAXED);
#else
        pthread_mutex_lock(&lock);
        self->sum += work(inside, round);
        busy ^= mine;
        pthread_mutex_unlock(&lock);
#endif
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    uint64_t sum = run_all(argc, argv);
    printf("%llu\n", (unsigned long long)(sum + busy));
    return 0;
}
