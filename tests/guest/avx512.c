// What AVX-512 adds to a thread's state: it is the thread's own, in handlers too, and memory is accessed
// lane by lane, as masks say. Built with -march=x86-64-v4.
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { COUNT = 1000, THREADS = 3 };

static float numbers[COUNT];
static int shared[64] __attribute__((aligned(64)));
static volatile int seen;

static void handler(int signal) {
    (void)signal;
    __m512i ones = _mm512_set1_epi32(1);
    seen += _mm512_reduce_add_epi32(ones);
    // Nothing of this may be left when the handler has returned.
    __asm__ volatile("kxnorq %%k1, %%k1, %%k1\n\tvpternlogd $255, %%zmm20, %%zmm20, %%zmm20\n\t"
                     "vpternlogd $255, %%zmm3, %%zmm3, %%zmm3"
                     ::: "k1", "xmm20", "xmm3");
}

// The last round has fewer lanes than a register.
static float sum(const float *from, int count) {
    __m512 sums = _mm512_setzero_ps();
    for (int at = 0; at < count; at += 16) {
        __mmask16 mask = count - at >= 16 ? 0xffff : (1 << (count - at)) - 1;
        sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, from + at));
    }
    return _mm512_reduce_add_ps(sums);
}

#ifndef OF_LAST
#define OF_LAST 0x2222 // With 0x6666 it writes lanes of the first thread, too.
#endif

// Each thread writes the lanes that are its own.
static void *worker(void *argument) {
    int self = (int)(long)argument;
    __mmask16 own = self == 0 ? 0x5555 : self == 1 ? 0x8888 : OF_LAST;
    __m512i wide = _mm512_set1_epi32(self);
    for (int round = 0; round < 2000; round++) {
        wide = _mm512_add_epi32(wide, _mm512_set1_epi32(3));
        _mm512_mask_storeu_epi32(shared, own, wide); // stores
        __m512i indices = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 1);
        _mm512_mask_i32scatter_epi32(shared + 16, own, indices, wide, 4);
        __m512i back = _mm512_mask_i32gather_epi32(wide, own, indices, shared + 16, 4);
        if (_mm512_mask_cmpneq_epi32_mask(own, back, wide) != 0) return "gathered other values";
    }
    return NULL;
}

int main(void) {
    for (int at = 0; at < COUNT; at++) numbers[at] = at;
    signal(SIGUSR1, handler);

    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    printf("v4 %d, state %x %x\n", __builtin_cpu_supports("x86-64-v4") != 0, low & 0xe7, high);

    register __m512i first asm("zmm3") = _mm512_set1_epi32(5);
    register __m512i later asm("zmm20") = _mm512_set1_epi32(7);
    __asm__ volatile("" : "+v"(first), "+v"(later));
    raise(SIGUSR1);
    __asm__ volatile("" : "+v"(first), "+v"(later));
    printf("handled %d, kept %d and %d\n", seen, _mm512_reduce_add_epi32(first),
           _mm512_reduce_add_epi32(later));

    pthread_t threads[THREADS];
    for (long self = 0; self < THREADS; self++) pthread_create(&threads[self], NULL, worker, (void *)self);
    float total = sum(numbers, COUNT - 7);
    for (int self = 0; self < THREADS; self++) {
        void *wrong;
        pthread_join(threads[self], &wrong);
        if (wrong) puts(wrong);
    }
    printf("%.0f:", total);
    for (int at = 0; at < 64; at++) printf(" %d", shared[at]);
    puts("");

    // Lanes that a mask leaves out may lie where there is no memory.
    char *edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(edge + 4096, 4096);
    memset(edge + 4096 - 24, 9, 24);
    __m512i tail = _mm512_maskz_loadu_epi64(7, edge + 4096 - 24);
    _mm512_mask_compressstoreu_epi64(edge + 4096 - 16, 0x41, tail);
    printf("%llx %x\n", (unsigned long long)_mm512_reduce_or_epi64(tail), edge[4095]);
    return 0;
}
