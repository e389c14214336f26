//! What every system call of x86-64 Linux reads and writes, and what the machine does about it.
//!
//! Reading order: [`spec`] (what one row says), [`table`] (a row per call), [`commands`] (a row
//! per command of `ioctl`, `fcntl`, `prctl` and their like), [`shape`] (from a row, the arguments
//! and the result to ranges of guest memory).
//!
//! # Use
//! ```text
//! let call = resolve(rax, args)?;             // a Refusal names the call and says why
//! digest(call.arguments(), call.reads(memory));
//! let before = call.before(memory);           // lengths that the kernel is about to overwrite
//! let result = issue(...);
//! for range in call.writes(&before, result, memory) { record(range) }
//! if let Some(sent) = call.sent(result, memory) { digest(sent) }
//! ```
//!
//! # Invariants
//! - A call that Linux does not have answers `ENOSYS`. One that it has and that has no row is
//!   refused, with its name and number.
//! - `writes` reports at least what the kernel wrote. It may report more (a `select` whose sets
//!   are longer than the descriptor table, a field between two written ones), but only memory
//!   that the guest handed to the call as output. Not all of it need be mapped: whoever copies
//!   the ranges must bear faults.
//! - A call that returns `-EFAULT` is taken to have written nothing.
//! - Nothing here issues a call or touches guest memory but through [`GuestMemory`].

mod commands;
mod operation;
mod shape;
mod spec;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use operation::Operation;
pub(crate) use shape::{GuestMemory, string};
pub(crate) use spec::{Action, MachineCall, Order};

use spec::{Rule, Spec};
use std::fmt;
use std::ops::Range;

/// The kernel's own name for "a signal handler runs first, then the call begins again"
/// (`ERESTARTSYS`). No program sees it; events have it as the result of such a call.
pub(crate) const BEGIN_AGAIN: i64 = -512;

/// The row of a system call, or `None` for a number that Linux does not assign.
fn spec(nr: u64) -> Option<&'static Spec> {
    // The kernel looks at eax alone.
    let nr = nr as u32;
    let at = table::CALLS.binary_search_by_key(&nr, |spec| u32::from(spec.nr)).ok()?;
    Some(&table::CALLS[at])
}

/// The name of a system call, as in `man 2`.
pub(crate) fn name(nr: u64) -> Option<&'static str> {
    spec(nr).map(|spec| spec.name)
}

/// The number of the system call with this name.
pub fn syscall_number(name: &str) -> Option<i64> {
    table::CALLS.iter().find(|spec| spec.name == name).map(|spec| spec.nr.into())
}

/// Finds out what is to be done about a system call.
pub(crate) fn resolve(nr: u64, args: [u64; 6]) -> Result<Call, Refusal> {
    let refusal = |name, command, why| Refusal { nr: nr as u32, name, command, why };
    let Some(spec) = spec(nr) else {
        let action = Action::Answer(-i64::from(libc::ENOSYS));
        return Ok(Call { spec: &table::UNKNOWN, action, args: [0; 6] });
    };
    let (spec, command) = match &spec.rule {
        Rule::Select(commands) => {
            let (code, row) = commands.find(&args);
            let row =
                row.ok_or_else(|| refusal(spec.name, Some(code), "what it writes is not known"))?;
            (row, Some(code))
        }
        _ => (spec, None),
    };
    match spec.rule {
        Rule::Do(action) => Ok(Call { spec, action, args: spec.meaningful(args) }),
        Rule::Refuse(why) => Err(refusal(spec.name, command, why)),
        Rule::Select(_) => unreachable!("a command's row never selects again (a test checks it)"),
    }
}

/// A system call that the machine knows how to handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    spec: &'static Spec,
    action: Action,
    args: [u64; 6],
}

/// Lengths in guest memory that tell the capacity of a buffer before a call, and are overwritten
/// by it. Empty, and free, for nearly all calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before(Vec<u64>);

/// What a call gave to somebody outside the guest's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// Where it went.
    pub(crate) fd: i32,
    /// How many bytes the kernel took.
    pub(crate) len: u64,
    /// Where they are in guest memory. Empty if they never were there (`sendfile`).
    pub(crate) ranges: Vec<Range<u64>>,
}

