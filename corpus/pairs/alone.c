/* Each thread has a lock and a slot of its own, whose words share a cache line: there is no contention
 * to remove. Both variants are the same program. */
#include "pair.h"

static struct {
    pthread_mutex_t lock;
    uint64_t value;
} slots[MOST_THREADS];

static void run(struct worker *self)
{
    for (unsigned long round = 0; round < rounds; round++) {
        pthread_mutex_lock(&slots[self->id].lock);
        slots[self->id].value = work(inside, slots[self->id].value + round);
        pthread_mutex_unlock(&slots[self->id].lock);
        self->sum += work(outside, round);
    }
}

int main(int argc, char **argv)
{
    for (unsigned slot = 0; slot < MOST_THREADS; slot++)
        pthread_mutex_init(&slots[slot].lock, NULL);
    uint64_t sum = run_all(argc, argv);
    for (unsigned long id = 0; id < threads; id++)
        sum += slots[id].value;
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
