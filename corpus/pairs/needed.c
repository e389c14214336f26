/* A counter that needs its lock: no unnecessary contention, and so nothing to fix. Both variants
 * are the same program. */
#include "pair.h"

static uint64_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        pthread_mutex_lock(&lock);
        count = work(inside, count + round) & 1023;
        pthread_mutex_unlock(&lock);
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    uint64_t sum = run_all(argc, argv);
    /* What the count is depends on who came first. */
    printf("%llu\n", (unsigned long long)(sum + (count < 1024)));
    return 0;
}
