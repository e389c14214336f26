/* What a condition variable announces is written without its mutex. */
#include "race.h"
#include <time.h>

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int ready;

static void *announce(void *none)
{
    usleep(20000);
    enter();
    ready = 1; /* races on ready */
    leave();
    pthread_cond_signal(&changed);
    return none;
}

static void *await(void *none)
{
    struct timespec late;
    clock_gettime(CLOCK_REALTIME, &late);
    late.tv_sec += 10;
    pthread_mutex_lock(&lock);
    while (!ready && !pthread_cond_timedwait(&changed, &lock, &late)) /* races on ready */
        continue;
    pthread_mutex_unlock(&lock);
    return none;
}

int main(void)
{
    run(announce, await, NULL);
    return 0;
}
