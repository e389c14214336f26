/* ex_alarm: signals that come while threads compute, where there is no system
 * call, no lock and no atomic instruction to take them at. How far a thread had
 * come when its signal came differs from run to run; `observe` shows that to the
 * kernel, and so to whoever compares system calls, but not to the output. */
#include "common.h"
#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t ticks;
static volatile uint64_t steps;
static sigjmp_buf out_of_the_loop;
static sem_t done;

static void observe(uint64_t value) {
    CHECK(lseek(-1, (off_t)(value >> 1), SEEK_SET) == -1 && errno == EBADF);
}

static void tick(int signal) {
    (void)signal;
    ticks++;
}

static void jump(int signal) { siglongjmp(out_of_the_loop, signal); }

static void handle(int signal, void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    CHECK(sigaction(signal, &action, NULL) == 0);
}

/* SIGALRM in a millisecond, and then every `period` microseconds. */
static void set_timer(suseconds_t period) {
    struct itimerval timer = {{0, period}, {0, 1000}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* The classic: nothing changes in the loop, registers included. */
static NOINLINE void until_flag(void) {
    ticks = 0;
    set_timer(0);
    while (!ticks) {
    }
}

/* What the loop has done is in memory alone. */
static NOINLINE void until_ticks(unsigned long n) {
    ticks = 0;
    set_timer(500);
    while ((unsigned long)ticks < n)
        steps++;
    struct itimerval never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    observe(steps);
}

/* The loop ends by a jump out of the handler. */
static NOINLINE uint64_t until_jump(void) {
    volatile uint64_t value = 1;
    handle(SIGALRM, jump);
    if (sigsetjmp(out_of_the_loop, 1) == 0) {
        set_timer(0);
        for (;;)
            value = mix(value);
    }
    return value;
}

/* Each worker is interrupted by another thread, in functions that call others, and
 * between atomic instructions and the plain loads and stores beside them. */
enum { WORKERS = 2 };
static __thread volatile unsigned long hits;
static _Atomic uint64_t turn, stamps[WORKERS];

static void hit(int signal) {
    (void)signal;
    hits++;
    CHECK(sem_post(&done) == 0);
}

static NOINLINE uint64_t tree(unsigned depth, uint64_t value) {
    if (depth == 0)
        return mix(value);
    return tree(depth - 1, value) + tree(depth - 1, value + depth);
}

static NOINLINE uint64_t hand_over(unsigned self) {
    uint64_t mine = atomic_fetch_add(&turn, 1);
    atomic_store_explicit(&stamps[self], mine, memory_order_release);
    return atomic_load_explicit(&stamps[!self], memory_order_acquire);
}

static unsigned long times;

static void *compute(void *argument) {
    unsigned self = (unsigned)(uintptr_t)argument;
    uint64_t value = self;
    while (hits < times)
        value = tree(9, value) + hand_over(self);
    observe(value);
    return NULL;
}

int main(int argc, char **argv) {
    times = arg(argc, argv, 1, 50);
    pthread_t workers[WORKERS];
    CHECK(sem_init(&done, 0, 0) == 0);
    handle(SIGALRM, tick);
    handle(SIGUSR1, hit);

    until_flag();
    until_ticks(times);
    observe(until_jump());
    for (uintptr_t i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&workers[i], NULL, compute, (void *)i) == 0);
    for (unsigned long i = 0; i < WORKERS * times; i++) {
        CHECK(pthread_kill(workers[i % WORKERS], SIGUSR1) == 0);
        CHECK(sem_wait(&done) == 0);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
    printf("ex_alarm %lu ticks, %lu hits\n", times, WORKERS * times);
    return 0;
}
