/* ex_avx: what a program has in the registers of AVX stays there, whatever happens in between:
 * atomic instructions, locks, system calls, and handlers that use the registers themselves. The
 * frame of a handler holds them, and may be changed. On a processor without AVX2 the output is
 * the same. */
#include "common.h"
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

enum { WORKERS = 3, LANES = 8 };
static volatile sig_atomic_t ticks;
static volatile uint32_t changed_to;

/* The upper half of ymm5 in the frame, which is as the kernel's header sigcontext.h has it. */
static void change_frame(ucontext_t *context) {
    unsigned char *area = (unsigned char *)context->uc_mcontext.fpregs;
    uint32_t magic;
    uint64_t components;
    memcpy(&magic, area + 464, 4);
    memcpy(&components, area + 512, 8);
    CHECK(magic == 0x46505853 && (components & 4) != 0);
    for (int lane = 0; lane < 4; lane++)
        memcpy(area + 576 + 16 * 5 + 4 * lane, (void *)&changed_to, 4);
}

__attribute__((target("avx2"))) static void tick(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    __asm__ volatile("vpcmpeqd %%ymm0, %%ymm0, %%ymm0\n vmovdqa %%ymm0, %%ymm5\n"
                     "vmovdqa %%ymm0, %%ymm15\n vzeroupper" ::
                         : "xmm0", "xmm5", "xmm15");
    if (changed_to)
        change_frame(context);
    ticks++;
}

static void set_timer(suseconds_t first) {
    struct itimerval timer = {{0, 0}, {0, first}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

#define EACH(f)                                                                                   \
    f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)
#define LOAD(n) "vmovdqu " #n "*32(%0), %%ymm" #n "\n"
#define STORE(n) "vmovdqu %%ymm" #n ", " #n "*32(%1)\n"

/* A handler interrupts a loop in which all registers are in use. */
__attribute__((target("avx2"))) static NOINLINE void interrupted(uint32_t change) {
    static uint32_t before[16][LANES], after[16][LANES];
    for (uint32_t i = 0; i < 16 * LANES; i++)
        before[i / LANES][i % LANES] = i * 2654435761u;
    ticks = 0;
    changed_to = change;
    set_timer(1000);
    __asm__ volatile(EACH(LOAD) "1: cmpl $0, %2\n je 1b\n" EACH(STORE) "vzeroupper" ::"r"(before),
                     "r"(after), "m"(ticks)
                     : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",
                       "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
                       "xmm15");
    for (int lane = 4; change && lane < LANES; lane++)
        before[5][lane] = change;
    CHECK(memcmp(before, after, sizeof before) == 0);
}

static _Atomic uint64_t turn;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t total;

/* Sums and products by lanes, with what a recorder sees in between. */
__attribute__((target("avx2,fma,bmi2"))) static NOINLINE uint64_t lanes(unsigned long times) {
    __m256i sum = _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8), step = _mm256_set1_epi32(3);
    __m256d wave = _mm256_set1_pd(1.0), half = _mm256_set1_pd(0.5);
    int32_t table[16] = {0};
    for (unsigned long i = 0; i < times; i++) {
        atomic_fetch_add(&turn, 1);
        sum = _mm256_add_epi32(_mm256_mullo_epi32(sum, step), _mm256_set1_epi32((int)i));
        wave = _mm256_fmadd_pd(wave, half, half);
        _mm256_maskstore_epi32(table + i % 8, _mm256_cmpgt_epi32(sum, step), sum);
        __m256i at = _mm256_and_si256(sum, _mm256_set1_epi32(15));
        sum = _mm256_xor_si256(sum, _mm256_i32gather_epi32(table, at, 4));
        if (i % 16 == 0) {
            CHECK(pthread_mutex_lock(&lock) == 0);
            total++;
            CHECK(pthread_mutex_unlock(&lock) == 0);
            CHECK(getppid() > 0);
        }
    }
    uint32_t out[LANES];
    double waves[4];
    memcpy(out, &sum, sizeof out);
    memcpy(waves, &wave, sizeof waves);
    CHECK(waves[0] == 1.0 && waves[3] == 1.0);
    uint64_t result = 0;
    for (int lane = 0; lane < LANES; lane++)
        result = result * 31 + out[lane];
    return result;
}

static unsigned long times;
static uint64_t results[WORKERS];

static void *run(void *argument) {
    results[(uintptr_t)argument] = lanes(times);
    return NULL;
}

/* Without AVX2 nothing can be said but that the processor says so everywhere. */
static void with_avx2(void) {
    unsigned a, b, c, d;
    CHECK(__get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2) != 0);
    CHECK(__get_cpuid(1, &a, &b, &c, &d) && (c & bit_OSXSAVE) != 0);
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    CHECK((low & 6) == 6);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = tick;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    for (uint32_t i = 0; i < 4; i++)
        interrupted(i % 2 * 0x12345678);
    pthread_t workers[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&workers[i], NULL, run, (void *)i) == 0);
    for (unsigned i = 0; i < WORKERS; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
    for (unsigned i = 0; i < WORKERS; i++)
        CHECK(results[i] == results[0]);
    CHECK(total == WORKERS * ((times + 15) / 16));
}

int main(int argc, char **argv) {
    times = arg(argc, argv, 1, 1000);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        with_avx2();
    printf("ex_avx %lu\n", times);
    return 0;
}
