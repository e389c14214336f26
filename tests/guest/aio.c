// Asynchronous input and output by the kernel's own calls: what is written and read, what fails,
// a descriptor that is told, and a file that is mapped meanwhile. libaio looks for a ring behind
// the context's address; so does this program.
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char buffers[4][4096];
static struct io_event events[8];

static struct iocb operation(int code, int fd, void *buffer, size_t len, long offset) {
  struct iocb block;
  memset(&block, 0, sizeof block);
  block.aio_lio_opcode = code;
  block.aio_fildes = fd;
  block.aio_buf = (uintptr_t)buffer;
  block.aio_nbytes = len;
  block.aio_offset = offset;
  block.aio_data = 7 + offset / 4096;
  block.aio_key = 99;
  return block;
}

static long submit(aio_context_t context, long count, struct iocb *blocks) {
  struct iocb *list[4];
  for (long i = 0; i < count; i++) list[i] = &blocks[i];
  return syscall(SYS_io_submit, context, count, list);
}

static void tell(aio_context_t context, long count, long least) {
  struct timespec second = {1, 0};
  long done = syscall(SYS_io_getevents, context, least, count, events, &second);
  printf("%ld events:", done);
  for (long i = 0; i < done; i++) printf(" %lld=%lld", events[i].data, events[i].res);
  printf("\n");
}

static void *submit_later(void *context) {
  struct timespec pause = {0, 20000000};
  nanosleep(&pause, 0);
  int fd = open("file", O_RDONLY);
  struct iocb block = operation(IOCB_CMD_PREAD, fd, buffers[3], 10, 4096);
  return (void *)submit((aio_context_t)context, 1, &block);
}

int main(void) {
  aio_context_t context = 1;
  long result = syscall(SYS_io_setup, 8, &context);
  printf("setup %ld %d\n", result, errno == EINVAL);
  context = 0;
  printf("setup %ld\n", syscall(SYS_io_setup, 8, &context));
  printf("readable %d\n", *(volatile unsigned *)(context + 16) != 1);
  int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600), told = eventfd(0, 0);
  ftruncate(fd, 4 * 4096);
  char *shown = mmap(0, 4 * 4096, PROT_READ, MAP_SHARED, fd, 0);
  struct iocb blocks[4];
  for (int i = 0; i < 3; i++) {
    memset(buffers[i], 'a' + i, 4096);
    blocks[i] = operation(IOCB_CMD_PWRITE, fd, buffers[i], 4096, i * 4096);
  }
  blocks[1].aio_flags = IOCB_FLAG_RESFD;
  blocks[1].aio_resfd = told;
  result = submit(context, 3, blocks);
  printf("submit %ld, key %u\n", result, blocks[0].aio_key);
  uint64_t count = 0;
  read(told, &count, 8);
  printf("told %lu, shown %c%c\n", count, shown[0], shown[2 * 4096 + 5]);
  tell(context, 2, 1);
  tell(context, 2, 1);
  memset(buffers, 0, sizeof buffers);
  struct iovec parts[2] = {{buffers[0], 10}, {buffers[1], 4096}};
  blocks[0] = operation(IOCB_CMD_PREADV, fd, parts, 2, 4090);
  blocks[1] = operation(IOCB_CMD_PREAD, fd, buffers[2], 4096, 3 * 4096 - 1);
  blocks[2] = operation(IOCB_CMD_FSYNC, fd, 0, 0, 0);
  blocks[3] = operation(IOCB_CMD_PREAD, 77, buffers[3], 4096, 0);
  printf("submit %ld\n", submit(context, 4, blocks));
  result = submit(context, 1, blocks + 3);
  printf("bad %ld %d\n", result, errno == EBADF);
  tell(context, 8, 3);
  printf("%.10s %.3s %.1s\n", buffers[0], buffers[1], buffers[2]);
  pthread_t thread;
  pthread_create(&thread, 0, submit_later, (void *)context);
  tell(context, 8, 1);
  void *later;
  pthread_join(thread, &later);
  printf("%.10s later %ld\n", buffers[3], (long)later);
  printf("none %ld\n", syscall(SYS_io_getevents, context, 0, 8, events, 0));
  printf("destroy %ld", syscall(SYS_io_destroy, context));
  printf(" %ld\n", submit(context, 1, blocks));
}
