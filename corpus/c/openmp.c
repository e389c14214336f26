/* openmp: `critical` and `omp_lock` of libgomp, which are atomic words; each with
 * a section that only reads and one that a counter truly needs. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))

static long table[64];
static unsigned long counted[2];
static omp_lock_t lock;

static NOINLINE long sum(void) {
    long all = 0;
    for (int i = 0; i < 64; i++)
        all += table[i];
    return all;
}

static NOINLINE long look(void) {
    long all = 0;
#pragma omp critical(looking) /* @site critical_look: read-read with critical_look */
    all += sum();
    omp_set_lock(&lock); /* @site lock_look: read-read with lock_look */
    all += sum();
    omp_unset_lock(&lock);
    return all;
}

static NOINLINE void count(void) {
#pragma omp critical(counting) /* @site critical_count: tlcp with critical_count */
    counted[0] = counted[0] * 5 + 1;
    omp_set_lock(&lock); /* @site lock_count: tlcp with lock_count */
    counted[1] = counted[1] * 5 + 1;
    omp_unset_lock(&lock);
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 300;
    if (rounds <= 0)
        return 2;
    long all = 0;
    omp_init_lock(&lock);
    for (int i = 0; i < 64; i++)
        table[i] = i;
#pragma omp parallel num_threads(2) reduction(+ : all)
    for (long i = 0; i < rounds; i++) {
        all += look();
        if (i < 40) {
#pragma omp barrier
        }
        count();
        if (i < 40) {
#pragma omp barrier
        }
    }
    printf("openmp %ld %lu %lu\n", all, counted[0], counted[1]);
    return 0;
}
