// Loaded into a recorder (LD_PRELOAD): the FAIL_AT-th thread that it starts is refused.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
static long at, count;
static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
__attribute__((constructor)) static void begin(void) {
    unsetenv("LD_PRELOAD");
    at = atol(getenv("FAIL_AT"));
    real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_create");
}
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *p) {
    if (__atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST) == at) return EAGAIN;
    return real(t, a, f, p);
}
