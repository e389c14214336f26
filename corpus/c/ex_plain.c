/* Threads that tell each other things by plain stores: a ring whose ends keep what they have seen of the
 * other end's index; a lock that is a variable, taken by a locked instruction in one function and released
 * by a store in another; and arrays in which each thread says how far it is, which the main thread adds up
 * between sleeps. What that depends on the schedule for goes to /dev/null, where a replay compares it. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 4, PLACES = 64, TAKEN = 1, WAITED_FOR = 2 };

static struct {
    _Alignas(64) _Atomic size_t head;
    size_t tail_seen;
    _Alignas(64) _Atomic size_t tail;
    size_t head_seen;
    _Alignas(64) uint64_t places[PLACES];
} ring;

static _Atomic unsigned char state;
static uint64_t guarded;
static _Atomic uint64_t progress[THREADS];
static _Atomic int done[THREADS];
static long rounds;
static int nowhere;

static void put(uint64_t value)
{
    size_t head = atomic_load_explicit(&ring.head, memory_order_relaxed);
    while (head - ring.tail_seen == PLACES) {
        ring.tail_seen = atomic_load_explicit(&ring.tail, memory_order_acquire);
        if (head - ring.tail_seen == PLACES)
            sched_yield();
    }
    ring.places[head % PLACES] = value;
    atomic_store_explicit(&ring.head, head + 1, memory_order_release);
}

static uint64_t get(void)
{
    size_t tail = atomic_load_explicit(&ring.tail, memory_order_relaxed);
    while (ring.head_seen == tail) {
        ring.head_seen = atomic_load_explicit(&ring.head, memory_order_acquire);
        if (ring.head_seen == tail)
            sched_yield();
    }
    uint64_t value = ring.places[tail % PLACES];
    atomic_store_explicit(&ring.tail, tail + 1, memory_order_release);
    return value;
}

static __attribute__((noinline)) unsigned lock(void)
{
    for (unsigned looks = 0;; looks++) {
        unsigned char now = atomic_load_explicit(&state, memory_order_relaxed);
        if (!(now & TAKEN)) {
            if (atomic_compare_exchange_strong(&state, &now, now | TAKEN))
                return looks;
        } else if (!(now & WAITED_FOR)) {
            atomic_compare_exchange_strong(&state, &now, TAKEN | WAITED_FOR);
        } else {
            sched_yield();
        }
    }
}

static __attribute__((noinline)) void unlock(void)
{
    atomic_store_explicit(&state, 0, memory_order_release);
}

static void *run(void *argument)
{
    unsigned long me = (unsigned long)argument;
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++) {
        if (me == 0) {
            put(round);
        } else if (me == 1) {
            sum += get();
        } else {
            sum += lock();
            guarded = guarded * 31 + me;
            sum += guarded;
            unlock();
        }
        atomic_store_explicit(&progress[me], round, memory_order_relaxed);
    }
    atomic_store_explicit(&done[me], 1, memory_order_release);
    if (me == 1)
        return (void *)sum;
    if (write(nowhere, &sum, sizeof sum) != sizeof sum)
        abort();
    return NULL;
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? atol(argv[1]) : 5000;
    nowhere = open("/dev/null", O_WRONLY);
    pthread_t threads[THREADS];
    for (unsigned long id = 0; id < THREADS; id++)
        pthread_create(&threads[id], NULL, run, (void *)id);
    uint64_t seen = 0, sum;
    int ended;
    do {
        usleep(200);
        sum = ended = 0;
        for (int id = 0; id < THREADS; id++) {
            ended += atomic_load_explicit(&done[id], memory_order_acquire);
            sum += atomic_load_explicit(&progress[id], memory_order_relaxed);
        }
        seen = seen * 31 + sum;
    } while (ended < THREADS);
    /* A copy, so that `seen` is in a register while the loop waits. */
    uint64_t told = seen;
    if (write(nowhere, &told, sizeof told) != sizeof told)
        abort();
    void *got = NULL;
    for (int id = 0; id < THREADS; id++) {
        void *result;
        pthread_join(threads[id], &result);
        got = id == 1 ? result : got;
    }
    printf("got %lu, saw %lu\n", (unsigned long)got, (unsigned long)sum);
    return 0;
}
