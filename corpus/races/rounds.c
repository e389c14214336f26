/* A write by each thread between two rounds of a barrier. */
#include "race.h"

static pthread_barrier_t phase;
static int value;

static void *work(void *mine)
{
    pthread_barrier_wait(&phase);
    if (!FIXED || mine != NULL)
        value++; /* races on value */
    pthread_barrier_wait(&phase);
    return NULL;
}

static void *first(void *none) { return work(none); }
static void *second(void *none)
{
    (void)none;
    return work(&value);
}

int main(void)
{
    pthread_barrier_init(&phase, NULL, 2);
    run(first, second, NULL);
    pthread_barrier_destroy(&phase);
    return value < 0;
}
