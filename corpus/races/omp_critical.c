/* One thread of a critical section, one that goes without. */
#include <omp.h>

static int total;

int main(void)
{
#pragma omp parallel num_threads(2)
    {
        if (omp_get_thread_num() == 0) {
#pragma omp critical
            total += 1; /* races on total */
        } else {
#if FIXED
#pragma omp critical
#endif
            total += 2; /* races on total */
        }
    }
    return 0;
}
