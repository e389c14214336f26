// Memory behind the end of a mapped file is there, and every access to it is SIGBUS.
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096ul

static sigjmp_buf back;
static volatile char *from;

static void handler(int signal, siginfo_t *info, void *context) {
    printf("signal %d code %d at %ld\n", signal, info->si_code, (long)((char *)info->si_addr - (char *)from));
    siglongjmp(back, 1);
}

static void load(const char *what, volatile char *base, unsigned long at) {
    from = base;
    printf("%s load %lu: ", what, at);
    fflush(stdout);
    if (!sigsetjmp(back, 1)) printf("%d\n", base[at]);
}

static void store(const char *what, volatile char *base, unsigned long at, char value) {
    from = base;
    printf("%s store %lu: ", what, at);
    fflush(stdout);
    if (!sigsetjmp(back, 1)) {
        base[at] = value;
        printf("done\n");
    }
}

static void look(const char *what, int prot, int flags, int fd) {
    volatile char *it = mmap(0, 6 * PAGE, prot, flags, fd, 0);
    load(what, it, 0);
    load(what, it, PAGE + 99);
    load(what, it, 2 * PAGE - 1);
    load(what, it, 2 * PAGE);
    load(what, it, 5 * PAGE + 7);
    if (prot & PROT_WRITE) {
        store(what, it, PAGE + 200, 7);
        store(what, it, 3 * PAGE, 1);
        load(what, it, PAGE + 200);
    }
    // What protection says comes first.
    mprotect((char *)it + 4 * PAGE, PAGE, PROT_NONE);
    load(what, it, 4 * PAGE);
    mprotect((char *)it + 4 * PAGE, PAGE, PROT_READ);
    load(what, it, 4 * PAGE);
    // A call fails in place of a signal.
    int null = open("/dev/zero", O_RDONLY);
    printf("%s read %zd\n", what, read(null, (char *)it + 3 * PAGE, 10));
    close(null);
    // It moves with the mapping.
    volatile char *moved = mremap((char *)it, 6 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    load(what, moved, PAGE + 1);
    load(what, moved, 3 * PAGE);
    load(what, moved, 7 * PAGE);
    munmap((char *)moved, 8 * PAGE);
    // All of a mapping may lie behind the end.
    volatile char *behind = mmap(0, PAGE, prot, flags, fd, 9 * PAGE);
    load(what, behind, 5);
    munmap((char *)behind, PAGE);
}

static void change(const char *what, int prot, int flags, int fd) {
    ftruncate(fd, 4 * PAGE);
    pwrite(fd, "x", 1, 3 * PAGE);
    volatile char *it = mmap(0, 8 * PAGE, prot, flags, fd, 0);
    load(what, it, 3 * PAGE);
    store(what, it, 2 * PAGE, 9);
    ftruncate(fd, PAGE + 1);
    load(what, it, PAGE);
    load(what, it, 2 * PAGE);
    load(what, it, 3 * PAGE);
    ftruncate(fd, 6 * PAGE);
    load(what, it, 2 * PAGE);
    load(what, it, 3 * PAGE);
    store(what, it, 5 * PAGE, 9);
    load(what, it, 6 * PAGE);
    pwrite(fd, "y", 1, 6 * PAGE + 8);
    load(what, it, 6 * PAGE + 8);
    load(what, it, 7 * PAGE);
    lseek(fd, 7 * PAGE, SEEK_SET);
    // The kernel reads what has just grown.
    write(fd, "z", 1);
    write(1, (char *)it + 7 * PAGE, 1);
    printf("\n");
    close(open("changed.dat", O_RDWR | O_TRUNC));
    load(what, it, 0);
    munmap((char *)it, 8 * PAGE);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    int fd = open("short.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(fd, PAGE + 100);
    pwrite(fd, "abc", 3, PAGE + 97);
    int both = PROT_READ | PROT_WRITE;
    look("shared", both, MAP_SHARED, fd);
    look("private", both, MAP_PRIVATE, fd);
    look("shared, read", PROT_READ, MAP_SHARED, fd);
    look("private, read", PROT_READ, MAP_PRIVATE, fd);
    // Nobody has changed it lately.
    futimens(fd, (struct timespec[]){{1000000000, 0}, {1000000000, 0}});
    int only = open("short.dat", O_RDONLY);
    look("private of one that is read", both, MAP_PRIVATE, only);
    look("shared of one that is read", PROT_READ, MAP_SHARED, only);
    int empty = memfd_create("empty", 0);
    volatile char *nothing = mmap(0, PAGE, both, MAP_SHARED, empty, 0);
    load("empty", nothing, 0);
    int holes = memfd_create("holes", 0);
    ftruncate(holes, 2 * PAGE);
    nothing = mmap(0, 3 * PAGE, both, MAP_SHARED, holes, 0);
    load("holes", nothing, PAGE);
    load("holes", nothing, 2 * PAGE);
    int zero = open("/dev/zero", O_RDWR);
    nothing = mmap(0, PAGE, both, MAP_PRIVATE, zero, 0);
    load("zero", nothing, 0);
    nothing = mmap(0, PAGE, both, MAP_SHARED, zero, 0);
    load("zero", nothing, 0);
    int changed = open("changed.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    change("shared", both, MAP_SHARED, changed);
    change("private", both, MAP_PRIVATE, changed);
    return 0;
}
