//! Calls that a sandbox must refuse, each made once, for the test of the sandbox.
//!
//! The replay child tries one of them when its parent's command line asks for it, after it has
//! given up its rights, where it would replay. Nothing in a trace reaches this module.

use crate::host;
use std::arch::asm;

/// Each form by its name: the number of the system call, and its first arguments.
type Form = (&'static str, i64, [u64; 5]);

/// A word for the process that the call is aimed at.
const VICTIM: u64 = u64::MAX - 1;
/// A word for the address of a path of a file that every system has.
const PATH: u64 = u64::MAX - 2;
/// A word for the address of a zeroed buffer.
const BUFFER: u64 = u64::MAX - 3;
/// "The current directory", as in `openat`.
const HERE: u64 = -100_i64 as u64;

const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const WRITE_EXECUTE: u64 = READ_WRITE | libc::PROT_EXEC as u64;
const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
const SIGCHLD: u64 = libc::SIGCHLD as u64;

#[rustfmt::skip]
const FORMS: &[Form] = &[
    // Other processes.
    ("kill", libc::SYS_kill, [VICTIM, 0, 0, 0, 0]),
    ("kill everybody", libc::SYS_kill, [u64::MAX, 0, 0, 0, 0]),
    ("tkill", libc::SYS_tkill, [VICTIM, 0, 0, 0, 0]),
    ("tgkill", libc::SYS_tgkill, [VICTIM, VICTIM, 0, 0, 0]),
    ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, [VICTIM, 0, BUFFER, 0, 0]),
    ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo, [VICTIM, VICTIM, 0, BUFFER, 0]),
    ("pidfd_open", libc::SYS_pidfd_open, [VICTIM, 0, 0, 0, 0]),
    ("pidfd_send_signal", libc::SYS_pidfd_send_signal, [0, 0, 0, 0, 0]),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, [0, 0, 0, 0, 0]),
    ("fcntl F_SETOWN", libc::SYS_fcntl, [0, 8, VICTIM, 0, 0]),
    ("fcntl F_SETOWN_EX", libc::SYS_fcntl, [0, 15, BUFFER, 0, 0]),
    ("fcntl F_SETSIG", libc::SYS_fcntl, [0, 10, 9, 0, 0]),
    ("fcntl F_SETFL O_ASYNC", libc::SYS_fcntl, [0, libc::F_SETFL as u64, libc::O_ASYNC as u64, 0, 0]),
    ("fcntl F_SETLEASE", libc::SYS_fcntl, [0, 1024, 0, 0, 0]),
    ("fcntl F_NOTIFY", libc::SYS_fcntl, [0, 1026, 1, 0, 0]),
    ("fcntl with high bits", libc::SYS_fcntl, [0, 0x1_0000_0008, VICTIM, 0, 0]),
    ("ioctl FIOASYNC", libc::SYS_ioctl, [0, 0x5452, BUFFER, 0, 0]),
    ("ioctl TIOCSTI", libc::SYS_ioctl, [2, 0x5412, BUFFER, 0, 0]),
    ("prlimit64 of another", libc::SYS_prlimit64, [VICTIM, 7, 0, BUFFER, 0]),
    ("sched_setaffinity of another", libc::SYS_sched_setaffinity, [VICTIM, 8, BUFFER, 0, 0]),
    ("sched_getaffinity of another", libc::SYS_sched_getaffinity, [VICTIM, 8, BUFFER, 0, 0]),
    ("sched_setscheduler", libc::SYS_sched_setscheduler, [VICTIM, 0, BUFFER, 0, 0]),
    ("setpriority", libc::SYS_setpriority, [0, VICTIM, 19, 0, 0]),
    ("ioprio_set", libc::SYS_ioprio_set, [1, VICTIM, 0, 0, 0]),
    ("process_vm_readv of another", libc::SYS_process_vm_readv, [VICTIM, BUFFER, 0, BUFFER, 0]),
    ("process_vm_writev of another", libc::SYS_process_vm_writev, [VICTIM, BUFFER, 0, BUFFER, 0]),
    ("ptrace", libc::SYS_ptrace, [16, VICTIM, 0, 0, 0]),
    ("kcmp", libc::SYS_kcmp, [VICTIM, VICTIM, 0, 0, 0]),
    ("get_robust_list", libc::SYS_get_robust_list, [VICTIM, BUFFER, BUFFER, 0, 0]),
    ("setpgid", libc::SYS_setpgid, [VICTIM, 0, 0, 0, 0]),
    ("wait4", libc::SYS_wait4, [u64::MAX, 0, 1, 0, 0]),
    // Processes of its own.
    ("fork", libc::SYS_fork, [0; 5]),
    ("vfork", libc::SYS_vfork, [0; 5]),
    ("clone of a process", libc::SYS_clone, [SIGCHLD, 0, 0, 0, 0]),
    ("clone that shares memory", libc::SYS_clone, [0x4100 | SIGCHLD, 0, 0, 0, 0]),
    ("clone into a namespace", libc::SYS_clone, [0x1000_0000 | SIGCHLD, 0, 0, 0, 0]),
    ("clone3", libc::SYS_clone3, [BUFFER, 64, 0, 0, 0]),
    ("execve", libc::SYS_execve, [PATH, 0, 0, 0, 0]),
    ("execveat", libc::SYS_execveat, [HERE, PATH, 0, 0, 0]),
    // Files and other names.
    ("open", libc::SYS_open, [PATH, 0, 0, 0, 0]),
    ("openat", libc::SYS_openat, [HERE, PATH, 0, 0, 0]),
    ("openat2", libc::SYS_openat2, [HERE, PATH, BUFFER, 24, 0]),
    ("creat", libc::SYS_creat, [PATH, 0o600, 0, 0, 0]),
    ("stat", libc::SYS_stat, [PATH, BUFFER, 0, 0, 0]),
    ("lstat", libc::SYS_lstat, [PATH, BUFFER, 0, 0, 0]),
    ("newfstatat", libc::SYS_newfstatat, [HERE, PATH, BUFFER, 0, 0]),
    ("statx", libc::SYS_statx, [HERE, PATH, 0, 0xfff, BUFFER]),
    ("access", libc::SYS_access, [PATH, 0, 0, 0, 0]),
    ("faccessat2", libc::SYS_faccessat2, [HERE, PATH, 0, 0, 0]),
    ("readlink", libc::SYS_readlink, [PATH, BUFFER, 64, 0, 0]),
    ("getxattr", libc::SYS_getxattr, [PATH, PATH, BUFFER, 8, 0]),
    ("statfs", libc::SYS_statfs, [PATH, BUFFER, 0, 0, 0]),
    ("unlinkat", libc::SYS_unlinkat, [HERE, BUFFER, 0, 0, 0]),
    ("renameat2", libc::SYS_renameat2, [HERE, BUFFER, HERE, BUFFER, 0]),
    ("mkdir", libc::SYS_mkdir, [BUFFER, 0, 0, 0, 0]),
    ("symlink", libc::SYS_symlink, [PATH, BUFFER, 0, 0, 0]),
    ("link", libc::SYS_link, [BUFFER, BUFFER, 0, 0, 0]),
    ("chmod", libc::SYS_chmod, [BUFFER, 0, 0, 0, 0]),
    ("fchmod", libc::SYS_fchmod, [0, 0o600, 0, 0, 0]),
    ("truncate", libc::SYS_truncate, [BUFFER, 0, 0, 0, 0]),
    ("chdir", libc::SYS_chdir, [PATH, 0, 0, 0, 0]),
    ("chroot", libc::SYS_chroot, [PATH, 0, 0, 0, 0]),
    ("getcwd", libc::SYS_getcwd, [BUFFER, 64, 0, 0, 0]),
    ("mount", libc::SYS_mount, [PATH, PATH, PATH, 0, 0]),
    ("inotify_init1", libc::SYS_inotify_init1, [0; 5]),
    ("flock", libc::SYS_flock, [0, 1, 0, 0, 0]),
    ("shmget", libc::SYS_shmget, [1, 4096, 0, 0, 0]),
    ("msgget", libc::SYS_msgget, [1, 0, 0, 0, 0]),
    ("mq_open", libc::SYS_mq_open, [PATH, 0, 0, 0, 0]),
    ("add_key", libc::SYS_add_key, [PATH, PATH, 0, 0, 0]),
    ("keyctl", libc::SYS_keyctl, [0; 5]),
    // The network.
    ("socket", libc::SYS_socket, [2, 1, 0, 0, 0]),
    ("socket of this machine", libc::SYS_socket, [1, 1, 0, 0, 0]),
    ("socketpair", libc::SYS_socketpair, [1, 1, 0, BUFFER, 0]),
    ("connect", libc::SYS_connect, [0, BUFFER, 16, 0, 0]),
    ("sendmsg", libc::SYS_sendmsg, [1, BUFFER, 0, 0, 0]),
    // Itself, in ways that matter to others or undo the sandbox.
    ("prctl PR_SET_PTRACER", libc::SYS_prctl, [0x5961_6d61, u64::MAX, 0, 0, 0]),
    ("prctl PR_SET_PDEATHSIG", libc::SYS_prctl, [1, 0, 0, 0, 0]),
    ("prctl PR_SET_DUMPABLE", libc::SYS_prctl, [4, 1, 0, 0, 0]),
    ("prctl PR_SET_MM", libc::SYS_prctl, [35, 1, 0, 0, 0]),
    ("prctl PR_SCHED_CORE", libc::SYS_prctl, [62, 0, VICTIM, 0, 0]),
    ("arch_prctl ARCH_SET_CPUID", libc::SYS_arch_prctl, [0x1012, 1, 0, 0, 0]),
    ("seccomp", libc::SYS_seccomp, [2, 0, BUFFER, 0, 0]),
    ("unshare", libc::SYS_unshare, [0x1000_0000, 0, 0, 0, 0]),
    ("setns", libc::SYS_setns, [0, 0, 0, 0, 0]),
    ("setuid", libc::SYS_setuid, [0; 5]),
    ("capset", libc::SYS_capset, [BUFFER, BUFFER, 0, 0, 0]),
    ("personality", libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0]),
    ("memory to write and execute", libc::SYS_mmap, [0, 4096, WRITE_EXECUTE, PRIVATE, u64::MAX]),
    ("memory made so later", libc::SYS_mprotect, [0x1000, 4096, WRITE_EXECUTE, 0, 0]),
    ("pkey_mprotect", libc::SYS_pkey_mprotect, [0x1000, 4096, READ_WRITE, 0, 0]),
    ("huge pages", libc::SYS_memfd_create, [PATH, 5, 0, 0, 0]),
    ("madvise MADV_HWPOISON", libc::SYS_madvise, [0x1000, 4096, 100, 0, 0]),
    ("mlockall", libc::SYS_mlockall, [1, 0, 0, 0, 0]),
    ("userfaultfd", libc::SYS_userfaultfd, [0; 5]),
    ("bpf", libc::SYS_bpf, [0; 5]),
    ("perf_event_open", libc::SYS_perf_event_open, [BUFFER, 0, 0, 0, 0]),
    ("io_uring_setup", libc::SYS_io_uring_setup, [1, BUFFER, 0, 0, 0]),
    ("timer_create", libc::SYS_timer_create, [0, 0, BUFFER, 0, 0]),
    ("modify_ldt", libc::SYS_modify_ldt, [0, BUFFER, 16, 0, 0]),
    ("iopl", libc::SYS_iopl, [3, 0, 0, 0, 0]),
    ("syslog", libc::SYS_syslog, [9, 0, 0, 0, 0]),
    ("reboot", libc::SYS_reboot, [0; 5]),
    ("clock_settime", libc::SYS_clock_settime, [0, 0, 0, 0, 0]),
    ("init_module", libc::SYS_init_module, [0; 5]),
    ("a number of x32", 0x4000_0000 + libc::SYS_getpid, [0; 5]),
    ("a number that nobody has", 4000, [0; 5]),
];

