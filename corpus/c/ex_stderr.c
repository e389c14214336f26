/* ex_stderr: two threads are the first that write to stderr, one by perror,
 * which does something else while nothing has been written, and one by
 * fprintf. Each round opens stderr anew, which makes it as it was. */
#include "common.h"

#include <errno.h>

static pthread_barrier_t barrier;

static uint64_t role(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        if (self == 0)
            CHECK(freopen("/dev/null", "w", stderr) != NULL);
        pthread_barrier_wait(&barrier);
        for (volatile unsigned spins = 0; spins < (i * 7 + self * 13) % 64 * 64; spins++)
            ;
        errno = ENOENT;
        if ((self + i) % 2)
            perror("ex_stderr");
        else
            fprintf(stderr, "round %lu\n", i);
        pthread_barrier_wait(&barrier);
    }
    return rounds;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 3000);
    CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
    run_crew(2, rounds, role);
    CHECK(pthread_barrier_destroy(&barrier) == 0);
    printf("ex_stderr rounds %lu\n", rounds);
    return 0;
}
