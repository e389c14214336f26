// A debugger in small: its child stops when it executes a program, and is let go.
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc > 1) return ptrace(PTRACE_TRACEME, 0, 0, 0);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execl("/bin/echo", "echo", "from the child", (char *)0);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    struct user_regs_struct registers;
    printf("stopped %d by %d, %ld\n", WIFSTOPPED(status), WSTOPSIG(status),
           ptrace(PTRACE_GETREGS, child, 0, &registers));
    fflush(stdout);
    ptrace(PTRACE_CONT, child, 0, 0);
    waitpid(child, &status, 0);
    printf("exited %d with %d\n", WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
