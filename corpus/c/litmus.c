/* Litmus tests of shared memory and the idioms that are built on it: what the threads read is
 * printed as counts of outcomes, which differ from run to run. Usage: litmus NAME [ROUNDS]; without
 * a name, all of them, one after the other. */
#include <emmintrin.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 4
#define OUTCOMES 256

/* A round has a cell of its own. x and y lie in different lines, near and far in the same. */
typedef struct {
    volatile int x, near;
    char gap[56];
    volatile int y, far;
    char end[56];
} cell;

typedef uint64_t __attribute__((may_alias)) wide;

static cell *cells;
static long rounds;
static unsigned char *seen[MOST];
static pthread_barrier_t start;
/* How often threads have come to a meeting: every few rounds, so that they stay together. */
static long meetings;

/* A shape: how many threads, and what each does in a round; it returns what it has seen. */
typedef struct {
    const char *name;
    int threads;
    int (*act)(int thread, cell *cell);
} shape;

static int store_buffering(int thread, cell *c) {
    if (thread == 0) {
        c->x = 1;
        return c->y;
    }
    c->y = 1;
    return c->x;
}

static int message_passing(int thread, cell *c) {
    if (thread == 0) {
        c->x = 1;
        c->y = 1;
        return 0;
    }
    int flag = c->y;
    return flag * 2 + c->x;
}

static int load_buffering(int thread, cell *c) {
    if (thread == 0) {
        int x = c->x;
        c->y = 1;
        return x;
    }
    int y = c->y;
    c->x = 1;
    return y;
}

static int independent_reads(int thread, cell *c) {
    switch (thread) {
    case 0: c->x = 1; return 0;
    case 1: c->y = 1; return 0;
    case 2: { int x = c->x; return x * 2 + c->y; }
    default: { int y = c->y; return y * 2 + c->x; }
    }
}

static int coherence(int thread, cell *c) {
    if (thread == 0) {
        c->x = 1;
        c->x = 2;
        return 0;
    }
    int first = c->x;
    return first * 3 + c->x;
}

static int two_writes_each(int thread, cell *c) {
    if (thread == 0) {
        c->x = 1;
        c->y = 2;
        return 0;
    }
    if (thread == 1) {
        c->y = 1;
        c->x = 2;
        return 0;
    }
    int x = c->x;
    return x * 3 + c->y;
}

static int shape_r(int thread, cell *c) {
    if (thread == 0) {
        c->x = 1;
        c->y = 1;
        return 0;
    }
    c->y = 2;
    return c->x + 2 * c->y;
}

static int shape_s(int thread, cell *c) {
    if (thread == 0) {
        c->x = 2;
        c->y = 1;
        return 0;
    }
    int y = c->y;
    c->x = 1;
    return y;
}

/* Stores of one and eight bytes into the word that is read as four. */
static int mixed_sizes(int thread, cell *c) {
    switch (thread) {
    case 0: *(volatile char *)&c->x = 1; return 0;
    case 1: *(volatile wide *)&c->x = 0x0000000200000002; return 0;
    default: return (c->x + 4 * c->near) & 15;
    }
}

/* A value of 16 bytes that may be torn. */
static int vectors(int thread, cell *c) {
    __m128i *place = (__m128i *)&c->y;
    if (thread == 0) {
        _mm_store_si128(place, _mm_set1_epi32(1));
        return 0;
    }
    int words[4];
    _mm_storeu_si128((__m128i *)words, _mm_load_si128(place));
    return words[0] + 2 * words[1] + 4 * words[2] + 8 * words[3];
}

/* A string instruction over two lines while another thread stores there. */
static int strings(int thread, cell *c) {
    if (thread == 0) {
        c->x = 1;
        c->y = 1;
        return 0;
    }
    char copy[sizeof *c];
    void *to = copy;
    const void *from = c;
    size_t size = sizeof *c;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
    cell *copied = (cell *)copy;
    return copied->x + 2 * copied->y;
}

