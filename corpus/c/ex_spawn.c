/* ex_spawn: many short-lived threads in waves, on recycled stacks. */
#include "common.h"

#define WAVE 8

static void *live_briefly(void *argument) {
    volatile uint64_t local[64];
    for (unsigned i = 0; i < 64; i++)
        local[i] = (uintptr_t)argument + i;
    uint64_t sum = 0;
    for (unsigned i = 0; i < 64; i++)
        sum += local[i];
    return (void *)(uintptr_t)mix(sum);
}

int main(int argc, char **argv) {
    unsigned long waves = arg(argc, argv, 1, 250);
    uint64_t digest = 0;
    for (uintptr_t wave = 0; wave < waves; wave++) {
        pthread_t ids[WAVE];
        for (uintptr_t i = 0; i < WAVE; i++)
            CHECK(pthread_create(&ids[i], NULL, live_briefly,
                                 (void *)(wave * WAVE + i)) == 0);
        for (unsigned i = 0; i < WAVE; i++) {
            void *value;
            CHECK(pthread_join(ids[i], &value) == 0);
            digest += (uintptr_t)value;
        }
    }
    printf("ex_spawn threads %lu digest %016" PRIx64 "\n", waves * WAVE, digest);
    return 0;
}
