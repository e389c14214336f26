/* One lock for the slots of all threads, each of which writes its own. The fix: a lock for each
 * slot. The main thread reads the slots in the end, so that they are shared data. */
#include "pair.h"

static struct slot {
    pthread_mutex_t lock;
    uint64_t value;
    char pad[LINE];
} slots[MOST_THREADS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    struct slot *slot = &slots[self->id];
    pthread_mutex_t *mine = FIXED ? &slot->lock : &lock;
    for (unsigned long round = 0; round < rounds; round++) {
        pthread_mutex_lock(mine);
        slot->value = work(inside, slot->value + round);
        pthread_mutex_unlock(mine);
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    for (unsigned id = 0; id < MOST_THREADS; id++)
        pthread_mutex_init(&slots[id].lock, NULL);
    uint64_t sum = run_all(argc, argv);
    for (unsigned id = 0; id < threads; id++)
        sum += slots[id].value;
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
