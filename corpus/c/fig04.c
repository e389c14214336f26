/* fig04: PerfPlay Figure 4, read-read by polling (after OpenLDAP).
 *
 * One thread holds a reference while it works; the others take the mutex over
 * and over only to read that the reference is still there. Fix: a barrier, so
 * that nobody polls. */
#include "common.h"

static pthread_barrier_t round_begins, round_ends;
#if !FIXED
static pthread_mutex_t lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static unsigned ref ALIGNED = 1;

/* True while the critical thread still holds the buffer. */
static NOINLINE int buffer_in_use(void) {
    pthread_mutex_lock(&lock); /* @site poll: read-read with poll; conflict with release, renew */
    int in_use = ref != 0;
    work(1, 1000);
    pthread_mutex_unlock(&lock);
    return in_use;
}
#endif

static void renew(void) {
#if !FIXED
    pthread_mutex_lock(&lock); /* @site renew */
    ref = 1;
    pthread_mutex_unlock(&lock);
#endif
}

static void release(void) {
#if !FIXED
    pthread_mutex_lock(&lock); /* @site release */
    ref = 0;
    pthread_mutex_unlock(&lock);
#endif
}

static uint64_t hold(unsigned long rounds) {
    uint64_t digest = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        renew();
        pthread_barrier_wait(&round_begins);
        digest = work(digest + i, 50000);
        release();
        pthread_barrier_wait(&round_ends);
    }
    return digest;
}

static uint64_t follow(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        pthread_barrier_wait(&round_begins);
#if !FIXED
        while (buffer_in_use())
            work(self, 2000);
#endif
        pthread_barrier_wait(&round_ends);
        digest = mix(digest);
    }
    return digest;
}

/* The last thread is the critical one (Tn in the figure). */
static unsigned critical;

static uint64_t phase(unsigned self, unsigned long rounds) {
    return self == critical ? hold(rounds) : follow(self, rounds);
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 250);
    unsigned threads = threads_arg(argc, argv, 2, 3, 3);
    critical = threads - 1;
    CHECK(pthread_barrier_init(&round_begins, NULL, threads) == 0);
    CHECK(pthread_barrier_init(&round_ends, NULL, threads) == 0);
    uint64_t digest = run_crew(threads, rounds, phase);
    printf("fig04 phases %lu digest %016" PRIx64 "\n", rounds,
           digest);
    return 0;
}
