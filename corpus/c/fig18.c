/* fig18: PerfPlay Figure 18, consumers that poll two locks (pbzip2).
 *
 * A slow producer fills a queue. Consumers take `mu`, see that it is empty,
 * take `mu_done` inside it to read the producer's flag, and come back later.
 * Both locks collect read-read pairs. Fix: a semaphore counts the items, one
 * end marker per consumer stops them, and the flag is gone.
 *
 * Items are numbered; whoever takes one, the sum over all items is the same. */
#include "common.h"

#include <semaphore.h>

#define CAPACITY 4096
#define END UINT64_MAX

static pthread_mutex_t mu ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static struct {
    unsigned long head, tail, count;
    uint64_t items[CAPACITY];
} fifo ALIGNED;
#if FIXED
static sem_t filled ALIGNED;
static unsigned consumers;
#else
static pthread_mutex_t mu_done ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static int producer_done ALIGNED;

static NOINLINE int is_producer_done(void) {
    pthread_mutex_lock(&mu_done); /* @site is_done: read-read with is_done; conflict with set_done */
    int done = producer_done;
    work(1, 500);
    pthread_mutex_unlock(&mu_done);
    return done;
}
#endif

static NOINLINE void put(uint64_t item) {
    pthread_mutex_lock(&mu); /* @site put */
    CHECK(fifo.count < CAPACITY);
    fifo.items[fifo.tail++ % CAPACITY] = item;
    fifo.count++;
    pthread_mutex_unlock(&mu);
#if FIXED
    CHECK(sem_post(&filled) == 0);
#endif
}

/* The next item, or END. `count` is touched on both sides of the queue, so a
 * put and a successful take truly conflict whichever slots they use. */
static NOINLINE uint64_t take(unsigned long *tries) {
    for (;;) {
        uint64_t item = 0;
#if FIXED
        (void)tries;
        CHECK(sem_wait(&filled) == 0);
        pthread_mutex_lock(&mu); /* @site take in fixed: tlcp with take; conflict with put */
#else
        in_step((*tries)++);
        pthread_mutex_lock(&mu); /* @site poll: read-read with poll; conflict with put */
        if (fifo.count == 0) {
            if (is_producer_done())
                item = END;
        } else
#endif
        {
            item = fifo.items[fifo.head++ % CAPACITY];
            fifo.count--;
        }
        pthread_mutex_unlock(&mu);
        if (item != 0)
            return item;
        work(2, 1500);
    }
}

static uint64_t produce(unsigned long rounds) {
#if !FIXED
    /* The consumers' first tries find nothing. */
    for (unsigned long i = 0; i < IN_STEP; i++)
        in_step(i);
#endif
    for (unsigned long i = 1; i <= rounds; i++) {
        work(i, 40000);
        put(i);
    }
#if FIXED
    for (unsigned i = 0; i < consumers; i++)
        put(END);
#else
    pthread_mutex_lock(&mu_done); /* @site set_done */
    producer_done = 1;
    pthread_mutex_unlock(&mu_done);
#endif
    return 0;
}

static uint64_t consume(void) {
    unsigned long tries = 0;
    uint64_t sum = 0, item;
    while ((item = take(&tries)) != END)
        sum += work(item, 2000);
    return sum;
}

static uint64_t role(unsigned self, unsigned long rounds) {
    return self == 0 ? produce(rounds) : consume();
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 400);
    unsigned threads = threads_arg(argc, argv, 2, 3, 3);
    CHECK(rounds < CAPACITY);
#if FIXED
    consumers = threads - 1;
    CHECK(sem_init(&filled, 0, 0) == 0);
#endif
    uint64_t digest = run_crew(threads, rounds, role);
    printf("fig18 items %lu digest %016" PRIx64 "\n", rounds, digest);
    return 0;
}
