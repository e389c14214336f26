/* A mutex is initialized while another thread may already use it. */
#include "race.h"

static pthread_mutex_t own;
static int uses;

static void *begin(void *none)
{
    if (!FIXED)
        pthread_mutex_init(&own, NULL); /* races on own */
    pthread_mutex_lock(&own);
    uses++;
    pthread_mutex_unlock(&own);
    return none;
}

static void *use(void *none)
{
    usleep(20000);
    pthread_mutex_lock(&own); /* races on own */
    uses++;
    pthread_mutex_unlock(&own);
    return none;
}

int main(void)
{
    if (FIXED)
        pthread_mutex_init(&own, NULL);
    run(begin, use, NULL);
    return 0;
}
