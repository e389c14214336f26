/* qsort: kernel: libc's qsort, calling back through a pointer. One thread. */
#include "common.h"

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    unsigned long n = arg(argc, argv, 1, 1000000);
    uint64_t *array = malloc(n * sizeof *array), digest = 0;
    CHECK(array);
    for (unsigned long i = 0; i < n; i++)
        array[i] = mix(i);
    qsort(array, n, sizeof *array, compare);
    for (unsigned long i = 0; i < n; i++) {
        CHECK(i == 0 || array[i - 1] <= array[i]);
        digest = digest * 31 + array[i];
    }
    free(array);
    printf("qsort %lu digest %016" PRIx64 "\n", n, digest);
    return 0;
}
