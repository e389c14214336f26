/* A local variable of the main thread, which goes on using it before it joins. */
#include "race.h"

static void *work(void *of)
{
    volatile int *sum = of;
    *sum += 5; /* races on local */
    return NULL;
}

static APART int sum_up(void)
{
    volatile int sum = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, work, (void *)&sum);
    if (FIXED)
        pthread_join(thread, NULL);
    sum += 1; /* races on local */
    if (!FIXED)
        pthread_join(thread, NULL);
    return sum;
}

int main(void)
{
    return sum_up() == 0;
}
