// Files that the program has mapped privately, and changes by calls; and what growing files and mappings show.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static const char *name = "private_files.data";

static int begin(int pages) {
    unlink(name);
    int file = open(name, O_CREAT | O_RDWR, 0600);
    for (int page = 0; page < pages; page++) {
        char bytes[PAGE];
        memset(bytes, 'a' + page, PAGE);
        if (write(file, bytes, PAGE) != PAGE)
            perror("write");
    }
    return file;
}

static void changed_by_calls(int reopened, int prot) {
    int file = begin(4);
    int mapped = file;
    if (reopened) {
        struct timespec old[2] = {{1000000 + prot, 0}, {1000000 + prot, 0}};
        futimens(file, old);
        close(file);
        mapped = open(name, O_RDONLY);
    }
    char *memory = mmap(NULL, 4 * PAGE, prot, MAP_PRIVATE, mapped, 0);
    printf("%c", memory[0]);
    if (prot & PROT_WRITE)
        memory[PAGE] = 'W';
    if (reopened)
        file = open(name, O_RDWR);
    if (pwrite(file, "1", 1, 0) != 1 || pwrite(file, "2", 1, PAGE) != 1 || pwrite(file, "3", 1, 3 * PAGE) != 1)
        perror("pwrite");
    printf(" %c %c %c %c", memory[0], memory[PAGE], memory[2 * PAGE], memory[3 * PAGE]);
    lseek(file, 2 * PAGE + 1, SEEK_SET);
    if (write(file, "45", 2) != 2)
        perror("write");
    printf(" %.3s\n", memory + 2 * PAGE);
    munmap(memory, 4 * PAGE);
    close(mapped);
    close(file);
}

static void cut_and_grown(int flags) {
    int file = begin(1);
    ftruncate(file, 100);
    char *memory = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
    memory[99] = 'x';
    memory[200] = 'y';
    ftruncate(file, 3 * PAGE);
    printf("%d %d", memory[99], memory[200]);
    memory[PAGE] = 'z';
    if (pwrite(file, "q", 1, 2 * PAGE) != 1)
        perror("pwrite");
    printf(" %d %d", memory[PAGE], memory[2 * PAGE]);
    ftruncate(file, PAGE);
    ftruncate(file, 2 * PAGE);
    printf(" %d %d\n", memory[99], memory[PAGE]);
    munmap(memory, 3 * PAGE);
    close(file);
}

static void longer(int flags) {
    int file = begin(4);
    char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
    memory[0] = 'm';
    memory = mremap(memory, PAGE, 4 * PAGE, MREMAP_MAYMOVE);
    printf("%c %c %c\n", memory[0], memory[PAGE], memory[3 * PAGE]);
    munmap(memory, 4 * PAGE);
    close(file);
}

static void removed(void) {
    char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(memory, 'r', 2 * PAGE);
    int result = madvise(memory, PAGE, MADV_REMOVE);
    printf("%d %d %d\n", result, memory[0], memory[PAGE]);
}

int main(void) {
    changed_by_calls(0, PROT_READ | PROT_WRITE);
    changed_by_calls(0, PROT_READ);
    changed_by_calls(1, PROT_READ | PROT_WRITE);
    changed_by_calls(1, PROT_READ);
    cut_and_grown(MAP_PRIVATE);
    cut_and_grown(MAP_SHARED);
    longer(MAP_PRIVATE);
    longer(MAP_SHARED);
    removed();
    unlink(name);
    return 0;
}
