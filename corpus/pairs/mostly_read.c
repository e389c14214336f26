/* Mostly readers, one write in 256 rounds, under a mutex. The fix: a read-write lock. */
#include "pair.h"

enum { ENTRIES = 256 };
static uint64_t table[ENTRIES];
#if FIXED
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
#define LOCK_TO_READ() pthread_rwlock_rdlock(&lock)
#define LOCK_TO_WRITE() pthread_rwlock_wrlock(&lock)
#define UNLOCK() pthread_rwlock_unlock(&lock)
#else
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define LOCK_TO_READ() pthread_mutex_lock(&lock)
#define LOCK_TO_WRITE() pthread_mutex_lock(&lock)
#define UNLOCK() pthread_mutex_unlock(&lock)
#endif

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        uint64_t found;
        if (round % 256 == self->id) {
            LOCK_TO_WRITE();
            table[self->id] = found = work(inside, round);
            UNLOCK();
        } else {
            LOCK_TO_READ();
            found = work(inside, table[128 + round % 128]);
            UNLOCK();
        }
        self->sum += work(outside, found);
    }
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < ENTRIES; entry++)
        table[entry] = entry * 2654435761u;
    printf("%llu\n", (unsigned long long)run_all(argc, argv));
    return 0;
}
