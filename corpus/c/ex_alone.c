/* ex_alone: one thread computes in global variables while all others wait:
 * one sleeps and looks up now and then, one reads a pipe, one waits for a
 * condition, one for a semaphore with a time limit; and threads come and go.
 * Whoever comes back changes words that the first one looks at plainly. How
 * often it sees something new never reaches the output. */
#include "common.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { ASKED_OF_PIPE = 3000, ASKED_OF_POOL = 5000, ASKED_OF_NEW = 9000 };

/* What the first thread computes with. */
static uint64_t state, rounds, table[16];
/* What the others tell it. */
static atomic_uint news ALIGNED;
static atomic_uint told ALIGNED;
static unsigned seen;
static uint64_t answered;

static atomic_int over ALIGNED;
static int ends[2];
static pthread_mutex_t mutex ALIGNED = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;
static unsigned jobs, done;
static sem_t never;

static NOINLINE void put(uint64_t *where, uint64_t value) {
    *where = value;
}

static NOINLINE void tell(unsigned what) {
    atomic_store_explicit(&news, what, memory_order_release);
}

static void *sleeper(void *unused) {
    for (unsigned i = 1; !atomic_load(&over); i++) {
        struct timespec moment = {0, 30000 + (i % 7) * 20000};
        nanosleep(&moment, NULL);
        tell(i);
        atomic_fetch_add(&told, 1);
    }
    return unused;
}

static void *pipe_reader(void *unused) {
    unsigned char byte;
    while (read(ends[0], &byte, 1) == 1) {
        tell(1000000 + byte);
        pthread_mutex_lock(&mutex);
        answered += byte;
        pthread_mutex_unlock(&mutex);
    }
    return unused;
}

static void *pool(void *unused) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (done == jobs && !atomic_load(&over))
            pthread_cond_wait(&wanted, &mutex);
        if (done == jobs)
            break;
        answered += mix(done++) % 16;
    }
    pthread_mutex_unlock(&mutex);
    return unused;
}

static void *patient(void *unused) {
    while (!atomic_load(&over)) {
        struct timespec until;
        CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
        until.tv_nsec += 300000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        sem_timedwait(&never, &until);
        tell(2000000 + atomic_load_explicit(&told, memory_order_relaxed) % 100);
    }
    return unused;
}

static void *newcomer(void *number) {
    tell(3000000);
    put(&table[(uintptr_t)number % 16], table[(uintptr_t)number % 16] + 5);
    return NULL;
}

/* A round of the first thread's own: it loads variables by their names, and stores by pointers. */
static NOINLINE void work_alone(unsigned round) {
    put(&state, mix(state + round));
    put(&table[state % 16], table[state % 16] + rounds);
    put(&rounds, rounds + 1);
}

static NOINLINE void look(void) {
    unsigned now = atomic_load_explicit(&news, memory_order_acquire);
    if (now == seen)
        return;
    seen = now;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
}

int main(int argc, char **argv) {
    unsigned long size = arg(argc, argv, 1, 100000);
    CHECK(pipe(ends) == 0 && sem_init(&never, 0, 0) == 0);
    void *(*const bodies[])(void *) = {sleeper, pipe_reader, pool, patient};
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, bodies[i], NULL) == 0);
    uint64_t sent = 0;
    for (unsigned round = 1; round <= size; round++) {
        work_alone(round);
        look();
        if (round % ASKED_OF_PIPE == 0) {
            unsigned char byte = (unsigned char)round;
            CHECK(write(ends[1], &byte, 1) == 1);
            sent += byte;
        }
        if (round % ASKED_OF_POOL == 0) {
            pthread_mutex_lock(&mutex);
            sent += mix(jobs++) % 16;
            pthread_cond_signal(&wanted);
            pthread_mutex_unlock(&mutex);
        }
        if (round % ASKED_OF_NEW == 0) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, newcomer,
                                 (void *)(uintptr_t)round) == 0);
            pthread_join(thread, NULL);
        }
    }
    pthread_mutex_lock(&mutex);
    atomic_store(&over, 1);
    pthread_cond_signal(&wanted);
    pthread_mutex_unlock(&mutex);
    close(ends[1]);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(sent == answered);
    uint64_t sum = state;
    for (unsigned i = 0; i < 16; i++)
        sum = mix(sum + table[i]);
    printf("ex_alone %016" PRIx64 "\n", sum);
    return 0;
}
