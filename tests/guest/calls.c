// Single system calls: what is unknown, what fails, what only some programs use.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/landlock.h>
#include <mqueue.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/quota.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define TELL(call)                                                    \
    do {                                                              \
        errno = 0;                                                    \
        long result = (long)(call);                                   \
        printf("%s = %ld, %d\n", #call, result < 0 ? -1 : 0, errno);  \
    } while (0)

int main(void) {
    TELL(syscall(600));
    TELL(syscall(SYS_restart_syscall));
    TELL(fcntl(0, 9999));
    TELL(prctl(9999, 0, 0, 0, 0));
    TELL(ioctl(0, 0xdeadbeef, 0));
    TELL(syscall(SYS_futex, 0, 100, 0, 0, 0, 0));
    TELL(syscall(SYS_clock_settime, 99, 0));
    TELL(syscall(SYS_sethostname, "x", -1));
    TELL(syscall(SYS_mount, "none", "/nowhere/at/all", "tmpfs", 0, 0));
    TELL(chroot("/nowhere/at/all"));
    TELL(unshare(0));
    TELL(setns(-1, 0));
    TELL(quotactl(QCMD(Q_GETQUOTA, USRQUOTA), "/dev/null", 0, 0));
    TELL(syscall(SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION));
    TELL(kill(0, 0));
    TELL(kill(getpid(), 65));

    char from[] = "abcdef", to[7] = "";
    struct iovec local = {to, 6}, remote = {from, 6};
    TELL(process_vm_readv(getpid(), &local, 1, &remote, 1, 0));
    puts(to);
    memcpy(from, "ghijkl", 6);
    struct iovec source = {from, 6}, target = {to, 6};
    TELL(process_vm_writev(getpid(), &source, 1, &target, 1, 0));
    puts(to);

    int ends[2];
    TELL(pipe(ends));
    TELL(vmsplice(ends[1], &source, 1, 0));
    memset(to, 0, sizeof to);
    TELL(read(ends[0], to, 6));
    puts(to);
    TELL(write(ends[1], "mnopqr", 6));
    struct iovec parts[2] = {{to, 2}, {from, 4}};
    TELL(vmsplice(ends[0], parts, 2, 0));
    printf("%.2s %.4s\n", to, from);

    long key = syscall(SYS_add_key, "user", "refrain", "secret", 6, KEY_SPEC_PROCESS_KEYRING);
    TELL(key);
    memset(to, 0, sizeof to);
    TELL(syscall(SYS_keyctl, KEYCTL_READ, key, to, 6));
    puts(to);
    TELL(syscall(SYS_keyctl, KEYCTL_UPDATE, key, "other", 5));
    TELL(syscall(SYS_keyctl, KEYCTL_REVOKE, key));
    TELL(syscall(SYS_keyctl, 9999));

    int id = semget(IPC_PRIVATE, 3, 0600);
    unsigned short values[3] = {1, 2, 3}, read_back[3] = {0};
    TELL(semctl(id, 0, SETALL, values));
    TELL(semctl(id, 0, GETALL, read_back));
    printf("%d %d %d\n", read_back[0], read_back[1], read_back[2]);
    TELL(semctl(id, 0, IPC_RMID));

    int queue = msgget(IPC_PRIVATE, 0600);
    struct { long type; char text[8]; } message = {3, "message"}, received = {0};
    TELL(msgsnd(queue, &message, 8, 0));
    TELL(msgrcv(queue, &received, 8, 0, 0));
    printf("%ld %s\n", received.type, received.text);
    TELL(msgctl(queue, IPC_RMID, 0));

    int stream = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq interfaces[8];
    struct ifconf list = {sizeof interfaces, {(void *)interfaces}};
    memset(interfaces, 0, sizeof interfaces);
    TELL(ioctl(stream, SIOCGIFCONF, &list));
    printf("%s\n", list.ifc_len ? interfaces[0].ifr_name : "none");

    struct rlimit limit;
    TELL(getrlimit(RLIMIT_CORE, &limit));
    limit.rlim_cur = 0;
    TELL(prlimit(0, RLIMIT_CORE, &limit, 0));
    char name[16] = "";
    TELL(prctl(PR_SET_NAME, "another"));
    TELL(prctl(PR_GET_NAME, name));
    puts(name);
    return 0;
}
