/* ex_polls: synchronization without a locked instruction where it is looked
 * at: flags that are stored and polled plainly, with a pause, a yield or a
 * sleep in the loop; a phase that is asked for in passing; a state that is
 * checked before a slow path; and a queue between two threads that only loads
 * and stores. What a poll reads never reaches the output. */
#include "common.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define SLOTS 8

struct table {
    atomic_int ready;
    uint64_t entries[16];
};

static atomic_ulong turn ALIGNED;
static atomic_int phase ALIGNED;
static atomic_ulong head, tail ALIGNED;
static uint64_t slots[SLOTS] ALIGNED;
static pthread_mutex_t building ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static struct table *table ALIGNED;
static uint64_t handed_over ALIGNED;

static unsigned long turn_now(void) {
    return atomic_load_explicit(&turn, memory_order_acquire);
}

/* One of two threads has the turn; three ways to wait for it. */
static NOINLINE void await_turn(unsigned self, unsigned long round) {
    switch (round % 3) {
    case 0:
        while (turn_now() % 2 != self)
            __builtin_ia32_pause();
        break;
    case 1:
        while (turn_now() % 2 != self)
            sched_yield();
        break;
    default:
        while (turn_now() % 2 != self) {
            struct timespec moment = {0, 1000};
            nanosleep(&moment, NULL);
        }
    }
}

static NOINLINE void pass_turn(void) {
    atomic_store_explicit(&turn, turn_now() + 1, memory_order_release);
}

static NOINLINE void build(struct table *t) {
    pthread_mutex_lock(&building);
    if (!atomic_load_explicit(&t->ready, memory_order_relaxed)) {
        for (unsigned i = 0; i < 16; i++)
            t->entries[i] = mix(i);
        atomic_store(&t->ready, 1);
    }
    pthread_mutex_unlock(&building);
}

static NOINLINE uint64_t entry(struct table *t, unsigned long i) {
    if (!atomic_load_explicit(&t->ready, memory_order_acquire))
        build(t);
    return t->entries[i % 16];
}

static NOINLINE void put(uint64_t value) {
    unsigned long at = atomic_load_explicit(&tail, memory_order_relaxed);
    while (at - atomic_load_explicit(&head, memory_order_acquire) == SLOTS)
        sched_yield();
    slots[at % SLOTS] = value;
    atomic_store_explicit(&tail, at + 1, memory_order_release);
}

static NOINLINE uint64_t get(void) {
    unsigned long at = atomic_load_explicit(&head, memory_order_relaxed);
    while (atomic_load_explicit(&tail, memory_order_acquire) == at)
        sched_yield();
    uint64_t value = slots[at % SLOTS];
    atomic_store_explicit(&head, at + 1, memory_order_release);
    return value;
}

/* Work that depends on the moment, with a result that does not. */
static NOINLINE void in_passing(unsigned self, unsigned long round) {
    if (self == 0)
        atomic_store(&phase, (int)(round & 1));
    else if (atomic_load(&phase))
        sched_yield();
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        await_turn(self, i);
        handed_over = mix(handed_over + self);
        pass_turn();
        in_passing(self, i);
        digest += entry(table, i);
        if (self == 0)
            put(mix(i));
        else
            digest ^= get();
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 3000);
    table = calloc(1, sizeof *table);
    CHECK(table != NULL);
    uint64_t digest = run_crew(2, rounds, role);
    printf("ex_polls digest %016" PRIx64 " handed %016" PRIx64 "\n", digest,
           handed_over);
    return 0;
}
