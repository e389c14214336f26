/* benign: PerfPlay section 2.1, kind 4: conflicts that do not matter.
 *
 * Each lock guards accesses to the same bytes whose order changes nothing: a
 * redundant write, disjoint bits of one word, a commutative update. (fig04 has
 * the fourth sort, a flag that is polled.) Dropping the order is safe, dropping
 * the exclusion is not: the fix uses atomics. */
#include "common.h"

#include <stdatomic.h>

#if FIXED
#define SHARED _Atomic
#else
#define SHARED
static pthread_mutex_t dirty_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t mask_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t total_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif

static SHARED uint64_t dirty ALIGNED;
static SHARED uint64_t mask ALIGNED;
static SHARED uint64_t total ALIGNED;

static NOINLINE void mark_dirty(void) {
#if FIXED
    atomic_store(&dirty, 1);
    work(1, 2000);
#else
    pthread_mutex_lock(&dirty_lock); /* @site mark: benign/redundant-write with mark */
    dirty = 1;
    work(1, 2000);
    pthread_mutex_unlock(&dirty_lock);
#endif
}

static NOINLINE void toggle(uint64_t bit) {
#if FIXED
    atomic_fetch_xor(&mask, bit);
    work(1, 2000);
#else
    pthread_mutex_lock(&mask_lock); /* @site toggle: benign/disjoint-bits with toggle */
    mask ^= bit;
    work(1, 2000);
    pthread_mutex_unlock(&mask_lock);
#endif
}

static NOINLINE void add(uint64_t amount) {
#if FIXED
    atomic_fetch_add(&total, amount);
    work(1, 2000);
#else
    pthread_mutex_lock(&total_lock); /* @site add: benign/commutative-update with add */
    total += amount;
    work(1, 2000);
    pthread_mutex_unlock(&total_lock);
#endif
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        mark_dirty();
        digest = work(digest, 1500);
        toggle(UINT64_C(1) << self);
        digest = work(digest, 1500);
        add(digest);
        digest = work(digest, 1500);
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 1500);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
    uint64_t digest = run_crew(threads, rounds, role);
    uint64_t d = dirty, m = mask, t = total;
    printf("benign dirty %" PRIu64 " mask %" PRIx64 " total %016" PRIx64
           " digest %016" PRIx64 "\n", d, m, t, digest);
    return 0;
}
