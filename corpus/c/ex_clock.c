/* ex_clock: a variable that one thread stores plainly, with no lock anywhere
 * near, and that others load plainly whenever they like: a clock that is set
 * by a timer, as servers have. Who sees a new time refreshes what it keeps,
 * under a lock. How often that happens never reaches the output. */
#include "common.h"

#include <stdatomic.h>
#include <time.h>

static atomic_uint now;
static atomic_uint working ALIGNED;
static pthread_mutex_t mutex ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static unsigned refreshed_at;
static uint64_t refreshed;
static uint64_t digest;

static unsigned time_now(void) {
    return atomic_load_explicit(&now, memory_order_relaxed);
}

static NOINLINE void set_clock(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    unsigned ticks = (unsigned)(time.tv_nsec / 100000) + 1;
    if (ticks != time_now())
        atomic_store_explicit(&now, ticks, memory_order_relaxed);
}

static uint64_t keep_time(void) {
    while (atomic_load(&working) != 0) {
        struct timespec moment = {0, 50000};
        nanosleep(&moment, NULL);
        set_clock();
    }
    return 0;
}

static NOINLINE void leave(void) {
    atomic_fetch_sub(&working, 1);
}

static NOINLINE uint64_t serve(unsigned self, unsigned long rounds) {
    uint64_t mine = 0;
    unsigned seen = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        mine += work(i * MAX_THREADS + self, 100);
        unsigned time = time_now();
        if (time == seen)
            continue;
        seen = time;
        pthread_mutex_lock(&mutex);
        if (refreshed_at != seen)
            refreshed++;
        refreshed_at = seen;
        pthread_mutex_unlock(&mutex);
    }
    pthread_mutex_lock(&mutex);
    digest += mine;
    pthread_mutex_unlock(&mutex);
    leave();
    return 0;
}

static uint64_t role(unsigned self, unsigned long rounds) {
    return self == 0 ? keep_time() : serve(self, rounds);
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 50000);
    atomic_init(&working, 2);
    set_clock();
    run_crew(3, rounds, role);
    CHECK(refreshed > 0);
    printf("ex_clock digest %016" PRIx64 "\n", digest);
    return 0;
}
