// A program with a second thread shares memory with a process that it forks, and prints what that
// process has written there. The second thread waits meanwhile, or, with COMPUTES, computes.
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef COMPUTES
static volatile int begun;

// For a second or so.
static void *work(void *unused) {
  long sum = 0;
  begun = 1;
  for (long i = 0; i < 2000000000; i++) __asm__ volatile("add %1, %0" : "+r"(sum) : "r"(i));
  return sum == 0 ? (void *)&begun : unused;
}

static void before_fork(void) {
  while (!begun) usleep(100);
}

static void after_fork(void) {}
#else
static pthread_barrier_t barrier;

static void *work(void *unused) {
  (void)unused;
  pthread_barrier_wait(&barrier);
  return 0;
}

static void before_fork(void) {}

static void after_fork(void) {
  pthread_barrier_wait(&barrier);
}
#endif

int main(void) {
  char *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_t thread;
#ifndef COMPUTES
  pthread_barrier_init(&barrier, 0, 2);
#endif
  pthread_create(&thread, 0, work, 0);
  before_fork();
  pid_t child = fork();
  if (child == 0) {
    strcpy(shared, "the child's\n");
    _exit(0);
  }
  waitpid(child, 0, 0);
  write(1, shared, 12);
  after_fork();
  pthread_join(thread, 0);
}
