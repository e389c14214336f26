/* Of two updates only one is atomic. */
#include <stdio.h>
#include <unistd.h>

int sum;

int main(void)
{
#pragma omp parallel sections num_threads(2)
    {
#pragma omp section
        {
#pragma omp atomic
            sum += 1; /* races on sum */
            usleep(20000);
        }
#pragma omp section
        {
#if FIXED
#pragma omp atomic
#endif
            sum += 2; /* races on sum */
            usleep(20000);
        }
    }
    return sum == 0;
}
