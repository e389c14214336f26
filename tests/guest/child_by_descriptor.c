/* A child that is made with a descriptor of its own: the parent waits for it by that. */
#define _GNU_SOURCE
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

int main(void) {
    int pidfd = -1;
    pid_t child = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0, &pidfd, 0, 0);
    if (child == 0)
        _exit(7);
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    int ready = poll(&ended, 1, 10000);
    siginfo_t info = {0};
    int waited = waitid(P_PIDFD, pidfd, &info, WEXITED);
    printf("%d %d %d %d %d\n", pidfd, ready, waited, info.si_status, info.si_pid == child);
    return 0;
}
