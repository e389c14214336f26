/* One thread frees what another uses later, in order: under the lock, and after a join. */
#include "race.h"

static char *shared;
static volatile char seen;

static void *drop(void *none)
{
    pthread_mutex_lock(&lock);
#if FIXED
    free(shared);
    shared = NULL;
#else
    free(shared); /* races on heap */
#endif
    pthread_mutex_unlock(&lock);
    return none;
}

static APART void look(void)
{
    pthread_mutex_lock(&lock);
    if (shared != NULL)
        seen = shared[20]; /* races on heap */
    pthread_mutex_unlock(&lock);
}

int main(void)
{
    pthread_t thread;
    shared = calloc(1, 50);
    pthread_create(&thread, NULL, drop, NULL);
    pthread_join(thread, NULL);
    look();
    return 0;
}
