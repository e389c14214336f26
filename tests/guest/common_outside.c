// A program shares memory with a process that it has not started: both know the memory's name. The
// other one writes there when it is asked to by a pipe with a name, and says so by another one.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define ROUNDS 5

static volatile int *words;

static int map(const char *path) {
    int memory = open(path, O_RDWR | O_CREAT, 0600);
    if (memory < 0 || ftruncate(memory, PAGE)) return 0;
    words = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    close(memory);
    return words != MAP_FAILED;
}

static int write_when_asked(void) {
    char byte;
    int ask = open("ask", O_RDONLY), answer = open("answer", O_WRONLY);
    for (int round = 1; round <= ROUNDS; round++) {
        if (read(ask, &byte, 1) != 1) return 1;
        words[0] = words[1] + round * 17;
        if (write(answer, "", 1) != 1) return 1;
    }
    return 0;
}

static void *ask_for_sum(void *sum) {
    char byte;
    int seen[16];
    int ask = open("ask", O_WRONLY), answer = open("answer", O_RDONLY);
    for (int round = 1; round <= ROUNDS; round++) {
        words[1] = round;
        if (write(ask, "", 1) != 1 || read(answer, &byte, 1) != 1) return sum;
        // What is read decides how many calls follow. No load of it is one that a loop repeats.
        memcpy(seen, (void *)words, sizeof seen);
        for (int i = 0; i < seen[0] % 5; i++) write(1, ".", 1);
        *(int *)sum += seen[0];
    }
    return 0;
}

int main(int argc, char **argv) {
    pthread_t thread;
    int sum = 0;
    void *failed;
    if (argc < 2 || !map(argv[1])) return 2;
    if (argc > 2) return write_when_asked();
    pthread_create(&thread, 0, ask_for_sum, &sum);
    pthread_join(thread, &failed);
    printf("%d\n", sum);
    return failed != 0;
}
