/* Two tasks of one thread change what both of them have; without a dependence, another thread may
   execute one of them. */
#ifndef FIXED
#define FIXED 0
#endif

int latest, first;

int main(void)
{
#pragma omp parallel num_threads(2)
#pragma omp single
    {
#if FIXED
#pragma omp task depend(out : latest)
#else
#pragma omp task
#endif
        latest = 1; /* races on latest */
#if FIXED
#pragma omp task depend(inout : latest)
#else
#pragma omp task
#endif
        latest += 2; /* races on latest */
#pragma omp task depend(out : first)
        first = 3;
#pragma omp task depend(in : first)
        {
            int own = first;
            own++;
        }
    }
    return latest + first == 0;
}
