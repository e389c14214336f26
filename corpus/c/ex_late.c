/* ex_late: threads that wait for a word for long before the program sets a
 * handler and sends them signals. One looks at the word all the time, one
 * computes between its looks. Neither does anything else that would show where
 * it was when a signal came. */
#include "common.h"

#include <signal.h>
#include <stdatomic.h>
#include <time.h>

static _Atomic int is_held = 1;
static _Atomic unsigned taken;

static NOINLINE int look(_Atomic int *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void count(int signal) {
    (void)signal;
    atomic_fetch_add(&taken, 1);
}

static void *spin(void *argument) {
    unsigned steps = argument == NULL ? 0 : 2000;
    uint64_t seed = 1;
    while (look(&is_held)) {
        for (int i = 0; i < 50; i++)
            __builtin_ia32_pause();
        seed = work(seed, steps);
    }
    return NULL;
}

static void nap(long nanoseconds) {
    nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
}

int main(int argc, char **argv) {
    unsigned long signals = arg(argc, argv, 1, 20);
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, spin, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, spin, threads) == 0);
    nap(20000000);
    struct sigaction action = {.sa_handler = count};
    sigaction(SIGUSR1, &action, NULL);
    for (unsigned long i = 0; i < signals; i++) {
        unsigned before = atomic_load(&taken);
        CHECK(pthread_kill(threads[i % 2], SIGUSR1) == 0);
        while (atomic_load(&taken) == before)
            nap(100000);
    }
    atomic_store(&is_held, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("ex_late taken %u\n", taken);
    return 0;
}
