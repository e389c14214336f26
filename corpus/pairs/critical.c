/* An OpenMP loop whose body looks something up in a critical section, and only reads there. The fix: no
 * critical section. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef FIXED
#define FIXED 0
#endif

enum { ENTRIES = 256 };
static uint64_t table[ENTRIES];

static inline uint64_t work(unsigned long steps, uint64_t seed)
{
    for (unsigned long step = 0; step < steps; step++) {
        seed += (seed >> 7) ^ step;
        __asm__ volatile("" : "+r"(seed));
    }
    return seed;
}

int main(int argc, char **argv)
{
    unsigned long numbers[] = {1000, 2, 50, 50};
    for (int i = 1; i < argc && i <= 4; i++)
        numbers[i - 1] = strtoul(argv[i], NULL, 10);
    unsigned long rounds = numbers[0], inside = numbers[2], outside = numbers[3];
    int threads = (int)numbers[1];
    for (unsigned entry = 0; entry < ENTRIES; entry++)
        table[entry] = entry * 2654435761u;
    uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
    for (unsigned long round = 0; round < rounds * (unsigned long)threads; round++) {
        uint64_t found;
#if FIXED
        found = work(inside, table[round % ENTRIES]);
#else
#pragma omp critical
        found = work(inside, table[round % ENTRIES]);
#endif
        sum += work(outside, found);
    }
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
