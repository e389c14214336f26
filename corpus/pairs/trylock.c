/* A lookup that only reads, under a lock that is tried, with a pause in between that grows. The fix: no
 * lock. */
#include "pair.h"

enum { ENTRIES = 256, LONGEST = 4096 };
static uint64_t table[ENTRIES];
static pthread_mutex_t lock UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    uint64_t sum = self->id;
    for (unsigned long round = 0; round < rounds; round++) {
#if !FIXED
        unsigned long pause = 64;
        while (pthread_mutex_trylock(&lock) != 0) {
            work(pause, round);
            pause = pause < LONGEST ? pause * 2 : LONGEST;
        }
#endif
        uint64_t found = work(inside, table[round % ENTRIES]);
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
