/* census.c: an independent judge of the annotations.
 *
 * A case is compiled with -fsanitize=thread, but linked with this runtime in
 * place of ThreadSanitizer's: the compiler then reports every access to memory
 * that other threads might see, and --wrap reports every lock call. At the end
 * of the program each critical section's shared bytes are known (those that two
 * threads touch anywhere), and pairs are judged by PerfPlay's Algorithm 1.
 *
 * For each section, the next REACH sections of every other thread on the same
 * lock are its partners. The result is one line for each pair of call sites and
 * kind, written to $CENSUS_OUT:
 *
 *     kind return-address return-address pairs of-these-consecutive
 *
 * One lock guards it all: slow, simple, and in the test only. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REACH 8
#define MAX_HELD 8
#define MAX_THREADS 64
#define SLOTS (1u << 21)

enum mode { EXCLUSIVE, SHARED };
enum kind { NULL_LOCK, READ_READ, DISJOINT_WRITE, CONFLICT, KINDS };
static const char *const kind_names[KINDS] = {"null-lock", "read-read",
                                              "disjoint-write", "conflict"};

struct access {
    uintptr_t address;
    unsigned size;
    int write;
};

struct section {
    const void *lock, *site;
    enum mode mode;
    unsigned thread;
    struct access *accesses;
    size_t count, capacity;
    uintptr_t *reads, *writes; /* shared bytes, sorted */
    size_t n_reads, n_writes;
};

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static struct section **sections;
static size_t n_sections, cap_sections;
static unsigned n_threads;

/* Which threads touched a byte: an open hash table of addresses. */
static struct {
    uintptr_t address;
    uint64_t threads;
} touched[SLOTS];
static unsigned used;

static __thread unsigned self; /* 0: not yet seen */
static __thread struct section *held[MAX_HELD];
static __thread unsigned n_held;

int __real_pthread_mutex_lock(pthread_mutex_t *);
int __real_pthread_mutex_unlock(pthread_mutex_t *);

static void die(const char *why) {
    fprintf(stderr, "census: %s\n", why);
    _Exit(98);
}

static void enter(void) {
    __real_pthread_mutex_lock(&big);
    if (self == 0 && (self = ++n_threads) > MAX_THREADS)
        die("too many threads");
}

static void leave(void) { __real_pthread_mutex_unlock(&big); }

static void *grow(void *array, size_t *capacity, size_t size) {
    *capacity = *capacity ? *capacity * 2 : 16;
    void *larger = realloc(array, *capacity * size);
    if (!larger)
        die("out of memory");
    return larger;
}

static uint64_t *threads_of(uintptr_t address) {
    unsigned i = (unsigned)(address * UINT64_C(0x9e3779b97f4a7c15) >> 43);
    while (touched[i].address != 0 && touched[i].address != address)
        i = (i + 1) % SLOTS;
    if (touched[i].address == 0) {
        touched[i].address = address;
        if (++used > SLOTS / 2)
            die("too many addresses");
    }
    return &touched[i].threads;
}

static void on_access(const void *address, unsigned size, int write) {
    enter();
    for (unsigned i = 0; i < size; i++)
        *threads_of((uintptr_t)address + i) |= UINT64_C(1) << (self - 1);
    for (unsigned i = 0; i < n_held; i++) {
        struct section *s = held[i];
        if (s->count == s->capacity)
            s->accesses = grow(s->accesses, &s->capacity, sizeof *s->accesses);
        s->accesses[s->count++] = (struct access){(uintptr_t)address, size, write};
    }
    leave();
}

static void begin(const void *lock, const void *site, enum mode mode) {
    enter();
    struct section *s = calloc(1, sizeof *s);
    if (!s || n_held == MAX_HELD)
        die("cannot begin a section");
    *s = (struct section){.lock = lock, .site = site, .mode = mode, .thread = self};
    if (n_sections == cap_sections)
        sections = grow(sections, &cap_sections, sizeof *sections);
    sections[n_sections++] = s;
    held[n_held++] = s;
    leave();
}