static int plain_add(int thread, cell *c) {
    (void)thread;
    int value = c->x;
    c->x = value + 1;
    return value;
}

/* A sequence lock of plain words. */
static int sequence_lock(int thread, cell *c) {
    if (thread == 0) {
        c->near++;
        c->x = 1;
        c->y = 1;
        c->near++;
        return 0;
    }
    int before = c->near, x = c->x, y = c->y;
    if (before != c->near || before & 1) return 1;
    return x == y ? 2 + 2 * x : 3;
}

static int peterson(int thread, cell *c) {
    volatile int *mine = thread ? &c->y : &c->x, *other = thread ? &c->x : &c->y;
    *mine = 1;
    c->far = 1 - thread;
    __sync_synchronize();
    for (int look = 0; *other && c->far == 1 - thread; look++)
        if (look == 50) {
            *mine = 0;
            return 3;
        }
    int value = c->near++;
    *mine = 0;
    return value;
}

typedef struct node { struct node *next; int value; } node;

/* An object is made known by a plain pointer. */
static int publication(int thread, cell *c) {
    node *volatile *place = (node *volatile *)&c->y;
    if (thread == 0) {
        node *made = malloc(sizeof *made);
        made->value = 7;
        made->next = NULL;
        *place = made;
        return 0;
    }
    node *found = *place;
    return found ? found->value : 0;
}

static int double_checked(int thread, cell *c) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!c->y) {
        pthread_mutex_lock(&lock);
        if (!c->y) {
            c->x = thread + 1;
            c->y = 1;
        }
        pthread_mutex_unlock(&lock);
    }
    return c->x;
}

static int reference_count(int thread, cell *c) {
    (void)thread;
    __atomic_fetch_add(&c->x, 1, __ATOMIC_RELAXED);
    c->near = 5;
    return __atomic_sub_fetch(&c->x, 1, __ATOMIC_ACQ_REL) == 0;
}

/* A word on each thread's stack, which lives as long as the thread. */
static volatile int *words[MOST];

/* Each thread tells where a word of its stack is, and reads the other's. */
static int stacks(int thread, cell *c) {
    volatile int *own = words[thread];
    *own = thread + 1;
    int *volatile *mine = (int *volatile *)(thread ? &c->y : &c->x);
    int *volatile *other = (int *volatile *)(thread ? &c->x : &c->y);
    *mine = (int *)own;
    int *found = *other;
    int value = found ? *(volatile int *)found & 3 : 0;
    *own = 3;
    return value;
}

/* A block is given back and used again by whoever asks next. */
static int reuse(int thread, cell *c) {
    volatile int *block = malloc(sizeof *block);
    int before = thread == 0 ? c->x : c->y;
    *block = thread + before;
    c->x = *block & 7;
    free((void *)block);
    return *(volatile int *)&c->x & 7;
}

/* The kernel writes the buffer that another thread then reads. */
static int kernel_writes(int thread, cell *c) {
    if (thread == 0) {
        int ends[2];
        char text[4] = {1, 2, 3, 4};
        if (pipe(ends) != 0) return 9;
        ssize_t done = write(ends[1], text, sizeof text);
        done += read(ends[0], (void *)&c->x, sizeof text);
        c->y = done == 8;
        close(ends[0]);
        close(ends[1]);
        return 0;
    }
    /* What a call writes may be looked at once it has returned. */
    return c->y ? c->x == 0x04030201 : 2;
}

static int nowhere;

/* The kernel reads what another thread writes meanwhile: what was sent is compared. */
static int kernel_reads(int thread, cell *c) {
    if (thread == 0) return write(nowhere, (const void *)c, sizeof *c) == sizeof *c;
    c->x = 1;
    c->y = 2;
    return 0;
}

static int one(void) { return 1; }
static int two(void) { return 2; }
static int (*volatile way)(void) = one;

/* A branch reads where it goes to. */
static int branch(int thread, cell *c) {
    (void)c;
    if (thread == 1) return way();
    way = way == one ? two : one;
    return 0;
}

