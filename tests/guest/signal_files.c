// Descriptors that tell of signals: signalfd and all that waits for it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd;

static int ready(int which) {
    struct pollfd asked = {which, POLLIN, 0};
    return poll(&asked, 1, 0);
}

static void show(const char *what, int which) {
    struct signalfd_siginfo infos[2];
    memset(infos, 0, sizeof infos);
    ssize_t len = read(which, infos, sizeof infos);
    printf("%s: %zd %s\n", what, len, len < 0 ? strerrorname_np(errno) : "");
    for (int i = 0; i < (int)(len / (ssize_t)sizeof *infos); i++)
        printf("  signal %u code %d own %d value %d %d status %d\n", infos[i].ssi_signo,
               infos[i].ssi_code, infos[i].ssi_pid == (unsigned)getpid(), infos[i].ssi_int,
               infos[i].ssi_ptr == (unsigned)infos[i].ssi_int, infos[i].ssi_status);
}

static void *reader(void *which) {
    show("thread", *(int *)which);
    return NULL;
}

static void say(long result) {
    printf("%ld %s\n", result, result < 0 ? strerrorname_np(errno) : "");
}

static void handler(int signal) { (void)signal; }

int main(void) {
    sigset_t set, other;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    printf("%d %d\n", fd, fcntl(fd, F_GETFD));
    show("nothing", fd);
    printf("ready %d\n", ready(fd));
    kill(getpid(), SIGUSR1);
    kill(getpid(), SIGUSR1);
    printf("ready %d\n", ready(fd));
    show("twice the same", fd);
    show("nothing", fd);
    printf("ready %d\n", ready(fd));

    for (int i = 1; i <= 3; i++) sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i});
    show("queue", dup(fd));
    printf("ready %d\n", ready(fd));
    show("queue", fd);
    printf("ready %d\n", ready(fd));

    pid_t child = fork();
    if (child == 0) _exit(7);
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    printf("epoll %d\n", epoll_wait(epoll, &event, 1, -1));
    show("child", fd);
    waitpid(child, NULL, 0);

    int waits = signalfd(-1, &set, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, reader, &waits);
    usleep(20000);
    kill(getpid(), SIGUSR1);
    pthread_join(thread, NULL);

    // A pending signal, and then one, too, that the descriptor has not told of so far.
    sigemptyset(&other);
    sigaddset(&other, SIGUSR2);
    sigprocmask(SIG_BLOCK, &other, NULL);
    kill(getpid(), SIGUSR2);
    printf("ready %d\n", ready(fd));
    printf("same %d\n", signalfd(fd, &other, 0) == fd);
    printf("ready %d\n", ready(fd));
    show("another", fd);

    // What a wait has taken is not told of.
    kill(getpid(), SIGUSR1);
    printf("waited for %d\n", sigwaitinfo(&set, NULL) == SIGUSR1);
    show("taken", fd);

    char half[2][64];
    struct iovec vectors[2] = {{half[0], 64}, {half[1], 64}};
    kill(getpid(), SIGUSR2);
    printf("%zd", readv(fd, vectors, 2));
    printf(" signal %d\n", *(int *)half[0]);
    say(read(fd, half, 64));
    say(signalfd(-1, &set, 1));
    say(signalfd(0, &set, 0));
    say(signalfd(99, &set, 0));
    say(syscall(SYS_signalfd4, -1, &set, 4, 0));
    say(syscall(SYS_signalfd4, -1, 8, 8, 0));

    // Unknown calls and those that no recording knows fail.
    say(syscall(1234));
    signal(SIGUSR2, handler);
    sigprocmask(SIG_UNBLOCK, &other, NULL);
    kill(getpid(), SIGUSR2);
    printf("handled, ready %d\n", read(fd, half, sizeof half) > 0);
    return 0;
}
