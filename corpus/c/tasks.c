/* tasks: kernel: one thread puts small tasks into a queue, the others take them out. */
#include "common.h"

#define ROOM 128

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER, emptied = PTHREAD_COND_INITIALIZER;
static uint64_t queue[ROOM];
static unsigned long put, taken, all;
static uint64_t done;

static void fill(void) {
    for (unsigned long i = 0; i < all; i++) {
        pthread_mutex_lock(&lock);
        while (put - taken == ROOM)
            pthread_cond_wait(&emptied, &lock);
        queue[put++ % ROOM] = i;
        pthread_cond_signal(&filled);
        pthread_mutex_unlock(&lock);
    }
}

static uint64_t work_off(void) {
    uint64_t sum = 0;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (put == taken && taken < all)
            pthread_cond_wait(&filled, &lock);
        if (taken == all) {
            pthread_cond_broadcast(&filled);
            done += sum;
            pthread_mutex_unlock(&lock);
            return sum;
        }
        uint64_t task = queue[taken++ % ROOM];
        pthread_cond_signal(&emptied);
        pthread_mutex_unlock(&lock);
        for (unsigned step = 0; step < 40; step++)
            task = mix(task);
        sum += task;
    }
}

static uint64_t role(unsigned self, unsigned long unused) {
    (void)unused;
    if (self > 0)
        return work_off();
    fill();
    return work_off();
}

int main(int argc, char **argv) {
    all = arg(argc, argv, 1, 150000);
    unsigned threads = threads_arg(argc, argv, 2, 2, 2);
    run_crew(threads, 0, role);
    printf("tasks %" PRIu64 "\n", done);
    return 0;
}
