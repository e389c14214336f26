/* A bounded queue without a lock, of slots with sequence numbers: what goes through it is in order. */
#include "race.h"

enum { SLOTS = 8, VALUES = 2000 };

static struct {
    atomic_ulong turn;
    unsigned long value;
} slots[SLOTS];
static atomic_ulong first, next;
static unsigned long sum;
static volatile unsigned long moved;
static pthread_barrier_t done;

static APART void push(unsigned long value)
{
    unsigned long at = atomic_load_explicit(&next, memory_order_relaxed);
    for (;;) {
        unsigned long turn = atomic_load_explicit(&slots[at % SLOTS].turn, memory_order_acquire);
        if (turn == at) {
            if (atomic_compare_exchange_weak(&next, &at, at + 1))
                break;
        } else {
            at = atomic_load_explicit(&next, memory_order_relaxed);
        }
    }
    slots[at % SLOTS].value = value;
    atomic_store_explicit(&slots[at % SLOTS].turn, at + 1, memory_order_release);
}

static APART unsigned long pop(void)
{
    unsigned long at = atomic_load_explicit(&first, memory_order_relaxed);
    for (;;) {
        unsigned long turn = atomic_load_explicit(&slots[at % SLOTS].turn, memory_order_acquire);
        if (turn == at + 1) {
            if (atomic_compare_exchange_weak(&first, &at, at + 1))
                break;
        } else {
            at = atomic_load_explicit(&first, memory_order_relaxed);
        }
    }
    unsigned long value = slots[at % SLOTS].value;
    atomic_store_explicit(&slots[at % SLOTS].turn, at + SLOTS, memory_order_release);
    return value;
}

static void *one(void *none)
{
    for (unsigned long value = 0; value < VALUES; value++)
        push(value);
    pthread_barrier_wait(&done);
    enter();
    moved = VALUES; /* races on moved */
    leave();
    return none;
}

static void *other(void *none)
{
    for (int i = 0; i < VALUES; i++)
        sum += pop();
    pthread_barrier_wait(&done);
    enter();
    moved = 0; /* races on moved */
    leave();
    return none;
}

int main(void)
{
    for (unsigned long at = 0; at < SLOTS; at++)
        atomic_init(&slots[at].turn, at);
    pthread_barrier_init(&done, NULL, 2);
    run(one, other, NULL);
    printf("%lu\n", sum);
    return 0;
}
