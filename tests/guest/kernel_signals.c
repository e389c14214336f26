// Signals that the kernel sends the thread whose call fails, and calls that fail so without one.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int got;

static void note(int signal) {
    got = signal;
}

static void say(const char *what, long result) {
    printf("%s: %ld %s, signal %d\n", what, result, result < 0 ? strerrorname_np(errno) : "", got);
    fflush(stdout);
    got = 0;
}

static void limit(unsigned long soft) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = soft;
    setrlimit(RLIMIT_FSIZE, &limit);
}

int main(void) {
    struct sigaction action = {.sa_handler = note};
    sigaction(SIGPIPE, &action, 0);
    sigaction(SIGXFSZ, &action, 0);

    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    close(pair[1]);
    say("send", send(pair[0], "a", 1, 0));
    say("send without a signal", send(pair[0], "a", 1, MSG_NOSIGNAL));
    say("write", write(pair[0], "a", 1));
    struct iovec part = {"a", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    say("sendmsg without a signal", sendmsg(pair[0], &message, MSG_NOSIGNAL));

    int fd = open("limited.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    limit(64 << 20);
    say("write up to the limit", pwrite(fd, "ab", 2, (64 << 20) - 1));
    say("write beyond the limit", pwrite(fd, "ab", 2, 64 << 20));
    say("make a file longer than the limit", ftruncate(fd, (64 << 20) + 1));
    say("write beyond all files", pwrite(fd, "ab", 2, 0x7ffffffffffffff0));
    ftruncate(fd, 0);

    // Less than the recorder writes, and heard of by other programs.
    struct rlimit low = {4096, 8192};
    say("a low limit", setrlimit(RLIMIT_FSIZE, &low));
    getrlimit(RLIMIT_FSIZE, &low);
    printf("%lu %lu\n", low.rlim_cur, low.rlim_max);
    fflush(stdout);
    system("ulimit -Sf; ulimit -Hf");

    // Lengths of which there is nothing, and a number in an address's place.
    say("many nodes", syscall(SYS_set_mempolicy, 0, &fd, 1ul << 62));
    say("many operations", syscall(SYS_semop, 0, &fd, 0xffffffff));
    say("a command that takes no address", ioctl(pair[0], 0x894c, 0xffffffff));

    if (!fork()) {
        signal(SIGPIPE, SIG_DFL);
        say("send without a signal", send(pair[0], "a", 1, MSG_NOSIGNAL));
        write(pair[0], "a", 1);
    }
    int status;
    wait(&status);
    printf("killed by %d\n", WTERMSIG(status));
}
