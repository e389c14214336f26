//! The rights that a process gives up before it reads a byte of a trace.
//!
//! A trace is untrusted, and so is the code in it. The replay child keeps memory, threads, time and
//! the two descriptors that it was given; commands that only read a trace keep reading it. Landlock
//! takes away files and the network, seccomp all other system calls, and arguments of those that
//! are left (`filter`); limits bound what remains (`limits`). docs/security.md says what is
//! promised, and names the tests.

mod filter;
mod limits;

pub(crate) use limits::{Need, Stated, Surroundings};

use crate::error::{Context, bail};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::path::Path;

/// What a process is about to do with a trace.
pub enum Purpose<'a> {
    /// Execute the code in it, as the child.
    Replay,
    /// Read it, and print. With `symbols`, any file may be read, for the names in it.
    Read {
        /// The trace.
        trace: &'a Path,
        /// Any other file may be read, too.
        symbols: bool,
    },
    /// Write a mended copy beside it.
    Mend {
        /// The trace.
        trace: &'a Path,
    },
}

/// Gives the rights up, for this thread and those that it will start. There must be no others.
/// `tolerant` goes on where the kernel lacks what the sandbox is made of.
pub(crate) fn enter(purpose: &Purpose<'_>, tolerant: bool) -> crate::Result<Surroundings> {
    let around = limits::look_around();
    if matches!(purpose, Purpose::Replay) {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .context("cannot tie the replay process to its parent")?;
    }
    let advice = "; --unsandboxed goes on without, for traces that you trust";
    let files = restrict_files(purpose);
    let weak =
        tolerate(files, tolerant, || format!("this kernel has no working Landlock{advice}"))?;
    // Not before Landlock: in some containers, root needs its capabilities for that.
    if matches!(purpose, Purpose::Replay) {
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none).context("cannot give up capabilities")?;
    }
    limits::before_reading(purpose)?;
    let calls = filter::restrict(purpose);
    let weaker =
        tolerate(calls, tolerant, || format!("this kernel has no working seccomp{advice}"))?;
    if weak || weaker {
        tracing::warn!("the sandbox is not complete, as the user wished");
    }
    Ok(around)
}

/// Passes an error on, unless the user tolerates it; says whether there was one.
fn tolerate(
    result: crate::Result<()>,
    tolerant: bool,
    what: impl FnOnce() -> String,
) -> crate::Result<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(_) if tolerant => Ok(true),
        error => error.with_context(what).map(|()| false),
    }
}

/// Takes away all files but those that the purpose is about, and the network.
fn restrict_files(purpose: &Purpose<'_>) -> crate::Result<()> {
    /// What is refused where the kernel can; a kernel that knows files only is good enough, since
    /// the filter of system calls leaves no network.
    const KNOWN: ABI = ABI::V6;
    const NEEDED: ABI = ABI::V1;
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(NEEDED))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let read = AccessFs::from_read(KNOWN) & !AccessFs::Execute;
    let rules = match purpose {
        Purpose::Replay => rules,
        Purpose::Read { symbols: true, .. } => {
            rules.add_rule(PathBeneath::new(PathFd::new("/")?, read))?
        }
        // A file that is not there is not read either; whoever opens it says so.
        Purpose::Read { trace, .. } => match PathFd::new(trace) {
            Ok(file) => rules.add_rule(PathBeneath::new(file, AccessFs::ReadFile))?,
            Err(_) => rules,
        },
        Purpose::Mend { trace } => {
            let folder = trace.parent().filter(|path| !path.as_os_str().is_empty());
            let folder = PathFd::new(folder.unwrap_or(Path::new(".")))?;
            let write = AccessFs::from_all(KNOWN) & !AccessFs::Execute;
            let rules = rules.add_rule(PathBeneath::new(folder, write))?;
            // The name may be a link to a place elsewhere, where the trace is mended in its place.
            let mend = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
            match PathFd::new(trace) {
                Ok(file) => rules.add_rule(PathBeneath::new(file, mend))?,
                Err(_) => rules,
            }
        }
    };
    if rules.restrict_self()?.ruleset == RulesetStatus::NotEnforced {
        bail!(Refused, "nothing would be enforced");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a thread of its own, since what is given up does not come back.
    #[test]
    fn the_sandbox_takes_files_away_and_leaves_threads() {
        std::thread::spawn(|| {
            restrict_files(&Purpose::Replay).expect("Landlock applies");
            filter::restrict(&Purpose::Replay).expect("seccomp applies");
            let error = std::fs::read("/etc/passwd").expect_err("files are out of reach");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            let sum = std::thread::spawn(|| 20 + 22).join().expect("threads still work");
            assert_eq!(sum, 42);
        })
        .join()
        .expect("the sandboxed thread succeeds");
    }

    /// Without the filter of system calls, to see that Landlock does its part by itself.
    #[test]
    fn a_reader_reads_its_trace_and_no_other_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mine, other) = (folder.path().join("a"), folder.path().join("b"));
        for path in [&mine, &other] {
            std::fs::write(path, "x").expect("can be written");
        }
        std::thread::spawn(move || {
            restrict_files(&Purpose::Read { trace: &mine, symbols: false }).expect("applies");
            assert_eq!(std::fs::read(&mine).expect("is the trace"), b"x");
            assert!(std::fs::read(&other).is_err());
            assert!(std::fs::write(&mine, "y").is_err());
        })
        .join()
        .expect("the sandboxed thread succeeds");
    }
}
