// Memory that files and segments show: all ways to change it agree.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#define PAGE 4096ul

int main(void) {
    int fd = open("shared.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(fd, 4 * PAGE);
    volatile char *read_only = mmap(0, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    volatile char *written = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, PAGE);
    printf("%d\n", read_only[0]);
    pwrite(fd, "a", 1, 0);
    printf("pwrite %c\n", read_only[0]);
    written[0] = 'b';
    printf("mapping %c\n", read_only[PAGE]);
    char byte;
    pread(fd, &byte, 1, PAGE);
    printf("pread %c\n", byte);
    lseek(fd, 2 * PAGE, SEEK_SET);
    write(fd, "cd", 2);
    printf("write %c%c\n", written[PAGE], read_only[2 * PAGE + 1]);
    int other = open("shared.dat", O_RDWR | O_APPEND);
    ftruncate(fd, 3 * PAGE);
    ftruncate(fd, 4 * PAGE - 1);
    write(other, "e", 1);
    printf("append %c\n", read_only[4 * PAGE - 1]);
    ftruncate(fd, PAGE);
    ftruncate(fd, 4 * PAGE);
    printf("truncate %d %d\n", read_only[PAGE], read_only[4 * PAGE - 1]);
    read(open("source.c", O_RDONLY), (char *)written, 2);
    printf("read %c%c\n", read_only[PAGE], read_only[PAGE + 1]);
    volatile char *moved = mremap((char *)written, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE);
    moved[2 * PAGE] = 'f';
    printf("moved %c\n", read_only[3 * PAGE]);
    munmap((char *)moved, 3 * PAGE);
    volatile char *again = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 3 * PAGE);
    printf("again %c\n", again[0]);

    // Far larger than it is.
    int sparse = open("sparse.dat", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(sparse, 1l << 40);
    pwrite(sparse, "g", 1, 1l << 39);
    char *huge = mmap(0, 1ul << 40, PROT_READ | PROT_WRITE, MAP_SHARED, sparse, 0);
    huge[(1ul << 40) - 1] = 'h';
    pread(sparse, &byte, 1, (1l << 40) - 1);
    printf("sparse %d %c %c\n", huge[0], huge[1ul << 39], byte);

    int id = shmget(IPC_PRIVATE, 2 * PAGE, 0600);
    char *first = shmat(id, 0, 0), *second = shmat(id, 0, SHM_RDONLY);
    strcpy(first + PAGE, "segment");
    struct shmid_ds state;
    shmctl(id, IPC_STAT, &state);
    printf("%s %zu %d\n", second + PAGE, state.shm_segsz, (int)state.shm_nattch);
    printf("detach %d %d\n", shmdt(first), shmdt(first));
    shmctl(id, IPC_RMID, 0);
    return 0;
}
