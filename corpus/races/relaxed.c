/* Atomic counters of which nobody uses the result order nothing. */
#include "race.h"

static atomic_int events;
static volatile int last;

static void *one(void *none)
{
    enter();
    last = 1; /* races on last */
    leave();
    atomic_fetch_add_explicit(&events, 1, memory_order_relaxed);
    return none;
}

static void *other(void *none)
{
    atomic_fetch_add_explicit(&events, 1, memory_order_relaxed);
    enter();
    last = 2; /* races on last */
    leave();
    return none;
}

int main(void)
{
    run(one, other, NULL);
    return 0;
}
