// Registers that are all set by one instruction, as .NET sets them where an exception is caught.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

static sigjmp_buf back;
static char stack[2][4096] __attribute__((aligned(16)));

static void caught(int signal) { siglongjmp(back, signal); }

// Goes on behind itself with these flags and this stack, and with another value in rax, rcx and rdx.
static uint64_t go(uint64_t segments, uint64_t flags, uint64_t *sp) {
    uint64_t seen, at;
    __asm__ volatile("mov %%rsp, %%rbx\n\t"
                     "sub $256, %%rsp\n\t"
                     "mov %k[segments], %%eax\n\t shr $32, %[segments]\n\t"
                     "push %[segments]\n\t push %[sp]\n\t push %[flags]\n\t push %%rax\n\t"
                     "lea 1f(%%rip), %%rax\n\t push %%rax\n\t"
                     "mov $1, %%eax\n\t mov $2, %%ecx\n\t mov $3, %%edx\n\t"
                     "iretq\n"
                     "1:\n\t"
                     "mov %%rsp, %[at]\n\t pushfq\n\t pop %[seen]\n\t cld\n\t"
                     "mov %%rbx, %%rsp\n\t add %%rax, %[seen]\n\t add %%rcx, %[seen]\n\t"
                     "add %%rdx, %[seen]"
                     : [seen] "=&r"(seen), [at] "=&r"(at), [segments] "+r"(segments)
                     : [flags] "r"(flags), [sp] "r"(*sp)
                     : "rax", "rbx", "rcx", "rdx", "memory", "cc");
    *sp = at;
    return seen;
}

static void *use(void *number) {
    char *own = stack[(intptr_t)number];
    for (int n = 0; n < 1000; n++) {
        uint64_t wanted = n & 1 ? 0x8d5 : 0x400, sp = (uint64_t)own + 2048 + 16 * (n & 7), at = sp;
        uint64_t seen = go(0x33 | 0x2bULL << 32, wanted, &at);
        if (at != sp || seen != (wanted | 0x202) + 6) printf("%d: %lx %lx\n", n, seen, at - sp);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    for (long n = 0; n < 2; n++) pthread_create(&threads[n], NULL, use, (void *)n);
    for (int n = 0; n < 2; n++) pthread_join(threads[n], NULL);
    // Segments that there are not.
    signal(SIGSEGV, caught);
    uint64_t sp = (uint64_t)stack[0] + 2048;
    if (!sigsetjmp(back, 1)) go(0x33, 0, &sp);
    else puts("refused");
    return 0;
}
