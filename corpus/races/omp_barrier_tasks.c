/* A barrier waits for all tasks, and the end of a loop without one for none. */
#ifndef FIXED
#define FIXED 0
#endif

int made, used;

int main(void)
{
#pragma omp parallel num_threads(2)
    {
#pragma omp master
        {
#pragma omp task
            made = 1; /* races on made */
        }
#if FIXED
#pragma omp barrier
#endif
#pragma omp master
        used = made; /* races on made */
    }
    return used == 99;
}
