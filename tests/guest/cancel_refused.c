// Threads that do not want to be cancelled while they wait, and a thread that cancels itself in a
// program that has had neither a handler nor a second thread.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

static sem_t tokens;
static int ended;

static void clean(void *_) { ended++; }

static void *refuses(void *_) {
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    for (int i = 0; i < 10; i++) sem_wait(&tokens);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    for (;;) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
        pthread_setcancelstate(before, 0);
        pthread_testcancel();
    }
}

static void cancelled_while_they_wait(void) {
    int cancelled = 0;
    pthread_t threads[4];
    void *result;
    for (int i = 0; i < 4; i++) pthread_create(threads + i, 0, refuses, 0);
    for (int i = 0; i < 4; i++) pthread_cancel(threads[i]);
    for (int i = 0; i < 40; i++) sem_post(&tokens);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &result);
        cancelled += result == PTHREAD_CANCELED;
    }
    printf("%d cancelled\n", cancelled);
}

static void then_the_others(void *_) {
    sem_init(&tokens, 0, 0);
    for (int i = 0; i < 10; i++) cancelled_while_they_wait();
    printf("ended %d\n", ended);
    fflush(stdout);
}

int main(void) {
    pthread_cleanup_push(then_the_others, 0);
    pthread_cleanup_push(clean, 0);
    printf("itself %d\n", pthread_cancel(pthread_self()));
    pthread_testcancel();
    printf("not reached\n");
    pthread_cleanup_pop(0);
    pthread_cleanup_pop(0);
    return 1;
}
