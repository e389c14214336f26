/* A lookup that only reads, under a queue lock (MCS) that the program makes itself. The fix: no
 * lock. */
#include "pair.h"

#include <immintrin.h>
#include <stdatomic.h>

enum { ENTRIES = 256 };
static uint64_t table[ENTRIES];

static struct node {
    _Atomic(struct node *) next;
    atomic_int waits;
    char pad[LINE];
} nodes[MOST_THREADS] UNUSED_WHEN_FIXED;
static _Atomic(struct node *) last UNUSED_WHEN_FIXED;

static void acquire(struct node *mine)
{
    atomic_store_explicit(&mine->next, NULL, memory_order_relaxed);
    atomic_store_explicit(&mine->waits, 1, memory_order_relaxed);
    struct node *before = atomic_exchange(&last, mine);
    if (before == NULL)
        return;
    atomic_store_explicit(&before->next, mine, memory_order_release);
    while (atomic_load_explicit(&mine->waits, memory_order_acquire))
        _mm_pause();
}

static void release(struct node *mine)
{
    struct node *next = atomic_load_explicit(&mine->next, memory_order_acquire);
    if (next == NULL) {
        struct node *expected = mine;
        if (atomic_compare_exchange_strong(&last, &expected, NULL))
            return;
        while ((next = atomic_load_explicit(&mine->next, memory_order_acquire)) == NULL)
            _mm_pause();
    }
    atomic_store_explicit(&next->waits, 0, memory_order_release);
}

static uint64_t lookup(struct node *mine, unsigned long key)
{
    if (!FIXED)
        acquire(mine);
    uint64_t found = work(inside, table[key % ENTRIES]);
    if (!FIXED)
        release(mine);
    return found;
}

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++)
        self->sum += work(outside, lookup(&nodes[self->id], round));
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < ENTRIES; entry++)
        table[entry] = entry * 2654435761u;
    printf("%llu\n", (unsigned long long)run_all(argc, argv));
    return 0;
}
