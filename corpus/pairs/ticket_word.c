/* A lookup that only reads, under a ticket lock in one word: turns are counted in its lower half,
 * numbers are drawn from the upper one. The fix: no lock. */
#include "pair.h"

#include <immintrin.h>
#include <stdatomic.h>

enum { ENTRIES = 256 };
static uint64_t table[ENTRIES];

static union {
    atomic_uint both;
    struct {
        _Atomic uint16_t turn, next;
    };
} lock UNUSED_WHEN_FIXED;

static void acquire(void)
{
    unsigned drawn = atomic_fetch_add(&lock.both, 1u << 16);
    uint16_t mine = (uint16_t)(drawn >> 16);
    if (mine == (uint16_t)drawn)
        return;
    while (atomic_load_explicit(&lock.turn, memory_order_acquire) != mine)
        _mm_pause();
}

static void release(void)
{
    uint16_t turn = atomic_load_explicit(&lock.turn, memory_order_relaxed);
    atomic_store_explicit(&lock.turn, (uint16_t)(turn + 1), memory_order_release);
}

static uint64_t lookup(unsigned long key)
{
    if (!FIXED)
        acquire();
    uint64_t found = work(inside, table[key % ENTRIES]);
    if (!FIXED)
        release();
    return found;
}

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++)
        self->sum += work(outside, lookup(round));
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < ENTRIES; entry++)
        table[entry] = entry * 2654435761u;
    printf("%llu\n", (unsigned long long)run_all(argc, argv));
    return 0;
}
