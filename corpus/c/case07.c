/* case07: PerfPlay Appendix, Case 7: one search of the query cache at a time
 * (MySQL #37844).
 *
 * A spin lock is held for the whole search of a hash table that nobody
 * changes: read-read, and the waiting burns CPU time besides. Fix: the shared
 * mode of a read-write lock. */
#include "common.h"

#define BUCKETS 64
#define QUERIES 1024

struct query {
    const struct query *next;
    uint64_t key, result;
};

static struct query pool[QUERIES];
static const struct query *buckets[BUCKETS] ALIGNED;
#if FIXED
static pthread_rwlock_t structure_guard ALIGNED = PTHREAD_RWLOCK_INITIALIZER;
#else
static pthread_spinlock_t structure_guard ALIGNED;
#endif

static NOINLINE uint64_t search(uint64_t key) {
    uint64_t result = 0;
#if FIXED
    pthread_rwlock_rdlock(&structure_guard); /* @site search_shared in fixed */
#else
    pthread_spin_lock(&structure_guard); /* @site search: read-read with search */
#endif
    for (const struct query *q = buckets[key % BUCKETS]; q; q = q->next) {
        work(q->key, 200);
        if (q->key == key) {
            result = q->result;
            break;
        }
    }
#if FIXED
    pthread_rwlock_unlock(&structure_guard);
#else
    pthread_spin_unlock(&structure_guard);
#endif
    return result;
}

static uint64_t session(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        digest += work(search(mix(i + self) % QUERIES), 1200);
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 5000);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
#if !FIXED
    CHECK(pthread_spin_init(&structure_guard, PTHREAD_PROCESS_PRIVATE) == 0);
#endif
    for (unsigned i = 0; i < QUERIES; i++) {
        pool[i] = (struct query){buckets[i % BUCKETS], i, mix(i)};
        buckets[i % BUCKETS] = &pool[i];
    }
    uint64_t digest = run_crew(threads, rounds, session);
    printf("case07 searches %lu digest %016" PRIx64 "\n", rounds * threads,
           digest);
    return 0;
}
