/* A spin lock made of an atomic variable, around the slots of all threads. The fix: one for each
 * slot. */
#include "pair.h"

#include <immintrin.h>
#include <stdatomic.h>

static struct slot {
    atomic_int taken;
    char gap[LINE];
    uint64_t value;
    char pad[LINE];
} slots[MOST_THREADS];
static atomic_int taken;

static void acquire(atomic_int *lock)
{
    while (atomic_exchange_explicit(lock, 1, memory_order_acquire))
        while (atomic_load_explicit(lock, memory_order_relaxed))
            _mm_pause();
}

static void run(struct worker *self)
{
    struct slot *slot = &slots[self->id];
    atomic_int *mine = FIXED ? &slot->taken : &taken;
    for (unsigned long round = 0; round < rounds; round++) {
        acquire(mine);
        slot->value = work(inside, slot->value + round);
        atomic_store_explicit(mine, 0, memory_order_release);
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    uint64_t sum = run_all(argc, argv);
    for (unsigned long id = 0; id < threads; id++)
        sum += slots[id].value;
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