static void end(const void *lock) {
    unsigned i = n_held;
    while (i > 0 && held[i - 1]->lock != lock)
        i--;
    if (i == 0)
        die("a lock is released that is not held");
    memmove(&held[i - 1], &held[i], (n_held - i) * sizeof *held);
    n_held--;
}

/* ---- judging ---- */

static int by_address(const void *a, const void *b) {
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

static size_t shared_bytes(const struct section *s, int write, uintptr_t **out) {
    uintptr_t *bytes = NULL;
    size_t n = 0, capacity = 0, unique = 0;
    for (size_t i = 0; i < s->count; i++)
        for (unsigned b = 0; b < s->accesses[i].size; b++) {
            uintptr_t address = s->accesses[i].address + b;
            uint64_t threads = *threads_of(address);
            if (s->accesses[i].write != write || (threads & (threads - 1)) == 0)
                continue;
            if (n == capacity)
                bytes = grow(bytes, &capacity, sizeof *bytes);
            bytes[n++] = address;
        }
    if (n > 0)
        qsort(bytes, n, sizeof *bytes, by_address);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || bytes[i] != bytes[i - 1])
            bytes[unique++] = bytes[i];
    *out = bytes;
    return unique;
}

static int meet(const uintptr_t *a, size_t n, const uintptr_t *b, size_t m) {
    size_t i = 0, j = 0;
    while (i < n && j < m) {
        if (a[i] == b[j])
            return 1;
        if (a[i] < b[j])
            i++;
        else
            j++;
    }
    return 0;
}

static enum kind judge(const struct section *a, const struct section *b) {
    if (a->n_reads + a->n_writes == 0 || b->n_reads + b->n_writes == 0)
        return NULL_LOCK;
    if (a->n_writes + b->n_writes == 0)
        return READ_READ;
    if (meet(a->reads, a->n_reads, b->writes, b->n_writes) ||
        meet(a->writes, a->n_writes, b->reads, b->n_reads) ||
        meet(a->writes, a->n_writes, b->writes, b->n_writes))
        return CONFLICT;
    return DISJOINT_WRITE;
}

static struct tally {
    const void *first, *second;
    unsigned long pairs[KINDS], consecutive[KINDS];
} tallies[256];
static unsigned n_tallies;

static struct tally *tally_of(const void *a, const void *b) {
    const void *first = a < b ? a : b, *second = a < b ? b : a;
    for (unsigned i = 0; i < n_tallies; i++)
        if (tallies[i].first == first && tallies[i].second == second)
            return &tallies[i];
    if (n_tallies == 256)
        die("too many pairs of sites");
    tallies[n_tallies] = (struct tally){.first = first, .second = second};
    return &tallies[n_tallies++];
}

/* Counts a section against its partners, looking forward. */
static void count_partners(size_t at) {
    const struct section *s = sections[at];
    unsigned seen[MAX_THREADS + 1] = {0}, on_lock = 0, complete = 0;
    for (size_t i = at + 1; i < n_sections && complete + 1 < n_threads; i++) {
        const struct section *other = sections[i];
        if (other->lock != s->lock)
            continue;
        on_lock++;
        if (other->thread == s->thread || seen[other->thread] >= REACH)
            continue;
        complete += ++seen[other->thread] == REACH;
        if (s->mode == SHARED && other->mode == SHARED)
            continue;
        struct tally *tally = tally_of(s->site, other->site);
        enum kind kind = judge(s, other);
        tally->pairs[kind]++;
        tally->consecutive[kind] += on_lock == 1;
    }
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("CENSUS_OUT");
    FILE *out = path ? fopen(path, "w") : stderr;
    if (!out)
        die("cannot write $CENSUS_OUT");
    for (size_t i = 0; i < n_sections; i++) {
        sections[i]->n_reads = shared_bytes(sections[i], 0, &sections[i]->reads);
        sections[i]->n_writes = shared_bytes(sections[i], 1, &sections[i]->writes);
    }
    for (size_t i = 0; i < n_sections; i++)
        count_partners(i);
    for (unsigned i = 0; i < n_tallies; i++)
        for (unsigned kind = 0; kind < KINDS; kind++)
            if (tallies[i].pairs[kind])
                fprintf(out, "%s %p %p %lu %lu\n", kind_names[kind],
                        tallies[i].first, tallies[i].second,
                        tallies[i].pairs[kind], tallies[i].consecutive[kind]);
    if (out != stderr && fclose(out) != 0)
        die("cannot write $CENSUS_OUT");
}

