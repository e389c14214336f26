// What is stored through a shared mapping of a file, a private one shows, until its page is stored to.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define PAGE 4096ul
int main(void) {
    int fd = open("seen.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(fd, 4 * PAGE);
    volatile char *shared = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    volatile char *private = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    shared[0] = 'a';
    printf("%d\n", private[0]);
    shared[0] = 'b';
    printf("%d\n", private[0]);
    private[PAGE] = 'c';
    shared[PAGE] = 'd';
    shared[PAGE + 1] = 'e';
    printf("%d %d\n", private[PAGE], private[PAGE + 1]);
    shared[2 * PAGE] = 'f';
    write(1, (char *)private + 2 * PAGE, 1);
    pwrite(fd, "g", 1, 3 * PAGE);
    printf("%d %d\n", private[3 * PAGE], shared[3 * PAGE]);
    madvise((char *)private, 4 * PAGE, MADV_DONTNEED);
    printf("%d %d\n", private[PAGE], private[PAGE + 1]);
    return 0;
}
