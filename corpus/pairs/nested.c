/* An outer lock around a lookup that only reads, and inside of it a lock that a counter needs. The
 * fix: no outer lock. */
#include "pair.h"

enum { ENTRIES = 256 };
static uint64_t table[ENTRIES], count;
static pthread_mutex_t outer UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inner = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
#if !FIXED
        pthread_mutex_lock(&outer);
#endif
        uint64_t found = work(inside, table[round % ENTRIES]);
        pthread_mutex_lock(&inner);
        count += found & 7;
        pthread_mutex_unlock(&inner);
#if !FIXED
        pthread_mutex_unlock(&outer);
#endif
        self->sum += work(outside, found);
    }
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < ENTRIES; entry++)
        table[entry] = entry * 2654435761u;
    uint64_t sum = run_all(argc, argv);
    printf("%llu\n", (unsigned long long)(sum + count));
    return 0;
}