/* ---- what the program calls ---- */

#define HERE __builtin_return_address(0)

#define TAKES(name, type, mode)                                               \
    int __real_##name(type *);                                                \
    int __wrap_##name(type *lock) {                                           \
        int result = __real_##name(lock);                                     \
        begin((const void *)lock, HERE, mode);                                \
        return result;                                                        \
    }
#define GIVES(name, type)                                                     \
    int __real_##name(type *);                                                \
    int __wrap_##name(type *lock) {                                           \
        end((const void *)lock);                                              \
        return __real_##name(lock);                                           \
    }

TAKES(pthread_mutex_lock, pthread_mutex_t, EXCLUSIVE)
GIVES(pthread_mutex_unlock, pthread_mutex_t)
TAKES(pthread_spin_lock, pthread_spinlock_t, EXCLUSIVE)
GIVES(pthread_spin_unlock, pthread_spinlock_t)
TAKES(pthread_rwlock_rdlock, pthread_rwlock_t, SHARED)
TAKES(pthread_rwlock_wrlock, pthread_rwlock_t, EXCLUSIVE)
GIVES(pthread_rwlock_unlock, pthread_rwlock_t)

int __real_pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock) {
    end(lock);
    int result = __real_pthread_cond_wait(cond, lock);
    begin(lock, HERE, EXCLUSIVE);
    return result;
}

int __real_pthread_cond_timedwait(pthread_cond_t *, pthread_mutex_t *,
                                  const struct timespec *);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *deadline) {
    end(lock);
    int result = __real_pthread_cond_timedwait(cond, lock, deadline);
    begin(lock, HERE, EXCLUSIVE);
    return result;
}

/* ---- what the instrumentation calls ---- */

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}

#define ACCESS(size)                                                          \
    void __tsan_read##size(void *p) { on_access(p, size, 0); }                \
    void __tsan_write##size(void *p) { on_access(p, size, 1); }               \
    void __tsan_unaligned_read##size(void *p) { on_access(p, size, 0); }      \
    void __tsan_unaligned_write##size(void *p) { on_access(p, size, 1); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_read_range(void *p, unsigned long n) { on_access(p, (unsigned)n, 0); }
void __tsan_write_range(void *p, unsigned long n) { on_access(p, (unsigned)n, 1); }

#define ATOMIC(bits)                                                          \
    typedef uint##bits##_t u##bits;                                           \
    u##bits __tsan_atomic##bits##_load(u##bits *p, int order) {               \
        (void)order;                                                          \
        on_access(p, bits / 8, 0);                                            \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                          \
    }                                                                         \
    void __tsan_atomic##bits##_store(u##bits *p, u##bits v, int order) {      \
        (void)order;                                                          \
        on_access(p, bits / 8, 1);                                            \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                             \
    }                                                                         \
    UPDATE(bits, fetch_add) UPDATE(bits, fetch_sub) UPDATE(bits, fetch_xor)
#define UPDATE(bits, name)                                                    \
    u##bits __tsan_atomic##bits##_##name(u##bits *p, u##bits v, int order) {  \
        (void)order;                                                          \
        on_access(p, bits / 8, 0);                                            \
        on_access(p, bits / 8, 1);                                            \
        return __atomic_##name(p, v, __ATOMIC_SEQ_CST);                       \
    }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)
