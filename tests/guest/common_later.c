// A program with a second thread and children maps files and segments that its children write, has the
// kernel read and write there, changes their protection, moves them, and makes them shorter.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

static sigjmp_buf back;

static void bus(int signal) {
    siglongjmp(back, signal);
}

// What a signal says that comes when this byte is read or written; 0 if none does.
static int touch(volatile char *at, int write) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) {
        if (write)
            *at = 1;
        else
            (void)*at;
    }
    return signal;
}

// Counts in words of every width.
static void count_up(volatile char *words) {
    for (int i = 0; i < 1000; i++) {
        __atomic_fetch_add((char *)words + 1, 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add((short *)(words + 2), 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add((int *)(words + 4), 1, __ATOMIC_SEQ_CST);
        __atomic_fetch_add((long *)(words + 8), 1, __ATOMIC_SEQ_CST);
    }
}

static void *wait_for(void *arg) {
    sem_t *semaphore = arg;
    while (sem_wait(semaphore) != 0) {}
    return (void *)(long)*(volatile int *)(semaphore + 1);
}

int main(void) {
    sem_t *semaphore;
    pthread_t thread;
    int to_child[2], status;
    if (fork() == 0) _exit(0);
    wait(0);

    // A child fills shared memory, and wakes a thread that sleeps there.
    semaphore = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sem_init(semaphore, 1, 0);
    pthread_create(&thread, 0, wait_for, semaphore);
    if (fork() == 0) {
        usleep(5000);
        *(volatile int *)(semaphore + 1) = 4711;
        sem_post(semaphore);
        _exit(0);
    }
    void *result;
    pthread_join(thread, &result);
    wait(0);
    printf("woken: %ld\n", (long)result);

    // The kernel reads and writes memory that has no name.
    int file = memfd_create("memory", 0);
    ftruncate(file, 4 * PAGE);
    char *memory = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    socketpair(AF_UNIX, SOCK_STREAM, 0, to_child);
    if (fork() == 0) {
        char word[6];
        read(to_child[1], word, 5);
        strcpy(memory + PAGE - 3, "across pages");
        strcpy(memory + 3 * PAGE, "written by the child");
        write(to_child[1], "done", 4);
        _exit(word[0]);
    }
    strcpy(memory + 100, "begin");
    struct iovec out[2] = {{memory + 100, 2}, {memory + 102, 3}};
    writev(to_child[0], out, 2);
    struct iovec in[2] = {{memory + 200, 1}, {memory + 201, 3}};
    struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};
    printf("received: %ld %.4s\n", recvmsg(to_child[0], &message, MSG_WAITALL), memory + 200);
    wait(&status);
    printf("%s, %s, %c\n", memory + PAGE - 3, memory + 3 * PAGE, WEXITSTATUS(status));
    pread(file, memory + 300, 7, 3 * PAGE);
    struct stat *about = (struct stat *)(memory + 512);
    fstat(file, about);
    printf("%.7s %d\n", memory + 300, about->st_size == 4 * PAGE);
    write(1, memory + 3 * PAGE, 20);
    write(1, "\n", 1);

    // Protection.
    struct sigaction action = {.sa_handler = bus};
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    printf("protected: %d", mprotect(memory + PAGE, PAGE, PROT_READ));
    printf(" %d %d %d", touch(memory, 1), touch(memory + PAGE, 0), touch(memory + PAGE, 1));
    printf(" %d", mprotect(memory + PAGE, 2 * PAGE, PROT_NONE));
    printf(" %d %d", touch(memory + 2 * PAGE, 0), touch(memory + 3 * PAGE, 1));
    printf(" %d", mprotect(memory, 4 * PAGE, PROT_READ | PROT_WRITE));
    printf(" %d %d\n", touch(memory + PAGE, 1), touch(memory + 2 * PAGE, 1));

    // Copies from one part to another, and to memory of the program's own.
    char *own = malloc(3 * PAGE);
    memset(memory + 2 * PAGE, 'x', PAGE);
    __asm__ volatile("rep movsb" : : "D"(memory + 5), "S"(memory + 2 * PAGE - 6), "c"(PAGE) : "memory");
    char *to = own, *from = memory;
    long count = 3 * PAGE / 8;
    __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
    printf("copied: %d %c %c %ld\n", memcmp(own, memory, 3 * PAGE), own[12], own[PAGE], count);

    // Moved, longer, shorter.
    ftruncate(file, 8 * PAGE);
    memory = mremap(memory, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
    if (fork() == 0) {
        strcpy(memory + 7 * PAGE, "at the end");
        _exit(0);
    }
    wait(0);
    printf("moved: %.4s %s\n", memory + 200, memory + 7 * PAGE);
    ftruncate(file, 5 * PAGE);
    printf("shorter: %d %d\n", touch(memory + 4 * PAGE, 1), touch(memory + 5 * PAGE, 0) == SIGBUS);
    munmap(memory + PAGE, PAGE);
    printf("gone: %d %d\n", touch(memory + PAGE, 0), touch(memory + 2 * PAGE, 0));

    // A segment, a counter with every width, and 16 bytes at once.
    int id = shmget(IPC_PRIVATE, PAGE, 0600);
    volatile char *segment = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    if (fork() == 0) {
        count_up(segment);
        _exit(0);
    }
    count_up(segment);
    wait(0);
    __int128 all;
    __asm__ volatile("movdqa %1, %%xmm7; movdqu %%xmm7, %0" : "=m"(all) : "m"(*segment) : "xmm7");
    printf("%x %lx\n", (unsigned)((unsigned long)all >> 8), (long)(all >> 64));
    __asm__ volatile("btsl %1, (%0)" : : "r"(segment), "r"(100) : "memory", "cc");
    __asm__ volatile("pushq (%0); popq 16(%0)" : : "r"(segment) : "memory");
    printf("%x %d\n", *(int *)(segment + 12), *(long *)segment == *(long *)(segment + 16));
    return 0;
}
