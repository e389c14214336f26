// Threads access shared memory and lock a mutex there while another thread forks children that do so,
// too. What the threads see differs from run to run, and goes to standard error.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 3
#define ROUNDS 300

struct shared {
    atomic_int counter, by_children, stop, lock;
    volatile int plain;
    pthread_mutex_t mutex;
    int guarded, guarded_by_children;
    char text[8192];
};

static struct shared *s;
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
static long sums[2], together, guarded_there;

static void *work(void *arg) {
    long id = (long)arg;
    while (!atomic_load(&s->stop)) {
        char copy[100];
        atomic_fetch_add(&s->counter, 1);
        sums[id] += s->plain;
        pthread_mutex_lock(&s->mutex);
        s->guarded++;
        pthread_mutex_unlock(&s->mutex);
        pthread_mutex_lock(&own);
        together += id;
        pthread_mutex_unlock(&own);
        // Threads' own data, guarded by a lock that is not theirs alone.
        while (atomic_exchange(&s->lock, 1)) {}
        guarded_there = guarded_there * 3 + id;
        atomic_store(&s->lock, 0);
        memcpy(copy, s->text + id * 1000, sizeof copy);
        sums[id] += copy[7];
        usleep(200);
    }
    return 0;
}

static void child(void) {
    for (int i = 0; i < ROUNDS; i++) {
        atomic_fetch_add(&s->counter, 1);
        atomic_fetch_add(&s->by_children, 2);
        s->plain++;
        while (atomic_exchange(&s->lock, 1)) {}
        atomic_store(&s->lock, 0);
        pthread_mutex_lock(&s->mutex);
        s->guarded++;
        s->guarded_by_children++;
        pthread_mutex_unlock(&s->mutex);
        memset(s->text, i, sizeof s->text);
    }
    _exit(0);
}

int main(void) {
    pthread_t threads[2];
    pthread_mutexattr_t shared;
    s = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->mutex, &shared);
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
    usleep(2000);
    for (int i = 0; i < CHILDREN; i++) {
        if (fork() == 0) child();
        usleep(1000);
    }
    while (wait(0) > 0) {}
    usleep(3000);
    atomic_store(&s->stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    printf("%d %d\n", s->by_children, s->guarded_by_children);
    fprintf(stderr, "%d %d %ld ", s->counter, s->guarded, sums[0] + sums[1]);
    fprintf(stderr, "%ld %lx\n", together, guarded_there);
    return 0;
}
