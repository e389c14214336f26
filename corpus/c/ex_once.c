/* ex_once: all threads race to many pthread_once controls. Each initializer
 * runs once, and all see what it wrote. */
#include "common.h"

#define CONTROLS 256

static pthread_once_t controls[CONTROLS];
static uint64_t values[CONTROLS];
static unsigned long runs;
static __thread unsigned current;

/* pthread_once passes no argument: the control's index waits in a thread
 * local. */
static void initialize(void) {
    values[current] = work(current, 500);
    __atomic_fetch_add(&runs, 1, __ATOMIC_RELAXED);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++)
        for (current = 0; current < CONTROLS; current++) {
            CHECK(pthread_once(&controls[current], initialize) == 0);
            digest += values[current];
        }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 10000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 4);
    pthread_once_t fresh = PTHREAD_ONCE_INIT;
    for (unsigned i = 0; i < CONTROLS; i++)
        controls[i] = fresh;
    uint64_t digest = run_crew(threads, rounds, role);
    CHECK(runs == CONTROLS);
    printf("ex_once runs %lu digest %016" PRIx64 "\n", runs, digest);
    return 0;
}
