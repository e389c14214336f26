/* A write under a lock that was taken for reading. */
#include "race.h"

static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
static long hits;

static void *find(void *none)
{
    for (int i = 0; i < 50; i++) {
        if (FIXED)
            pthread_rwlock_wrlock(&table);
        else
            pthread_rwlock_rdlock(&table);
        hits++; /* races on hits */
        pthread_rwlock_unlock(&table);
    }
    return none;
}

int main(void)
{
    run(find, find, NULL);
    return 0;
}
