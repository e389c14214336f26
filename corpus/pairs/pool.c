/* Workers take tasks from a queue (a mutex and a condition variable that are needed) and look up
 * settings under a second mutex, which nobody writes. The fix: no lock for the settings. Rounds times
 * threads is a multiple of the batch. */
#include "pair.h"

enum { SETTINGS = 256, BATCH = 32 };
static uint64_t settings[SETTINGS];
static unsigned long made, taken;
static pthread_mutex_t queue = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t reading UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;

/* The number of the next task, from 1; 0 if there is none left. */
static unsigned long take(unsigned long id)
{
    unsigned long task = 0;
    pthread_mutex_lock(&queue);
    while (made == taken && made < rounds * threads) {
        if (id == 0) {
            made += BATCH;
            pthread_cond_broadcast(&filled);
        } else {
            pthread_cond_wait(&filled, &queue);
        }
    }
    if (taken < made)
        task = ++taken;
    pthread_mutex_unlock(&queue);
    return task;
}

static void run(struct worker *self)
{
    for (unsigned long task; (task = take(self->id)) != 0;) {
#if !FIXED
        pthread_mutex_lock(&reading);
#endif
        uint64_t found = work(inside, settings[task % SETTINGS]);
#if !FIXED
        pthread_mutex_unlock(&reading);
#endif
        self->sum += work(outside, found) & 255;
    }
}

int main(int argc, char **argv)
{
    for (unsigned entry = 0; entry < SETTINGS; entry++)
        settings[entry] = entry * 2654435761u;
    printf("%llu\n", (unsigned long long)run_all(argc, argv));
    return 0;
}
