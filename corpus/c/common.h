/* common.h: what every corpus program needs and nothing that it measures.
 *
 * The helpers keep to one promise: between two synchronization calls of the
 * program itself they touch only registers and the calling thread's stack.
 * A critical section that calls `work` therefore stays empty of shared data. */
#ifndef CORPUS_COMMON_H
#define CORPUS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef FIXED
#define FIXED 0 /* 1: the same work without the planted contention */
#endif

#define NOINLINE __attribute__((noinline))
#define CACHE_LINE 64
#define ALIGNED __attribute__((aligned(CACHE_LINE)))
#define MAX_THREADS 64

/* Unlike assert, CHECK evaluates and tests its argument in every build. */
#define CHECK(condition)                                                      \
    do {                                                                      \
        if (!(condition)) {                                                   \
            fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__,  \
                    #condition);                                              \
            exit(99);                                                         \
        }                                                                     \
    } while (0)

/* argv[index] as a positive number, or the default when it is not given. */
static inline unsigned long arg(int argc, char **argv, int index,
                                unsigned long otherwise) {
    if (argc <= index)
        return otherwise;
    char *end;
    unsigned long value = strtoul(argv[index], &end, 10);
    if (end == argv[index] || *end != '\0' || value == 0) {
        fprintf(stderr, "usage: %s [size] [threads]\n", argv[0]);
        exit(2);
    }
    return value;
}

/* argv[index] as a number of threads, between `least` and MAX_THREADS. */
static inline unsigned threads_arg(int argc, char **argv, int index,
                                   unsigned least, unsigned otherwise) {
    unsigned long n = arg(argc, argv, index, otherwise);
    return n < least ? least : n > MAX_THREADS ? MAX_THREADS : (unsigned)n;
}

/* One step of a 64-bit mixer (splitmix64): a pure function. */
static inline uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Private computation: `steps` mixer steps, a little under 4 ns each. The empty
 * asm keeps the compiler from moving or deleting a call whose result is unused. */
static NOINLINE __attribute__((unused)) uint64_t work(uint64_t seed,
                                                      unsigned steps) {
    while (steps-- > 0) {
        seed = mix(seed);
        __asm__ volatile("" : "+r"(seed));
    }
    return seed;
}

/* A worker gets its index and the size of the job, and returns a digest. It
 * travels back in a register, so no result array becomes shared memory. */
typedef uint64_t worker(unsigned self, unsigned long rounds);

struct crew_member {
    worker *body;
    unsigned self;
    unsigned long rounds;
};

static pthread_barrier_t crew_barrier ALIGNED;

#define IN_STEP 40

/* Called by every thread of a crew before each of its rounds, outside of all
 * critical sections. For the first rounds the crew goes in step, so that the
 * threads meet at their locks even where one hardly gets a processor; in all
 * later rounds each goes as it can. */
static inline void in_step(unsigned long round) {
    if (round < IN_STEP)
        pthread_barrier_wait(&crew_barrier);
}

static inline void *crew_enter(void *argument) {
    struct crew_member me = *(struct crew_member *)argument;
    pthread_barrier_wait(&crew_barrier);
    return (void *)(uintptr_t)me.body(me.self, me.rounds);
}

/* Runs `body` on so many threads, started together by a barrier, and returns
 * the sum of their digests: a number that no schedule can change. */
static inline uint64_t run_crew(unsigned threads, unsigned long rounds,
                                worker *body) {
    static struct crew_member crew[MAX_THREADS];
    static pthread_t ids[MAX_THREADS];
    uint64_t sum = 0;
    CHECK(threads <= MAX_THREADS);
    CHECK(pthread_barrier_init(&crew_barrier, NULL, threads) == 0);
    for (unsigned i = 0; i < threads; i++) {
        crew[i] = (struct crew_member){body, i, rounds};
        CHECK(pthread_create(&ids[i], NULL, crew_enter, &crew[i]) == 0);
    }
    for (unsigned i = 0; i < threads; i++) {
        void *digest;
        CHECK(pthread_join(ids[i], &digest) == 0);
        sum += (uintptr_t)digest;
    }
    CHECK(pthread_barrier_destroy(&crew_barrier) == 0);
    return sum;
}

#endif
