/* ex_process: child processes in all the ways that C libraries start them,
 * while another thread works. What children say goes through pipes. */
#include "common.h"
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int stop;
static volatile sig_atomic_t terms, children;
static int value = 1;

static void *allocate(void *argument) {
    uint64_t *last = argument;
    for (;;) {
        pthread_mutex_lock(&mutex);
        int over = stop;
        pthread_mutex_unlock(&mutex);
        if (over)
            return NULL;
        void *memory = malloc(64 + mix(*last) % 512);
        *last = mix(*last);
        free(memory);
        usleep(100);
    }
}

static void count_term(int signal) {
    terms += signal == SIGTERM;
}

static void count_child(int signal) {
    children += signal == SIGCHLD;
}

static int status_of(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) != child)
        CHECK(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A child that goes on in the same program: its memory is its own. */
static int forked(void) {
    int up[2];
    CHECK(pipe(up) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        value = 41;
        char *text = malloc(64);
        int len = snprintf(text, 64, "%d", value + 1);
        _exit(write(up[1], text, len) == len ? 7 : 8);
    }
    char text[8] = "";
    close(up[1]);
    CHECK(read(up[0], text, sizeof text - 1) == 2);
    close(up[0]);
    CHECK(status_of(child) == 7 && value == 1);
    return atoi(text);
}

/* A child that handles signals itself. */
static int signaled(void) {
    int up[2];
    char byte;
    CHECK(pipe(up) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sigset_t none, term;
        sigemptyset(&none);
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, NULL);
        signal(SIGTERM, count_term);
        CHECK(write(up[1], "r", 1) == 1);
        while (terms == 0)
            sigsuspend(&none);
        _exit(20 + terms);
    }
    CHECK(read(up[0], &byte, 1) == 1);
    CHECK(kill(child, SIGTERM) == 0);
    close(up[0]);
    close(up[1]);
    return status_of(child);
}

static int vforked(void) {
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/no/such/program", "program", (char *)NULL);
        _exit(errno == ENOENT ? 42 : 43);
    }
    return status_of(child);
}

static int spawned(void) {
    extern char **environ;
    pid_t child;
    char *arguments[] = {"sh", "-c", "exit 9", NULL};
    CHECK(posix_spawnp(&child, "no-such-program", NULL, NULL, arguments, environ) ==
          ENOENT);
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
    return status_of(child);
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 20);
    pthread_t worker;
    uint64_t seed = 1;
    CHECK(pthread_create(&worker, NULL, allocate, &seed) == 0);
    signal(SIGCHLD, count_child);
    int sum = 0;
    for (unsigned long i = 0; i < rounds; i++)
        sum += forked() + vforked() + spawned() + signaled();
    CHECK(children > 0);
    signal(SIGCHLD, SIG_DFL);

    char line[64] = "";
    FILE *pipe = popen("echo from a pipe; exit 3", "r");
    CHECK(pipe && fgets(line, sizeof line, pipe));
    line[strcspn(line, "\n")] = '\0';
    int closed = WEXITSTATUS(pclose(pipe)), ran = WEXITSTATUS(system("exit 4"));
    pthread_mutex_lock(&mutex);
    stop = 1;
    pthread_mutex_unlock(&mutex);
    CHECK(pthread_join(worker, NULL) == 0);
    printf("ex_process sum %d, %s %d %d\n", sum, line, closed, ran);
    return 0;
}
