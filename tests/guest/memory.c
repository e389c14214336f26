// Mappings: hints, flags, calls that fail after a part of their work.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
static volatile char large[257ul << 20];

static char *map(void *hint, unsigned long len, int flags) {
    return mmap(hint, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

int main(void) {
    large[0] = 1;
    printf("large %d %d\n", large[0], large[sizeof large - 1]);

    for (int i = 0; i < 2; i++) {
        char *hint = (char *)(i ? 0xc000000000ul : 0x58000000ul), *there = map(hint, 16 * PAGE, 0);
        printf("hint %d, ", there == hint);
        printf("taken %d\n", map(hint, PAGE, 0) != hint);
    }
    char *low = map(0, PAGE, MAP_32BIT);
    printf("low %d\n", (unsigned long)low < 1ul << 32);

    char *three = mmap(0, 3 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(three + PAGE, PAGE);
    int failed = mprotect(three, 3 * PAGE, PROT_READ | PROT_WRITE);
    printf("mprotect %d %d\n", failed, errno);
    three[0] = 1;
    printf("first page %d\n", three[0]);

    char *advised = map(0, 3 * PAGE, 0);
    advised[0] = advised[2 * PAGE] = 7;
    munmap(advised + PAGE, PAGE);
    failed = madvise(advised, 3 * PAGE, MADV_DONTNEED);
    printf("madvise %d %d: %d %d\n", failed, errno, advised[0], advised[2 * PAGE]);

    char *moved = map(0, 2 * PAGE, 0);
    moved[PAGE] = 7;
    char *to = mremap(moved + PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    printf("dontunmap %d %d\n", to == MAP_FAILED ? -1 : to[0], moved[PAGE]);

    int fd = open("sync.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(fd, 2 * PAGE);
    void *synced = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
    printf("sync %s\n", synced == MAP_FAILED ? strerror(errno) : "mapped");

    printf("nothing %d %d\n", munmap(three, 0), errno);
    printf("unaligned %d %d\n", munmap(three + 1, PAGE), errno);
    printf("free %d\n", munmap(three, PAGE));
    return 0;
}
