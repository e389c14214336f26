//! What a row of the table says about a call, and the words that rows are written with.

use super::shape::Shape;

/// One system call, or one command of a call that has several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// The call's number.
    pub(crate) nr: u16,
    /// The call's name; of a command, both names: `fcntl F_GETFL`.
    pub(crate) name: &'static str,
    /// One letter per argument. `d` a descriptor, `i` another 32-bit integer, `l` a 64-bit one,
    /// `p` an address, `s` the address of a string, `m` the mode of a file that is created only
    /// if the flags in the argument before it say so, `-` one that is ignored.
    pub(crate) signature: &'static str,
    /// Whether and how it orders threads.
    pub(crate) order: Order,
    /// What to do about it.
    pub(crate) rule: Rule,
    /// What the kernel reads, apart from strings and from what it sends.
    pub(crate) reads: &'static [Shape],
    /// What the kernel writes.
    pub(crate) writes: &'static [Shape],
    /// What it gives away.
    pub(crate) sends: Option<Sends>,
    /// The user should know that the call was made.
    pub(crate) noted: bool,
}

/// How a call orders threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// It concerns its thread alone: no other thread can learn from its own calls that this one
    /// has happened.
    Local,
    /// Threads can communicate through it: a pipe, a file, a futex, the state of the process.
    Kernel,
    /// It changes the address space.
    Memory,
}

/// What to do about a call that has a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// This.
    Do(Action),
    /// End the recording: it cannot be recorded, for this reason.
    Refuse(&'static str),
    /// It depends on a command among the arguments.
    Select(&'static Commands),
}

/// What the machine does with a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Recording issues it and keeps the result and what was written; replay returns these.
    Pass,
    /// The machine does it itself, in recording and in replay. The row's shapes hold for it too.
    Machine(MachineCall),
    /// It is never issued: this is the result.
    Answer(i64),
}

/// Calls that concern what the machine itself is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MachineCall {
    /// `mmap`.
    Mmap,
    /// `munmap`.
    Munmap,
    /// `mprotect`.
    Mprotect,
    /// `mremap`.
    Mremap,
    /// `brk`.
    Brk,
    /// `madvise`: some advice discards content.
    Madvise,
    /// `shmat`.
    Shmat,
    /// `shmdt`.
    Shmdt,
    /// `clone`: a thread, or a process.
    Clone,
    /// `fork` and `vfork`.
    Fork,
    /// `execve` and `execveat`.
    Execve,
    /// `exit`: of one thread.
    Exit,
    /// `exit_group`: of all.
    ExitGroup,
    /// `arch_prctl`: the guest's thread pointer.
    ArchPrctl,
    /// `prctl(PR_GET_TID_ADDRESS)`: what `set_tid_address` has said.
    TidAddress,
    /// `set_tid_address`: the kernel clears the word when the thread ends.
    SetTidAddress,
    /// `set_robust_list` and `get_robust_list`: the kernel marks locks when the thread ends.
    RobustList,
    /// `rt_sigaction`.
    SigAction,
    /// `rt_sigprocmask`.
    SigProcMask,
    /// `rt_sigpending`.
    SigPending,
    /// `sigaltstack`.
    SigAltStack,
    /// `rt_sigreturn`.
    SigReturn,
    /// `rt_sigtimedwait`, `rt_sigsuspend`, `pause`.
    SigWait,
    /// `kill`, `tkill`, `tgkill`, `rt_sigqueueinfo`, `rt_tgsigqueueinfo`, `pidfd_send_signal`.
    Kill,
    /// `signalfd`, `signalfd4`: the machine has the signals that they would tell of.
    SignalFile,
    /// `ptrace(PTRACE_TRACEME)`: for child processes only.
    TraceMe,
    /// `mlock` and its kin.
    LockMemory,
    /// `timer_create`: its signals come to the machine.
    CreateTimer,
    /// `close_range`: passed on for what is not the recorder's own.
    CloseRange,
    /// `readlink`, `readlinkat`: passed on, except for `/proc/self/exe`, which would name the
    /// recorder.
    ReadLink,
    /// `open`, `openat`, `openat2`: passed on, except for what `/proc` says of the process.
    Open,
    /// `getdents`, `getdents64`: passed on, but the recorder's descriptors and threads are left
    /// out.
    ListDirectory,
    /// `getrlimit`, `setrlimit`, `prlimit64`: passed on, except for the size of the address space.
    Limit,
    /// `io_setup`: maps a page.
    IoSetup,
    /// `io_destroy`.
    IoDestroy,
    /// `io_submit`: waits until what is submitted is done.
    IoSubmit,
    /// `io_getevents`.
    IoEvents,
    /// `semctl(GETALL)`: the kernel is asked first how many there are.
    AllSemaphores,
    /// `vmsplice`: into a pipe, or out of one.
    Vmsplice,
}

