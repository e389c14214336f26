/* A timer that sends its signal to a thread, which has computed for some time by then. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static __thread volatile int told;
static volatile int thread_id, over;

static void on(int signal) {
    (void)signal;
    told = 1;
}

static void *compute(void *argument) {
    volatile unsigned long work = 0;
    (void)argument;
    thread_id = (int)syscall(SYS_gettid);
    while (!told)
        work++;
    over = 1;
    return NULL;
}

int main(void) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGPROF};
    struct itimerspec often = {{0, 2000000}, {0, 2000000}};
    pthread_t thread;
    timer_t timer;
    signal(SIGPROF, on);
    pthread_create(&thread, NULL, compute, NULL);
    while (!thread_id)
        usleep(100);
    usleep(5000);
    event.sigev_notify_thread_id = thread_id;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
        return 2;
    timer_settime(timer, 0, &often, NULL);
    for (int i = 0; !over; i++) {
        if (i == 3000)
            _exit(1);
        usleep(1000);
    }
    return pthread_join(thread, NULL);
}
