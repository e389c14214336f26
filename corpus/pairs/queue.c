/* Producers and consumers of a bounded queue: a mutex and condition variables that are needed. Both
 * variants are the same program. */
#include "pair.h"

enum { ROOM = 16 };
static uint64_t items[ROOM];
static unsigned long first, last;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER, emptied = PTHREAD_COND_INITIALIZER;

static void put(uint64_t item)
{
    pthread_mutex_lock(&lock);
    while (last - first == ROOM)
        pthread_cond_wait(&emptied, &lock);
    items[last++ % ROOM] = item;
    pthread_cond_signal(&filled);
    pthread_mutex_unlock(&lock);
}

static uint64_t get(void)
{
    pthread_mutex_lock(&lock);
    while (last == first)
        pthread_cond_wait(&filled, &lock);
    uint64_t item = items[first++ % ROOM];
    pthread_cond_signal(&emptied);
    pthread_mutex_unlock(&lock);
    return item;
}

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        if (self->id % 2 == 0)
            put(work(inside, round));
        else
            self->sum += get() & 255, work(outside, round);
    }
}

int main(int argc, char **argv)
{
    printf("%llu\n", (unsigned long long)run_all(argc, argv));
    return 0;
}
