// The extended state, stored and loaded by the program itself, as SBCL does around its allocator.
#include <cpuid.h>
#include <pthread.h>
#include <signal.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static unsigned char area[4096] __attribute__((aligned(64)));
static sigjmp_buf back;

static void caught(int signal) { siglongjmp(back, signal); }

static void store(void *to, uint32_t mask) {
    __asm__ volatile("xsave64 (%0)" : : "r"(to), "a"(mask), "d"(0) : "memory");
}

static void load(const void *from, uint32_t mask) {
    __asm__ volatile("xrstor64 (%0)" : : "r"(from), "a"(mask), "d"(0)
                     : "memory", "xmm0", "xmm1", "xmm7", "xmm15");
}

static void *use(void *name) {
    unsigned char own[1024] __attribute__((aligned(64)));
    uint64_t in[4] = {1, 2, 3, (uint64_t)name}, out[4] = {0};
    double sum = 0;
    memset(own, 0, sizeof own);
    __asm__ volatile("vmovdqu %1, %%ymm7\n\tfldpi\n\t"
                     "xsave64 %0\n\tfstp %%st(0)\n\tvzeroall\n\txrstor64 %0\n\t"
                     "vmovdqu %%ymm7, %2\n\tfstpl %3\n\tvzeroupper"
                     : "+m"(own), "+m"(in), "=m"(out), "=m"(sum) : "a"(7), "d"(0)
                     : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    printf("%d %f %d\n", memcmp(in, out, sizeof in), sum, own[512] & 6);
    return NULL;
}

int main(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 28 & 1)) return 77;
    signal(SIGSEGV, caught);
    for (long n = 0; n < 3; n++) {
        pthread_t thread;
        pthread_create(&thread, NULL, use, (void *)n);
        pthread_join(thread, NULL);
    }
    // Only what the mask names is stored.
    memset(area, 0xaa, sizeof area);
    memset(area + 512, 0, 64);
    store(area, 2);
    printf("%d %x %x %x\n", area[512] & 5, area[0], area[40], area[576]);
    // Of what the area says to be in its initial state nothing is loaded.
    memset(area, 0, sizeof area);
    area[24] = 0x80, area[25] = 0x1f;
    load(area, 2);
    uint64_t zero[2];
    __asm__ volatile("movdqu %%xmm15, %0" : "=m"(zero));
    printf("%d\n", zero[0] == 0 && zero[1] == 0);
    if (!sigsetjmp(back, 1)) store(area + 8, 7);
    puts("not aligned");
    area[520 + 7] = 0x40;
    if (!sigsetjmp(back, 1)) load(area, 7);
    puts("of another layout");
    if (!sigsetjmp(back, 1)) store((void *)64, 7);
    puts("no memory");
    return 0;
}
