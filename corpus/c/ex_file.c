/* ex_file: file input and output: each thread writes a file of its own, reads
 * it back, maps it, changes it through the mapping, and removes it. */
#include "common.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE (64 * 1024)

static uint64_t digest_of(const unsigned char *bytes, size_t length) {
    uint64_t digest = 0;
    for (size_t i = 0; i < length; i++)
        digest = digest * 31 + bytes[i];
    return digest;
}

static uint64_t round_trip(const char *directory, uint64_t seed) {
    char path[256];
    snprintf(path, sizeof path, "%s/XXXXXX", directory);
    int fd = mkstemp(path);
    CHECK(fd >= 0);

    unsigned char *block = malloc(SIZE), *back = malloc(SIZE);
    CHECK(block && back);
    for (size_t i = 0; i < SIZE; i++)
        block[i] = (unsigned char)(mix(seed + i / 8) >> (i % 8 * 8));
    for (size_t done = 0; done < SIZE; done += 4096)
        CHECK(write(fd, block + done, 4096) == 4096);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    CHECK(read(fd, back, SIZE) == SIZE);
    CHECK(memcmp(block, back, SIZE) == 0);
    CHECK(pwrite(fd, "refrain", 7, 100) == 7);
    CHECK(pread(fd, back, 16, 96) == 16);
    CHECK(memcmp(back + 4, "refrain", 7) == 0);

    unsigned char *map =
        mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(memcmp(map + 100, "refrain", 7) == 0);
    map[SIZE - 1] ^= 0xff;
    uint64_t digest = digest_of(map, SIZE);
    CHECK(munmap(map, SIZE) == 0);

    struct stat status;
    CHECK(fstat(fd, &status) == 0 && status.st_size == SIZE);
    CHECK(pread(fd, back, 1, SIZE - 1) == 1);
    CHECK(back[0] == (unsigned char)(block[SIZE - 1] ^ 0xff));
    CHECK(close(fd) == 0 && unlink(path) == 0 && access(path, F_OK) != 0);
    free(block);
    free(back);
    return digest;
}

static char directory[] = "/tmp/refrain-corpus-XXXXXX";

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = 0;
    for (unsigned long i = 0; i < rounds; i++)
        digest += round_trip(directory, i * MAX_THREADS + self);
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 80);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    CHECK(mkdtemp(directory) == directory);
    uint64_t digest = run_crew(threads, rounds, role);
    CHECK(rmdir(directory) == 0);
    printf("ex_file files %lu digest %016" PRIx64 "\n", rounds * threads, digest);
    return 0;
}
