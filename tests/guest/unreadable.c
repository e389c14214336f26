// Jumps to where no code can be read, and faults behind them.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

static char shown[4096];
static int length;

// Goes on where rbx says.
static void handle(int number, siginfo_t *info, void *state) {
    ucontext_t *context = state;
    length += sprintf(shown + length, "signal %d, code %d, address %lx\n", number, info->si_code,
                      (unsigned long)info->si_addr & 0xfff);
    context->uc_mcontext.gregs[REG_RIP] = context->uc_mcontext.gregs[REG_RBX];
}

#define FAULT(code, behind)                                                        \
    __asm__ volatile("lea 1f(%%rip), %%rbx\n" code "\n1:\n" behind ::"a"(pages)    \
                     : "rbx", "rcx", "memory")

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, 0);
    char *pages = mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 4096, 4096, PROT_NONE);
    FAULT("xor %%ecx, %%ecx\n jmp *%%rcx", "");
    // The call has pushed where it returns to.
    FAULT("mov $5, %%ecx\n call *%%rcx", "add $8, %%rsp");
    FAULT("lock incl (%%rax)", "");
    FAULT("push 4098(%%rax)", "");
    FAULT("mov 4099(%%rax), %%ecx", "");
    fputs(shown, stdout);
    return 0;
}
