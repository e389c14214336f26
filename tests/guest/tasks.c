// Calls of clone, the statuses of threads that end one by one, and programs that execute what is odd.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char stack[1 << 16] __attribute__((aligned(64)));
static volatile int stored;

static int child(void *unused) {
    stored = 1;
    _exit(7);
}

static void create(const char *name, unsigned long flags, unsigned long tls) {
    stored = 0;
    int descriptor = -1, status = -1;
    long pid = syscall(SYS_clone, flags, 0, &descriptor, 0, tls);
    if (pid == 0) {
        stored = 1;
        _exit(7);
    }
    int error = pid < 0 ? errno : 0;
    if (pid > 0)
        waitpid(pid, &status, __WALL);
    printf("%s: %d %x %d\n", name, error, status, stored);
    fflush(stdout);
}

static void *ends_last(void *first) {
    pthread_join(*(pthread_t *)first, NULL);
    syscall(SYS_exit, 9);
    return NULL;
}

static pthread_t first;

int main(int count, char **names) {
    if (count == 0 || !strcmp(names[0], "")) {
        printf("executed with %d names\n", count);
        fflush(stdout);
        // Threads that end one by one: the last one's status is the program's.
        pthread_t last;
        first = pthread_self();
        pthread_create(&last, NULL, ends_last, &first);
        syscall(SYS_exit, 4);
    }
    create("undefined", 0xffffffff, 0);
    create("signals", CLONE_SIGHAND, 0);
    create("thread", CLONE_THREAD | SIGCHLD, 0);
    create("storage", CLONE_SETTLS | SIGCHLD, -1);
    create("untraced", CLONE_UNTRACED | SIGCHLD, 0);
    create("waits", CLONE_VFORK | SIGCHLD, 0);
    int status;
    pid_t pid = clone(child, stack + sizeof stack, CLONE_VFORK | CLONE_UNTRACED | SIGCHLD, NULL);
    printf("%d", waitpid(pid, &status, 0) == pid);
    printf(" %x %d\n", status, stored);
    fflush(stdout);
    if (fork() == 0)
        syscall(SYS_exit, 5);
    wait(&status);
    printf("%x\n", status);
    int script = open("tasks.script", O_CREAT | O_WRONLY | O_TRUNC, 0700);
    if (write(script, "#!/nowhere/at/all\n", 18) != 18)
        perror("write");
    close(script);
    execl("./tasks.script", "script", NULL);
    printf("%d\n", errno == ENOENT);
    fflush(stdout);
    unlink("tasks.script");
    int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char *none[] = {NULL};
    syscall(SYS_execveat, self, "", none, none, AT_EMPTY_PATH);
    return 1;
}
