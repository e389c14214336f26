/* ex_phases: threads that set out together and stop together, with locks in
 * between. What a thread does depends on its number and on its rounds, and
 * never on the order of the locks. */
#include "common.h"

#define LOCKS 3

static pthread_barrier_t together;
static pthread_mutex_t locks[LOCKS];
static pthread_rwlock_t table;
static uint64_t sums[LOCKS], total;

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t value = self;
    pthread_barrier_wait(&together);
    for (unsigned long i = 0; i < rounds; i++) {
        unsigned which = (self + i) % LOCKS;
        value = work(value, 40 + 7 * self + i % 11);
        pthread_mutex_lock(&locks[which]);
        sums[which] += i;
        if (i % 4 == 0) {
            pthread_rwlock_wrlock(&table);
            total++;
            pthread_rwlock_unlock(&table);
        }
        pthread_mutex_unlock(&locks[which]);
        if (i % 8 == self) {
            pthread_rwlock_rdlock(&table);
            value = work(value, 10);
            pthread_rwlock_unlock(&table);
        }
    }
    pthread_barrier_wait(&together);
    return value;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 3000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 3);
    CHECK(pthread_barrier_init(&together, NULL, threads) == 0);
    CHECK(pthread_rwlock_init(&table, NULL) == 0);
    for (unsigned i = 0; i < LOCKS; i++)
        CHECK(pthread_mutex_init(&locks[i], NULL) == 0);
    uint64_t digest = run_crew(threads, rounds, role);
    for (unsigned i = 0; i < LOCKS; i++)
        digest = mix(digest ^ sums[i]);
    printf("ex_phases total %" PRIu64 " digest %016" PRIx64 "\n", total, digest);
    return 0;
}
