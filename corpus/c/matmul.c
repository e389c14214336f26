/* matmul: kernel: SSE2 doubles. One thread. All values are small integers, so
 * the sums are exact and the digest does not depend on rounding. */
#include "common.h"

#include <emmintrin.h>

static NOINLINE void multiply(const double *a, const double *b, double *c,
                              unsigned long n) {
    for (unsigned long i = 0; i < n; i++)
        for (unsigned long k = 0; k < n; k++) {
            __m128d factor = _mm_set1_pd(a[i * n + k]);
            for (unsigned long j = 0; j < n; j += 2) {
                __m128d product = _mm_mul_pd(factor, _mm_loadu_pd(&b[k * n + j]));
                __m128d sum = _mm_add_pd(_mm_loadu_pd(&c[i * n + j]), product);
                _mm_storeu_pd(&c[i * n + j], sum);
            }
        }
}

int main(int argc, char **argv) {
    unsigned long n = (arg(argc, argv, 1, 512) + 1) & ~1ul;
    double *a = calloc(n * n, sizeof *a), *b = calloc(n * n, sizeof *b);
    double *c = calloc(n * n, sizeof *c);
    CHECK(a && b && c);
    for (unsigned long i = 0; i < n * n; i++) {
        a[i] = (double)(mix(i) % 17) - 8;
        b[i] = (double)(mix(i + n * n) % 17) - 8;
    }
    multiply(a, b, c, n);
    uint64_t digest = 0;
    for (unsigned long i = 0; i < n * n; i++)
        digest = digest * 31 + (uint64_t)(int64_t)c[i];
    free(a);
    free(b);
    free(c);
    printf("matmul %lu digest %016" PRIx64 "\n", n, digest);
    return 0;
}
