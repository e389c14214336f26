/* locks: kernel: 10^6 short critical sections on two threads, one mutex. */
#include "common.h"

static pthread_mutex_t lock ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static uint64_t counter ALIGNED;

static uint64_t role(unsigned self, unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++) {
        pthread_mutex_lock(&lock);
        counter++;
        pthread_mutex_unlock(&lock);
    }
    return self;
}

int main(int argc, char **argv) {
    unsigned long total = arg(argc, argv, 1, 1000000);
    unsigned threads = threads_arg(argc, argv, 2, 1, 2);
    run_crew(threads, total / threads, role);
    printf("locks %" PRIu64 "\n", counter);
    return 0;
}
