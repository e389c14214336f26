// Signals to the process group reach the program itself, handled or not.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void on(int signal) {
    char digit = '0' + signal % 10;
    write(1, &digit, 1);
}

int main(void) {
    setpgid(0, 0);
    signal(SIGUSR1, on);
    signal(SIGTSTP, on);
    kill(0, SIGUSR1);
    kill(-getpgrp(), SIGUSR1);
    kill(0, SIGTSTP);
    write(1, "\n", 1);
    kill(0, SIGTRAP);
    return 0;
}
