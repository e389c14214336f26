// Once-objects in memory that is used again, as in the shared states of C++'s futures.
#include <pthread.h>
#include <stdio.h>

static pthread_once_t places[2];
static int ran;

static void routine(void) { ran++; }

static void run(int place) {
    places[place] = (pthread_once_t)PTHREAD_ONCE_INIT;
    pthread_once(&places[place], routine);
    pthread_once(&places[place], routine);
}

static void *runs(void *unused) {
    for (int i = 0; i < 4; i++) run(i % 2);
    return unused;
}

static void *runs_first(void *unused) {
    pthread_once(&places[0], routine);
    return unused;
}

int main(void) {
    pthread_t threads[2];
    runs(0);
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[0], 0, runs, 0);
        pthread_join(threads[0], 0);
        runs(0);
    }
    for (int i = 0; i < 20; i++) {
        places[0] = (pthread_once_t)PTHREAD_ONCE_INIT;
        for (int n = 0; n < 2; n++) pthread_create(&threads[n], 0, runs_first, 0);
        for (int n = 0; n < 2; n++) pthread_join(threads[n], 0);
    }
    printf("%d\n", ran);
    return 0;
}
