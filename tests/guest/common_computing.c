// A program forks while its second thread computes, and prints what the child has written to memory that
// all have in common.
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int computes;

// For a second or so.
static void *work(void *unused) {
  long sum = 0;
  computes = 1;
  for (long i = 0; i < 2000000000; i++) __asm__ volatile("add %1, %0" : "+r"(sum) : "r"(i));
  return sum == 0 ? &computes : unused;
}

int main(void) {
  char *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_t thread;
  pthread_create(&thread, 0, work, 0);
  while (!computes) usleep(100);
  pid_t child = fork();
  if (child == 0) {
    strcpy(shared, "the child's\n");
    _exit(0);
  }
  waitpid(child, 0, 0);
  write(1, shared, 12);
  pthread_join(thread, 0);
}
