/* Two threads that answer each other: every round, each thread reads by plain loads what the other
 * has just stored, by a locked instruction. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { ROUNDS = 50 };

static _Atomic unsigned ping, pong;

static void *answer(void *unused)
{
    for (unsigned round = 1; round <= ROUNDS; round++) {
        while (atomic_load_explicit(&ping, memory_order_acquire) != round)
            ;
        atomic_store(&pong, round); /* answers */
    }
    return unused;
}

int main(void)
{
    pthread_t other;
    pthread_create(&other, NULL, answer, NULL);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        atomic_store(&ping, round); /* asks */
        while (atomic_load_explicit(&pong, memory_order_acquire) != round)
            ;
    }
    pthread_join(other, NULL);
    puts("done");
    return 0;
}
