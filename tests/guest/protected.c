/* One thread protects pages and makes them accessible again; the others access them, and their handler
 * of SIGSEGV waits until they may. When each fault came is printed: it depends on nothing but which
 * accesses a call of mprotect came between. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 2, PAGES = 2, SIZE = 4096, ROUNDS = 40 };

static char *pages;
static atomic_int finished;
static __thread volatile unsigned long at, faults, when;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    faults++;
    when = when * 31 + at;
    usleep(50);
}

static void *access_pages(void *argument)
{
    char *mine = pages + (long)argument * 64;
    unsigned long sum = 0;
    for (at = 0; !atomic_load_explicit(&finished, memory_order_relaxed) || at % 1000 != 0; at++) {
        mine[0] = (char)at;
        sum += (unsigned char)mine[SIZE];
    }
    printf("%lu faults, %lx, %lx\n", faults, when, sum);
    return NULL;
}

int main(void)
{
    pages = mmap(NULL, PAGES * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, access_pages, (void *)i);
    for (int round = 0; round < ROUNDS; round++) {
        usleep(100);
        mprotect(pages + round % PAGES * SIZE, SIZE, round % 3 == 0 ? PROT_READ : PROT_NONE);
        usleep(100);
        mprotect(pages + round % PAGES * SIZE, SIZE, PROT_READ | PROT_WRITE);
    }
    atomic_store(&finished, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
