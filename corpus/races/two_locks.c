/* Each thread has a lock, but not the same one. */
#include "race.h"

static pthread_mutex_t another = PTHREAD_MUTEX_INITIALIZER;
static int total;

static void *one(void *none)
{
    pthread_mutex_lock(&lock);
    total += 1; /* races on total */
    pthread_mutex_unlock(&lock);
    return none;
}

static void *other(void *none)
{
    pthread_mutex_t *taken = FIXED ? &lock : &another;
    pthread_mutex_lock(taken);
    total += 2; /* races on total */
    pthread_mutex_unlock(taken);
    return none;
}

int main(void)
{
    run(one, other, NULL);
    return 0;
}
