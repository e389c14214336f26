/* ex_exit: a program that ends while its threads are in system calls, which read
 * a line in which other words change. How far they come never reaches the output. */
#include "common.h"

#include <fcntl.h>
#include <unistd.h>

static uint64_t line[8] ALIGNED;
static pthread_barrier_t begun;
static int file;

static void *writes(void *argument) {
    uint64_t self = (uintptr_t)argument;
    CHECK(pthread_barrier_wait(&begun) <= 0);
    for (;;) {
        line[4 + self]++;
        CHECK(write(file, line, 32) == 32);
    }
}

int main(int argc, char **argv) {
    unsigned long microseconds = arg(argc, argv, 1, 1000);
    file = open("/dev/null", O_WRONLY);
    CHECK(file >= 0 && pthread_barrier_init(&begun, NULL, 4) == 0);
    for (uintptr_t i = 1; i < 4; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, writes, (void *)i) == 0);
        CHECK(pthread_detach(thread) == 0);
    }
    CHECK(pthread_barrier_wait(&begun) <= 0);
    CHECK(usleep((useconds_t)microseconds) == 0);
    printf("ex_exit\n");
    return 0;
}
