/* ex_pipe: plain data handed over in the order that the kernel gives: a thread
 * fills a buffer and writes its index to a pipe, the next one reads the index
 * and then the buffer. No user-level synchronization is involved. */
#include "common.h"

#include <unistd.h>

#define BUFFERS 8
#define WORDS 64

static uint64_t buffers[BUFFERS][WORDS] ALIGNED;
static int full[2], empty[2];

static unsigned char receive(int fd) {
    unsigned char index;
    CHECK(read(fd, &index, 1) == 1);
    return index;
}

static void send(int fd, unsigned char index) {
    CHECK(write(fd, &index, 1) == 1);
}

static uint64_t role(unsigned self, unsigned long rounds) {
    uint64_t digest = 0;
    for (unsigned long i = 0; i < rounds; i++) {
        unsigned char index = receive(self == 0 ? empty[0] : full[0]);
        for (unsigned w = 0; w < WORDS; w++)
            if (self == 0)
                buffers[index][w] = mix(i + w);
            else
                digest = digest * 31 + buffers[index][w];
        send(self == 0 ? full[1] : empty[1], index);
    }
    return digest;
}

int main(int argc, char **argv) {
    unsigned long rounds = arg(argc, argv, 1, 20000);
    CHECK(pipe(full) == 0 && pipe(empty) == 0);
    for (unsigned char i = 0; i < BUFFERS; i++)
        send(empty[1], i);
    uint64_t digest = run_crew(2, rounds, role);
    printf("ex_pipe hand-overs %lu digest %016" PRIx64 "\n", rounds, digest);
    return 0;
}
