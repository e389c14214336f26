/* A branch that is taken once in 1024 rounds, inside of the lock that it needs. The fix: the lock
 * inside of the branch. */
#include "pair.h"

enum { RARELY = 1024 };
static uint64_t total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        uint64_t value;
#if FIXED
        value = work(inside, round);
        if (round % RARELY == RARELY - 1) {
            pthread_mutex_lock(&lock);
            total += value;
            pthread_mutex_unlock(&lock);
        }
#else
        pthread_mutex_lock(&lock);
        value = work(inside, round);
        if (round % RARELY == RARELY - 1)
            total += value;
        pthread_mutex_unlock(&lock);
#endif
        self->sum += work(outside, value);
    }
}

int main(int argc, char **argv)
{
    uint64_t sum = run_all(argc, argv);
    printf("%llu\n", (unsigned long long)(sum + total));
    return 0;
}