/// Calls that may change a file.
const CHANGE_FILES: [i64; 14] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_splice,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_creat,
    libc::SYS_open,
    libc::SYS_openat,
];

impl Call {
    /// The name, with the command if it has one: `read`, `ioctl TCGETS`.
    pub(crate) fn name(&self) -> &'static str {
        self.spec.name
    }

    /// What the kernel does to a word of the guest's as a locked instruction would.
    pub(crate) fn operation(&self) -> Option<Operation> {
        Operation::of(self)
    }

    /// The number.
    pub(crate) fn number(&self) -> i64 {
        self.spec.nr.into()
    }

    /// Whether and how the call orders threads.
    pub(crate) fn order(&self) -> Order {
        self.spec.order
    }

    /// What to do.
    pub(crate) fn action(&self) -> Action {
        self.action
    }

    /// Whether a signal may come of it, now or later: it sets a timer, or sends one.
    pub(crate) fn may_send_signals(&self) -> bool {
        const TIMERS: [i64; 3] = [libc::SYS_alarm, libc::SYS_setitimer, libc::SYS_timer_settime];
        TIMERS.contains(&i64::from(self.spec.nr))
            || self.action() == Action::Machine(MachineCall::Kill)
    }

    /// Whether it stops a timer.
    pub(crate) fn stops_timer(&self, memory: &dyn GuestMemory) -> bool {
        // The time until the next signal stands behind the one between two.
        let is_zero = |at: u64| {
            let mut left = [0xff; 16];
            at != 0 && memory.read(at.wrapping_add(16), &mut left) && left == [0; 16]
        };
        match i64::from(self.spec.nr) {
            libc::SYS_alarm => self.args[0] as u32 == 0,
            libc::SYS_setitimer => is_zero(self.args[1]),
            libc::SYS_timer_settime => is_zero(self.args[2]),
            _ => false,
        }
    }

    /// What is passed on by what its number says alone, or not at all: the user should know.
    pub(crate) fn is_noted(&self) -> bool {
        self.spec.noted
    }

    /// The descriptors among the arguments.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = i32> {
        let kinds = self.spec.signature.bytes().zip(self.args);
        kinds.filter(|&(kind, _)| kind == b'd').map(|(_, arg)| arg as i32)
    }

    /// The arguments that are strings.
    pub(crate) fn strings(&self) -> impl Iterator<Item = usize> {
        let kinds = self.spec.signature.bytes().enumerate();
        kinds.filter(|&(_, kind)| kind == b's').map(|(at, _)| at)
    }

    /// The arguments that point somewhere.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = usize> + use<> {
        let kinds = self.spec.signature.bytes().enumerate();
        kinds.filter(|&(_, kind)| matches!(kind, b'p' | b's')).map(|(at, _)| at)
    }

    /// Whether it gives away what is in memory.
    pub(crate) fn sends(&self) -> bool {
        self.spec.sends.is_some_and(|sends| sends.shape.is_some())
    }

    /// The pointers that an argument points to, given these arguments.
    pub(crate) fn nested(&self, args: &[u64; 6]) -> Option<Nested> {
        let sent = self.spec.sends.and_then(|sends| sends.shape);
        sent.iter().chain(self.spec.writes).find_map(|shape| shape.nested(args))
    }

    /// Whether the call cannot be one that `pthread_create` makes before it makes the thread. (It
    /// maps and protects the stack, and waits for the library's own locks.)
    pub(crate) fn ends_creation(&self) -> bool {
        self.order() == Order::Kernel
            && !matches!(i64::from(self.spec.nr), libc::SYS_futex | libc::SYS_clone)
    }

    /// Whether the call may fail because a signal has come in (`EINTR`).
    pub(crate) fn may_wait(&self) -> bool {
        table::WAITS.binary_search(&self.spec.nr).is_ok()
    }

    /// The argument that points to a signal mask for the time of the call, if it has one, and
    /// whether it does so through another pointer.
    pub(crate) fn mask_argument(&self) -> Option<(usize, bool)> {
        match i64::from(self.spec.nr) {
            libc::SYS_ppoll => Some((3, false)),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some((4, false)),
            libc::SYS_pselect6 => Some((5, true)),
            _ => None,
        }
    }

    /// The arguments as the kernel sees them: what it ignores (registers beyond the last
    /// argument, the upper half of an `int`, the mode of an `open` that creates nothing) is zero.
    /// The guest's addresses are the same in every run, so replay compares all of it. The call
    /// may be issued with these.
    pub(crate) fn arguments(&self) -> &[u64; 6] {
        &self.args
    }

    /// The same call with another argument.
    pub(crate) fn with_argument(mut self, at: usize, value: u64) -> Call {
        self.args[at] = value;
        self
    }

    /// Guest memory that the kernel will read, apart from what [`Call::sent`] reports: paths,
    /// names, addresses of sockets, timeouts. To be asked before the call is issued.
    pub(crate) fn reads(&self, memory: &dyn GuestMemory) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for (arg, kind) in self.spec.signature.bytes().enumerate() {
            if kind == b's' {
                ranges.extend(shape::string(self.args[arg], memory));
            }
        }
        let none = Before::default();
        self.view(0, memory).collect(self.spec.reads, &none, &mut ranges);
        ranges
    }

    /// What [`Call::writes`] needs to know from before the call was issued.
    pub(crate) fn before(&self, memory: &dyn GuestMemory) -> Before {
        let mut values = Vec::new();
        let view = self.view(0, memory);
        for shape in self.spec.writes {
            view.save(shape, &mut values);
        }
        Before(values)
    }

    /// Guest memory that the kernel wrote, given what it returned (negative for an error).
    pub(crate) fn writes(
        &self,
        before: &Before,
        result: i64,
        memory: &dyn GuestMemory,
    ) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        self.view(result, memory).collect(self.spec.writes, before, &mut ranges);
        ranges
    }

    /// The memory that the call gives away if all of it is taken; nothing if that is very much.
    pub(crate) fn sent_at_most(&self, memory: &dyn GuestMemory) -> Vec<Range<u64>> {
        const MUCH: u64 = 16 << 20;
        // The result of one call counts messages, that of all others bytes.
        let most = if self.name() == "sendmmsg" { self.args[2] as i64 } else { i64::MAX };
        let sent = self.sent(most, memory).filter(|sent| sent.len <= MUCH);
        sent.map_or_else(Vec::new, |sent| sent.ranges)
    }

    /// Whether what the call writes is what memory shows of a file that it has changed.
    pub(crate) fn changes_file(&self) -> bool {
        CHANGE_FILES.contains(&self.number())
    }

    /// What the call gave away, given what it returned. `None` if it gave nothing.
    pub(crate) fn sent(&self, result: i64, memory: &dyn GuestMemory) -> Option<Sent> {
        let sends = self.spec.sends.filter(|_| result >= 0)?;
        let fd = self.args[usize::from(sends.fd)] as i32;
        let mut ranges = Vec::new();
        let Some(shape) = sends.shape else {
            return (result > 0).then_some(Sent { fd, len: result as u64, ranges });
        };
        self.view(result, memory).collect(&[shape], &Before::default(), &mut ranges);
        let len = ranges.iter().fold(0_u64, |sum, it| sum.saturating_add(it.end - it.start));
        (len > 0).then_some(Sent { fd, len, ranges })
    }

    fn view<'a>(&'a self, result: i64, memory: &'a dyn GuestMemory) -> shape::View<'a> {
        shape::View { args: &self.args, result, memory }
    }
}

/// Pointers that an argument points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nested {
    /// So many `iovec`.
    Vectors { at: usize, count: u64 },
    /// A `msghdr`.
    Message { at: usize },
}

/// A system call that cannot be recorded. The guest is at fault, or `refrain` for not knowing
/// more; either way the recording ends here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    /// The call's number.
    pub(crate) nr: u32,
    /// Its name, `?` if it has none; of a known command, with the command's.
    pub(crate) name: &'static str,
    /// The command, where the arguments choose among several.
    pub(crate) command: Option<u64>,
    /// Why not.
    pub(crate) why: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { nr, name, why, .. } = self;
        match self.command {
            Some(command) => {
                write!(f, "system call {nr} ({name}, command {command:#x}) is refused: {why}")
            }
            None => write!(f, "system call {nr} ({name}) is refused: {why}"),
        }
    }
}

impl std::error::Error for Refusal {}
