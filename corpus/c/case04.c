/* case04: PerfPlay Appendix, Case 4: one lock for unrelated members.
 *
 * LOCK_thd_data guards thd->query and thd->query_length, and, when connections
 * close, thd->mysys_var as well: disjoint-write. A third thread that shows the
 * query truly needs the lock against the one that sets it. Fix: mysys_var gets
 * a lock of its own. Three threads, by the nature of the case. */
#include "common.h"

static struct {
    uint64_t query, query_length;
    void *mysys_var;
} thd ALIGNED;

static pthread_mutex_t lock_thd_data ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#if FIXED
static pthread_mutex_t lock_mysys_var ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif

/* The invariant that the lock really protects. */
static uint64_t length_of(uint64_t query) { return mix(query) % 1000; }

static NOINLINE void set_query(uint64_t query) {
    pthread_mutex_lock(&lock_thd_data); /* @site set_query */
    thd.query = query;
    work(query, 3000);
    thd.query_length = length_of(query);
    pthread_mutex_unlock(&lock_thd_data);
}

static NOINLINE void close_connection(void *mysys_var) {
#if FIXED
    pthread_mutex_lock(&lock_mysys_var); /* @site close_alone in fixed */
#else
    pthread_mutex_lock(&lock_thd_data); /* @site close: disjoint-write with set_query, show */
#endif
    work(1, 3000);
    thd.mysys_var = mysys_var;
#if FIXED
    pthread_mutex_unlock(&lock_mysys_var);
#else
    pthread_mutex_unlock(&lock_thd_data);
#endif
}

static NOINLINE uint64_t show_query(void) {
    pthread_mutex_lock(&lock_thd_data); /* @site show: tlcp with set_query */
    uint64_t query = thd.query;
    work(query, 2000);
    uint64_t length = thd.query_length;
    pthread_mutex_unlock(&lock_thd_data);
    return length == length_of(query);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        if (i < IN_STEP && i % 3 == self)
            continue; /* two at a time, so that each meets each */
        digest = work(digest, 2500);
        if (self == 0)
            set_query(i);
        else if (self == 1)
            close_connection(i % 2 ? &thd : NULL);
        else
            digest += show_query();
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 2500);
    thd.query_length = length_of(thd.query);
    uint64_t digest = run_crew(3, rounds, role);
    printf("case04 query %" PRIu64 " length %" PRIu64 " open %d digest %016" PRIx64
           "\n", thd.query, thd.query_length, thd.mysys_var != NULL, digest);
    return 0;
}
