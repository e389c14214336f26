/* events: kernel: a great number of synchronization events, for the size of a
 * trace and the memory of a recorder. Most pairs are on the thread's own mutex
 * and never wait; one pair in 16 is on a common one. A lock and its unlock are
 * two events: the size is the number of events of all threads together. */
#include "common.h"

static struct {
    pthread_mutex_t lock;
    uint64_t count;
} own[MAX_THREADS] ALIGNED;

static pthread_mutex_t common_lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static uint64_t common_count ALIGNED;

static uint64_t role(unsigned self, unsigned long pairs) {
    for (unsigned long i = 0; i < pairs; i++) {
        int together = i % 16 == 15;
        pthread_mutex_t *lock = together ? &common_lock : &own[self].lock;
        pthread_mutex_lock(lock);
        ++*(together ? &common_count : &own[self].count);
        pthread_mutex_unlock(lock);
    }
    return own[self].count;
}

int main(int argc, char **argv) {
    unsigned long events = arg(argc, argv, 1, 10000000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    for (unsigned i = 0; i < threads; i++)
        CHECK(pthread_mutex_init(&own[i].lock, NULL) == 0);
    uint64_t count = run_crew(threads, events / 2 / threads, role);
    printf("events %" PRIu64 "\n", 2 * (count + common_count));
    return 0;
}
