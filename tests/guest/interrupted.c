// Signals whose handlers do not ask for calls to be restarted come all the time. What does not have to wait
// never fails with EINTR, and wakes the library's waiters whatever comes.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int signals;
static void handle(int signal) { signals++; }

static void every(int microseconds) {
    struct itimerval interval = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &interval, 0);
}

#define TRY(call)                                                     \
    do {                                                              \
        if ((call) < 0) { printf("%s: %d\n", #call, errno); return; } \
    } while (0)

static void try_calls(void) {
    int file = fileno(tmpfile()), ends[2], semaphore = semget(IPC_PRIVATE, 1, 0600);
    int queue = msgget(IPC_PRIVATE, 0600), pair[2];
    char bytes[64] = {1};
    struct sembuf up = {0, 1, 0}, down = {0, -1, 0};
    struct { long type; char text[8]; } message = {1, "text"};
    pipe(ends);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    for (signals = 0; signals < 300;) {
        TRY(lseek(file, 0, SEEK_SET));
        TRY(write(file, bytes, sizeof bytes));
        TRY(lseek(file, 0, SEEK_SET));
        TRY(read(file, bytes, sizeof bytes));
        TRY(fcntl(file, F_SETFL, 0));
        TRY(flock(file, LOCK_EX));
        struct flock lock = {.l_type = F_WRLCK};
        TRY(fcntl(file, F_SETLKW, &lock));
        int opened = open("/dev/null", O_RDWR);
        TRY(opened);
        close(opened);
        TRY(write(ends[1], bytes, 8));
        TRY(read(ends[0], bytes, 8));
        TRY(send(pair[0], bytes, 8, 0));
        TRY(recv(pair[1], bytes, 8, 0));
        TRY(semop(semaphore, &up, 1));
        TRY(semop(semaphore, &down, 1));
        TRY(msgsnd(queue, &message, 8, 0));
        TRY(msgrcv(queue, &message, 8, 0, 0));
    }
    semctl(semaphore, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, 0);
    puts("no call was interrupted");
}

// What has to wait is.
static void try_waits(void) {
    int ends[2], interrupted = 0;
    char byte;
    pipe(ends);
    for (int i = 0; i < 20; i++) interrupted += read(ends[0], &byte, 1) < 0 && errno == EINTR;
    for (int i = 0; i < 20; i++) interrupted += pause() < 0 && errno == EINTR;
    for (int i = 0; i < 300; i++) {
        struct timespec asked = {1, 0}, rest = {-1, -1};
        if (nanosleep(&asked, &rest) < 0 && (rest.tv_sec < 0 || rest.tv_sec > 1))
            printf("%ld seconds are left\n", (long)rest.tv_sec);
    }
    printf("%d waits were interrupted\n", interrupted);
}

static pthread_barrier_t barrier;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int turn;

static void *take_turns(void *id) {
    for (int i = 0; i < 500; i++) {
        pthread_barrier_wait(&barrier);
        pthread_mutex_lock(&mutex);
        while (turn % 3 != (long)id) pthread_cond_wait(&changed, &mutex);
        turn++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
    return 0;
}

// A timer that fires faster than anybody can take its signals.
static timer_t timer;
static volatile int fired;
static void count(int signal) {
    if (++fired == 200) timer_settime(timer, 0, &(struct itimerspec){0}, 0);
}

static int wait_for_timer(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    signal(SIGRTMIN, count);
    timer_create(CLOCK_REALTIME, &event, &timer);
    timer_settime(timer, 0, &(struct itimerspec){{0, 1000}, {0, 1000}}, 0);
    while (fired < 200) usleep(100);
    return timer_delete(timer);
}

int main(void) {
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGALRM, &action, 0);
    every(300);
    try_calls();
    try_waits();
    pthread_t threads[2];
    pthread_barrier_init(&barrier, 0, 3);
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, take_turns, (void *)(i + 1));
    take_turns(0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    printf("%d turns\n", turn);
    every(0);
    fflush(stdout);
    int status = 1;
    if (fork() == 0) _exit(wait_for_timer());
    wait(&status);
    printf("%d %d\n", wait_for_timer(), status);
    return 0;
}
