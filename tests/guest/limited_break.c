// The program break under a limit of the address space. (With an argument, the limit is the caller's.)
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static long begin;

static void move(long by) {
    long now = syscall(SYS_brk, begin + by);
    printf("%ld %ld\n", now - begin, syscall(SYS_brk, 0) - begin);
}

int main(int count, char **arguments) {
    // The library's buffer would be in the heap.
    static char buffer[4096];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    struct rlimit limit = {40 << 20, 80 << 20};
    if (count < 2) setrlimit(RLIMIT_AS, &limit);
    begin = syscall(SYS_brk, 0);
    move(60 << 20);
    move(1 << 20);
    ((char *)begin)[1000] = 5;
    move(60 << 20);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    printf("%d\n", mmap(0, 60 << 20, PROT_READ, flags, -1, 0) == MAP_FAILED);
    void *there = mmap(0, 1 << 20, PROT_READ, flags, -1, 0);
    printf("%d\n", mremap(there, 1 << 20, 60 << 20, MREMAP_MAYMOVE) == MAP_FAILED);
    printf("%d\n", ((char *)begin)[1000]);
    move(0);
    return 0;
}