/// Where the bytes go that a call gives away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sends {
    /// The argument that is the descriptor.
    pub(crate) fd: u8,
    /// Where the bytes are; `None` if the kernel moves them between descriptors.
    pub(crate) shape: Option<Shape>,
}

/// The rows of a call that has commands.
#[derive(Debug)]
pub(crate) struct Commands {
    /// The command's code, from the arguments.
    pub(crate) code: fn(&[u64; 6]) -> u64,
    /// The commands that are known.
    pub(crate) rows: &'static [(u64, Spec)],
    /// The row for all others; without one they are refused.
    pub(crate) otherwise: Option<Spec>,
}

impl Commands {
    /// The command's code and its row.
    pub(crate) fn find(&'static self, args: &[u64; 6]) -> (u64, Option<&'static Spec>) {
        let code = (self.code)(args);
        let row = self.rows.iter().find(|row| row.0 == code).map(|row| &row.1);
        (code, row.or(self.otherwise.as_ref()))
    }
}

impl Spec {
    const fn new(nr: u16, name: &'static str, rule: Rule) -> Spec {
        Spec {
            nr,
            name,
            signature: "",
            order: Order::Local,
            rule,
            reads: &[],
            writes: &[],
            sends: None,
            noted: false,
        }
    }

    /// Says that the user should know of the call.
    pub(crate) const fn noted(mut self) -> Spec {
        self.noted = true;
        self
    }

    /// Says what the kernel reads.
    pub(crate) const fn reads(mut self, shapes: &'static [Shape]) -> Spec {
        self.reads = shapes;
        self
    }

    /// Says what the kernel writes.
    pub(crate) const fn writes(mut self, shapes: &'static [Shape]) -> Spec {
        self.writes = shapes;
        self
    }

    /// Says what goes to the descriptor in argument `fd`.
    pub(crate) const fn sends(mut self, fd: u8, shape: Shape) -> Spec {
        self.sends = Some(Sends { fd, shape: Some(shape) });
        self
    }

    /// Says that as many bytes as the result tells go to the descriptor in argument `fd` without
    /// passing through guest memory.
    pub(crate) const fn moves(mut self, fd: u8) -> Spec {
        self.sends = Some(Sends { fd, shape: None });
        self
    }

    /// The arguments without what the kernel ignores.
    pub(crate) fn meaningful(&self, args: [u64; 6]) -> [u64; 6] {
        let creating = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u64;
        let mut kept = [0; 6];
        for (i, kind) in self.signature.bytes().enumerate() {
            kept[i] = match kind {
                b'd' | b'i' => u64::from(args[i] as u32),
                b'-' => 0,
                b'm' if args[i - 1] & creating == 0 => 0,
                b'm' => u64::from(args[i] as u32),
                _ => args[i],
            };
        }
        kept
    }
}

/// A call that recording issues and replay does not.
pub(crate) const fn pass(
    nr: u16,
    name: &'static str,
    signature: &'static str,
    order: Order,
) -> Spec {
    let mut spec = Spec::new(nr, name, Rule::Do(Action::Pass));
    spec.signature = signature;
    spec.order = order;
    spec
}

/// A call that the machine does itself.
pub(crate) const fn machine(
    nr: u16,
    name: &'static str,
    signature: &'static str,
    order: Order,
    call: MachineCall,
) -> Spec {
    let mut spec = pass(nr, name, signature, order);
    spec.rule = Rule::Do(Action::Machine(call));
    spec
}

/// A call that the guest's kernel lacks. Kinder than a refusal wherever kernels without the call
/// are about, so that programs know how to do without.
pub(crate) const fn absent(nr: u16, name: &'static str) -> Spec {
    answer(nr, name, libc::ENOSYS)
}

/// The same, where programs notice and the host has the call.
pub(crate) const fn withheld(nr: u16, name: &'static str) -> Spec {
    absent(nr, name).noted()
}

/// A call that always fails in the same way.
pub(crate) const fn answer(nr: u16, name: &'static str, errno: i32) -> Spec {
    Spec::new(nr, name, Rule::Do(Action::Answer(-(errno as i64))))
}

/// A call that cannot be recorded.
pub(crate) const fn refuse(nr: u16, name: &'static str, why: &'static str) -> Spec {
    Spec::new(nr, name, Rule::Refuse(why))
}

/// A call whose commands have rows of their own.
pub(crate) const fn select(nr: u16, name: &'static str, commands: &'static Commands) -> Spec {
    Spec::new(nr, name, Rule::Select(commands))
}
