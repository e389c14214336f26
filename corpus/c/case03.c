/* case03: PerfPlay Appendix, Case 3: neighbouring fields of one slot.
 *
 * One thread writes slot->suspended, the other reads slot->in_use and
 * slot->type. The bytes differ, the mutex is the same: disjoint-write.
 * Fix: `suspended` becomes atomic; the other two never change and need no
 * lock. Two threads, by the nature of the case. */
#include "common.h"

#include <stdatomic.h>
#include <stdbool.h>

#define SLOTS 64

struct slot {
    bool in_use;
    uint8_t type;
#if FIXED
    atomic_bool suspended;
#else
    bool suspended;
#endif
};

static struct slot slots[SLOTS] ALIGNED;
#if !FIXED
static pthread_mutex_t lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif

static NOINLINE void set_suspended(bool suspended) {
#if FIXED
    for (unsigned i = 0; i < SLOTS; i++) {
        work(i, 50);
        atomic_store(&slots[i].suspended, suspended);
    }
#else
    pthread_mutex_lock(&lock); /* @site suspend: disjoint-write with reserve */
    for (unsigned i = 0; i < SLOTS; i++) {
        work(i, 50);
        slots[i].suspended = suspended;
    }
    pthread_mutex_unlock(&lock);
#endif
}

static NOINLINE uint64_t reserve(unsigned type) {
    uint64_t found = 0;
#if !FIXED
    pthread_mutex_lock(&lock); /* @site reserve */
#endif
    for (unsigned i = 0; i < SLOTS; i++)
        if (slots[i].in_use && slots[i].type == type)
            found = work(found + i, 250);
#if !FIXED
    pthread_mutex_unlock(&lock);
#endif
    return found;
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        digest = work(digest, 4000);
        if (self == 0)
            set_suspended(i % 2 == 0);
        else
            digest ^= reserve(i % 4);
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 3500);
    for (unsigned i = 0; i < SLOTS; i++) {
        slots[i].in_use = mix(i) % 3 != 0;
        slots[i].type = (uint8_t)(mix(i) % 4);
        slots[i].suspended = false;
    }
    uint64_t digest = run_crew(2, rounds, role);
    unsigned suspended = 0;
    for (unsigned i = 0; i < SLOTS; i++)
        suspended += slots[i].suspended;
    printf("case03 suspended %u digest %016" PRIx64 "\n", suspended, digest);
    return 0;
}
