/* What sandboxes do: a child in namespaces of its own, and one without if that is forbidden. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    long child = syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
    int status = 0;
    if (child < 0 && errno == EPERM)
        child = fork();
    if (child == 0)
        _exit(7);
    waitpid((pid_t)child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
    return 0;
}
