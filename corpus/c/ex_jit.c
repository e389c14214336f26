/* ex_jit: code that the program generates. Each function is written in several versions to one
 * place: into memory that is writable and executable at once, into memory that is made one and
 * the other in turn, and into memory that is mapped anew; calls in it change too, and threads
 * execute what one of them has written. */
#include "common.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORKERS = 3 };
typedef uint64_t (*function)(uint64_t);

static unsigned char *map(void *where, int protection) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0);
    void *at = mmap(where, PAGE, protection, flags, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(0);
    }
    return at;
}

static void protect(void *at, int protection) { CHECK(mprotect(at, PAGE, protection) == 0); }

/* lea rax, [rdi + add]; ret */
static size_t put_add(unsigned char *at, int32_t add) {
    memcpy(at, "\x48\x8d\x87", 3);
    memcpy(at + 3, &add, 4);
    at[7] = 0xc3;
    return 8;
}

/* mov rax, rdi; n times imul rax, rax, 3; ret */
static size_t put_power(unsigned char *at, unsigned n) {
    memcpy(at, "\x48\x89\xf8", 3);
    for (unsigned i = 0; i < n; i++)
        memcpy(at + 3 + 4 * i, "\x48\x6b\xc0\x03", 4);
    at[3 + 4 * n] = 0xc3;
    return 4 + 4 * n;
}

/* call target; add rax, 1; ret */
static size_t put_call(unsigned char *at, unsigned char *target) {
    int32_t distance = (int32_t)(target - (at + 5));
    at[0] = 0xe8;
    memcpy(at + 1, &distance, 4);
    memcpy(at + 5, "\x48\x83\xc0\x01\xc3", 5);
    return 10;
}

static uint64_t call(unsigned char *at, uint64_t argument) {
    function f;
    memcpy(&f, &at, sizeof f);
    return f(argument);
}

static uint64_t power(unsigned n) {
    uint64_t value = 1;
    while (n--)
        value *= 3;
    return value;
}

/* Memory that is writable and executable at once. */
static uint64_t rewritten(unsigned times) {
    unsigned char *code = map(NULL, PROT_READ | PROT_WRITE | PROT_EXEC), *other = code + 512;
    uint64_t sum = 0;
    for (unsigned i = 0; i < times; i++) {
        put_add(code, (int32_t)i);
        CHECK(call(code, 5) == i + 5);
        put_power(other, i % 20);
        CHECK(call(other, 1) == power(i % 20));
        put_call(code + 1024, i % 2 ? code : other);
        sum += call(code + 1024, 1);
    }
    CHECK(munmap(code, PAGE) == 0);
    return sum;
}

/* Memory that is one and the other in turn. */
static uint64_t protected(unsigned times) {
    unsigned char *code = map(NULL, PROT_READ | PROT_WRITE);
    uint64_t sum = 0;
    for (unsigned i = 0; i < times; i++) {
        protect(code, PROT_READ | PROT_WRITE);
        put_power(code, (i + 7) % 20);
        protect(code, PROT_READ | PROT_EXEC);
        sum += call(code, 1);
        CHECK(call(code, 1) == power((i + 7) % 20));
    }
    CHECK(munmap(code, PAGE) == 0);
    return sum;
}

/* Other code at the same address. */
static uint64_t mapped_anew(unsigned times) {
    unsigned char *code = map(NULL, PROT_READ | PROT_WRITE);
    uint64_t sum = 0;
    for (unsigned i = 0; i < times; i++) {
        map(code, PROT_READ | PROT_WRITE);
        put_add(code, (int32_t)(3 * i));
        protect(code, PROT_READ | PROT_EXEC);
        sum += call(code, i);
    }
    CHECK(munmap(code, PAGE) == 0);
    return sum;
}

static unsigned char *shared;
static pthread_barrier_t meet;
static unsigned long rounds;

/* In each round all threads execute the version that the first one has written. */
static void *execute(void *argument) {
    int writes = argument == NULL;
    for (unsigned i = 0; i < rounds; i++) {
        if (writes)
            put_power(shared, i % 20);
        pthread_barrier_wait(&meet);
        CHECK(call(shared, 1) == power(i % 20));
        pthread_barrier_wait(&meet);
    }
    return NULL;
}

int main(int argc, char **argv) {
    unsigned times = (unsigned)arg(argc, argv, 1, 200);
    uint64_t sums[] = {rewritten(times), protected(times), mapped_anew(times)};
    shared = map(NULL, PROT_READ | PROT_WRITE | PROT_EXEC);
    rounds = times;
    pthread_t workers[WORKERS];
    CHECK(pthread_barrier_init(&meet, NULL, WORKERS) == 0);
    for (uintptr_t i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&workers[i], NULL, execute, (void *)i) == 0);
    for (unsigned i = 0; i < WORKERS; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
    printf("ex_jit %llu %llu %llu\n", (unsigned long long)sums[0], (unsigned long long)sums[1],
           (unsigned long long)sums[2]);
    return 0;
}
