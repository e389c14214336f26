/* case05: PerfPlay Appendix, Case 5: setters of different members.
 *
 * set_query and set_query_id assign different members of one object under the
 * same mutex: disjoint-write. Fix: lock-free atomic stores. Two threads, by
 * the nature of the case. */
#include "common.h"

#include <stdatomic.h>

#if FIXED
typedef _Atomic uint64_t member;
#else
typedef uint64_t member;
static pthread_mutex_t lock_thd_data ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif

static struct {
    member query, query_id;
} thd ALIGNED;

static NOINLINE void set_query(uint64_t query) {
#if FIXED
    work(query, 3000);
    atomic_store(&thd.query, query);
#else
    pthread_mutex_lock(&lock_thd_data); /* @site set_query: disjoint-write with set_query_id */
    work(query, 3000);
    thd.query = query;
    pthread_mutex_unlock(&lock_thd_data);
#endif
}

static NOINLINE void set_query_id(uint64_t id) {
#if FIXED
    work(id, 3000);
    atomic_store(&thd.query_id, id);
#else
    pthread_mutex_lock(&lock_thd_data); /* @site set_query_id */
    work(id, 3000);
    thd.query_id = id;
    pthread_mutex_unlock(&lock_thd_data);
#endif
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        digest = work(digest, 2200);
        if (self == 0)
            set_query(digest);
        else
            set_query_id(i);
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 3500);
    uint64_t digest = run_crew(2, rounds, role);
    uint64_t query = thd.query, id = thd.query_id;
    printf("case05 query %016" PRIx64 " id %" PRIu64 " digest %016" PRIx64 "\n",
           query, id, digest);
    return 0;
}
