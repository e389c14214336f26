/* race: RACY ON PURPOSE. The threads update one plain counter without any
 * synchronization and branch on what they read, so a recording that keeps only
 * the order of synchronization diverges, and a race detector must name
 * `counter` in `update`. The output does not depend on the race. */
#include "common.h"

static volatile uint64_t counter ALIGNED;

static NOINLINE void update(uint64_t *odd) {
    uint64_t seen = counter;
    if (seen & 1)
        ++*odd;
    counter = seen + 1;
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t odd = self;
    for (unsigned long i = 0; i < rounds; i++) {
        update(&odd);
        work(i, 4);
    }
    return odd;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 2000000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    run_crew(threads, rounds, role);
    CHECK(counter >= 1 && counter <= rounds * threads);
    printf("race: at most %lu updates\n", rounds * threads);
    return 0;
}
