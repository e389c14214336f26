/* Counters of each thread's own behind one lock, taken three times a round for little. The fix: no
 * lock until the main thread adds them up. */
#include "pair.h"

static struct counters {
    uint64_t requests, bytes, errors;
    char pad[LINE];
} counters[MOST_THREADS];
static pthread_mutex_t lock UNUSED_WHEN_FIXED = PTHREAD_MUTEX_INITIALIZER;

static void add(uint64_t *counter, uint64_t more)
{
#if !FIXED
    pthread_mutex_lock(&lock);
#endif
    *counter += work(inside, more) & 15;
#if !FIXED
    pthread_mutex_unlock(&lock);
#endif
}

static void run(struct worker *self)
{
    struct counters *mine = &counters[self->id];
    for (unsigned long round = 0; round < rounds; round++) {
        add(&mine->requests, 1);
        self->sum += work(outside / 2, round) & 255;
        add(&mine->bytes, round);
        self->sum += work(outside / 2, round) & 255;
        add(&mine->errors, self->id);
    }
}

int main(int argc, char **argv)
{
    uint64_t sum = run_all(argc, argv);
    for (unsigned long id = 0; id < threads; id++)
        sum += counters[id].requests + counters[id].bytes + counters[id].errors;
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
