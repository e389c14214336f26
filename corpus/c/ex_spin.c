/* ex_spin: spin locks, taken and tried. */
#include "common.h"

#include <errno.h>

static pthread_spinlock_t lock ALIGNED;
static unsigned long count ALIGNED;

static uint64_t hammer(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        if ((i + self) % 2) {
            CHECK(pthread_spin_lock(&lock) == 0);
        } else {
            int busy;
            while ((busy = pthread_spin_trylock(&lock)) == EBUSY)
                work(self, 4);
            CHECK(busy == 0);
        }
        count++;
        CHECK(pthread_spin_unlock(&lock) == 0);
        work(i, 20);
    }
    return 0;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 300000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    CHECK(pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE) == 0);
    run_crew(threads, rounds, hammer);
    CHECK(pthread_spin_destroy(&lock) == 0);
    CHECK(count == rounds * threads);
    printf("ex_spin %lu\n", count);
    return 0;
}
