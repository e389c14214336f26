/* Readers of a table take it with the write lock. The fix: they take it with the read lock. */
#include "pair.h"

enum { ENTRIES = 256 };
static uint64_t table[ENTRIES];
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

static void run(struct worker *self)
{
    uint64_t sum = self->id;
    for (unsigned long round = 0; round < rounds; round++) {
#if FIXED
        pthread_rwlock_rdlock(&lock);
#else
        pthread_rwlock_wrlock(&lock);
#endif
        uint64_t found = work(inside, table[round % ENTRIES]);
        pthread_rwlock_unlock(&lock);
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
