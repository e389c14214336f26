/* case08: PerfPlay Appendix, Case 8: four lookups for one block (MySQL #69276).
 *
 * To read a block, four functions look the tablespace up in a hash table, each
 * under the same mutex. Two of them only read it: read-read among themselves.
 * The other two also count pending operations of the thread's own space:
 * disjoint-write against all. Fix: one lookup, in shared mode, whose pointer
 * is kept; the pending count becomes atomic. */
#include "common.h"

#include <stdatomic.h>

#define BUCKETS 8

struct space {
    struct space *next;
    uint64_t id, version, size;
#if FIXED
    _Atomic uint64_t pending;
#else
    uint64_t pending;
#endif
};

static struct space pool[MAX_THREADS];
static struct space *buckets[BUCKETS] ALIGNED;
#if FIXED
static pthread_rwlock_t fil_system ALIGNED = PTHREAD_RWLOCK_INITIALIZER;
#else
static pthread_mutex_t fil_system ALIGNED = PTHREAD_MUTEX_INITIALIZER;
#endif

static NOINLINE struct space *get_by_id(uint64_t id) {
    struct space *space = buckets[id % BUCKETS];
    while (space && space->id != id)
        space = space->next;
    work(id, 1000);
    return space;
}

#if FIXED
static NOINLINE uint64_t read_block(uint64_t id) {
    pthread_rwlock_rdlock(&fil_system); /* @site lookup in fixed */
    struct space *space = get_by_id(id);
    pthread_rwlock_unlock(&fil_system);
    atomic_fetch_add(&space->pending, 1);
    uint64_t block = work(space->version, 2000) + space->size;
    atomic_fetch_sub(&space->pending, 1);
    return block;
}
#else
static NOINLINE uint64_t get_version(uint64_t id) {
    pthread_mutex_lock(&fil_system); /* @site version: read-read with version, size; disjoint-write with inc, decr */
    uint64_t version = get_by_id(id)->version;
    pthread_mutex_unlock(&fil_system);
    return version;
}

static NOINLINE void inc_pending(uint64_t id) {
    pthread_mutex_lock(&fil_system); /* @site inc: disjoint-write with inc, decr */
    get_by_id(id)->pending++;
    pthread_mutex_unlock(&fil_system);
}

static NOINLINE void decr_pending(uint64_t id) {
    pthread_mutex_lock(&fil_system); /* @site decr: disjoint-write with decr */
    get_by_id(id)->pending--;
    pthread_mutex_unlock(&fil_system);
}

static NOINLINE uint64_t get_size(uint64_t id) {
    pthread_mutex_lock(&fil_system); /* @site size: read-read with size; disjoint-write with inc, decr */
    uint64_t size = get_by_id(id)->size;
    pthread_mutex_unlock(&fil_system);
    return size;
}

static uint64_t read_block(uint64_t id) {
    uint64_t version = get_version(id);
    inc_pending(id);
    uint64_t block = work(version, 2000);
    decr_pending(id);
    return block + get_size(id);
}
#endif

#if !FIXED
/* Threads call the four functions in step, in turns of four and of five of which
 * one calls nothing, so that each call meets each. */
static void meet(unsigned self) {
    for (unsigned i = 0; i < IN_STEP; i++) {
        in_step(i);
        switch (i % (4 + self % 2)) {
        case 0:
            CHECK(get_version(self) == mix(self));
            break;
        case 1:
            inc_pending(self);
            break;
        case 2:
            decr_pending(self);
            break;
        case 3:
            CHECK(get_size(self) == mix(self) % 4096);
            break;
        }
    }
}
#endif

/* Spaces i and i + BUCKETS share a bucket; each thread reads its own space. */
static uint64_t transaction(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
#if !FIXED
    meet(self);
#endif
    for (unsigned long i = 0; i < rounds; i++) {
        digest += read_block(self);
        work(digest, 2000);
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 2000);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
    for (unsigned i = 0; i < MAX_THREADS; i++) {
        struct space **bucket = &buckets[i % BUCKETS];
        pool[i].next = *bucket;
        pool[i].id = i;
        pool[i].version = mix(i);
        pool[i].size = mix(i) % 4096;
        *bucket = &pool[i];
    }
    uint64_t digest = run_crew(threads, rounds, transaction);
    uint64_t pending = 0;
    for (unsigned i = 0; i < MAX_THREADS; i++)
        pending += pool[i].pending;
    printf("case08 pending %" PRIu64 " digest %016" PRIx64 "\n", pending, digest);
    return 0;
}
