/* A hash table of counters under one lock. The fix: a lock for each of 64 stripes. Threads meet in a
 * bucket now and then. */
#include "pair.h"

enum { STRIPES = 64, BUCKETS = 1024 };
static struct stripe {
    pthread_mutex_t lock;
    char pad[LINE];
} stripes[STRIPES];
static struct bucket {
    uint64_t count, sum;
} buckets[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned long hash(unsigned long key)
{
    return (key * 0x9e3779b97f4a7c15u) >> 40;
}

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        unsigned long place = hash(round * MOST_THREADS + self->id) % BUCKETS;
        pthread_mutex_t *mine = FIXED ? &stripes[place % STRIPES].lock : &lock;
        pthread_mutex_lock(mine);
        buckets[place].count++;
        buckets[place].sum += work(inside, round) & 255;
        pthread_mutex_unlock(mine);
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    for (unsigned stripe = 0; stripe < STRIPES; stripe++)
        pthread_mutex_init(&stripes[stripe].lock, NULL);
    uint64_t sum = run_all(argc, argv);
    for (unsigned place = 0; place < BUCKETS; place++)
        sum += buckets[place].count * 3 + buckets[place].sum;
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
