/* ex_atomics: lock-prefixed instructions of every size: fetch_add, exchange,
 * compare-exchange loops of 1, 2, 4, 8 and 16 bytes, bit set, flip and clear,
 * and a release/acquire hand-over. Build with -mcx16. */
#include "common.h"

#include <sched.h>
#include <stdatomic.h>

static _Atomic uint8_t a8 ALIGNED;
static _Atomic uint16_t a16 ALIGNED;
static _Atomic uint32_t a32 ALIGNED;
static _Atomic uint64_t a64 ALIGNED;
static unsigned __int128 a128 ALIGNED;
static _Atomic uint64_t added, xored, token ALIGNED;
static _Atomic uint32_t bits ALIGNED;
static uint64_t plain ALIGNED;
static _Atomic uint64_t owner ALIGNED;
static unsigned crew_size;

#define CAS_INCREMENT(object, type)                                           \
    do {                                                                      \
        type seen = atomic_load_explicit(&(object), memory_order_relaxed);    \
        while (!atomic_compare_exchange_weak(&(object), &seen,                \
                                             (type)(seen + 1))) {             \
        }                                                                     \
    } while (0)

/* Adds one to both halves; cmpxchg16b also serves as the initial load. */
static void cas_increment_128(void) {
    const unsigned __int128 one = ((unsigned __int128)1 << 64) | 1;
    unsigned __int128 seen = 0, before;
    while ((before = __sync_val_compare_and_swap(&a128, seen, seen + one)) !=
           seen)
        seen = before;
}

/* Threads pass the right to touch `plain` around in a ring. */
static void pass_on(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds / 100; i++) {
        unsigned spins = 0;
        while (atomic_load_explicit(&owner, memory_order_acquire) % crew_size !=
               self)
            if (++spins % 256 == 0)
                sched_yield();
        plain++;
        atomic_fetch_add_explicit(&owner, 1, memory_order_release);
    }
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t bag = self + 1;
    uint32_t bit = UINT32_C(1) << (self % 32);
    for (unsigned long i = 0; i < rounds; i++) {
        CAS_INCREMENT(a8, uint8_t);
        CAS_INCREMENT(a16, uint16_t);
        CAS_INCREMENT(a32, uint32_t);
        CAS_INCREMENT(a64, uint64_t);
        cas_increment_128();
        atomic_fetch_add(&added, i);
        atomic_fetch_sub(&added, 1);
        atomic_fetch_xor(&xored, mix(i + self));
        CHECK((atomic_fetch_or(&bits, bit) & bit) == 0);
        CHECK((atomic_fetch_and(&bits, ~bit) & bit) != 0);
        bag = atomic_exchange(&token, bag);
    }
    pass_on(self, rounds);
    return bag;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 50000);
    crew_size = threads_arg(argc, argv, 2, 1, 3);
    uint64_t total = rounds * crew_size;
    /* The crew's bags and the token hold 1..n and the initial 0 together. */
    uint64_t bags = run_crew(crew_size, rounds, role) + atomic_load(&token);
    CHECK(bags == (uint64_t)crew_size * (crew_size + 1) / 2);
    CHECK(a8 == (uint8_t)total && a16 == (uint16_t)total &&
          a32 == (uint32_t)total && a64 == total);
    CHECK((uint64_t)a128 == total && (uint64_t)(a128 >> 64) == total);
    CHECK(bits == 0 && plain == rounds / 100 * crew_size);
    printf("ex_atomics total %" PRIu64 " added %" PRIu64 " xored %016" PRIx64
           "\n", total, (uint64_t)added, (uint64_t)xored);
    return 0;
}