/// The one form that has no number: a call by the gate of 32-bit programs.
const COMPATIBLE: &str = "a call of 32-bit programs";

/// The names of all forms.
pub fn forbidden_calls() -> impl Iterator<Item = &'static str> {
    FORMS.iter().map(|&(name, ..)| name).chain([COMPATIBLE])
}

/// Tries the form of this name, aimed at the process `victim` where it is aimed at one. Returns
/// what the kernel does, negative for errors, or `None` if there is no such form.
///
/// None of them does harm where it is allowed: signals are signal 0, and what is created is gone
/// with this process.
pub fn attempt(name: &str, victim: u32) -> Option<i64> {
    if name == COMPATIBLE {
        return Some(compatible_getpid());
    }
    let &(_, number, words) = FORMS.iter().find(|&&(known, ..)| known == name)?;
    let mut buffer = [0_u64; 64];
    let path = c"/etc/passwd";
    let word = |word| match word {
        VICTIM => u64::from(victim),
        PATH => path.as_ptr() as u64,
        BUFFER => buffer.as_mut_ptr() as u64,
        other => other,
    };
    let [a, b, c, d, e] = words.map(word);
    // SAFETY: the calls of the table read and write nothing but the buffer and the path, which
    // outlive the call, and change protections and mappings of no address that anybody uses.
    let result = unsafe { host::syscall(number as u64, [a, b, c, d, e, 0]) };
    let creates = [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];
    if result == 0 && creates.contains(&number) {
        host::exit_process(0);
    }
    Some(result)
}

/// `getpid` as a 32-bit program asks for it, which a filter by numbers alone takes for `writev`.
fn compatible_getpid() -> i64 {
    const GETPID: i32 = 20;
    let result: i32;
    // SAFETY: the call has no arguments; the kernel preserves all registers but these.
    unsafe {
        asm!(
            "int 0x80",
            inlateout("eax") GETPID => result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    i64::from(result)
}
