// A program that executes itself again until the dynamic linker has the setting that it wants, as
// pulseaudio does, sees the setting as it made it: also where the recorder uses the same.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv)
{
    for (char **entry = environ; *entry; entry++)
        if (!strncmp(*entry, "LD_BIND_NOW=", 12) || !strncmp(*entry, "GLIBC_TUNABLES=", 15))
            printf("%d: %s\n", argc, *entry);
    fflush(stdout);
    static const char *const wanted[] = {"1", "1", "2"};
    if (argc > 3)
        return 0;
    setenv("LD_BIND_NOW", wanted[argc - 1], 1);
    char *again[] = {argv[0], "a", argc > 1 ? "b" : NULL, argc > 2 ? "c" : NULL, NULL};
    execv("/proc/self/exe", again);
    return 1;
}
