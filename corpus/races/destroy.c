/* A mutex is destroyed while another thread may still use it. */
#include "race.h"

static pthread_mutex_t own;

static void *use(void *none)
{
    pthread_mutex_lock(&own); /* races on own */
    pthread_mutex_unlock(&own); /* races on own */
    return none;
}

int main(void)
{
    pthread_t thread;
    pthread_mutex_init(&own, NULL);
    pthread_create(&thread, NULL, use, NULL);
    if (FIXED)
        pthread_join(thread, NULL);
    else
        usleep(20000);
    pthread_mutex_destroy(&own); /* races on own */
    if (!FIXED)
        pthread_join(thread, NULL);
    return 0;
}
