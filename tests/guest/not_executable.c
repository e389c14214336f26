// Code in memory that may not be executed is not. (With TAKEN, also where it could be executed before, which the
// Cranelift engine has compiled beforehand, or cannot replay.)
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096

static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
static unsigned char data[16];
static sigjmp_buf back;
static void *volatile called;

static void handler(int signal, siginfo_t *info, void *context) {
    printf("signal %d code %d at %ld\n", signal, info->si_code, (char *)info->si_addr - (char *)called);
    siglongjmp(back, 1);
}

static void call(const char *what, void *at) {
    called = at;
    printf("%s: ", what);
    fflush(stdout);
    if (!sigsetjmp(back, 1)) printf("%d\n", ((int (*)(void))at)());
}

#ifdef TAKEN
// In a page of its own.
__attribute__((noinline, section(".own"), aligned(PAGE))) static int answer(void) {
    return 43;
}

static void take_away(void) {
    call("a function", answer);
    mprotect(answer, PAGE, PROT_READ);
    call("a function that was taken away", answer);
    mprotect(answer, PAGE, PROT_READ | PROT_EXEC);
    call("a function again", answer);
    unsigned char *page =
        mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    memcpy(page + PAGE - 3, code, sizeof code);
    call("not yet", page);
    mprotect(page, PAGE, PROT_READ | PROT_EXEC);
    call("now", page);
    call("half an instruction", page + PAGE - 3);
    munmap(page, PAGE);
    call("nothing", page);
}
#endif

int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    unsigned char stack[16], *heap = malloc(16);
    memcpy(stack, code, sizeof code);
    memcpy(heap, code, sizeof code);
    memcpy(data, code, sizeof code);
    call("stack", stack);
    call("heap", heap);
    call("data", data);
#ifdef TAKEN
    take_away();
#endif
    return 0;
}
