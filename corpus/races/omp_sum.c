/* A sum without a reduction. */
#include <stdio.h>

int sum;

int main(void)
{
#if FIXED
#pragma omp parallel for num_threads(2) schedule(static) reduction(+ : sum)
#else
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int i = 0; i < 100; i++) {
        sum += i; /* races on sum */
        __asm__ volatile("" ::: "memory");
    }
    return sum == 0;
}
