/* fib: kernel: calls and returns, and little else. One thread. */
#include "common.h"

/* The empty asm keeps the compiler from turning a call into a loop. */
static NOINLINE uint64_t fib(unsigned n) {
    __asm__ volatile("" : "+r"(n));
    if (n < 2)
        return n;
    uint64_t a = fib(n - 1);
    __asm__ volatile("" : "+r"(a));
    uint64_t b = fib(n - 2);
    __asm__ volatile("" : "+r"(b));
    return a + b;
}

int main(int argc, char **argv) {
    unsigned n = (unsigned)arg(argc, argv, 1, 37);
    printf("fib(%u) = %" PRIu64 "\n", n, fib(n));
    return 0;
}
