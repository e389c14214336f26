// Threads change words in common by plain loads and stores, which nothing tells from computing.
#include <pthread.h>
#include <stdio.h>

static unsigned words[64];

static void *mix(void *of) {
    unsigned own = *(unsigned *)of, at = own;
    for (int i = 0; i < 200000; i++) {
        at = at * 1664525 + 1013904223;
        words[at >> 26] = words[at >> 20 & 63] * 3 + own;
    }
    return 0;
}

int main(void) {
    unsigned ids[2] = {1, 2}, sum = 0;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, mix, &ids[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < 64; i++) sum = sum * 31 + words[i];
    printf("%u\n", sum);
}
