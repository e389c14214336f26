/* case10: PerfPlay Appendix, Case 10: UPDATE against SELECT on other columns
 * (MySQL #60951).
 *
 * One thread updates column `balance` in the exclusive mode of the table's
 * read-write lock, the others select column `name` in its shared mode. The
 * columns alternate in memory but share no byte: disjoint-write. (Two SELECTs
 * never exclude each other and are no pair.) Fix: one lock for each column. */
#include "common.h"

#define ROWS 64

static struct {
    uint32_t name, balance;
} table[ROWS] ALIGNED;

static pthread_rwlock_t table_lock ALIGNED = PTHREAD_RWLOCK_INITIALIZER;
#if FIXED
static pthread_rwlock_t balance_lock ALIGNED = PTHREAD_RWLOCK_INITIALIZER;
#endif

static NOINLINE void update_balance(uint32_t delta) {
#if FIXED
    pthread_rwlock_wrlock(&balance_lock); /* @site update_column in fixed */
#else
    pthread_rwlock_wrlock(&table_lock); /* @site update: disjoint-write with select */
#endif
    for (unsigned i = 0; i < ROWS; i++)
        table[i].balance += (uint32_t)work(delta + i, 60);
#if FIXED
    pthread_rwlock_unlock(&balance_lock);
#else
    pthread_rwlock_unlock(&table_lock);
#endif
}

static NOINLINE uint64_t select_names(void) {
    uint64_t digest = 0;
    pthread_rwlock_rdlock(&table_lock); /* @site select */
    for (unsigned i = 0; i < ROWS; i++)
        digest = work(digest + table[i].name, 60);
    pthread_rwlock_unlock(&table_lock);
    return digest;
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        digest = work(digest, 5000);
        if (self == 0)
            update_balance((uint32_t)i);
        else
            digest ^= select_names();
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 2500);
    unsigned threads = threads_arg(argc, argv, 2, 2, 3);
    for (unsigned i = 0; i < ROWS; i++)
        table[i].name = (uint32_t)mix(i);
    uint64_t digest = run_crew(threads, rounds, role);
    uint32_t balance = 0;
    for (unsigned i = 0; i < ROWS; i++)
        balance ^= table[i].balance;
    printf("case10 balance %08" PRIx32 " digest %016" PRIx64 "\n", balance,
           digest);
    return 0;
}
