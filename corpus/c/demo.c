/* demo: the workload of `refrain demo`, a small key-value cache server.
 *
 * Requests come in waves. Workers draw them from a queue, a few at a time, look
 * each key up in a cache that is only read while the server runs, keep statistics
 * and a log of slow requests. Each of the four steps takes a mutex of its own,
 * and only one of them needs it:
 *
 *   next_request   draws from one queue       a true contention
 *   cache_lookup   only reads the cache       read-read
 *   count_served   writes the worker's slot   disjoint-write
 *   log_if_slow    almost never logs          null-lock
 *
 * Build with -DFIXED=1 to see what the three fixes gain. The file stands alone:
 * it is compiled at build time and embedded in the command. */
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef FIXED
#define FIXED 0
#endif

#define NOINLINE __attribute__((noinline))
#define ALIGNED __attribute__((aligned(64)))

#define MAX_WORKERS 16
#define BUCKETS 128
#define KEYS 2048
#define SLOW_BYTES 4090
#define BATCH 8

struct entry {
    const struct entry *next;
    uint64_t key;
    uint32_t bytes;
};

/* The queue: requests are numbers, so drawing one is taking a ticket. */
static pthread_mutex_t queue_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static unsigned long next_ticket ALIGNED, last_ticket;
static unsigned last_worker ALIGNED;

/* A wave is a batch for each worker. It ends when all of them have served theirs. */
static unsigned long waves ALIGNED;
static pthread_barrier_t wave_ends ALIGNED;

/* The cache: filled at the start, read ever after. */
#if FIXED
static pthread_rwlock_t cache_lock ALIGNED = PTHREAD_RWLOCK_INITIALIZER;
#else
static pthread_mutex_t cache_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif
static struct entry entries[KEYS] ALIGNED;
static const struct entry *buckets[BUCKETS] ALIGNED;

/* The statistics: one slot for each worker, in one array. */
#if !FIXED
static pthread_mutex_t stats_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif
static struct {
    uint64_t served, hits, bytes;
} stats[MAX_WORKERS] ALIGNED;

/* The log of slow requests. */
static pthread_mutex_t log_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static uint64_t slow_requests ALIGNED, slow_sum;

/* A stand-in for parsing, formatting and the like: registers only. The empty
 * asm keeps every call where it is written. */
static NOINLINE uint64_t compute(uint64_t x, unsigned steps) {
    while (steps-- > 0) {
        x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9) + steps;
        __asm__ volatile("" : "+r"(x));
    }
    return x ^ (x >> 32);
}

/* The first of the next requests, or 0 when all are served. */
static NOINLINE unsigned long next_request(unsigned worker) {
    pthread_mutex_lock(&queue_lock); /* @site next_request: tlcp with next_request */
    unsigned long ticket = next_ticket < last_ticket ? next_ticket + 1 : 0;
    next_ticket += BATCH;
    last_worker = worker;
    pthread_mutex_unlock(&queue_lock);
    return ticket;
}

/* The size of the value under this key, or 0 for a miss. */
static NOINLINE uint32_t cache_lookup(uint64_t key) {
    uint32_t bytes = 0;
#if FIXED
    pthread_rwlock_rdlock(&cache_lock); /* @site cache_lookup_shared in fixed */
#else
    pthread_mutex_lock(&cache_lock); /* @site cache_lookup: read-read with cache_lookup */
#endif
    for (const struct entry *e = buckets[key % BUCKETS]; e; e = e->next) {
        if (compute(e->key, 400) == compute(key, 400)) {
            bytes = e->bytes;
            break;
        }
    }
#if FIXED
    pthread_rwlock_unlock(&cache_lock);
#else
    pthread_mutex_unlock(&cache_lock);
#endif
    return bytes;
}

/* Counts a request and updates the percentiles of its worker. */
static NOINLINE void count_served(unsigned worker, uint32_t bytes) {
#if !FIXED
    pthread_mutex_lock(&stats_lock); /* @site count_served: disjoint-write with count_served */
#endif
    stats[worker].served++;
    stats[worker].hits += bytes != 0;
    stats[worker].bytes += bytes;
    compute(bytes, 2500);
#if !FIXED
    pthread_mutex_unlock(&stats_lock);
#endif
}

/* Formats the request and logs it if it was slow, which is rare. */
static NOINLINE void log_if_slow(uint64_t key, uint32_t bytes) {
#if FIXED
    uint64_t line = compute(key, 2500);
    if (bytes >= SLOW_BYTES) {
        pthread_mutex_lock(&log_lock); /* @site log_slow in fixed: conflict with log_slow */
        slow_requests++;
        slow_sum += line;
        pthread_mutex_unlock(&log_lock);
    }
#else
    pthread_mutex_lock(&log_lock); /* @site log_if_slow: null-lock with log_if_slow */
    uint64_t line = compute(key, 2500);
    if (bytes >= SLOW_BYTES) {
        slow_requests++;
        slow_sum += line;
    }
    pthread_mutex_unlock(&log_lock);
#endif
}

static void *serve(void *argument) {
    unsigned worker = (unsigned)(uintptr_t)argument;
    uint64_t digest = 0;
    for (unsigned long wave = 0; wave < waves; wave++) {
        unsigned long first = next_request(worker);
        for (unsigned long i = first; i && i < first + BATCH && i <= last_ticket; i++) {
            uint64_t key = compute(i, 1500) % (KEYS + KEYS / 8);
            uint32_t bytes = cache_lookup(key);
            digest += compute(key ^ bytes, 1500);
            count_served(worker, bytes);
            log_if_slow(key, bytes);
        }
        pthread_barrier_wait(&wave_ends);
    }
    return (void *)(uintptr_t)digest;
}

static void fill_cache(void) {
    for (uint64_t key = 0; key < KEYS; key++) {
        struct entry *e = &entries[key];
        e->key = key;
        e->bytes = 1 + (uint32_t)(compute(key, 3) % 4096);
        e->next = buckets[key % BUCKETS];
        buckets[key % BUCKETS] = e;
    }
}

static unsigned long number(int argc, char **argv, int index,
                            unsigned long otherwise) {
    unsigned long n = argc > index ? strtoul(argv[index], NULL, 10) : otherwise;
    return n ? n : otherwise;
}

int main(int argc, char **argv) {
    pthread_t threads[MAX_WORKERS];
    unsigned workers = (unsigned)number(argc, argv, 2, 2);
    if (workers > MAX_WORKERS)
        workers = MAX_WORKERS;
    last_ticket = number(argc, argv, 1, 5000);
    waves = (last_ticket + BATCH * workers - 1) / (BATCH * workers);
    if (pthread_barrier_init(&wave_ends, NULL, workers) != 0)
        return 1;
    fill_cache();
    for (unsigned i = 0; i < workers; i++)
        if (pthread_create(&threads[i], NULL, serve, (void *)(uintptr_t)i) != 0)
            return 1;
    uint64_t digest = 0, served = 0, hits = 0, bytes = 0;
    for (unsigned i = 0; i < workers; i++) {
        void *result;
        pthread_join(threads[i], &result);
        digest += (uintptr_t)result;
        served += stats[i].served;
        hits += stats[i].hits;
        bytes += stats[i].bytes;
    }
    if (last_worker >= workers)
        return 1;
    printf("demo: %" PRIu64 " requests, %" PRIu64 " hits, %" PRIu64
           " bytes, %" PRIu64 " slow, digest %016" PRIx64 "\n",
           served, hits, bytes, slow_requests, digest ^ slow_sum);
    return 0;
}
