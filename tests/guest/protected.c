/* Pages that are protected to learn who writes to them, as the write barriers of
 * garbage collectors do: the handler of the first thread that faults makes a page
 * accessible, and others have faulted by then, or not. With an argument, a thread
 * protects pages while others use them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 16, THREADS = 3, ROUNDS = 20, USES = 4000 };

struct page {
    atomic_int counter;
    volatile int flag;
    int plain[THREADS][8];
    char text[THREADS][64];
};

static char *heap;
static atomic_int faults[PAGES];
static atomic_int done;

static struct page *page(long i) {
    return (struct page *)(heap + i % PAGES * PAGE);
}

static void handler(int signal, siginfo_t *info, void *context) {
    long at = ((char *)info->si_addr - heap) / PAGE;
    (void)signal, (void)context;
    if (at < 0 || at >= PAGES)
        abort();
    atomic_fetch_add(&faults[at], 1);
    mprotect(page(at), PAGE, PROT_READ | PROT_WRITE);
}

/* Locked instructions, loads that a loop polls, plain stores, and string instructions. */
static void *touch(void *argument) {
    long id = (long)argument, seen = 0;
    char from[64];
    memset(from, (int)id + 1, sizeof from);
    for (long i = 0; i < PAGES; i++) {
        struct page *p = page(i * (id + 1) + 5 * id);
        void *to = p->text[id];
        const void *source = from;
        size_t left = sizeof from;
        switch ((i + id) % 4) {
        case 0:
            atomic_fetch_add(&p->counter, 1);
            break;
        case 1:
            for (int k = 0; k < 3 && !p->flag; k++)
                seen++;
            break;
        case 2:
            p->plain[id][i % 8]++;
            break;
        default:
            __asm__ volatile("rep movsb" : "+D"(to), "+S"(source), "+c"(left) : : "memory");
        }
        p->flag = (i + id) % 2;
        seen += atomic_load(&p->counter);
    }
    return (void *)seen;
}

static void *use(void *argument) {
    (void)argument;
    for (long i = 0; i < USES; i++)
        atomic_fetch_add(&page(i)->counter, 1);
    return NULL;
}

static void *protect(void *argument) {
    (void)argument;
    for (long i = 0; !atomic_load(&done); i++) {
        mprotect(page(i), PAGE, i % 2 ? PROT_READ : PROT_NONE);
        usleep(100);
    }
    return NULL;
}

static long run(void *(*routine)(void *)) {
    pthread_t threads[THREADS];
    long sum = 0;
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, routine, (void *)i);
    for (long i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    return sum;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    pthread_t protector;
    long sum = 0;
    (void)argv;
    heap = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaction(SIGSEGV, &action, NULL);
    if (argc > 1) {
        pthread_create(&protector, NULL, protect, NULL);
        run(use);
        atomic_store(&done, 1);
        pthread_join(protector, NULL);
        mprotect(heap, PAGES * PAGE, PROT_READ);
        for (long i = 0; i < PAGES; i++)
            sum += page(i)->counter;
        printf("%ld\n", sum);
        return 0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        mprotect(heap, PAGES * PAGE, round % 2 ? PROT_READ : PROT_NONE);
        sum += run(touch);
    }
    int all = 0;
    for (int i = 0; i < PAGES; i++)
        all += faults[i];
    printf("%ld %d\n", sum, all);
    return 0;
}
