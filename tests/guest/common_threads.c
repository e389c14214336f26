// A program with a second thread shares memory with a process that it forks, and prints what that
// process has written there.
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t barrier;

static void *work(void *unused) {
  (void)unused;
  pthread_barrier_wait(&barrier);
  return 0;
}

int main(void) {
  char *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_t thread;
  pthread_barrier_init(&barrier, 0, 2);
  pthread_create(&thread, 0, work, 0);
  pid_t child = fork();
  if (child == 0) {
    strcpy(shared, "the child's\n");
    _exit(0);
  }
  waitpid(child, 0, 0);
  write(1, shared, 12);
  pthread_barrier_wait(&barrier);
  pthread_join(thread, 0);
}
