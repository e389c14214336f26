// Threads of real-time classes, and a mutex with a priority ceiling: the library allocates memory in
// pthread_mutex_lock to note which ceilings a thread has met. Whoever waits for a thread of a lower
// priority must let it run.
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t mutex;
static int sum;

static void *work(void *unused) {
    for (int i = 0; i < 100; i++) {
        if (pthread_mutex_lock(&mutex)) return (void *)1;
        sum++;
        pthread_mutex_unlock(&mutex);
    }
    return unused;
}

int main(void) {
    struct sched_param own = {3}, low = {4}, high = {5};
    if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &own)) {
        puts("not for every user");
        return 0;
    }
    pthread_mutexattr_t with_ceiling;
    pthread_mutexattr_init(&with_ceiling);
    pthread_mutexattr_setprotocol(&with_ceiling, PTHREAD_PRIO_PROTECT);
    pthread_mutexattr_setprioceiling(&with_ceiling, 10);
    pthread_mutex_init(&mutex, &with_ceiling);
    pthread_attr_t real_time;
    pthread_attr_init(&real_time);
    pthread_attr_setinheritsched(&real_time, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&real_time, SCHED_FIFO);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        pthread_attr_setschedparam(&real_time, i % 2 ? &high : &low);
        if (pthread_create(&threads[i], &real_time, work, NULL)) return 1;
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    int ceiling = 0;
    pthread_mutex_setprioceiling(&mutex, 12, &ceiling);
    int taken = pthread_mutex_trylock(&mutex);
    printf("%d, %d, %d\n", sum, ceiling, taken);
    pthread_mutex_unlock(&mutex);
    return pthread_mutex_destroy(&mutex);
}
