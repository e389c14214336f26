/* Two sections change a total; one thread may execute both of them. */
#include <stdlib.h>

#ifndef FIXED
#define FIXED 0
#endif

int total, parts[2];

int main(void)
{
#pragma omp parallel num_threads(2)
    {
        /* Each thread's own, also where it executes both sections. */
        int *own = malloc(sizeof *own);
        *own = 0;
#pragma omp sections
        {
#pragma omp section
            {
                *own += 1;
                parts[0] = *own;
#if FIXED
#pragma omp atomic
#endif
                total += 1; /* races on total */
            }
#pragma omp section
            {
                *own += 2;
                parts[1] = *own;
#if FIXED
#pragma omp atomic
#endif
                total += 2; /* races on total */
            }
        }
        free(own);
    }
    return total + parts[0] + parts[1] == 0;
}
