// A program that executes itself in children maps, to read, what one writes; beside it a file that
// nobody else writes. Another one writes to shared memory that was mapped before, by its name. They share
// nothing by the fork.
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define ROUNDS 20

// Writes rounds, each once the last one was answered.
static int write_rounds(void) {
    char answer;
    int file = open("theirs", O_RDWR);
    volatile int *words = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    for (int round = 1; round <= ROUNDS; round++) {
        words[0] = round * 17;
        if (write(1, "", 1) != 1 || read(0, &answer, 1) != 1) return 1;
    }
    return 0;
}

// Adds to what it finds, like its parent.
static int add(const char *name) {
    int memory = shm_open(name, O_RDWR, 0);
    volatile int *words = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (words == MAP_FAILED) return 1;
    for (int i = 0; i < 1000; i++) __atomic_fetch_add(words, 1, __ATOMIC_SEQ_CST);
    return 0;
}

// Of memory that is mapped before the program has started any other.
static int add_with_another(char *self) {
    char name[40];
    sprintf(name, "/refrain-%d", getpid());
    char *args[] = {self, "add", name, 0};
    pid_t child;
    int status, memory = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (memory < 0 || ftruncate(memory, PAGE)) return -1;
    volatile int *words = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (posix_spawn(&child, self, 0, 0, args, 0)) return -1;
    for (int i = 0; i < 1000; i++) __atomic_fetch_add(words, 1, __ATOMIC_SEQ_CST);
    waitpid(child, &status, 0);
    shm_unlink(name);
    return status ? -1 : words[0];
}

int main(int argc, char **argv) {
    int from[2], to[2], status, sum = 0;
    char word;
    if (argc > 2) return add(argv[2]);
    if (argc > 1) return write_rounds();
    int added = add_with_another(argv[0]);
    int theirs = open("theirs", O_RDWR | O_CREAT | O_TRUNC, 0600);
    int own = open("own", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (ftruncate(theirs, PAGE) || ftruncate(own, PAGE) || pipe(from) || pipe(to)) return 1;
    close(theirs);
    if (fork() == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl(argv[0], argv[0], "child", (char *)0);
        _exit(1);
    }
    // The first round says that the child has mapped the file.
    if (read(from[0], &word, 1) != 1) return 1;
    theirs = open("theirs", O_RDONLY);
    volatile int *words = mmap(0, PAGE, PROT_READ, MAP_SHARED, theirs, 0);
    volatile int *mine = mmap(0, PAGE, PROT_READ, MAP_SHARED, own, 0);
    for (int round = 1; round <= ROUNDS; round++) {
        sum += words[0];
        if (pwrite(own, &sum, sizeof sum, 0) != sizeof sum || mine[0] != sum) return 1;
        if (write(to[1], "", 1) != 1) return 1;
        if (round < ROUNDS && read(from[0], &word, 1) != 1) return 1;
    }
    wait(&status);
    printf("%d %d %d\n", sum, status, added);
    return 0;
}
