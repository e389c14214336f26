// A file, and a segment, that a thread maps again and again while another one stores to its own words
// there: no race, so every order has to keep what the other thread has stored.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#define SIZE 16384ul
#define ROUNDS 300000
#define TIMES 200

static void *count(void *arg) {
    volatile uint64_t *words = arg;
    for (uint64_t i = 0; i < ROUNDS; i++)
        words[i % 8 * 100] = words[i % 8 * 100] * 3 + i;
    return 0;
}

static void report(const char *name, uint64_t *words) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < SIZE / 8; i++)
        sum = sum * 31 + words[i];
    printf("%s %lx\n", name, sum);
}

int main(void) {
    pthread_t other;
    int fd = memfd_create("again", 0);
    ftruncate(fd, SIZE);
    uint64_t *words = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pthread_create(&other, 0, count, words);
    for (unsigned i = 0; i < TIMES; i++)
        munmap(mmap(0, SIZE, PROT_READ, MAP_SHARED, fd, 0), SIZE);
    pthread_join(other, 0);
    report("file", words);

    int id = shmget(IPC_PRIVATE, SIZE, 0600);
    uint64_t *segment = shmat(id, 0, 0);
    pthread_create(&other, 0, count, segment);
    for (unsigned i = 0; i < TIMES; i++)
        shmdt(shmat(id, 0, SHM_RDONLY));
    pthread_join(other, 0);
    report("segment", segment);
    shmctl(id, IPC_RMID, 0);

    // What is not shown for storing anywhere is the file's, whoever has written it.
    munmap(words, SIZE);
    pwrite(fd, "elsewhere", 9, 8000);
    words = mmap(0, SIZE / 2, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pwrite(fd, "behind", 6, SIZE / 2 + 100);
    report("whole", mmap(0, SIZE, PROT_READ, MAP_SHARED, fd, 0));
}
