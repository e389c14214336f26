/* A table that nobody changes any more is looked up under a mutex. The fix: no lock. */
#include "pair.h"

enum { ENTRIES = 256 };
static uint64_t table[ENTRIES];
static pthread_mutex_t lock UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    uint64_t sum = self->id;
    for (unsigned long round = 0; round < rounds; round++) {
#if !FIXED
        pthread_mutex_lock(&lock);
#endif
        uint64_t found = table[round % ENTRIES];
        found = work(inside, found);
#if !FIXED
        pthread_mutex_unlock(&lock);
#endif
        sum += work(outside, found);
    }
    self->sum = sum;
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < ENTRIES; entry++)
        table[entry] = entry * 2654435761u;
    printf("%llu\n", (unsigned long long)run_all(argc, argv));
    return 0;
}
