/* ex_helpers: what threads look at by functions that they call, and in loops
 * that do something else, too: two locks whose functions are not inlined, a
 * queue of waiting threads on their stacks (Mellor-Crummey and Scott's), a
 * sorted list that is searched before its lock is taken, a ring whose reader
 * works and waits in one loop, and a flag in an object that a loop looks at
 * between calls. How often an attempt fails never reaches the output. */
#include "common.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define KEYS 64
#define RING 8

struct spin {
    atomic_int taken;
};

struct ticket {
    atomic_uint next, serving;
};

static NOINLINE void spin_lock(struct spin *lock) {
    while (atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire))
        sched_yield();
}

static NOINLINE void spin_unlock(struct spin *lock) {
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

static NOINLINE void ticket_lock(struct ticket *lock) {
    unsigned own = atomic_fetch_add(&lock->next, 1);
    while (atomic_load_explicit(&lock->serving, memory_order_acquire) != own)
        sched_yield();
}

static NOINLINE void ticket_unlock(struct ticket *lock) {
    unsigned own = atomic_load_explicit(&lock->serving, memory_order_relaxed);
    atomic_store_explicit(&lock->serving, own + 1, memory_order_release);
}

struct waiter {
    _Atomic(struct waiter *) next;
    atomic_int waits;
};

static _Atomic(struct waiter *) last ALIGNED;

static inline void queue_lock(struct waiter *self) {
    atomic_store_explicit(&self->next, NULL, memory_order_relaxed);
    struct waiter *before = atomic_exchange(&last, self);
    if (before) {
        atomic_store_explicit(&self->waits, 1, memory_order_relaxed);
        atomic_store_explicit(&before->next, self, memory_order_release);
        while (atomic_load_explicit(&self->waits, memory_order_acquire))
            sched_yield();
    }
}

static inline void queue_unlock(struct waiter *self) {
    struct waiter *next =
        atomic_load_explicit(&self->next, memory_order_acquire);
    if (!next) {
        struct waiter *expected = self;
        if (atomic_compare_exchange_strong(&last, &expected, NULL))
            return;
        while (!(next = atomic_load_explicit(&self->next,
                                             memory_order_acquire)))
            sched_yield();
    }
    atomic_store_explicit(&next->waits, 0, memory_order_release);
}

struct node {
    struct node *_Atomic next;
    int key;
};

static struct node first ALIGNED;
static struct spin list_lock ALIGNED;
static atomic_ulong added ALIGNED;

/* Looks for the place without the lock, and again with it if it has changed. */
static NOINLINE void add(struct node *fresh) {
    for (;;) {
        struct node *before = &first, *behind;
        while ((behind = atomic_load_explicit(&before->next,
                                              memory_order_acquire)) &&
               behind->key < fresh->key)
            before = behind;
        spin_lock(&list_lock);
        if (atomic_load_explicit(&before->next, memory_order_relaxed) ==
            behind) {
            int is_new = !behind || behind->key != fresh->key;
            if (is_new) {
                atomic_store_explicit(&fresh->next, behind,
                                      memory_order_relaxed);
                atomic_store_explicit(&before->next, fresh,
                                      memory_order_release);
            }
            spin_unlock(&list_lock);
            atomic_fetch_add(&added, (unsigned long)is_new);
            return;
        }
        spin_unlock(&list_lock);
    }
}

static struct {
    uint64_t slots[RING];
    atomic_ulong in ALIGNED;
    atomic_ulong out ALIGNED;
} ring;

static void *write_ring(void *rounds) {
    for (unsigned long i = 0; i < *(unsigned long *)rounds; i++) {
        while (atomic_load_explicit(&ring.in, memory_order_relaxed) -
                   atomic_load_explicit(&ring.out, memory_order_acquire) ==
               RING)
            sched_yield();
        ring.slots[i % RING] = mix(i);
        atomic_store_explicit(&ring.in, i + 1, memory_order_release);
    }
    return NULL;
}

static NOINLINE uint64_t read_ring(unsigned long rounds) {
    uint64_t sum = 0;
    unsigned long out = 0;
    while (out < rounds) {
        if (out == atomic_load_explicit(&ring.in, memory_order_acquire)) {
            sched_yield();
            continue;
        }
        sum += ring.slots[out % RING];
        atomic_store_explicit(&ring.out, ++out, memory_order_release);
    }
    return sum;
}

struct job {
    unsigned long rounds;
    atomic_int *started;
    atomic_int stop;
};

static NOINLINE void rest(struct job *job) {
    job->rounds++;
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static void *work_until_stopped(void *argument) {
    struct job *job = argument;
    while (!atomic_load_explicit(&job->stop, memory_order_relaxed)) {
        rest(job);
        if (job->rounds == 3)
            atomic_store(job->started, 1);
    }
    return NULL;
}

static struct spin spin ALIGNED;
static struct ticket ticket ALIGNED;
static uint64_t of_spin ALIGNED, of_ticket ALIGNED, of_queue ALIGNED;
static unsigned long rounds;
static atomic_uint threads_so_far;

static void *contend(void *unused) {
    (void)unused;
    unsigned self = atomic_fetch_add(&threads_so_far, 1);
    struct node *nodes = calloc(rounds, sizeof *nodes);
    CHECK(nodes);
    for (unsigned long i = 0; i < rounds; i++) {
        spin_lock(&spin);
        of_spin += mix(i + self);
        spin_unlock(&spin);
        ticket_lock(&ticket);
        of_ticket ^= mix(2 * i + self);
        ticket_unlock(&ticket);
        struct waiter waiter;
        queue_lock(&waiter);
        of_queue += mix(3 * i + self);
        queue_unlock(&waiter);
        nodes[i].key = (int)(mix(i * 4 + self) % KEYS);
        add(&nodes[i]);
    }
    return nodes;
}

int main(int argc, char **argv) {
    rounds = arg(argc, argv, 1, 2000);
    pthread_t threads[4];
    atomic_int started = 0;
    struct job job = {.started = &started};
    CHECK(pthread_create(&threads[3], NULL, work_until_stopped, &job) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, contend, NULL) == 0);
    void *nodes[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], &nodes[i]) == 0);
    unsigned long length = 0;
    int key = -1;
    for (struct node *node = atomic_load(&first.next); node;
         node = atomic_load(&node->next), length++) {
        CHECK(node->key > key);
        key = node->key;
    }
    CHECK(length == atomic_load(&added));
    CHECK(pthread_create(&threads[0], NULL, write_ring, &rounds) == 0);
    uint64_t sum = read_ring(rounds);
    CHECK(pthread_join(threads[0], NULL) == 0);
    while (!atomic_load(&started))
        sched_yield();
    atomic_store(&job.stop, 1);
    CHECK(pthread_join(threads[3], NULL) == 0);
    for (int i = 0; i < 3; i++)
        free(nodes[i]);
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %lu %" PRIu64 "\n", of_spin,
           of_ticket, of_queue, length, sum);
    return 0;
}
