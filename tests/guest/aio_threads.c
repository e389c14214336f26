// Threads that submit reads to one context, and one that takes what is done: each page is looked at by
// the thread that learns of it, while others submit.
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 150, PAGE = 4096, PAGES = 64 };

static aio_context_t context;
static int fd;
static char buffers[THREADS][ROUNDS][PAGE];
static struct iocb blocks[THREADS][ROUNDS];

static void *submit(void *argument) {
  long me = (long)argument;
  for (int i = 0; i < ROUNDS; i++) {
    struct iocb *block = &blocks[me][i];
    int page = (me * 17 + i * 5) % PAGES;
    block->aio_lio_opcode = IOCB_CMD_PREAD;
    block->aio_fildes = fd;
    block->aio_buf = (uintptr_t)buffers[me][i];
    block->aio_nbytes = PAGE;
    block->aio_offset = page * PAGE;
    block->aio_data = me * ROUNDS + i;
    if (syscall(SYS_io_submit, context, 1, &block) != 1) exit(1);
  }
  return 0;
}

int main(void) {
  fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
  char bytes[PAGE];
  for (int i = 0; i < PAGES; i++) {
    memset(bytes, 1 + i, PAGE);
    write(fd, bytes, PAGE);
  }
  if (syscall(SYS_io_setup, THREADS * ROUNDS, &context)) return 1;
  pthread_t threads[THREADS];
  for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, submit, (void *)i);
  long sum = 0, wrong = 0;
  for (int left = THREADS * ROUNDS; left > 0;) {
    struct io_event events[8];
    long done = syscall(SYS_io_getevents, context, 1, 8, events, 0);
    if (done <= 0) return 1;
    for (long i = 0; i < done; i++) {
      int me = events[i].data / ROUNDS, round = events[i].data % ROUNDS;
      char *page = buffers[me][round];
      wrong += page[0] != 1 + (me * 17 + round * 5) % PAGES || page[PAGE - 1] != page[0];
      // The order in which they are done is the machine's.
      sum = (sum * 31 + page[0]) % 1000003;
      memset(page, 0, PAGE);
    }
    left -= done;
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
  printf("%ld wrong\n", wrong);
  dprintf(open("/dev/null", O_WRONLY), "%ld\n", sum);
  return 0;
}
