/* Two threads. With FIXED=1 a program does the same, with its accesses in order. */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef FIXED
#define FIXED 0
#endif
#define APART __attribute__((noinline, unused))

static pthread_mutex_t lock __attribute__((unused)) = PTHREAD_MUTEX_INITIALIZER;

/* Runs both threads to their ends. */
static APART void run(void *(*one)(void *), void *(*other)(void *), void *what)
{
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, one, what);
    pthread_create(&threads[1], NULL, other, what);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* Only the fixed program takes the lock. */
static APART void enter(void)
{
    if (FIXED)
        pthread_mutex_lock(&lock);
}

static APART void leave(void)
{
    if (FIXED)
        pthread_mutex_unlock(&lock);
}
