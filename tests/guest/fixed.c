/* Linked to fixed addresses: it executes itself, so that the next program lies where this one did, and
   both want memory at a place that they name. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int counter = 40;

int main(int argc, char **argv) {
    char *wanted = (char *)0x100000000000;
    char *got = mmap(wanted, 1 << 20, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("program %d: memory %s, counter %d\n", argc, got == wanted ? "there" : "elsewhere",
           counter += argc);
    fflush(stdout);
    void *some = malloc(1 << 22);
    if (argc < 3 && some)
        execv("./program", argc == 1 ? (char *[]){argv[0], "again", NULL}
                                     : (char *[]){argv[0], "once", "more", NULL});
    return counter;
}
