/* case06: PerfPlay Appendix, Case 6: one coarse lock around a transaction.
 *
 * Each thread updates the rows of its own partition, all under the one lock of
 * the table: disjoint-write. Drawing the commit number is a true contention.
 * Fix: one lock for each partition. */
#include "common.h"

#define ROWS 64

static struct partition {
    pthread_mutex_t lock;
    uint64_t rows[ROWS];
} table[MAX_THREADS] ALIGNED;

#if !FIXED
static pthread_mutex_t table_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif
static pthread_mutex_t commit_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_commit ALIGNED, last_committer ALIGNED;

static NOINLINE void transaction(struct partition *mine, uint64_t delta) {
#if FIXED
    pthread_mutex_lock(&mine->lock); /* @site update_partition in fixed */
#else
    pthread_mutex_lock(&table_lock); /* @site update: disjoint-write with update */
#endif
    for (unsigned i = 0; i < ROWS; i++)
        mine->rows[i] += work(delta + i, 50);
#if FIXED
    pthread_mutex_unlock(&mine->lock);
#else
    pthread_mutex_unlock(&table_lock);
#endif
}

static NOINLINE uint64_t commit(unsigned self) {
    pthread_mutex_lock(&commit_lock); /* @site commit: tlcp with commit */
    uint64_t number = next_commit++;
    last_committer = number ^ self;
    pthread_mutex_unlock(&commit_lock);
    return number;
}

/* The sum of all commit numbers is fixed, whoever draws which. */
static uint64_t session(unsigned self, unsigned long rounds) {
    uint64_t digest = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        transaction(&table[self], i);
        digest += commit(self);
        work(i, 2500);
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 2500);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
    uint64_t rows = 0;
    for (unsigned i = 0; i < threads; i++)
        CHECK(pthread_mutex_init(&table[i].lock, NULL) == 0);
    uint64_t digest = run_crew(threads, rounds, session);
    for (unsigned i = 0; i < threads; i++)
        for (unsigned j = 0; j < ROWS; j++)
            rows += mix(i) * table[i].rows[j];
    CHECK(last_committer < UINT64_MAX);
    printf("case06 commits %" PRIu64 " rows %016" PRIx64 " digest %" PRIu64 "\n",
           next_commit, rows, digest);
    return 0;
}
