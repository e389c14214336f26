/* ex_request: a lock of the program's own, as interpreters have, made of a
 * mutex, a condition variable and a word. Who wants it sets a flag by a plain
 * store, while it holds the mutex; who has it looks at the flag by a plain
 * load after each step, with no lock of the library's, and hands the lock over.
 * How often that happens never reaches the output. */
#include "common.h"

#include <stdatomic.h>

#define CELLS 16

struct interpreter {
    pthread_mutex_t mutex;
    pthread_cond_t given;
    int held;
    unsigned holder;
    atomic_int request;
    atomic_ulong steps;
    uint64_t cells[CELLS];
};

/* The library's locks guard what it touches, the flag apart. */
static NOINLINE void take(struct interpreter *in, unsigned self) {
    CHECK(pthread_mutex_lock(&in->mutex) == 0);
    while (in->held) {
        atomic_store_explicit(&in->request, 1, memory_order_relaxed);
        CHECK(pthread_cond_wait(&in->given, &in->mutex) == 0);
    }
    in->held = 1;
    in->holder = self;
    atomic_store_explicit(&in->request, 0, memory_order_relaxed);
    CHECK(pthread_mutex_unlock(&in->mutex) == 0);
}

static NOINLINE void give(struct interpreter *in) {
    CHECK(pthread_mutex_lock(&in->mutex) == 0);
    in->held = 0;
    CHECK(pthread_cond_broadcast(&in->given) == 0);
    CHECK(pthread_mutex_unlock(&in->mutex) == 0);
}

/* Several kinds of steps, so that the loop is none that polls. */
static NOINLINE void interpret(struct interpreter *in, unsigned self,
                               unsigned long rounds) {
    take(in, self);
    for (unsigned long i = 0; i < rounds; i++) {
        uint64_t *cell = &in->cells[mix(i * MAX_THREADS + self) % CELLS];
        switch (i % 4) {
        case 0:
            *cell += work(i, 50);
            break;
        case 1:
            *cell += mix(self) % 1000;
            break;
        case 2:
            *cell -= i;
            break;
        default:
            atomic_fetch_add_explicit(&in->steps, 4, memory_order_relaxed);
        }
        if (atomic_load_explicit(&in->request, memory_order_relaxed)) {
            give(in);
            take(in, self);
        }
    }
    give(in);
}

static struct interpreter *the_interpreter;

static uint64_t role(unsigned self, unsigned long rounds) {
    interpret(the_interpreter, self, rounds);
    return 0;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 20000);
    the_interpreter = calloc(1, sizeof *the_interpreter);
    CHECK(the_interpreter != NULL);
    CHECK(pthread_mutex_init(&the_interpreter->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&the_interpreter->given, NULL) == 0);
    run_crew(3, rounds, role);
    uint64_t digest = 0;
    for (unsigned i = 0; i < CELLS; i++)
        digest = mix(digest ^ the_interpreter->cells[i]);
    printf("ex_request digest %016" PRIx64 " steps %lu\n", digest,
           atomic_load(&the_interpreter->steps));
    return 0;
}