/* A mailbox: the second waits until the first has put something there, but not for ever. */
static int mailbox(int thread, cell *c) {
    if (thread == 0) {
        c->x = 1;
        c->y = 1;
        return 0;
    }
    for (int look = 0; look < 200; look++)
        if (c->y) return 1 + c->x;
    return 0;
}

static volatile sig_atomic_t told;

static void tell(int signal) {
    (void)signal;
    told++;
}

/* A handler sets what the other threads read. */
static int signal_flag(int thread, cell *c) {
    if (thread == 0) {
        if ((c - cells) % 64 == 0) raise(SIGUSR1);
        return 0;
    }
    return told & 15;
}

static const shape shapes[] = {
    {"sb", 2, store_buffering},
    {"mp", 2, message_passing},
    {"lb", 2, load_buffering},
    {"iriw", 4, independent_reads},
    {"corr", 2, coherence},
    {"2+2w", 3, two_writes_each},
    {"r", 2, shape_r},
    {"s", 2, shape_s},
    {"sizes", 3, mixed_sizes},
    {"vectors", 2, vectors},
    {"strings", 2, strings},
    {"add", 4, plain_add},
    {"seqlock", 2, sequence_lock},
    {"peterson", 2, peterson},
    {"publication", 2, publication},
    {"checked", 4, double_checked},
    {"count", 4, reference_count},
    {"stacks", 2, stacks},
    {"reuse", 3, reuse},
    {"kernel", 2, kernel_writes},
    {"sent", 2, kernel_reads},
    {"branch", 2, branch},
    {"mailbox", 2, mailbox},
    {"signal", 3, signal_flag},
};

static const shape *current;

static void meet(long number) {
    __atomic_add_fetch(&meetings, 1, __ATOMIC_ACQ_REL);
    for (int look = 0; __atomic_load_n(&meetings, __ATOMIC_ACQUIRE) < number * current->threads;)
        if (++look % 200 == 0) sched_yield();
}

static void *run(void *argument) {
    int thread = (int)(intptr_t)argument;
    volatile int word = 0;
    words[thread] = &word;
    pthread_barrier_wait(&start);
    for (long round = 0; round < rounds; round++) {
        if (round % 32 == 0) meet(round / 32 + 1);
        seen[thread][round] = (unsigned char)current->act(thread, &cells[round]);
    }
    /* The word is there until nobody reads it any more. */
    pthread_barrier_wait(&start);
    return NULL;
}

static void try_shape(const shape *shape) {
    pthread_t threads[MOST];
    current = shape;
    meetings = 0;
    memset((void *)cells, 0, rounds * sizeof *cells);
    pthread_barrier_init(&start, NULL, shape->threads);
    for (int thread = 0; thread < shape->threads; thread++)
        pthread_create(&threads[thread], NULL, run, (void *)(intptr_t)thread);
    for (int thread = 0; thread < shape->threads; thread++) pthread_join(threads[thread], NULL);
    pthread_barrier_destroy(&start);
    printf("%s", shape->name);
    for (int thread = 0; thread < shape->threads; thread++) {
        long counts[OUTCOMES] = {0};
        for (long round = 0; round < rounds; round++) counts[seen[thread][round]]++;
        for (int outcome = 0; outcome < OUTCOMES; outcome++)
            if (counts[outcome]) printf(" %d:%d=%ld", thread, outcome, counts[outcome]);
    }
    puts("");
}

int main(int argc, char **argv) {
    rounds = argc > 2 ? atol(argv[2]) : 100000;
    cells = aligned_alloc(128, rounds * sizeof *cells);
    for (int thread = 0; thread < MOST; thread++) seen[thread] = malloc(rounds);
    nowhere = open("/dev/null", O_WRONLY);
    signal(SIGUSR1, tell);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t at = 0; at < sizeof shapes / sizeof *shapes; at++)
        if (argc < 2 || strcmp(argv[1], "all") == 0 || strcmp(argv[1], shapes[at].name) == 0)
            try_shape(&shapes[at]);
    return 0;
}
