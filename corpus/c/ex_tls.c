/* ex_tls: thread-local storage: initialized and zeroed __thread variables, and
 * pthread keys with destructors. */
#include "common.h"

static __thread uint64_t seeded = 42;
static __thread uint64_t zeroed[32];
static pthread_key_t key;
static unsigned long destroyed;

static void destroy(void *value) {
    __atomic_fetch_add(&destroyed, *(unsigned long *)value, __ATOMIC_RELAXED);
    free(value);
}

static NOINLINE uint64_t step(unsigned long i) {
    seeded = mix(seeded + i);
    zeroed[i % 32] += seeded;
    ++*(unsigned long *)pthread_getspecific(key);
    return zeroed[(i * 7) % 32];
}

static uint64_t role(unsigned self, unsigned long rounds) {
    CHECK(seeded == 42 && zeroed[self % 32] == 0);
    CHECK(pthread_getspecific(key) == NULL);
    CHECK(pthread_setspecific(key, calloc(1, sizeof(unsigned long))) == 0);
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++)
        digest ^= step(i + self);
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 4000000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 4);
    CHECK(pthread_key_create(&key, destroy) == 0);
    uint64_t digest = run_crew(threads, rounds, role);
    CHECK(seeded == 42);
    CHECK(destroyed == rounds * threads);
    CHECK(pthread_key_delete(key) == 0);
    printf("ex_tls steps %lu digest %016" PRIx64 "\n", destroyed, digest);
    return 0;
}
