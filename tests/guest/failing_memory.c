// Loaded into a recorder (LD_PRELOAD): once it has set memory aside, its allocations fail from the
// FAIL_AT-th on, until it gives that memory back. Blocks that a thread has freed serve it again, as
// the C library has it.
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define RESERVE ((size_t)36 << 20)
#define CLASS(size) (((size) + 8 + 15) / 16)
extern void __libc_free(void *);
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
static long at, count;
static int armed;
static unsigned long from, to;
static __thread __attribute__((tls_model("initial-exec"))) unsigned freed[64];
static int find(struct dl_phdr_info *object, size_t size, void *unused) {
    (void)size, (void)unused;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        from = object->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
    }
    return 1; // The first is the executable.
}
__attribute__((constructor)) static void begin(void) {
    unsetenv("LD_PRELOAD");
    at = atol(getenv("FAIL_AT"));
    dl_iterate_phdr(find, 0);
}
void *mmap(void *place, size_t size, int prot, int flags, int fd, off_t offset) {
    if (size == RESERVE && !place) __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
    return (void *)syscall(SYS_mmap, place, size, prot, flags, fd, offset);
}
void *mmap64(void *place, size_t size, int prot, int flags, int fd, off_t offset) {
    return mmap(place, size, prot, flags, fd, offset);
}
int munmap(void *place, size_t size) {
    if (size == RESERVE) __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST);
    return syscall(SYS_munmap, place, size);
}
// The C library's own allocations succeed.
static int fails(void *caller) {
    if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST)) return 0;
    if ((unsigned long)caller < from || (unsigned long)caller >= to) return 0;
    if (__atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST) < at) return 0;
    errno = ENOMEM;
    return 1;
}
#define FAILS fails(__builtin_return_address(0))
void free(void *block) {
    if (block && __atomic_load_n(&armed, __ATOMIC_SEQ_CST)) {
        size_t class = CLASS(malloc_usable_size(block));
        if (class < 64) freed[class]++;
    }
    __libc_free(block);
}
void *malloc(size_t size) {
    if (CLASS(size) < 64 && freed[CLASS(size)]) {
        freed[CLASS(size)]--;
        return __libc_malloc(size);
    }
    return FAILS ? 0 : __libc_malloc(size);
}
void *calloc(size_t n, size_t size) { return FAILS ? 0 : __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return FAILS ? 0 : __libc_realloc(old, size); }
void *aligned_alloc(size_t align, size_t size) { return FAILS ? 0 : __libc_memalign(align, size); }
int posix_memalign(void **result, size_t align, size_t size) {
    if (FAILS) return ENOMEM;
    *result = __libc_memalign(align, size);
    return *result ? 0 : ENOMEM;
}
