/* `taskwait` waits for the children of a task, and not for theirs. */
#ifndef FIXED
#define FIXED 0
#endif

int near, far;

int main(void)
{
    int seen = 0;
#pragma omp parallel num_threads(2)
#pragma omp single
    {
#if FIXED
#pragma omp taskgroup
#endif
        {
#pragma omp task
            {
#pragma omp task
                far = 1; /* races on far */
                near = 2;
            }
#pragma omp taskwait
        }
        seen = near;
        seen += far; /* races on far */
    }
    return seen == 99;
}
