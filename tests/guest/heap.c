// A program that has the kernel put its heap right behind its image, as Lisps do that are saved with
// their heap: the break is where the image ends, and what is behind it is the program's.
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <sys/personality.h>
#include <unistd.h>

extern char end;
static char large[5 << 20];

int main(int argc, char **argv, char **environment) {
  int now = personality(0xffffffff);
  if (!(now & ADDR_NO_RANDOMIZE)) {
    personality(now | ADDR_NO_RANDOMIZE);
    printf("again\n");
    fflush(stdout);
    execve("/proc/self/exe", argv, environment);
    return 1;
  }
  static char buffer[64];
  setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
  uintptr_t behind = ((uintptr_t)&end + 4095) & ~4095ul;
  char *heap = sbrk(0);
  printf("behind %d\n", (uintptr_t)heap == behind);
  sbrk(3 << 20);
  memset(heap, 'x', 3 << 20);
  memset(large, 'y', sizeof large);
  printf("grown %ld %c%c\n", (char *)sbrk(0) - heap, heap[0], heap[(3 << 20) - 1]);
  sbrk(-(2 << 20));
  printf("less %ld %c\n", (char *)sbrk(0) - heap, heap[100]);
  printf("too much %d\n", sbrk(1l << 46) == (void *)-1);
}
