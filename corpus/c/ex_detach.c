/* ex_detach: threads that are detached while they end. Whoever comes second,
 * the thread or who detaches it, frees its descriptor and stack. */
#include "common.h"

#include <stdatomic.h>
#include <unistd.h>

static atomic_ulong ended;

static void *ends(void *argument) {
    work(1, (unsigned)(uintptr_t)argument);
    ended++;
    return NULL;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 300);
    uint64_t seed = 1;
    for (unsigned long i = 0; i < rounds; i++) {
        pthread_t thread;
        seed = mix(seed);
        void *steps = (void *)(uintptr_t)(seed % 1000);
        CHECK(pthread_create(&thread, NULL, ends, steps) == 0);
        work(seed, seed >> 32 & 8191);
        CHECK(pthread_detach(thread) == 0);
    }
    while (ended < rounds)
        CHECK(usleep(100) == 0);
    printf("ex_detach %lu\n", rounds);
    return 0;
}
