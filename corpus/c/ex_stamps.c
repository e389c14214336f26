/* ex_stamps: atomic variables that no locked instruction touches, next to some
 * that do: the stamps of the slots of a queue for several threads (Vyukov's),
 * which are stored and loaded plainly; its length, which is looked at without
 * a lock; a lock that is released by a plain store while others try for it;
 * and one of each on a thread's stack. How often an attempt fails never
 * reaches the output. */
#include "common.h"

#include <sched.h>
#include <stdatomic.h>

#define SLOTS 4

struct slot {
    atomic_ulong stamp;
    uint64_t value;
};

static struct slot slots[SLOTS] ALIGNED;
static atomic_ulong tail ALIGNED, head ALIGNED;
static atomic_ulong length ALIGNED;
static atomic_ulong taken ALIGNED;
static atomic_int lock ALIGNED;
static uint64_t guarded ALIGNED;

static NOINLINE int put(uint64_t value) {
    unsigned long at = atomic_load_explicit(&tail, memory_order_relaxed);
    for (;;) {
        struct slot *slot = &slots[at % SLOTS];
        unsigned long stamp =
            atomic_load_explicit(&slot->stamp, memory_order_acquire);
        if (stamp != at) {
            if ((long)(stamp - at) < 0)
                return 0;
            at = atomic_load_explicit(&tail, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak(&tail, &at, at + 1)) {
            slot->value = value;
            atomic_store_explicit(&slot->stamp, at + 1, memory_order_release);
            return 1;
        }
    }
}

static NOINLINE int get(uint64_t *value) {
    unsigned long at = atomic_load_explicit(&head, memory_order_relaxed);
    for (;;) {
        struct slot *slot = &slots[at % SLOTS];
        unsigned long stamp =
            atomic_load_explicit(&slot->stamp, memory_order_acquire);
        if (stamp != at + 1) {
            if ((long)(stamp - at) <= 0)
                return 0;
            at = atomic_load_explicit(&head, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak(&head, &at, at + 1)) {
            *value = slot->value;
            atomic_store_explicit(&slot->stamp, at + SLOTS,
                                  memory_order_release);
            return 1;
        }
    }
}

/* A lock that is tried for without a look at it first. */
static NOINLINE void add(uint64_t value) {
    int none = 0;
    while (!atomic_compare_exchange_strong(&lock, &none, 1)) {
        none = 0;
        sched_yield();
    }
    guarded += value;
    atomic_store_explicit(&length,
                          atomic_load_explicit(&length, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store_explicit(&lock, 0, memory_order_release);
}

static NOINLINE unsigned long length_now(void) {
    return atomic_load_explicit(&length, memory_order_acquire);
}

/* A helper turns the word on its creator's stack until it is told to stop. */
static void *turn(void *word) {
    atomic_ulong *on_stack = word;
    while (atomic_load(on_stack) % 2 == 0)
        atomic_fetch_add(on_stack, 2);
    return NULL;
}

static NOINLINE void watch_turning(void) {
    atomic_ulong on_stack = 0;
    pthread_t helper;
    CHECK(pthread_create(&helper, NULL, turn, &on_stack) == 0);
    while (atomic_load_explicit(&on_stack, memory_order_relaxed) < 20)
        sched_yield();
    atomic_fetch_or(&on_stack, 1);
    CHECK(pthread_join(helper, NULL) == 0);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        if (self < 2) {
            while (!put(mix(2 * i + self)))
                sched_yield();
        } else {
            uint64_t value;
            while (!get(&value)) {
                if (length_now() % 2 != 0)
                    sched_yield();
            }
            digest += value;
            atomic_fetch_add(&taken, 1);
        }
        add(mix(i));
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 3000);
    for (unsigned long i = 0; i < SLOTS; i++)
        atomic_init(&slots[i].stamp, i);
    uint64_t digest = run_crew(4, rounds, role);
    watch_turning();
    printf("ex_stamps digest %016" PRIx64 " taken %lu guarded %016" PRIx64 "\n",
           digest, atomic_load(&taken), guarded);
    return 0;
}
