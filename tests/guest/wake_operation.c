/* FUTEX_WAKE_OP: the kernel changes a word that other threads change by locked instructions, and
 * look at. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUNDS = 4000 };

static _Atomic uint32_t first, word;
static _Atomic uint64_t seen;

static void *by_instruction(void *unused)
{
    uint64_t digest = 0;
    for (int i = 0; i < ROUNDS; i++)
        digest = digest * 31 + atomic_fetch_add(&word, 2);
    atomic_fetch_xor(&seen, digest);
    return unused;
}

static void *by_kernel(void *unused)
{
    uint64_t digest = 0;
    for (int i = 0; i < ROUNDS; i++) {
        long woken = syscall(SYS_futex, &first, FUTEX_WAKE_OP_PRIVATE, 1, 1, &word,
                             FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_GT, 0));
        if (woken != 0)
            return "somebody was woken";
        digest = digest * 31 + atomic_load(&word);
    }
    atomic_fetch_xor(&seen, digest);
    return unused;
}

/* Who waits on the second word is woken if its old value says so. */
static void *wait(void *unused)
{
    while (atomic_load(&first) == 0)
        syscall(SYS_futex, &first, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return unused;
}

int main(void)
{
    void *(*const works[])(void *) = { by_instruction, by_kernel, by_instruction, by_kernel };
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, works[i], NULL);
    for (int i = 0; i < 4; i++) {
        void *said;
        pthread_join(threads[i], &said);
        if (said)
            puts(said);
    }
    printf("%u\n", atomic_load(&word));
    /* What the replay is held against: it depends on the order. */
    char path[64];
    snprintf(path, sizeof path, "%llx", (unsigned long long)seen);
    access(path, F_OK);

    pthread_t waiter;
    pthread_create(&waiter, NULL, wait, NULL);
    usleep(20000);
    syscall(SYS_futex, &word, FUTEX_WAKE_OP_PRIVATE, 1, 1, &first,
            FUTEX_OP(FUTEX_OP_SET, 1, FUTEX_OP_CMP_EQ, 0));
    pthread_join(waiter, NULL);
    printf("%u\n", atomic_load(&first));
    return 0;
}
