/* ex_cpu: instructions whose results are not a function of the program: cpuid,
 * rdtsc, rdtscp, rdrand, xgetbv. What they return goes into control flow and
 * memory, but never into the output. */
#include "common.h"

#include <cpuid.h>

static uint64_t rdtsc(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

static uint64_t rdtscp(void) {
    uint32_t low, high, processor;
    __asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(processor));
    return (uint64_t)high << 32 | low;
}

static uint64_t rdrand(void) {
    uint64_t value;
    unsigned char ok;
    do
        __asm__ volatile("rdrand %0; setc %1" : "=r"(value), "=qm"(ok)::"cc");
    while (!ok);
    return value;
}

static uint64_t xgetbv(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int has(unsigned leaf, unsigned bit, int in_edx) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(leaf, &eax, &ebx, &ecx, &edx) &&
           ((in_edx ? edx : ecx) >> bit & 1);
}

static volatile uint64_t sink[MAX_THREADS];

static uint64_t role(unsigned self, unsigned long rounds) {
    int random = has(1, 30, 0), ordered = has(0x80000001, 27, 1);
    int extended = has(1, 27, 0);
    uint64_t local = 0, checks = 0, before = rdtsc();
    for (unsigned long i = 0; i < rounds; i++) {
        uint64_t now = ordered && i % 2 ? rdtscp() : rdtsc();
        local ^= now;
        /* The counter itself picks the path. */
        if (now & 1)
            local = mix(local);
        checks += now + 1000000 >= before;
        before = now;
        if (random && i % 8 == 0)
            local ^= rdrand();
        if (extended && i % 1024 == 0)
            CHECK((xgetbv() & 3) == 3);
        if (i % 1024 == 0)
            CHECK(has(1, 26, 1));
    }
    sink[self] = local;
    return checks;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 1000000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    uint64_t checks = run_crew(threads, rounds, role);
    CHECK(checks == rounds * threads);
    printf("ex_cpu reads %" PRIu64 "\n", checks);
    return 0;
}
