//! What the user should know of a recording that goes well.

use std::fmt;

/// Something that the program did and that has consequences later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Notice {
    /// It has memory in common with a process that it has started, and other threads were computing when
    /// it forked, or there is more of it than can be watched.
    SharedMemory,
    /// It has mapped a file that others can change.
    SharedFile,
    /// It has started other processes.
    Children,
    /// It generates code.
    GeneratedCode,
    /// It wanted to generate code, and was told that it may not.
    ForbiddenCode,
    /// It made a call that the host has, and the guest has not.
    Withheld(&'static str),
    /// It wanted a child process in namespaces of its own, and was told that it may not.
    Namespaces,
    /// It made a call of which is recorded what its number says, and no more.
    Undescribed(&'static str),
    /// A signal has come from outside, and the thread that should handle it has no events.
    SignalWaits,
    /// A file was changed while it was mapped.
    FileChanged,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Notice::SharedMemory => {
                "the program shares memory with a process that it started, and could not be kept from \
                 it (other threads were computing when it forked, or it is too large); what that \
                 process writes there is not recorded, so replays may diverge"
            }
            Notice::SharedFile => {
                "the program shares memory through a file or a segment; its own changes are \
                 recorded, but not what other processes write there meanwhile"
            }
            Notice::Children => {
                "the program started other processes; they ran natively and are not recorded \
                 (record with --follow to have a trace of each program that they execute)"
            }
            Notice::GeneratedCode => {
                "the program generates code, which the copy engine replays, but `--engine cranelift` \
                 cannot; with `record --no-jit` the program is told that the system forbids it, and \
                 many then interpret"
            }
            Notice::ForbiddenCode => {
                "the program wanted to generate code, and was told that the system forbids it; \
                 if it cannot do without, turn its just-in-time compiler off"
            }
            Notice::Withheld(name) => {
                return write!(
                    f,
                    "the program asked for {name}, which refrain cannot record; it was told that \
                     the system does not have it"
                );
            }
            Notice::Namespaces => {
                "the program wanted to start a process in namespaces of its own, and was told that it \
                 may not (EPERM), as in a container"
            }
            Notice::Undescribed(name) => {
                return write!(
                    f,
                    "the program made a call of {name} that refrain does not know; of what it \
                     wrote, only what its number says is recorded, so replays may diverge"
                );
            }
            Notice::SignalWaits => {
                "a signal waits, since the program computes without any call or lock after which \
                 its handler could run; press Ctrl-C or send SIGTERM (again) to end the recording \
                 here and keep it"
            }
            Notice::FileChanged => {
                "a file was changed while the program had it mapped, and the trace may hold the \
                 new content where the program has seen the old, so replays may diverge"
            }
        })
    }
}
