// What the C library keeps about a thread that waits, written to a file by a handler: a collector of garbage
// that stops threads by signals searches it for pointers, as it does their stacks.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

// Beside where the library says what is to be done if the thread is cancelled.
enum { FROM = 0x2e0, LENGTH = 0x30 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t started, stopped, go;
static int file, way, done;

static void stop(int signal) {
    write(file, (char *)pthread_self() + FROM, LENGTH);
    sem_post(&stopped);
}

static void nothing(void *name) {}

static void *wait(void *name) {
    pthread_cleanup_push(nothing, name);
    sem_post(&started);
    if (way == 0) {
        sem_wait(&go);
    } else {
        pthread_mutex_lock(&mutex);
        while (!done) pthread_cond_wait(&condition, &mutex);
        pthread_mutex_unlock(&mutex);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    file = open("/dev/null", O_WRONLY);
    sem_init(&started, 0, 0), sem_init(&stopped, 0, 0), sem_init(&go, 0, 0);
    for (way = 0; way < 2; way++) {
        pthread_t thread;
        pthread_create(&thread, NULL, wait, NULL);
        sem_wait(&started);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        for (int n = 0; n < 3; n++) {
            pthread_kill(thread, SIGUSR1);
            sem_wait(&stopped);
        }
        pthread_mutex_lock(&mutex);
        done = way;
        pthread_cond_broadcast(&condition);
        pthread_mutex_unlock(&mutex);
        sem_post(&go);
        pthread_join(thread, NULL);
        printf("%d\n", way);
    }
    return 0;
}
