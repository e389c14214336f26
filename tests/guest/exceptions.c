// What handlers are told of exceptions, and where the frame has no room; what the calls about signals refuse.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static char *pages;

static void tell(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    int is_own = info->si_addr == (void *)registers[REG_RIP];
    long address = info->si_code <= 0 ? -2 : is_own ? -1 : pages <= (char *)info->si_addr && (char *)info->si_addr < pages + 8192
        ? (char *)info->si_addr - pages : (long)info->si_addr;
    printf("signal %d, code %d, address %ld, exception %lld, error %lld, again %d\n", signal,
           info->si_code, address, registers[REG_TRAPNO], registers[REG_ERR],
           (int)(registers[REG_EFL] >> 16 & 1));
    if (info->si_code > 0) registers[REG_RIP] = registers[REG_RBX];
}

#define RAISE(code) \
    __asm__ volatile("lea 1f(%%rip), %%rbx\n\t" code "\n1:" : : "a"(pages) : "rbx", "rcx", "rdx", "memory")

static void refused(const char *what, long result) {
    printf("%s: %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static int ends[2];

static int apart(void *unused) {
    if (chdir("/") != 0) _exit(1);
    close(STDIN_FILENO);
    write(ends[1], "d", 1);
    syscall(SYS_exit, 0);
    return 0;
}

int main(void) {
    static char stack[65536], thread_stack[65536];
    struct sigaction action = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO};
    int all[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};
    for (int i = 0; i < 5; i++) sigaction(all[i], &action, NULL);
    setvbuf(stdout, NULL, _IONBF, 0);
    pages = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 4096, 4096, PROT_NONE);

    RAISE("movb $1, 5(%%rax)");
    RAISE("mov 4100(%%rax), %%ecx");
    RAISE("mov 8, %%ecx");
    RAISE("lock incl (%%rax)");
    RAISE("mov $1, %%rcx\n\tshl $63, %%rcx\n\tmov (%%rcx), %%ecx");
    RAISE("xor %%ecx, %%ecx\n\tmov $1, %%eax\n\txor %%edx, %%edx\n\tdiv %%ecx");
    RAISE("ud2");
    RAISE("hlt");
    RAISE("int3");
    RAISE("int1");
    // The thread's last exception is told to every handler.
    raise(SIGTRAP);

    // A frame that has no room becomes a SIGSEGV, whose handler has a stack of its own.
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, NULL);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    __asm__ volatile("lea 1f(%%rip), %%rbx\n\tmov %%rsp, %%rdx\n\tmov $8, %%esp\n\tud2\n"
                     "1:\tmov %%rdx, %%rsp" : : : "rbx", "rdx", "memory");

    struct sigaction once = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO | SA_RESETHAND | 0x400};
    sigaction(SIGUSR1, &once, NULL);
    sigaction(SIGUSR1, NULL, &once);
    printf("flags %x\n", once.sa_flags & ~0x4000000);

    sigset_t set;
    sigemptyset(&set);
    other.ss_size = 100;
    refused("small", sigaltstack(&other, NULL));
    other.ss_flags = 99;
    refused("flags", sigaltstack(&other, NULL));
    refused("no stack", syscall(SYS_sigaltstack, 8, NULL));
    refused("no old stack", syscall(SYS_sigaltstack, NULL, 8));
    refused("action of another size", syscall(SYS_rt_sigaction, SIGUSR1, NULL, NULL, 4));
    refused("no action", syscall(SYS_rt_sigaction, SIGUSR1, 8, NULL, 8));
    refused("mask of another size", syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, NULL, 4));
    refused("no mask", syscall(SYS_rt_sigprocmask, SIG_BLOCK, 8, NULL, 8));
    refused("no old mask", syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, 8, 8));
    refused("set of another size", syscall(SYS_rt_sigtimedwait, &set, NULL, NULL, 7));
    refused("suspended by another size", syscall(SYS_rt_sigsuspend, &set, 3));
    refused("nothing queued", syscall(SYS_rt_sigqueueinfo, getpid(), SIGUSR1, 8));

    // A thread that has neither directory nor descriptors in common with its creator.
    char done;
    pipe(ends);
    clone(apart, thread_stack + sizeof thread_stack, CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, NULL);
    read(ends[0], &done, 1);
    char *directory = getcwd(NULL, 0);
    printf("directory %s, input %d\n", strcmp(directory, "/") ? "kept" : "changed", dup(STDIN_FILENO) >= 0);
    return 0;
}
