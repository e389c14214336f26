/* What every pair shares: arguments, threads, and work of a known length.
 *
 * argv: rounds of each thread, threads, work inside of a section, work outside; work in steps of
 * about a nanosecond. A pair prints the same in both variants, whatever the schedule. */
#ifndef PAIR_H
#define PAIR_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef FIXED
#define FIXED 0
#endif

/* A lock that the fixed variant does without. */
#define UNUSED_WHEN_FIXED __attribute__((unused))

enum { LINE = 128, MOST_THREADS = 64 };

static unsigned long rounds = 1000, threads = 2, inside = 50, outside = 50;

/* A chain of dependent additions and shifts: no memory, no lock. */
static inline uint64_t work(unsigned long steps, uint64_t seed)
{
    for (unsigned long step = 0; step < steps; step++) {
        seed += (seed >> 7) ^ step;
        __asm__ volatile("" : "+r"(seed));
    }
    return seed;
}

struct worker {
    pthread_t thread;
    unsigned long id;
    uint64_t sum;
    char pad[LINE];
};

static struct worker workers[MOST_THREADS];
static pthread_barrier_t start_line;

static void run(struct worker *self);

static void *run_worker(void *argument)
{
    pthread_barrier_wait(&start_line);
    run((struct worker *)argument);
    return NULL;
}

/* Runs `run` in every thread, and returns the sum of their sums. */
static uint64_t run_all(int argc, char **argv)
{
    unsigned long *numbers[] = {&rounds, &threads, &inside, &outside};
    for (int i = 1; i < argc && i <= 4; i++)
        *numbers[i - 1] = strtoul(argv[i], NULL, 10);
    if (threads < 1 || threads > MOST_THREADS)
        exit(2);
    pthread_barrier_init(&start_line, NULL, (unsigned)threads);
    for (unsigned long id = 0; id < threads; id++) {
        workers[id].id = id;
        pthread_create(&workers[id].thread, NULL, run_worker, &workers[id]);
    }
    uint64_t sum = 0;
    for (unsigned long id = 0; id < threads; id++) {
        pthread_join(workers[id].thread, NULL);
        sum += workers[id].sum;
    }
    return sum;
}

#endif
