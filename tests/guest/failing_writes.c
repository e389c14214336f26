// Loaded into a recorder (LD_PRELOAD): the writes of the trace fail from the FAIL_AT-th on, as
// FAIL_HOW says: "full" (no space, for good), "broken" (one error), "short" (half of one is written,
// then no space once), "gone" (errors for good, and the file cannot be cut either).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static long at, count;
static const char *how;
__attribute__((constructor)) static void begin(void) {
    unsetenv("LD_PRELOAD");
    at = atol(getenv("FAIL_AT"));
    how = getenv("FAIL_HOW");
}
static int is(const char *name) { return !strcmp(how, name); }
// The recorder's own descriptors have high numbers; it reads the trace, too, which it does with no
// other file that it writes to.
static int is_trace(int fd) {
    struct stat file;
    return fd >= 900 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode)
        && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
}
ssize_t write(int fd, const void *bytes, size_t size) {
    if (is_trace(fd)) {
        long now = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
        if (now >= at && is("full")) { errno = ENOSPC; return -1; }
        if (now >= at && is("gone")) { errno = EIO; return -1; }
        if (now == at && is("broken")) { errno = EIO; return -1; }
        if (now == at && is("short")) size = size / 2 + 1;
        if (now == at + 1 && is("short")) { errno = ENOSPC; return -1; }
    }
    return syscall(SYS_write, fd, bytes, size);
}
int ftruncate64(int fd, off_t size) {
    if (is("gone") && is_trace(fd) && __atomic_load_n(&count, __ATOMIC_SEQ_CST) >= at) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_ftruncate, fd, size);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
