/* exit7: exits with status 7 while other threads still run. */
#include "common.h"

#include <semaphore.h>
#include <unistd.h>

static sem_t running;

static void *linger(void *unused) {
    CHECK(sem_post(&running) == 0);
    for (;;)
        pause();
    return unused;
}

int main(void) {
    pthread_t id;
    CHECK(sem_init(&running, 0, 0) == 0);
    for (unsigned i = 0; i < 2; i++)
        CHECK(pthread_create(&id, NULL, linger, NULL) == 0);
    for (unsigned i = 0; i < 2; i++)
        CHECK(sem_wait(&running) == 0);
    printf("exit7\n");
    exit(7);
}
