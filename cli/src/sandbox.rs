//! The rights that the replay child gives up before it reads a byte of the trace.
//!
//! Landlock takes away the file system and the network, seccomp every system call that computing,
//! threads, memory and the two open descriptors do not need. A kernel without Landlock leaves
//! seccomp, which suffices: without `openat`, `socket` and `execve` the child reaches nothing.

use anyhow::Context;
use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr};
use rustix::process::Signal;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// Gives the rights up, for this thread and those that it will start. There must be no others.
pub(crate) fn enter() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot tie the replay process to its parent")?;
    restrict_files().context("cannot set up Landlock for the replay process")?;
    restrict_system_calls().context("cannot set up seccomp for the replay process")
}

fn restrict_files() -> anyhow::Result<()> {
    const KNOWN: ABI = ABI::V5;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .create()?
        .restrict_self()?;
    Ok(())
}

fn restrict_system_calls() -> anyhow::Result<()> {
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&(number, _)| (number, Vec::new())).collect();
    let own = u64::from(std::process::id());
    for &(number, _) in ALLOWED_ON_ITSELF {
        let on_itself = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, own)?;
        allowed.insert(number, vec![SeccompRule::new(vec![on_itself])?]);
    }
    const EPERM: u32 = 1;
    let filter = SeccompFilter::new(
        allowed,
        SeccompAction::Errno(EPERM),
        SeccompAction::Allow,
        TargetArch::x86_64,
    )?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)?;
    Ok(())
}

/// What replay needs, if the first argument is the child's own process id: copying guest memory
/// that may not be there, and signals between its threads.
const ALLOWED_ON_ITSELF: &[(i64, &str)] =
    &[(234, "tgkill"), (310, "process_vm_readv"), (311, "process_vm_writev")];

/// What replay needs: memory, threads, time, signals to itself, and the descriptors it has.
const ALLOWED: &[(i64, &str)] = &[
    (0, "read"),
    (1, "write"),
    (3, "close"),
    (5, "fstat"),
    (7, "poll"),
    (8, "lseek"),
    (9, "mmap"),
    (10, "mprotect"),
    (11, "munmap"),
    (12, "brk"),
    (13, "rt_sigaction"),
    (14, "rt_sigprocmask"),
    (15, "rt_sigreturn"),
    (17, "pread64"),
    (20, "writev"),
    (24, "sched_yield"),
    (25, "mremap"),
    (27, "mincore"),
    (28, "madvise"),
    (32, "dup"),
    (35, "nanosleep"),
    (39, "getpid"),
    (56, "clone"),
    (60, "exit"),
    (72, "fcntl"),
    (77, "ftruncate"),
    (96, "gettimeofday"),
    (131, "sigaltstack"),
    (157, "prctl"),
    (158, "arch_prctl"),
    (186, "gettid"),
    (202, "futex"),
    (203, "sched_setaffinity"),
    (204, "sched_getaffinity"),
    // How the kernel goes on with a sleep after the process was stopped and continued.
    (219, "restart_syscall"),
    (228, "clock_gettime"),
    (230, "clock_nanosleep"),
    (231, "exit_group"),
    (262, "newfstatat"),
    (273, "set_robust_list"),
    (302, "prlimit64"),
    (309, "getcpu"),
    (318, "getrandom"),
    (319, "memfd_create"),
    (324, "membarrier"),
    (332, "statx"),
    (334, "rseq"),
    (435, "clone3"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a thread of its own, since what is given up does not come back.
    #[test]
    fn the_sandbox_takes_files_away_and_leaves_threads() {
        std::thread::spawn(|| {
            restrict_files().expect("Landlock, or nothing, applies");
            restrict_system_calls().expect("seccomp applies");
            let error = std::fs::read("/etc/passwd").expect_err("files are out of reach");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            let error = std::net::TcpListener::bind("127.0.0.1:0").expect_err("no sockets");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            let sum = std::thread::spawn(|| 20 + 22).join().expect("threads still work");
            assert_eq!(sum, 42);
        })
        .join()
        .expect("the sandboxed thread succeeds");
    }
}
