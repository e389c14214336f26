//! What the user should know of a recording that goes well.

use std::fmt;

/// Something that the program did and that has consequences later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Notice {
    /// It has memory in common with a process that it has started.
    SharedMemory,
    /// It generates code.
    GeneratedCode,
    /// It wanted to generate code, and was told that it may not.
    ForbiddenCode,
    /// A signal has come from outside, and the thread that should handle it has no events.
    SignalWaits,
    /// A file was changed while it was mapped.
    FileChanged,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Notice::SharedMemory => {
                "the program shares memory with a process that it started; \
                 what that process writes there is not recorded, so replays may diverge"
            }
            Notice::GeneratedCode => {
                "the program generates code, which the copy engine replays, but neither `locks` nor \
                 `--races` can look into; with `record --no-jit` the program is told that the system \
                 forbids it, and many then interpret"
            }
            Notice::ForbiddenCode => {
                "the program wanted to generate code, and was told that the system forbids it; \
                 if it cannot do without, turn its just-in-time compiler off"
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
