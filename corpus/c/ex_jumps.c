/* ex_jumps: threads that call through pointers in memory, while another thread writes beside the
 * pointers and a timer interrupts whoever computes. */
#include "common.h"
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>

typedef uint64_t (*step)(uint64_t);

static uint64_t twice(uint64_t value) { return value * 2 + 1; }
static uint64_t mixed(uint64_t value) { return value ^ value >> 7; }

/* The pointers and the word that is written lie in one line. */
struct {
    step steps[2];
    atomic_ulong noise;
} table __attribute__((aligned(64))) = {{twice, mixed}, 0};

static volatile sig_atomic_t ticks;
static atomic_int working = 2;

static void tick(int signal) {
    (void)signal;
    ticks++;
}

static void *call_all(void *argument) {
    uint64_t value = (uintptr_t)argument, rounds = value;
    for (uint64_t i = 0; i < rounds; i++)
        value = table.steps[i & 1](value);
    atomic_fetch_sub(&working, 1);
    return (void *)(uintptr_t)value;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 100000);
    pthread_t threads[2];
    void *results[2];
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = tick;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 200}, {0, 200}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, call_all, (void *)rounds) == 0);
    /* The timer's signals are the threads'. */
    sigset_t alarms;
    CHECK(sigemptyset(&alarms) == 0 && sigaddset(&alarms, SIGALRM) == 0);
    CHECK(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0);
    unsigned long written = 0;
    while (atomic_load(&working) > 0) {
        atomic_fetch_add(&table.noise, 1);
        written++;
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], &results[i]) == 0);
    CHECK(results[0] == results[1]);
    CHECK(atomic_load(&table.noise) == written);
    memset(&often, 0, sizeof often);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    printf("ex_jumps: %lu rounds, %p\n", rounds, results[0]);
    return 0;
}
