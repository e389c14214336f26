/* ex_futex: a mutex and an event of our own on the bare futex call, unknown to
 * any library hook. The mutex has three states: free, held, held with waiters. */
#include "common.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FREE, HELD, CONTENDED };

static _Atomic uint32_t mutex ALIGNED;
static _Atomic uint32_t gate ALIGNED;
static unsigned long count ALIGNED;

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    long result = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL);
    CHECK(result == 0 || errno == EAGAIN || errno == EINTR);
}

static void futex_wake(_Atomic uint32_t *word, int waiters) {
    CHECK(syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, waiters) >= 0);
}

/* `syscall` is declared a leaf, so GCC concludes that a function of nothing but
 * it and atomics leaves our static data alone, and keeps `count` in a register
 * across the call. Not looking into the function is what a library would give. */
#if __has_attribute(noipa)
#define OPAQUE __attribute__((noipa))
#else
#define OPAQUE NOINLINE
#endif

static OPAQUE void lock(void) {
    uint32_t seen = FREE;
    if (!atomic_compare_exchange_strong(&mutex, &seen, HELD))
        while (atomic_exchange(&mutex, CONTENDED) != FREE)
            futex_wait(&mutex, CONTENDED);
}

static OPAQUE void unlock(void) {
    if (atomic_exchange(&mutex, FREE) == CONTENDED)
        futex_wake(&mutex, 1);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    if (self == 0) {
        atomic_store(&gate, 1);
        futex_wake(&gate, MAX_THREADS);
    }
    while (atomic_load(&gate) == 0)
        futex_wait(&gate, 0);
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        lock();
        count++;
        unlock();
        digest = work(digest, 20);
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 100000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 3);
    uint64_t digest = run_crew(threads, rounds, role);
    CHECK(count == rounds * threads);
    printf("ex_futex %lu digest %016" PRIx64 "\n", count, digest);
    return 0;
}
