/* blocks: kernel: threads that allocate and free blocks of many sizes, and do little else. */
#include "common.h"

#define KEPT 256

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t *kept[KEPT] = { 0 };
    uint64_t sum = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        uint64_t random = mix(i + ((uint64_t)self << 40));
        unsigned at = random % KEPT;
        if (kept[at]) {
            sum += *kept[at];
            free(kept[at]);
        }
        kept[at] = malloc(16 + (random >> 32) % 500);
        CHECK(kept[at]);
        *kept[at] = i;
    }
    for (unsigned at = 0; at < KEPT; at++)
        free(kept[at]);
    return sum;
}

int main(int argc, char **argv) {
    unsigned long total = arg(argc, argv, 1, 5000000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    run_crew(threads, total / threads, role);
    printf("blocks %lu\n", total / threads * threads);
    return 0;
}
