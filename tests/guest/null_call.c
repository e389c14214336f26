// A call through a null pointer, caught once, then not.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>

static void (*volatile nowhere)(void);
static sigjmp_buf back;

static void caught(int signal) { siglongjmp(back, signal); }

int main(void) {
    signal(SIGSEGV, caught);
    int signal_number = sigsetjmp(back, 1);
    if (!signal_number) nowhere();
    printf("caught %d\n", signal_number);
    fflush(stdout);
    signal(SIGSEGV, SIG_DFL);
    nowhere();
    return 0;
}
