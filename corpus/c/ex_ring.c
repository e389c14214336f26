/* ex_ring: objects go round a ring of threads. Each thread counts in an object
 * many times before it passes it on; a monitor looks at all objects now and
 * then, and writes to one of their words. What a thread has found depends on
 * the schedule, and goes to /dev/null, where a replay compares it. */
#include "common.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 3, OBJECTS = 8 };

struct object {
    _Atomic long count;
    _Atomic long last;
    _Atomic unsigned char mark;
    struct object *next;
};

static struct object objects[OBJECTS];
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t filled;
    struct object *first;
} queues[THREADS];
static _Atomic int is_done;
static unsigned long rounds;
static int nowhere;

static void put(unsigned at, struct object *object) {
    pthread_mutex_lock(&queues[at].mutex);
    object->next = queues[at].first;
    queues[at].first = object;
    pthread_cond_signal(&queues[at].filled);
    pthread_mutex_unlock(&queues[at].mutex);
}

static struct object *take(unsigned at) {
    pthread_mutex_lock(&queues[at].mutex);
    while (queues[at].first == NULL)
        pthread_cond_wait(&queues[at].filled, &queues[at].mutex);
    struct object *object = queues[at].first;
    queues[at].first = object->next;
    pthread_mutex_unlock(&queues[at].mutex);
    return object;
}

static void tell(uint64_t found) {
    CHECK(write(nowhere, &found, sizeof found) == sizeof found);
}

static void *pass_on(void *argument) {
    unsigned self = (unsigned)(uintptr_t)argument;
    uint64_t found = 0;
    for (unsigned long round = 0; round < rounds * OBJECTS; round++) {
        struct object *object = take(self);
        unsigned times = 20 + (unsigned)(round * 7 % 300);
        for (unsigned i = 0; i < times; i++) {
            found = found * 31 + (uint64_t)atomic_fetch_add(&object->count, 1);
            atomic_store_explicit(&object->last, (long)found, memory_order_release);
            if (i % 16 == 0)
                atomic_store_explicit(&object->mark, (unsigned char)i, memory_order_relaxed);
        }
        put((self + 1) % THREADS, object);
    }
    tell(found);
    return NULL;
}

static void *monitor(void *unused) {
    (void)unused;
    uint64_t found = 0;
    for (unsigned looks = 0; !atomic_load(&is_done); looks++) {
        struct object *object = &objects[looks % OBJECTS];
        found = found * 31 + (uint64_t)atomic_load(&object->count);
        found = found * 31 + (uint64_t)atomic_load_explicit(&object->last, memory_order_acquire);
        if (looks % 64 == 0)
            found = found * 31 + atomic_exchange(&object->mark, 7);
        if (looks % OBJECTS == 0) {
            struct timespec nap = {.tv_nsec = 200000};
            nanosleep(&nap, NULL);
        }
    }
    tell(found);
    return NULL;
}

int main(int argc, char **argv) {
    rounds = arg(argc, argv, 1, 40);
    nowhere = open("/dev/null", O_WRONLY);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_mutex_init(&queues[i].mutex, NULL);
        pthread_cond_init(&queues[i].filled, NULL);
    }
    for (unsigned i = 0; i < OBJECTS; i++)
        put(i % THREADS, &objects[i]);
    pthread_t threads[THREADS], looks;
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, pass_on, (void *)(uintptr_t)i) == 0);
    CHECK(pthread_create(&looks, NULL, monitor, NULL) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&is_done, 1);
    pthread_join(looks, NULL);
    long count = 0;
    for (unsigned i = 0; i < OBJECTS; i++)
        count += objects[i].count;
    printf("ex_ring counted %ld\n", count);
    return 0;
}
