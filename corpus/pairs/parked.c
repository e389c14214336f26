/* A lock of one byte whose sleepers lie in a table beside it, as parking_lot's do: a second bit says
 * that somebody sleeps, each thread sleeps on a word of its own, and whoever wakes one sets the lock free
 * by a plain store, or hands it over. Under it, threads only read. The fix: no lock. */
#include "pair.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TAKEN = 1, PARKED = 2, ENTRIES = 256, SPINS = 20, FAIR = 16 };
enum { ASLEEP, WOKEN, HANDED };

static _Atomic unsigned char state;
static atomic_int table UNUSED_WHEN_FIXED;
static _Thread_local atomic_int parker;
static atomic_int *sleepers[MOST_THREADS];
static unsigned asleep, wakes;
static uint64_t entries[ENTRIES];

static void table_lock(void)
{
    while (atomic_exchange_explicit(&table, 1, memory_order_acquire))
        __builtin_ia32_pause();
}

static void table_unlock(void)
{
    atomic_exchange_explicit(&table, 0, memory_order_release);
}

/* Sleeps until somebody wakes the thread, unless the lock has been set free before; whether it has
 * the lock then. */
static int park(void)
{
    table_lock();
    if (atomic_load(&state) != (TAKEN | PARKED)) {
        table_unlock();
        return 0;
    }
    atomic_store(&parker, ASLEEP);
    sleepers[asleep++] = &parker;
    table_unlock();
    while (atomic_load(&parker) == ASLEEP)
        syscall(SYS_futex, &parker, FUTEX_WAIT_PRIVATE, ASLEEP, NULL, NULL, 0);
    return atomic_load(&parker) == HANDED;
}

static __attribute__((noinline)) void lock_slowly(void)
{
    for (unsigned round = 0;; round++) {
        unsigned char now = atomic_load_explicit(&state, memory_order_relaxed);
        if (!(now & TAKEN)) {
            if (atomic_compare_exchange_strong(&state, &now, now | TAKEN))
                return;
        } else if (round < SPINS) {
            __builtin_ia32_pause();
        } else if ((now & PARKED) || atomic_compare_exchange_strong(&state, &now, TAKEN | PARKED)) {
            if (park())
                return;
        }
    }
}

static __attribute__((noinline)) void unlock_slowly(void)
{
    table_lock();
    atomic_int *first = asleep > 0 ? sleepers[--asleep] : NULL;
    int hands_over = first != NULL && ++wakes % FAIR == 0;
    unsigned char left = (hands_over ? TAKEN : 0) | (asleep > 0 ? PARKED : 0);
    atomic_store_explicit(&state, left, memory_order_release);
    if (first != NULL)
        atomic_store(first, hands_over ? HANDED : WOKEN);
    table_unlock();
    if (first != NULL)
        syscall(SYS_futex, first, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static uint64_t lookup(unsigned long key)
{
    unsigned char expected = 0;
    if (!FIXED && !atomic_compare_exchange_strong(&state, &expected, TAKEN))
        lock_slowly();
    uint64_t found = work(inside, entries[key % ENTRIES]);
    expected = TAKEN;
    if (!FIXED && !atomic_compare_exchange_strong(&state, &expected, 0))
        unlock_slowly();
    return found;
}

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        self->sum += lookup(round) & 255;
        self->sum += work(outside, round) & 255;
    }
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < ENTRIES; entry++)
        entries[entry] = entry * 2654435761u;
    printf("%llu\n", (unsigned long long)run_all(argc, argv));
    return 0;
}
