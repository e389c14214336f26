// A timer is stopped, and its signal's handler taken away at once: what the timer has sent before was
// handled before.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int count;

static void handler(int signal) {
    (void)signal;
    count++;
}

// Until the next signal comes, and a part of the time to the one after it.
static void compute(long rest) {
    volatile long number = 0;
    for (int before = count; count == before;) number++;
    for (long i = 0; i < rest; i++) number++;
}

int main(void) {
    struct itimerval every = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    for (int round = 0; round < 200; round++) {
        signal(SIGALRM, handler);
        setitimer(ITIMER_REAL, &every, NULL);
        compute(round * 1000);
        setitimer(ITIMER_REAL, &never, NULL);
        signal(SIGALRM, SIG_DFL);
    }
    timer_t timer;
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_signo = SIGUSR1;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    struct itimerspec soon = {{0, 300000}, {0, 300000}}, off = {{0, 0}, {0, 0}};
    for (int round = 0; round < 100; round++) {
        signal(SIGUSR1, handler);
        timer_settime(timer, 0, &soon, NULL);
        compute(round * 1000);
        timer_settime(timer, 0, &off, NULL);
        signal(SIGUSR1, SIG_DFL);
    }
    printf("%d\n", count >= 300);
    return 0;
}
