/* Phases that end at a barrier; in each, lookups that only read, under a lock. The fix: no lock. */
#include "pair.h"

enum { ENTRIES = 256, STEPS = 16 };
static uint64_t table[ENTRIES];
static pthread_mutex_t lock UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        for (unsigned step = 0; step < STEPS; step++) {
#if !FIXED
            pthread_mutex_lock(&lock);
#endif
            uint64_t found = work(inside, table[(round + step) % ENTRIES]);
#if !FIXED
            pthread_mutex_unlock(&lock);
#endif
            self->sum += work(outside + (self->id + step) % 4 * outside / 8, found);
        }
        pthread_barrier_wait(&start_line);
    }
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < ENTRIES; entry++)
        table[entry] = entry * 2654435761u;
    printf("%llu\n", (unsigned long long)run_all(argc, argv));
    return 0;
}
