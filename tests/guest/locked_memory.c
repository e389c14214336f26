// Memory that shows a file: its content comes back where it is discarded, and it can be locked like any
// other.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 64ul

static void says(const char *what, int result) {
    printf("%s: %s\n", what, result == 0 ? "done" : strerror(errno));
}

static int advise_all(char *at) {
    return madvise(at, PAGES * PAGE, MADV_DONTNEED);
}

int main(void) {
    char path[] = "/tmp/locked_memory_XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    for (unsigned page = 0; page < PAGES; page++) {
        char bytes[PAGE];
        memset(bytes, 'a' + page % 26, sizeof bytes);
        if (write(file, bytes, sizeof bytes) != sizeof bytes) return 1;
    }
    char *at = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    at[5 * PAGE] = '!';
    printf("%c%c%c\n", at[0], at[5 * PAGE], at[9 * PAGE]);
    says("discard", advise_all(at));
    printf("%c%c%c\n", at[0], at[5 * PAGE], at[9 * PAGE]);
    says("discard again", advise_all(at));
    // Whoever may lock any memory is not asked how much.
    struct rlimit limit = {16 * PAGE, 16 * PAGE};
    says("limit", setrlimit(RLIMIT_MEMLOCK, &limit));
    says("lock", mlock(at + PAGE, 2 * PAGE));
    says("discard what is locked", advise_all(at));
    says("unlock", munlock(at + PAGE, 2 * PAGE));
    says("discard", advise_all(at));
    printf("%c%c\n", at[1 * PAGE], at[63 * PAGE]);
    says("unlock all", munlockall());
    return 0;
}
