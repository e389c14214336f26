// Memory in common with a child process, which writes there while the parent reads, locks, sleeps and
// makes system calls. What the parent sees differs from run to run, and goes to standard error.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

struct common {
    atomic_int lock, turn;
    volatile int counter, racing;
    sem_t sem;
    char message[3000], answer[9000];
    pthread_mutex_t mutex;
    int guarded;
    int (*function)(int);
};

static int plus_one(int n) {
    return n + 1;
}

static int plus_two(int n) {
    return n + 2;
}

// By a call, and by a jump.
__attribute__((noinline)) static int called(struct common *c) {
    return c->function(5) * 10;
}

__attribute__((noinline, optimize("O2"))) static int jumped(struct common *c) {
    return c->function(6);
}

static void lock(struct common *c) {
    while (atomic_exchange(&c->lock, 1))
        sched_yield();
}

static void unlock(struct common *c) {
    atomic_store(&c->lock, 0);
}

static void *read_it(void *arg) {
    struct common *c = arg;
    printf("thread: %d %d %.5s\n", c->counter, c->guarded, c->answer + 8990);
    return 0;
}

static void child(struct common *c, volatile char *file, int fd) {
    for (int i = 0; i < 500; i++) {
        lock(c);
        c->counter++;
        unlock(c);
        c->racing = i;
        pthread_mutex_lock(&c->mutex);
        c->guarded++;
        pthread_mutex_unlock(&c->mutex);
    }
    for (int i = 0; i < 20; i++) {
        while (atomic_load(&c->turn) != 1)
            usleep(10);
        memset(c->message, 'a' + i, sizeof c->message);
        atomic_store(&c->turn, 2);
    }
    usleep(20000);
    c->function = plus_two;
    sem_post(&c->sem);
    ftruncate(fd, 3 * PAGE);
    char *grown = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    strcpy(grown + 2 * PAGE, "grown");
    *(volatile uint64_t *)file = 3 * PAGE;
    _exit(7);
}

int main(void) {
    setvbuf(stdout, 0, _IONBF, 0);
    struct common *c = mmap(0, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = open("common.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(fd, PAGE);
    volatile char *file = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    sem_init(&c->sem, 1, 0);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&c->mutex, &attr);
    strcpy(c->message, "before");
    c->function = plus_one;
    int pid = fork();
    if (!pid)
        child(c, file, fd);

    unsigned sum = 0;
    for (int i = 0; i < 500; i++) {
        lock(c);
        c->counter++;
        unlock(c);
        sum = sum * 31 + c->racing;
        pthread_mutex_lock(&c->mutex);
        c->guarded++;
        pthread_mutex_unlock(&c->mutex);
    }
    fprintf(stderr, "%u %d\n", sum, c->counter);

    for (int i = 0; i < 20; i++) {
        atomic_store(&c->turn, 1);
        while (atomic_load(&c->turn) != 2)
            usleep(10);
        // Copied by whatever the library copies with, over pages of the memory.
        for (int part = 0; part < 3; part++)
            memcpy(c->answer + part * 3000, c->message, sizeof c->message);
    }
    // The kernel reads it, and writes it.
    write(1, c->message, 6);
    int pipes[2];
    pipe(pipes);
    write(pipes[1], c->answer + 2000, 5);
    read(pipes[0], c->message + 100, 5);
    printf(" %.7s\n", c->message + 99);
    // A path, which ends where its zero byte is.
    strcpy(c->answer + 8000, "common.dat");
    printf("%d\n", access(c->answer + 8000, R_OK));
    sem_wait(&c->sem);
    int status;
    waitpid(pid, &status, 0);
    printf("%d %d\n", called(c), jumped(c));
    printf("%d %d %d\n", c->counter, c->guarded, WEXITSTATUS(status));

    // It has grown, says who has made it grow.
    char *moved = mremap((char *)file, PAGE, *(volatile uint64_t *)file, MREMAP_MAYMOVE);
    printf("%s\n", moved + 2 * PAGE);
    mprotect(moved, PAGE, PROT_READ);
    printf("%ld\n", *(long *)moved);
    munmap(moved, 3 * PAGE);

    int id = shmget(IPC_PRIVATE, PAGE, 0600);
    volatile int *segment = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    if (!fork()) {
        segment[5] = 55;
        _exit(0);
    }
    wait(0);
    printf("%d\n", segment[5]);
    shmdt((void *)segment);

    // Where it was, there is room.
    id = shmget(IPC_PRIVATE, 16 * PAGE, 0600);
    char *detached = shmat(id, 0, SHM_RDONLY);
    shmctl(id, IPC_RMID, 0);
    printf("%d\n", detached[5]);
    shmdt(detached);
    char *private = mmap(detached, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *longer = mremap(private, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
    longer[PAGE] = 7;
    printf("%d %d\n", private == detached, longer[PAGE]);

    pthread_t thread;
    pthread_create(&thread, 0, read_it, c);
    pthread_join(thread, 0);
    puts("done");
}
