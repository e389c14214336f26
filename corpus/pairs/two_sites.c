/* Two sites on two locks: a lookup that only reads, a quarter as long as the counting that needs
 * its lock. The fix: no lock for the lookup. */
#include "pair.h"

enum { ENTRIES = 256 };
static uint64_t table[ENTRIES], count;
static pthread_mutex_t reading UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
#if !FIXED
        pthread_mutex_lock(&reading);
#endif
        uint64_t found = work(inside, table[round % ENTRIES]);
#if !FIXED
        pthread_mutex_unlock(&reading);
#endif
        self->sum += work(outside / 2, found);
        pthread_mutex_lock(&counting);
        count += work(inside / 4, found) & 7;
        pthread_mutex_unlock(&counting);
        self->sum += work(outside - outside / 2, found);
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
