// What a handler is told of the fault: the code, the address, the exception's number and error code.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static sigjmp_buf back;
static char *page;

static void handle(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    long at = info->si_code <= 0                          ? 0
              : info->si_addr == (void *)registers[REG_RIP] ? -1
              : page && (char *)info->si_addr >= page     ? (char *)info->si_addr - page
                                                          : (long)info->si_addr;
    printf("signal %d code %d address %ld trap %lld error %ld cr2 %d\n", signal, info->si_code, at,
           (long long)registers[REG_TRAPNO], (long)registers[REG_ERR], registers[REG_TRAPNO] == 14 && registers[REG_CR2] == (greg_t)info->si_addr);
    siglongjmp(back, 1);
}

#define TRY(...)                                                                                                   \
    if (!sigsetjmp(back, 1)) {                                                                                     \
        __VA_ARGS__;                                                                                               \
        puts("no fault");                                                                                          \
    }

int main(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    for (int i = 0; i < 5; i++)
        sigaction(signals[i], &action, NULL);
    page = mmap(NULL, 4 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + 3 * 4096, 4096);
    mprotect(page + 4096, 4096, PROT_NONE);
    volatile char *memory = page;
    TRY(memory[0])
    TRY(memory[0] = 1)
    TRY(memory[4096])
    TRY(memory[4096] = 1)
    TRY(memory[3 * 4096 + 5])
    TRY(memory[3 * 4096 + 5] = 1)
    TRY(*(volatile char *)0xdead000000000000)
    TRY(((void (*)(void))0xdead000000000000)())
    TRY(((void (*)(void))0x42)())
    TRY(__asm__ volatile("ud2"))
    TRY(__asm__ volatile("hlt"))
    TRY(__asm__ volatile("int3"))
    TRY(__asm__ volatile("xor %%ecx, %%ecx\n\tidiv %%ecx" ::: "eax", "ecx", "edx"))
    // A signal that is sent is told the last fault's cause as well.
    TRY(raise(SIGTRAP))
    return 0;
}
