/* A write on the wrong side of a barrier. */
#include "race.h"

static pthread_barrier_t phase;
static int value, sum;

static void *make(void *none)
{
    if (FIXED)
        value = 3;
    pthread_barrier_wait(&phase);
    if (!FIXED)
        value = 3; /* races on value */
    return none;
}

static void *take(void *none)
{
    pthread_barrier_wait(&phase);
    sum = value + 1; /* races on value */
    return none;
}

int main(void)
{
    pthread_barrier_init(&phase, NULL, 2);
    run(make, take, NULL);
    pthread_barrier_destroy(&phase);
    return sum < 0;
}
