/* The semaphore is posted before the value is there. */
#include "race.h"

static sem_t filled;
static int value;

static void *make(void *none)
{
    if (!FIXED)
        sem_post(&filled);
    value = 3; /* races on value */
    if (FIXED)
        sem_post(&filled);
    return none;
}

static void *take(void *none)
{
    sem_wait(&filled);
    value += 1; /* races on value */
    return none;
}

int main(void)
{
    sem_init(&filled, 0, 0);
    run(make, take, NULL);
    return 0;
}
