/* case02: PerfPlay Appendix, Case 2: printing the locks of all transactions.
 *
 * Every thread walks the whole transaction list under one mutex only to read
 * it: read-read. Appending the result to the common report is a true
 * contention. Fix: walk under the shared mode of a read-write lock. */
#include "common.h"

#define TRANSACTIONS 256

struct trx {
    const struct trx *next;
    uint64_t id, n_locks;
};

static struct trx pool[TRANSACTIONS];
static const struct trx *trx_list ALIGNED;
#if FIXED
static pthread_rwlock_t trx_sys ALIGNED = PTHREAD_RWLOCK_INITIALIZER;
#else
static pthread_mutex_t trx_sys ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif

static pthread_mutex_t report_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static uint64_t report_length ALIGNED, last_entry ALIGNED;

static NOINLINE uint64_t print_all_locks(void) {
    uint64_t text = 0;
#if FIXED
    pthread_rwlock_rdlock(&trx_sys); /* @site walk_shared in fixed */
#else
    pthread_mutex_lock(&trx_sys); /* @site walk: read-read with walk */
#endif
    for (const struct trx *trx = trx_list; trx; trx = trx->next)
        text = work(text ^ trx->id, (unsigned)trx->n_locks);
#if FIXED
    pthread_rwlock_unlock(&trx_sys);
#else
    pthread_mutex_unlock(&trx_sys);
#endif
    return text;
}

/* Where an entry goes depends on who came before: order matters. */
static NOINLINE uint64_t append(uint64_t text) {
    pthread_mutex_lock(&report_lock); /* @site append: tlcp with append */
    uint64_t offset = report_length;
    report_length += 1 + text % 16;
    last_entry = text ^ offset;
    pthread_mutex_unlock(&report_lock);
    return offset;
}

static uint64_t monitor(unsigned self, unsigned long rounds) {
    uint64_t digest = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        uint64_t text = print_all_locks();
        CHECK(append(work(text + i, 3000) + self) < UINT64_MAX);
        digest += text ^ i;
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 2000);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
    for (unsigned i = 0; i < TRANSACTIONS; i++) {
        pool[i] = (struct trx){trx_list, i + 1, mix(i) % 32};
        trx_list = &pool[i];
    }
    uint64_t digest = run_crew(threads, rounds, monitor);
    CHECK(last_entry != 0);
    printf("case02 report %" PRIu64 " bytes digest %016" PRIx64 "\n",
           report_length, digest);
    return 0;
}
