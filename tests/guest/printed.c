/* A thread prints more counters than fit into registers, so that the last are pushed
 * straight from memory, while others count without any lock. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

struct counters {
    unsigned long a, b, c, d, e, f, g, h;
};

static struct counters counters;
struct counters *volatile all = &counters;

static void *count(void *argument) {
    (void)argument;
    for (long i = 0; i < 1000000; i++) {
        struct counters *it = all;
        it->a++, it->b += 2, it->c += 3, it->d++;
        it->e++, it->f++, it->g += i & 1, it->h++;
        __asm__ volatile("" : : : "memory");
    }
    return NULL;
}

__attribute__((noinline)) static void show(struct counters *it) {
    printf("%lu %lu %lu %lu %lu %lu %lu %lu\n", it->a, it->b, it->c, it->d, it->e, it->f,
           it->g, it->h);
    fflush(stdout);
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, count, NULL);
    for (int i = 0; i < 10; i++) {
        usleep(300);
        show(all);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    show(all);
    return 0;
}
