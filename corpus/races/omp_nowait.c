/* Two loops with nothing between them. */
#include <stdio.h>

static int table[100], reversed[100];

int main(void)
{
#pragma omp parallel num_threads(2)
    {
#if FIXED
#pragma omp for schedule(static)
#else
#pragma omp for schedule(static) nowait
#endif
        for (int i = 0; i < 100; i++)
            table[i] = i; /* races on table */
#pragma omp for schedule(static)
        for (int i = 0; i < 100; i++)
            reversed[i] = table[99 - i]; /* races on table */
    }
    return reversed[0] == 1;
}
