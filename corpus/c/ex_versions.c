/* ex_versions: a record that readers copy without a lock, while its version
 * says whether the copy is whole (a seqlock). Vector instructions copy it, and
 * what was copied decides whether a system call is made, and is checked. */
#include "common.h"

#include <sched.h>
#include <stdatomic.h>

#define READERS 2

struct record {
    uint64_t number, twice, mixed;
    double half;
    uint64_t more[4];
};

struct versioned {
    atomic_uint version;
    struct record record;
};

static struct versioned *shared;

/* A torn copy is a data race, and is thrown away. */
#define RACES_ON_PURPOSE __attribute__((no_sanitize_thread))

static NOINLINE RACES_ON_PURPOSE void publish(struct versioned *v, const struct record *r) {
    unsigned version = atomic_load_explicit(&v->version, memory_order_relaxed);
    atomic_store_explicit(&v->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    v->record = *r;
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&v->version, version + 2, memory_order_release);
}

/* Whether the copy is whole. */
static NOINLINE RACES_ON_PURPOSE int snapshot(struct versioned *v,
                                              struct record *r) {
    unsigned version = atomic_load_explicit(&v->version, memory_order_acquire);
    if (version & 1)
        return 0;
    *r = v->record;
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&v->version, memory_order_relaxed) == version;
}

static uint64_t role(unsigned self, unsigned long rounds) {
    struct record r = {.number = 0};
    for (unsigned long round = 0; round < rounds; round++) {
        if (self == READERS) {
            r.number = round;
            r.twice = 2 * round;
            r.mixed = mix(round);
            r.half = (double)round / 2;
            publish(shared, &r);
        } else if (snapshot(shared, &r) && r.number > 0) {
            CHECK(r.twice == 2 * r.number && r.mixed == mix(r.number));
            CHECK(r.half * 2 == (double)r.number);
            if (r.mixed & 1)
                sched_yield();
        }
    }
    return mix(self);
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 20000);
    shared = calloc(1, sizeof *shared);
    CHECK(shared != NULL);
    uint64_t digest = run_crew(READERS + 1, rounds, role);
    printf("ex_versions digest %016" PRIx64 "\n", digest);
    return 0;
}
