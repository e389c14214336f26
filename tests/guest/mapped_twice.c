// Threads that reach the same memory at two addresses, without any synchronization: a file that is
// mapped twice while nobody else is there, one that is mapped again by a thread while others use it, and a
// segment. What each thread reads depends on when it does; sums of it are printed.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#define SIZE 65536ul
#define ROUNDS 4000

struct side {
    volatile uint32_t *words;
    int id;
    uint32_t sum;
};

static volatile int turn;
static pthread_barrier_t start;

// Half of the words are used by both threads all the time, the others now and then.
static void *use(void *arg) {
    struct side *side = arg;
    uint32_t sum = 0;
    pthread_barrier_wait(&start);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t at = i % 7 == 0 ? 1024 + i % 4096 : i % 8 * 16;
        sum = sum * 31 + side->words[at];
        side->words[at] = sum ^ i << side->id;
        if (i == ROUNDS / 4 && side->id == 1)
            turn = 1;
    }
    side->sum = sum;
    return 0;
}

static void both(const char *name, struct side *a, struct side *b) {
    pthread_t one, two;
    pthread_barrier_init(&start, 0, 2);
    pthread_create(&one, 0, use, a);
    pthread_create(&two, 0, use, b);
    pthread_join(one, 0);
    pthread_join(two, 0);
    // Natively these differ from run to run.
    fprintf(stderr, "%s %x %x\n", name, a->sum, b->sum);
    volatile uint32_t *last = a->words;
    uint32_t sum = 0;
    for (unsigned i = 0; i < SIZE / 4; i++) {
        sum = sum * 31 + last[i];
        if (last[i] != b->words[i])
            printf("%s: word %u differs\n", name, i);
    }
    fprintf(stderr, "%s %x\n", name, sum);
}

static int file(void) {
    int fd = memfd_create("twice", 0);
    ftruncate(fd, SIZE);
    return fd;
}

static volatile uint32_t *map(int fd, unsigned long from) {
    return mmap(0, SIZE - from, PROT_READ | PROT_WRITE, MAP_SHARED, fd, from);
}

static void *map_again(void *arg) {
    struct side *side = arg;
    while (!turn)
        usleep(100);
    side->words = map(side->sum, 0);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < ROUNDS; i++)
        side->words[i % 8 * 16] = sum = sum * 31 + side->words[i % 8 * 16];
    side->sum = sum;
    return 0;
}

int main(void) {
    int fd = file();
    both("before", &(struct side){map(fd, 0), 0}, &(struct side){map(fd, 0), 1});

    fd = file();
    struct side first = {map(fd, 0), 1}, second = {0, 2, fd}, third = {first.words, 0};
    turn = 0;
    pthread_t one, two, three;
    pthread_barrier_init(&start, 0, 2);
    pthread_create(&two, 0, map_again, &second);
    pthread_create(&one, 0, use, &first);
    pthread_create(&three, 0, use, &third);
    pthread_join(one, 0);
    pthread_join(two, 0);
    pthread_join(three, 0);
    fprintf(stderr, "meanwhile %x %x %x\n", first.sum, second.sum, third.sum);

    // Parts that overlap, then both again at places that showed something else.
    fd = file();
    volatile uint32_t *whole = map(fd, 0), *rest = map(fd, SIZE / 2);
    munmap((void *)whole, SIZE);
    munmap((void *)rest, SIZE / 2);
    volatile uint32_t *other = map(file(), 0);
    both("again", &(struct side){map(fd, 0), 0}, &(struct side){map(fd, 0), 1});

    int id = shmget(IPC_PRIVATE, SIZE, 0600);
    struct side here = {shmat(id, 0, 0), 0}, there = {shmat(id, 0, 0), 1};
    shmctl(id, IPC_RMID, 0);
    both("segment", &here, &there);
    puts("done");
}
