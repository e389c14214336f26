/* A temporary that should be private. */
#include <stdio.h>

static int square, squares[100];

int main(void)
{
#if FIXED
#pragma omp parallel for num_threads(2) schedule(static) private(square)
#else
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int i = 0; i < 100; i++) {
        square = i * i; /* races on square */
        __asm__ volatile("" ::: "memory");
        squares[i] = square; /* races on square */
    }
    return squares[99] == 0;
}
