/* Threads that write to words of their own all the time, and now and then to those of others: with and
 * without a lock prefix, in three sizes. Each also has a page that it may not write to every now and then,
 * until the handler of the fault lets it. What a thread has found depends on the schedule, and goes to
 * /dev/null, where a replay compares it. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 4, WORDS = 1024, SMALL = 64, PAGE = 4096 };

static _Atomic uint64_t words[THREADS * WORDS];
static _Atomic uint32_t stored[THREADS][SMALL];
static _Atomic unsigned char bytes[THREADS][SMALL];
static long rounds;
static _Atomic int faults;
static int nowhere;

static void let_write(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    faults++;
    mprotect((void *)((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE);
}

static void *run(void *argument)
{
    unsigned long me = (unsigned long)argument;
    uint64_t seed = me * 77 + 1, sum = 0;
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    _Atomic long *own = page;
    for (long round = 0; round < rounds; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        unsigned any = seed >> 40;
        for (unsigned at = 0; at < 20; at++) {
            atomic_fetch_add(&words[me * WORDS + (any + at) % WORDS], 1);
            atomic_store_explicit(&stored[me][at], (uint32_t)round + at, memory_order_release);
            unsigned char byte = bytes[me][at];
            atomic_compare_exchange_strong(&bytes[me][at], &byte, (unsigned char)(byte + 1));
            sum += byte;
        }
        if (round % 50 == 0) {
            sum += 3 * atomic_fetch_add(&words[any % (THREADS * WORDS)], 1);
            sum += stored[(me + 1) % THREADS][any % SMALL];
            sum += atomic_exchange(&bytes[(me + any) % THREADS][any % SMALL], (unsigned char)any);
        }
        atomic_fetch_add(own, 1);
        if (round % 200 == 0) {
            mprotect(page, PAGE, PROT_READ);
            atomic_fetch_add(own, 1);
        }
    }
    if (write(nowhere, &sum, sizeof sum) != sizeof sum)
        abort();
    return (void *)*own;
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? atol(argv[1]) : 1000;
    nowhere = open("/dev/null", O_WRONLY);
    struct sigaction action = {.sa_sigaction = let_write, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    pthread_t threads[THREADS];
    for (unsigned long id = 0; id < THREADS; id++)
        pthread_create(&threads[id], NULL, run, (void *)id);
    for (int id = 0; id < THREADS; id++) {
        void *own;
        pthread_join(threads[id], &own);
        printf("%ld of its own\n", (long)own);
    }
    printf("%d faults\n", faults);
    return 0;
}
