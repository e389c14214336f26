// A program that executes others: what fails, and what goes on.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void handler(int signal) { (void)signal; }

int main(int argc, char **argv) {
    if (argc == 3) {
        // Executed by itself: what is left of the program before.
        struct sigaction term, hup;
        sigaction(SIGTERM, 0, &term);
        sigaction(SIGHUP, 0, &hup);
        printf("%s %s %s\n", argv[0], argv[1], getenv("LEFT") ? getenv("LEFT") : "none");
        printf("handler %d, ignored %d\n", term.sa_handler == handler, hup.sa_handler == SIG_IGN);
        printf("closed %d, open %d\n", fcntl(atoi(argv[1]), F_GETFD), fcntl(atoi(argv[2]), F_GETFD));
        fflush(stdout);
        execl("./program", "again", "by", "a relative", "path", (char *)0);
        return 3;
    }
    if (argc == 4) {
        char path[4096] = "";
        ssize_t len = readlink("/proc/self/exe", path, sizeof path - 1);
        printf("%c %d %s\n", path[0], strlen(path) == len, strrchr(path, '/'));
        fflush(stdout);
        execl("./script", "script", "argument", (char *)0);
        return 3;
    }
    printf("missing %d %d\n", execl("./missing", "x", (char *)0), errno);
    printf("directory %d %d\n", execl("/tmp", "x", (char *)0), errno);
    printf("no program %d %d\n", execl("source.c", "x", (char *)0), errno);
    printf("bad pointer %d %d\n", execve((char *)8, argv, environ), errno);

    int file = open("script", O_CREAT | O_WRONLY, 0755);
    const char *text = "#!/bin/sh\necho script $1 $LEFT\nexec /bin/echo last\n";
    write(file, text, strlen(text));
    close(file);
    file = open("text", O_CREAT | O_WRONLY, 0755);
    write(file, "no format", 9);
    close(file);
    printf("format %d %d\n", execl("./text", "x", (char *)0), errno);

    signal(SIGTERM, handler);
    signal(SIGHUP, SIG_IGN);
    char closed[8], left[8];
    sprintf(closed, "%d", open("/dev/null", O_RDONLY | O_CLOEXEC));
    sprintf(left, "%d", open("/dev/null", O_RDONLY));
    fflush(stdout);
    char *arguments[] = {"again", closed, left, 0}, *environment[] = {"LEFT=left", 0};
    execve("/proc/self/exe", arguments, environment);
    return 2;
}
