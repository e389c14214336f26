/* ex_malloc: glibc's own locks: malloc, realloc, free and one stdio stream
 * from several threads. Blocks change owner, so that arenas are shared. */
#include "common.h"

#include <string.h>

#define SHELF 64

static pthread_mutex_t shelf_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *shelf[SHELF];
static FILE *common;

/* A block knows its size (first two bytes) and its filling (the others). */
static unsigned char *make(uint64_t seed) {
    size_t size = 16 + seed % 2000;
    unsigned char *block = malloc(size);
    CHECK(block);
    if (seed % 5 == 0) {
        size += 500;
        block = realloc(block, size);
        CHECK(block);
    }
    memset(block, (int)(seed % 251), size);
    memcpy(block, &(uint16_t){(uint16_t)size}, 2);
    return block;
}

static void destroy(unsigned char *block) {
    if (!block)
        return;
    uint16_t size;
    memcpy(&size, block, 2);
    for (size_t i = 3; i < size; i++)
        CHECK(block[i] == block[2]);
    free(block);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        uint64_t seed = mix(i * MAX_THREADS + self);
        unsigned char *mine = make(seed), *other;
        pthread_mutex_lock(&shelf_lock);
        other = shelf[seed % SHELF];
        shelf[seed % SHELF] = mine;
        pthread_mutex_unlock(&shelf_lock);
        destroy(other);
        if (i % 16 == 0)
            CHECK(fprintf(common, "%u %lu\n", self, i) > 0);
    }
    return 0;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 20000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 3);
    common = tmpfile();
    CHECK(common);
    run_crew(threads, rounds, role);
    for (unsigned i = 0; i < SHELF; i++)
        destroy(shelf[i]);

    /* The lines come in any order, but each whole and once. */
    unsigned long lines = 0, self, i;
    uint64_t sum = 0;
    rewind(common);
    while (fscanf(common, "%lu %lu\n", &self, &i) == 2) {
        lines++;
        sum += mix(i * MAX_THREADS + self);
    }
    CHECK(fclose(common) == 0);
    CHECK(lines == (rounds + 15) / 16 * threads);
    printf("ex_malloc lines %lu sum %016" PRIx64 "\n", lines, sum);
    return 0;
}
