/* two_atomics: a lock that keeps two atomic variables consistent.
 *
 * Each section moves an amount from one account to another. Both are atomic, so
 * that others may look at one of them without the lock; the sum is right only
 * under it. The sections conflict in atomic variables alone, and no hand-over
 * is unnecessary. */
#include "common.h"

#include <stdatomic.h>

static pthread_mutex_t lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static atomic_long left ALIGNED = 1 << 30;
static atomic_long right ALIGNED;

static NOINLINE void move(long amount) {
    pthread_mutex_lock(&lock); /* @site move: tlcp with move, look */
    atomic_fetch_sub(&left, amount);
    work(1, 300);
    atomic_fetch_add(&right, amount);
    pthread_mutex_unlock(&lock);
}

static NOINLINE void look(void) {
    pthread_mutex_lock(&lock); /* @site look */
    CHECK(atomic_load(&left) + atomic_load(&right) == 1 << 30);
    pthread_mutex_unlock(&lock);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        move((long)(self + 1));
        work(i, 300);
        look();
    }
    return self;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 4000);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
    run_crew(threads, rounds, role);
    printf("two_atomics %ld %ld\n", atomic_load(&left), atomic_load(&right));
    return 0;
}
