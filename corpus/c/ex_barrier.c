/* ex_barrier: barriers, with one serial thread for each phase. Between two
 * waits each thread reads what its neighbour wrote before the first one. */
#include "common.h"

static pthread_barrier_t barrier;
static uint64_t cells[2][MAX_THREADS];
static unsigned crew_size;
static unsigned long serials;

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t value = self;
    for (unsigned long i = 0; i < rounds; i++) {
        cells[i % 2][self] = value;
        int result = pthread_barrier_wait(&barrier);
        CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
        value = mix(value ^ cells[i % 2][(self + 1) % crew_size]);
        if (result == PTHREAD_BARRIER_SERIAL_THREAD)
            __atomic_fetch_add(&serials, 1, __ATOMIC_RELAXED);
    }
    return value;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 5000);
    crew_size = threads_arg(argc, argv, 2, 1, 3);
    CHECK(pthread_barrier_init(&barrier, NULL, crew_size) == 0);
    uint64_t digest = run_crew(crew_size, rounds, role);
    CHECK(pthread_barrier_destroy(&barrier) == 0);
    CHECK(serials == rounds);
    printf("ex_barrier phases %lu digest %016" PRIx64 "\n", rounds, digest);
    return 0;
}
