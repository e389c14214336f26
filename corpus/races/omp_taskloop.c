/* The parts of a loop are tasks, in which nothing is added up in turns. */
#ifndef FIXED
#define FIXED 0
#endif

int own[64];
volatile int sum;

int main(void)
{
#pragma omp parallel num_threads(2)
#pragma omp single
    {
#pragma omp taskloop num_tasks(8)
        for (int i = 0; i < 64; i++) {
            own[i] = i;
#if FIXED
#pragma omp atomic
#endif
            sum += i; /* races on sum */
        }
        for (int i = 0; i < 64; i++)
            own[i] = -own[i];
    }
    return sum == 0;
}
