/* race: RACY ON PURPOSE. The threads update one plain counter without any
 * synchronization and take a lock or not, depending on what they read. So a
 * recording that keeps only the order of synchronization diverges, and a race
 * detector must name `counter` in `update`, on the lines that say so. The
 * output does not depend on the race. */
#include "common.h"

static volatile uint64_t counter ALIGNED;
static pthread_mutex_t odd_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static uint64_t odd;

static NOINLINE void note_odd(void) {
    pthread_mutex_lock(&odd_lock);
    odd++;
    pthread_mutex_unlock(&odd_lock);
}

static NOINLINE void update(void) {
    uint64_t seen = counter; /* races */
    counter = seen + 1;      /* races */
    if (seen & 1)
        note_odd();
}

static uint64_t role(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        update();
        work(i, 4);
    }
    return self;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 2000000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    run_crew(threads, rounds, role);
    CHECK(counter >= 1 && counter <= rounds * threads);
    CHECK(odd <= rounds * threads);
    printf("race: at most %lu updates\n", rounds * threads);
    return 0;
}
