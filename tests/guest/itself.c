// What a program finds about itself: ids, names, arguments, mappings, descriptors.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int entries(const char *path) {
    DIR *directory = opendir(path);
    int count = 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

static void *named(void *_) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    printf("thread %s, not first %d, threads %d\n", name, gettid() != getpid(), entries("/proc/self/task"));
    return 0;
}

static void file(const char *path) {
    char text[4096];
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text, sizeof text);
    for (ssize_t i = 0; i < n; i++)
        if (!text[i]) text[i] = ' ';
    printf("%s: %.*s\n", path, (int)n, text);
    close(fd);
}

static int sleeper, ends[2];

static void *sleeps(void *_) {
    char byte;
    sleeper = gettid();
    return (void *)read(ends[0], &byte, 1);
}

// The state of a thread, as its own file has it.
static char state(int thread) {
    char path[64], line[256], state = 0;
    sprintf(path, "/proc/%d/task/%d/status", getpid(), thread);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "State: %c", &state);
    if (file) fclose(file);
    return state;
}

static void states(void) {
    pthread_t thread;
    pipe(ends);
    pthread_create(&thread, 0, sleeps, 0);
    while (!__atomic_load_n(&sleeper, __ATOMIC_SEQ_CST)) usleep(1000);
    while (state(sleeper) != 'S') usleep(1000);
    printf("first %c, other %c\n", state(getpid()), state(sleeper));
    write(ends[1], "", 1);
    pthread_join(thread, 0);
    while (state(sleeper)) usleep(1000);
}

static const char *tail(const char *path) { return strrchr(path, '/') ? strrchr(path, '/') + 1 : path; }

int main(int argc, char **argv) {
    printf("first thread %d\n", syscall(SYS_gettid) == getpid());
    named(0);
    pthread_t thread;
    pthread_create(&thread, 0, named, 0);
    pthread_join(thread, 0);
    states();
    file("/proc/self/cmdline");
    file("/proc/self/comm");
    char path[4096] = "";
    readlink("/proc/self/exe", path, sizeof path - 1);
    printf("exe %s\n", tail(path));
    int exe = open("/proc/self/exe", O_RDONLY);
    char magic[4] = "";
    printf("elf %d\n", read(exe, magic, 4) == 4 && !memcmp(magic, "\177ELF", 4));
    close(exe);

    unsigned long vector[64] = {0};
    int fd = open("/proc/self/auxv", O_RDONLY), n = read(fd, vector, sizeof vector) / 16, equal = 0;
    for (int i = 0; i < n && vector[2 * i]; i++) equal += getauxval(vector[2 * i]) != vector[2 * i + 1];
    printf("differing entries of auxv %d\n", equal);
    close(fd);

    // The code, the stack and a library are in the list, with their rights.
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int code = 0, stack = 0, library = 0, foreign = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char access[5];
        sscanf(line, "%lx-%lx %4s", &start, &end, access);
        code |= start <= (unsigned long)main && (unsigned long)main < end && !strcmp(access, "r-xp") &&
                strstr(line, tail(path));
        stack |= start <= (unsigned long)line && (unsigned long)line < end && strstr(line, "[stack]");
        library |= strstr(line, "libc.so") && !strcmp(access, "r-xp");
        foreign |= strstr(line, "refrain-under-test") != 0;
    }
    fclose(maps);
    printf("code %d, stack %d, library %d, foreign %d\n", code, stack, library, foreign);

    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "Name:", 5) || !strncmp(line, "Threads:", 8) || !strncmp(line, "SigBlk:", 7)) fputs(line, stdout);
    fclose(status);

    static int cleared;
    unsigned long address = 0;
    prctl(PR_GET_TID_ADDRESS, &address);
    printf("cleared at the end: %ld\n", address - pthread_self());
    syscall(SYS_set_tid_address, &cleared);
    prctl(PR_GET_TID_ADDRESS, &address);
    printf("or %d\n", address == (unsigned long)&cleared);
    syscall(SYS_set_tid_address, 0);

    printf("descriptors %d\n", entries("/proc/self/fd"));
    int closed = 0;
    for (int i = 0; i < 20000; i++) closed += fcntl(i, F_GETFD) >= 0;
    printf("open %d\n", closed);
    fflush(stdout);
    closefrom(3);
    puts("closed");
    return 0;
}
