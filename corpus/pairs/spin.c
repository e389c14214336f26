/* The slots of all threads under one spin lock. The fix: a spin lock for each slot. */
#include "pair.h"

static struct slot {
    pthread_spinlock_t lock;
    char gap[LINE];
    uint64_t value;
    char pad[LINE];
} slots[MOST_THREADS];
static pthread_spinlock_t lock;

static void run(struct worker *self)
{
    struct slot *slot = &slots[self->id];
    pthread_spinlock_t *mine = FIXED ? &slot->lock : &lock;
    for (unsigned long round = 0; round < rounds; round++) {
        pthread_spin_lock(mine);
        slot->value = work(inside, slot->value + round);
        pthread_spin_unlock(mine);
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
    for (unsigned id = 0; id < MOST_THREADS; id++)
        pthread_spin_init(&slots[id].lock, PTHREAD_PROCESS_PRIVATE);
    uint64_t sum = run_all(argc, argv);
    for (unsigned id = 0; id < threads; id++)
        sum += slots[id].value;
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
