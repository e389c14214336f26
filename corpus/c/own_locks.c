/* own_locks: locks that the library knows nothing of, each with a section that
 * only reads (read-read) and one that a counter truly needs (tlcp).
 *
 * An atomic_flag that is spun on, a mutex on the bare futex call, a ticket lock,
 * and a semaphore of one. The line of a section is where its lock function is
 * called; none of these functions says in its name what it is. All are released
 * by locked instructions: a plain store that the recording does not watch is no
 * event, and a lock released so is not recognised. */
#include "common.h"

#include <linux/futex.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t table[64];
static uint64_t counts[4][8];

static atomic_flag flag ALIGNED = ATOMIC_FLAG_INIT;

static NOINLINE void flag_on(void) {
    while (atomic_flag_test_and_set_explicit(&flag, memory_order_acquire))
        __builtin_ia32_pause();
}

static NOINLINE void flag_off(void) {
    atomic_exchange_explicit((_Atomic unsigned char *)&flag, 0, memory_order_release);
}

static atomic_int word ALIGNED;

static NOINLINE void word_on(void) {
    int seen = 0;
    if (atomic_compare_exchange_strong(&word, &seen, 1))
        return;
    while (atomic_exchange(&word, 2) != 0)
        syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static NOINLINE void word_off(void) {
    if (atomic_exchange(&word, 0) == 2)
        syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static atomic_uint drawn ALIGNED, turn ALIGNED;

static NOINLINE void ticket_on(void) {
    unsigned mine = atomic_fetch_add(&drawn, 1);
    while (atomic_load_explicit(&turn, memory_order_acquire) != mine)
        __builtin_ia32_pause();
}

static NOINLINE void ticket_off(void) {
    atomic_fetch_add_explicit(&turn, 1, memory_order_release);
}

static sem_t only_one ALIGNED;

static NOINLINE uint64_t sum(void) {
    uint64_t all = 0;
    for (unsigned i = 0; i < 64; i++)
        all += table[i];
    return all;
}

static NOINLINE uint64_t looks(void) {
    uint64_t all = 0;
    flag_on(); /* @site flag_look: read-read with flag_look */
    all += sum();
    flag_off();
    word_on(); /* @site word_look: read-read with word_look */
    all += sum();
    word_off();
    ticket_on(); /* @site ticket_look: read-read with ticket_look */
    all += sum();
    ticket_off();
    sem_wait(&only_one); /* @site sem_look: read-read with sem_look */
    all += sum();
    sem_post(&only_one);
    return all;
}

static NOINLINE void changes(void) {
    flag_on(); /* @site flag_count: tlcp with flag_count */
    counts[0][0] = counts[0][0] * 5 + 1;
    flag_off();
    word_on(); /* @site word_count: tlcp with word_count */
    counts[1][0] = counts[1][0] * 5 + 1;
    word_off();
    ticket_on(); /* @site ticket_count: tlcp with ticket_count */
    counts[2][0] = counts[2][0] * 5 + 1;
    ticket_off();
    sem_wait(&only_one); /* @site sem_count: tlcp with sem_count */
    counts[3][0] = counts[3][0] * 5 + 1;
    sem_post(&only_one);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = self;
    for (unsigned long i = 0; i < rounds; i++) {
        in_step(i);
        digest = work(digest ^ looks(), 300);
        in_step(i);
        changes();
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 300);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
    CHECK(sem_init(&only_one, 0, 1) == 0);
    for (unsigned i = 0; i < 64; i++)
        table[i] = mix(i);
    uint64_t digest = run_crew(threads, rounds, role);
    uint64_t expected = 0;
    for (unsigned long round = 0; round < rounds * threads; round++)
        expected = expected * 5 + 1;
    for (unsigned i = 0; i < 4; i++)
        CHECK(counts[i][0] == expected);
    printf("own_locks digest %016" PRIx64 "\n", digest);
    return 0;
}
