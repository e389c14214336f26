/* fig03: PerfPlay Figure 3, a null-lock from a branch.
 *
 * Each thread inspects its own items under the lock, though only one item in
 * 64 leads to the shared counter. All other critical sections touch nothing
 * that is shared. Fix: inspect first, lock inside the branch. */
#include "common.h"

static pthread_mutex_t lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static unsigned long found ALIGNED;
static unsigned long last_finder ALIGNED;

/* Two stores: the second makes the order of two finders matter. */
static inline void report(uint64_t item) {
    found++;
    last_finder = item;
}

static uint64_t inspect_items(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        digest = work(digest, 3000);
#if FIXED
        uint64_t item = work(i, 3000);
        if (i % 64 == self) {
            pthread_mutex_lock(&lock); /* @site found in fixed: tlcp with found */
            report(item + self);
            pthread_mutex_unlock(&lock);
        }
#else
        pthread_mutex_lock(&lock); /* @site inspect: null-lock with inspect */
        uint64_t item = work(i, 3000);
        if (i % 64 == self)
            report(item + self);
        pthread_mutex_unlock(&lock);
#endif
        digest ^= item;
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 3000);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
    uint64_t digest = run_crew(threads, rounds, inspect_items);
    CHECK(last_finder != 0);
    printf("fig03 found %lu digest %016" PRIx64 "\n", found, digest);
    return 0;
}
