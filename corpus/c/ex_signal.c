/* ex_signal: handlers that interrupt what a thread waits in, handlers of faults
 * and traps, timers, masks, queued signals, an alternate stack. Whoever sends a signal waits until
 * it has been handled, so that the counts are exact. */
#include "common.h"
#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t handled, on_stack, order[8], queued, traps;
static sigjmp_buf before_fault;
static char stack[64 << 10];
static sem_t done, gate;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int open_gate, channel[2];
static pthread_t main_thread;

static void count(int signal, siginfo_t *info, void *context) {
    char here;
    (void)context;
    CHECK(info->si_signo == signal);
    on_stack = &here >= stack && &here < stack + sizeof stack;
    handled++;
    CHECK(sem_post(&done) == 0);
}

static void jump(int signal, siginfo_t *info, void *context) {
    (void)context;
    CHECK(signal != SIGSEGV || info->si_addr == (void *)8);
    siglongjmp(before_fault, signal);
}

static void note(int signal, siginfo_t *info, void *context) {
    (void)context;
    CHECK(signal == SIGRTMIN);
    order[queued++ & 7] = info->si_value.sival_int;
}

static void handle(int signal, void (*handler)(int, siginfo_t *, void *),
                   int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    CHECK(sigaction(signal, &action, NULL) == 0);
}

/* Interrupts the main thread in whatever it is doing, `times` times. */
static void poke(unsigned long times) {
    while (times-- > 0) {
        CHECK(pthread_kill(main_thread, SIGUSR1) == 0);
        while (sem_wait(&done) != 0)
            CHECK(errno == EINTR);
    }
}

static void *poke_all(void *argument) {
    unsigned long times = (uintptr_t)argument;
    poke(times);
    CHECK(write(channel[1], "x", 1) == 1);
    poke(times);
    pthread_mutex_lock(&mutex);
    open_gate = 1;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
    poke(times);
    CHECK(sem_post(&gate) == 0);
    poke(times);
    return NULL;
}

/* In turn: a system call, a condition variable, a semaphore, a join. */
static void be_interrupted(unsigned long times) {
    pthread_t poker;
    char byte;
    CHECK(pthread_create(&poker, NULL, poke_all, (void *)times) == 0);
    CHECK(read(channel[0], &byte, 1) == 1);
    pthread_mutex_lock(&mutex);
    while (!open_gate)
        pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    while (sem_wait(&gate) != 0)
        CHECK(errno == EINTR);
    CHECK(pthread_join(poker, NULL) == 0);
}

/* Registers of all kinds survive a handler, and its jump out of a fault. */
static NOINLINE double fault(volatile int *wrong, int divisor) {
    volatile long double precise = 1.25L;
    volatile double single = 2.5;
    int signal = sigsetjmp(before_fault, 1);
    if (signal == 0) {
        *wrong = 100 / divisor;
        CHECK(!"the instruction before this one faults");
    }
    return (double)precise * single + signal;
}

static void trapped(int signal, siginfo_t *info, void *context) {
    (void)info, (void)context;
    CHECK(signal == SIGTRAP);
    traps++;
}

/* A trap's handler returns behind the instruction. */
static NOINLINE void be_trapped(void) {
    int before = traps;
    __asm__ volatile("int3\n\tint3" ::: "memory");
    CHECK(traps == before + 2);
}

static void tell(union sigval value) { CHECK(sem_post(value.sival_ptr) == 0); }

/* Timers for the process, for a thread, and for a thread that the library makes. */
static void be_timed(void) {
    struct itimerspec soon = {.it_value = {.tv_nsec = 1000000}};
    struct sigevent events[3];
    memset(events, 0, sizeof events);
    events[0].sigev_notify = SIGEV_SIGNAL;
    events[1].sigev_notify = SIGEV_THREAD_ID;
    events[1]._sigev_un._tid = gettid();
    events[0].sigev_signo = events[1].sigev_signo = SIGUSR1;
    events[2].sigev_notify = SIGEV_THREAD;
    events[2].sigev_notify_function = tell;
    events[2].sigev_value.sival_ptr = &done;
    for (unsigned i = 0; i < 3; i++) {
        timer_t timer;
        CHECK(timer_create(CLOCK_MONOTONIC, &events[i], &timer) == 0);
        CHECK(timer_settime(timer, 0, &soon, NULL) == 0);
        while (sem_wait(&done) != 0)
            CHECK(errno == EINTR);
        CHECK(timer_delete(timer) == 0);
    }
}

static void be_patient(void) {
    sigset_t set, none;
    sigemptyset(&none);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    int before = handled;
    CHECK(raise(SIGUSR1) == 0 && handled == before);
    CHECK(sigsuspend(&none) == -1 && errno == EINTR && handled == before + 1);
    for (int i = 1; i <= 3; i++)
        CHECK(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i}) == 0);
    CHECK(sigpending(&set) == 0 && sigismember(&set, SIGRTMIN) == 1);
    CHECK(queued == 0 && sigprocmask(SIG_SETMASK, &none, NULL) == 0);
    CHECK(queued == 3);
}

int main(int argc, char **argv) {
    unsigned long times = arg(argc, argv, 1, 200);
    main_thread = pthread_self();
    CHECK(sem_init(&done, 0, 0) == 0 && sem_init(&gate, 0, 0) == 0);
    CHECK(pipe(channel) == 0);
    handle(SIGUSR1, count, SA_RESTART);
    handle(SIGRTMIN, note, 0);
    handle(SIGSEGV, jump, 0);
    handle(SIGFPE, jump, SA_NODEFER);
    be_interrupted(times);
    double result = 0;
    int somewhere;
    for (unsigned i = 0; i < 3; i++)
        result += fault((int *)8, 7) + fault(&somewhere, 0);
    handle(SIGTRAP, trapped, 0);
    be_trapped();
    be_timed();
    be_patient();

    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    CHECK(!on_stack);
    handle(SIGUSR2, count, SA_ONSTACK | SA_RESETHAND);
    CHECK(raise(SIGUSR2) == 0 && on_stack);
    printf("ex_signal handled %d result %.2f order %d%d%d\n", (int)handled, result,
           (int)order[0], (int)order[1], (int)order[2]);
    fflush(stdout);
    /* The handler is reset: this ends the process. */
    raise(SIGUSR2);
    return 0;
}
