//! The few places where the machine touches the host directly: raw system calls, the time-stamp
//! counter, and guest memory as host memory.

mod page_table;
mod process;
mod readiness;
mod single_pages;
mod touched_pages;

pub(crate) use page_table::PageTable;
pub(crate) use process::*;
pub use process::{end_like_the_program, outlive_interrupts};
pub(crate) use readiness::*;
pub(crate) use single_pages::{SinglePages, no_large_pages};
pub(crate) use touched_pages::TouchedPages;

use crate::layout::PAGE;
use crate::{elsewhere, layout, recovery};
use rustix::fs::MemfdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::arch::asm;
use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Issues a system call exactly as the guest asked for it: the result is the kernel's, negative
/// for errors, and `errno` is untouched.
///
/// # Safety
/// The call may do anything to the process. The caller must know that this call with these
/// arguments leaves host memory and host descriptors alone.
pub(crate) unsafe fn syscall(nr: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the kernel's calling convention: it clobbers rcx and r11 only. What the call itself
    // does is the caller's obligation.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as i64 => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The time-stamp counter, when all instructions before this have been executed.
///
/// A processor reads the counter as soon as it comes to it, hundreds of instructions ahead of work that waits
/// for its operands. The atomic instruction of a lock, on the other hand, waits for all work before it. So
/// without the fence a time that is taken just before a lock's atomic instruction is too early, and the work
/// before the lock counts as work under it: a loop that divides for 130 ns and holds a lock for 15 ns has
/// shown 18 and 137 ns. The fence costs 2 ns beside an atomic instruction.
#[inline]
pub(crate) fn ticks() -> u64 {
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    // SAFETY: every x86-64 has both; the fence has no effect, `rdtsc` none but its result.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

/// Has the processor fetch the line of memory at an address, which is about to be written to, from wherever
/// it is. The address may be any: what is not memory is left alone.
#[inline]
pub(crate) fn prefetch_to_write<T>(at: *const T) {
    // SAFETY: the instruction changes no memory and no register, and does not fault, whatever the
    // address. Processors without it do nothing.
    unsafe { asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// Has all threads allocate from the heap of the first one, which grows in large steps and keeps what
/// it has. Those that the C library gives to other threads grow by single pages, with a system call
/// for each.
///
/// From a few MiB on, what the heap grows to at first may be in large pages: who uses so much touches most
/// of it, and to get it page by page takes longer.
pub(crate) fn share_one_heap() {
    const FIRST: usize = 32 << 20;
    const STEP: usize = 1 << 20;
    const LARGE_PAGE: usize = 2 << 20;
    const SMALL_PAGES: usize = 2 * LARGE_PAGE;
    let set = |setting, value: usize| {
        // SAFETY: no memory that was allocated is concerned. Where a setting is refused, the
        // default holds.
        unsafe { libc::mallopt(setting, value as libc::c_int) };
    };
    set(libc::M_ARENA_MAX, 1);
    set(libc::M_TRIM_THRESHOLD, 2 * FIRST);
    set(libc::M_MMAP_THRESHOLD, FIRST);
    set(libc::M_TOP_PAD, FIRST);
    // SAFETY: the block is freed as it was allocated. The advice concerns whole pages of the heap, as
    // far as it has grown, and changes nothing of what they hold.
    unsafe {
        let block = libc::malloc(STEP);
        let start = block.addr().next_multiple_of(LARGE_PAGE) + SMALL_PAGES;
        let len = FIRST - LARGE_PAGE - SMALL_PAGES;
        if !block.is_null() {
            libc::madvise(block.with_addr(start), len, libc::MADV_HUGEPAGE);
        }
        libc::free(block);
    }
    set(libc::M_TOP_PAD, STEP);
}

/// Gives the processor to another thread.
pub(crate) fn yield_now() {
    std::thread::yield_now();
}

/// Gives the processor to whoever is waited for. In a real-time class, to yield lets no thread of a lower
/// priority run, however long it is waited for: such a thread sleeps.
pub(crate) fn let_others_go_on() {
    const NAP: Duration = Duration::from_micros(50);
    // SAFETY: the call only asks.
    let class = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    match class {
        libc::SCHED_FIFO | libc::SCHED_RR => std::thread::sleep(NAP),
        _ => yield_now(),
    }
}

/// A new file in memory, which is gone when its descriptor is closed.
pub(crate) fn memory_file() -> io::Result<File> {
    Ok(rustix::fs::memfd_create(c"refrain-contents", MemfdFlags::CLOEXEC)?.into())
}

/// Has every descriptor but the first three closed in the processes that this one will execute:
/// those that it has inherited itself need not be.
pub fn close_on_exec() -> io::Result<()> {
    for fd in open_descriptors()?.into_iter().filter(|&fd| fd > 2) {
        // SAFETY: the flag changes nothing for this process, whoever owns the descriptor.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// The descriptors that this process has open, and one that was open for the listing alone.
pub(crate) fn open_descriptors() -> io::Result<Vec<i32>> {
    let number = |entry: io::Result<std::fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_str()?.parse().ok()).transpose()
    };
    std::fs::read_dir("/proc/self/fd")?.filter_map(number).collect()
}

/// The cores that this process may run on.
pub(crate) fn allowed_cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Keeps the calling thread on these cores. A host that forbids it is no reason to stop.
pub(crate) fn run_on(cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    let _ = sched_setaffinity(None, &set);
}

/// Has the calling thread's sleep end when it should, and not up to 50 µs later.
pub(crate) fn wake_in_time() {
    // SAFETY: the call concerns the calling thread's timers alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// The processor time that this process has taken.
pub(crate) fn processor_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The processor time that the calling thread has taken.
pub(crate) fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// What a clock shows that every process and thread has.
fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec, and the call only fills it in.
    unsafe { libc::clock_gettime(id, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The calling thread's kernel id.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: gettid has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Gives the calling thread copies of its own of what `flags` name (those of `clone`).
pub(crate) fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: touches no memory.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The calling thread's pointer to its thread-local storage.
pub(crate) fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: the x86-64 ABI has the thread pointer at the address that it holds.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags))
    };
    pointer
}

/// Calls `act` with another thread pointer than the current one, which is put back.
///
/// # Safety
/// The processor has FSGSBASE, and `pointer` is the calling host thread's own.
#[inline(never)]
pub(crate) unsafe fn with_thread_pointer(pointer: u64, act: impl FnOnce()) {
    let other: u64;
    // SAFETY: the caller's. No thread-local storage is used between here and the call, which is
    // never inlined into this function's callers.
    unsafe {
        asm!("rdfsbase {}", out(reg) other, options(nostack, preserves_flags));
        asm!("wrfsbase {}", in(reg) pointer, options(nostack, preserves_flags));
    }
    act();
    // SAFETY: as before; it is what was there.
    unsafe { asm!("wrfsbase {}", in(reg) other, options(nostack, preserves_flags)) };
}

/// The legacy floating-point and SSE state. Host code leaves the x87 part to the guest.
pub(crate) fn fp_save() -> [u8; 512] {
    #[repr(align(16))]
    struct Area([u8; 512]);
    let mut area = Area([0; 512]);
    // SAFETY: the area has the size and alignment that the instruction asks for.
    unsafe { asm!("fxsave64 [{}]", in(reg) &raw mut area, options(nostack)) };
    area.0
}

/// Brings back the x87 part of what [`fp_save`] returned. The rest is the context's.
pub(crate) fn fp_restore(image: &[u8; 512]) {
    #[repr(align(16))]
    struct Area([u8; 512]);
    let mut area = Area(*image);
    // What belongs to the host stays as it is; reserved fields are zero, or loading would fault.
    area.0[24..32].copy_from_slice(&fp_save()[24..32]);
    // SAFETY: the area has the size and alignment that the instruction asks for, and all SSE
    // registers that it loads are given up; the x87 registers are the guest's.
    unsafe {
        asm!(
            "fxrstor64 [{}]", in(reg) &raw const area,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// Puts the x87 unit into its initial state.
pub(crate) fn fp_reset() {
    // SAFETY: host code does not use the x87 unit; its state is the guest's.
    unsafe { asm!("fninit", options(nomem, nostack)) };
}

/// Blocks every signal in the calling thread but kicks and these. The C library's functions would
/// leave out the signals that it uses itself, which are the guest's too.
pub(crate) fn block_signals_but(others: &[i32]) -> u64 {
    let left_out = others.iter().chain([&crate::kick::SIGNAL]);
    let mask = left_out.fold(!0, |mask: u64, signal| mask & !(1 << (signal - 1)));
    set_mask(mask);
    mask
}

/// Blocks every signal in the calling thread: guest threads leave signals to the machine. The
/// synchronous ones (faults) are delivered all the same, and so are kicks.
pub(crate) fn block_signals() {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    block_signals_but(&faults);
}

/// Replaces the calling thread's signal mask; the previous one.
pub(crate) fn set_mask(mask: u64) -> u64 {
    let mut previous = 0;
    let (new, old) = (&raw const mask as u64, &raw mut previous as u64);
    let how = libc::SIG_SETMASK as u64;
    // SAFETY: both words outlive the call, and have the size that it is told.
    unsafe { syscall(libc::SYS_rt_sigprocmask as u64, [how, new, old, 8, 0, 0]) };
    previous
}

/// Waits for one of the signals in a set, which the calling thread blocks; for so long, if there
/// is a limit. `None` when the time is up or the wait was interrupted.
pub(crate) fn wait_for_signal(set: u64, limit: Option<Duration>) -> Option<(u64, [u8; 128])> {
    let mut info = [0; 128];
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    });
    let until = limit.as_ref().map_or(0, |limit| &raw const *limit as u64);
    let (set, place) = (&raw const set as u64, &raw mut info as u64);
    // SAFETY: the set has the size that the call is told, the buffer that of `siginfo_t`, and the
    // limit is a live timespec or none.
    let signal = unsafe { syscall(libc::SYS_rt_sigtimedwait as u64, [set, place, until, 8, 0, 0]) };
    (signal > 0).then_some((signal as u64, info))
}

/// Whether the kernel has signals for one of this process's threads alone.
pub(crate) fn has_signals(thread: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status"));
    let status = status.unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    pending.is_some_and(|set| set.trim().bytes().any(|digit| digit != b'0'))
}

/// How long it is until the time of a clock that guest memory holds as a `timespec`. `None` if
/// there is no such clock, or no such time.
pub(crate) fn time_until(clock: libc::clockid_t, address: u64) -> Option<Duration> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a live timespec.
    if unsafe { libc::clock_gettime(clock, &mut now) } != 0 {
        return None;
    }
    let (seconds, nanoseconds) = Guest.timespec(address)?;
    let at = |seconds: i64, nanoseconds| {
        u64::try_from(seconds).map_or(Duration::ZERO, |s| Duration::new(s, nanoseconds))
    };
    Some(at(seconds, nanoseconds).saturating_sub(at(now.tv_sec, now.tv_nsec as u32)))
}

/// The calling thread's signal mask.
pub(crate) fn mask() -> u64 {
    let mut mask = 0;
    let (none, old) = (0, &raw mut mask as u64);
    // SAFETY: the word outlives the call, and has the size that it is told; nothing is set.
    unsafe { syscall(libc::SYS_rt_sigprocmask as u64, [0, none, old, 8, 0, 0]) };
    mask
}

/// The signals that this process ignores.
pub(crate) fn ignored_signals() -> Vec<i32> {
    (1..=64).filter(|&signal| is_ignored(signal)).collect()
}

/// Whether this process ignores a signal.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: the structure is plain data, and the call only fills it in.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Has a signal ignored by this process, or not.
pub(crate) fn set_ignored(signal: i32, ignored: bool) {
    // SAFETY: neither action runs any code.
    unsafe { libc::signal(signal, if ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
}

/// Has the kernel treat ended children as the guest's action for SIGCHLD says.
pub(crate) fn set_child_action(ignored: bool, flags: i32) {
    // SAFETY: the structure is plain data, and the action runs no code.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        action.sa_flags = flags & (libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT);
        libc::sigaction(libc::SIGCHLD, &action, std::ptr::null_mut());
    }
}

/// The soft and the hard limit of a resource.
pub(crate) fn limit(resource: Resource) -> [u64; 2] {
    let Rlimit { current, maximum } = getrlimit(resource);
    [current, maximum].map(|it| it.unwrap_or(u64::MAX))
}

/// Sets both; whether the kernel allows that.
pub(crate) fn set_limit(resource: Resource, limit: [u64; 2]) -> bool {
    let [current, maximum] = limit.map(|it| (it != u64::MAX).then_some(it));
    setrlimit(resource, Rlimit { current, maximum }).is_ok()
}

/// Whether this thread has a capability in effect, of the first 32.
pub(crate) fn has_capability(number: u32) -> bool {
    const VERSION: u32 = 0x2008_0522;
    let (mut header, mut sets) = ([VERSION, 0], [0_u32; 6]);
    let arguments = [header.as_mut_ptr() as u64, sets.as_mut_ptr() as u64, 0, 0, 0, 0];
    // SAFETY: of this version, the kernel writes two times three words, which are there.
    let result = unsafe { syscall(libc::SYS_capget as u64, arguments) };
    result == 0 && sets[0] & 1 << number != 0
}

/// Ends the process, without any of what is done at a normal exit.
pub(crate) fn exit_process(status: i32) -> ! {
    // SAFETY: nothing is done but ending.
    unsafe { libc::_exit(status) }
}

/// Ends the process by a signal.
pub(crate) fn end_process_by(signal: i32) -> ! {
    set_ignored(signal, false);
    // Sent to this thread and unblocked, it acts before anything else happens here.
    let (process, thread) = (u64::from(std::process::id()), thread_id() as u64);
    // SAFETY: a thread may send itself signals.
    unsafe { syscall(libc::SYS_tgkill as u64, [process, thread, signal as u64, 0, 0, 0]) };
    set_mask(0);
    exit_process(128 + signal)
}

/// Stops the process by a signal of the terminal's job control; returns when it is continued. The
/// calling thread blocks the signal at other times: sent to it and unblocked, it acts before
/// anything else happens here.
pub(crate) fn stop_process(signal: i32) {
    let before = mask();
    let (process, thread) = (u64::from(std::process::id()), thread_id() as u64);
    // SAFETY: a thread may send itself signals.
    unsafe { syscall(libc::SYS_tgkill as u64, [process, thread, signal as u64, 0, 0, 0]) };
    set_mask(before & !(1 << (signal - 1)));
    set_mask(before);
}

/// Measures the frequency of the time-stamp counter against the monotonic clock, to about 10⁻⁵.
pub(crate) fn ticks_per_second() -> u64 {
    const SPAN: Duration = Duration::from_millis(3);
    let &(start, clock) = FIRST_READING.get_or_init(both_clocks);
    std::thread::sleep(SPAN.saturating_sub(clock.elapsed()));
    let (end, later) = both_clocks();
    let nanoseconds = later.duration_since(clock).as_nanos().max(1);
    (u128::from(end - start) * 1_000_000_000 / nanoseconds) as u64
}

/// Page faults of this process so far.
pub(crate) fn page_faults() -> u64 {
    // SAFETY: the structure is plain data, for which zero is a value, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// What both clocks showed when [`read_clocks`] was called.
static FIRST_READING: OnceLock<(u64, Instant)> = OnceLock::new();

/// Reads the clocks once, early: how fast one goes by the other is measured over a few
/// milliseconds, in which a recorder that is about to start has other things to do.
pub(crate) fn read_clocks() {
    FIRST_READING.get_or_init(both_clocks);
}

/// The time-stamp counter and the time. Of several readings the one taken fastest: it was not
/// interrupted.
fn both_clocks() -> (u64, Instant) {
    let reading = |_| {
        let (before, clock, after) = (ticks(), Instant::now(), ticks());
        (after - before, before, clock)
    };
    let fastest = (0..8).map(reading).min_by_key(|&(span, ..)| span);
    let (_, ticks, clock) = fastest.expect("there are eight readings");
    (ticks, clock)
}

/// Guest memory. Guest addresses are host addresses, so a wrong one must not become a fault of
/// the host: the host goes on behind an access that faults ([`recovery`]), or the kernel makes it.
pub(crate) struct Guest;

impl Guest {
    /// Copies `len` bytes out of guest memory; `None` if any of them cannot be read.
    pub(crate) fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        // Piece by piece: a guest may name a length of which it has nothing.
        const PIECE: usize = 1 << 20;
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = bytes.len();
            bytes.resize(at + PIECE.min(len - at), 0);
            if !self.read_into(address.wrapping_add(at as u64), &mut bytes[at..]) {
                return None;
            }
        }
        Some(bytes)
    }

    /// Fills `bytes` from guest memory.
    pub(crate) fn read_into(&self, address: u64, bytes: &mut [u8]) -> bool {
        if !elsewhere::is_possible() {
            return self.read_here(address, bytes);
        }
        let mut at = 0;
        while at < bytes.len() {
            let here = address.wrapping_add(at as u64);
            let room = (PAGE - here % PAGE) as usize;
            let part = &mut bytes[at..];
            let len = part.len().min(room);
            if let Some(shown) = elsewhere::shown(here, part.len()) {
                part[..shown.len()].copy_from_slice(&shown);
                at += shown.len();
            } else if self.read_here(elsewhere::alias(here).unwrap_or(here), &mut part[..len]) {
                at += len;
            } else {
                return false;
            }
        }
        true
    }

    fn read_here(&self, address: u64, bytes: &mut [u8]) -> bool {
        if recovery::read(address, bytes) {
            return true;
        }
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: `local` describes a live, exclusively borrowed buffer; `remote` is an address
        // that the kernel checks.
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        n == bytes.len() as isize
    }

    /// Stores bytes into guest memory; `false` if it cannot be written there.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        if !elsewhere::is_any() {
            return self.write_here(address, bytes);
        }
        let mut at = 0;
        while at < bytes.len() {
            let here = address.wrapping_add(at as u64);
            let len = ((PAGE - here % PAGE) as usize).min(bytes.len() - at);
            if !self.write_here(elsewhere::alias(here).unwrap_or(here), &bytes[at..at + len]) {
                return false;
            }
            at += len;
        }
        true
    }

    fn write_here(&self, address: u64, bytes: &[u8]) -> bool {
        let range = address..address.saturating_add(bytes.len() as u64);
        // SAFETY: the guest may have memory there.
        if layout::guest_may_map(&range) && unsafe { recovery::write(address, bytes) } {
            return true;
        }
        let local =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: as in `read_into`; the kernel only reads `local`.
        let n = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
        n == bytes.len() as isize
    }

    /// Stores what a trace says into guest memory; `false` if it cannot be written there, or if
    /// that is no place where a guest has memory: the host's lies in the same address space.
    pub(crate) fn store(&self, address: u64, bytes: &[u8]) -> bool {
        let range = address..address.saturating_add(bytes.len() as u64);
        bytes.is_empty() || crate::layout::guest_may_map(&range) && self.write(address, bytes)
    }

    /// Copies as much of a range as can be read.
    pub(crate) fn read_prefix(&self, address: u64, len: usize) -> Vec<u8> {
        if let Some(bytes) = self.read(address, len) {
            return bytes;
        }
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = address + bytes.len() as u64;
            let room = (PAGE - at % PAGE) as usize;
            match self.read(at, room.min(len - bytes.len())) {
                Some(part) => bytes.extend(part),
                None => break,
            }
        }
        bytes
    }

    /// The low 8 bytes of a memory operand of `size` bytes.
    pub(crate) fn operand(&self, address: u64, size: u8) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read_into(address, &mut bytes[..usize::from(size).min(8)])
            .then(|| u64::from_le_bytes(bytes))
    }

    /// What an operand of 1, 2, 4 or 8 bytes holds that a guest thread has just accessed; `None` of
    /// other sizes, and if another guest thread has taken the memory away since.
    ///
    /// # Safety
    /// The calling thread's guest has accessed it.
    #[inline]
    pub(crate) unsafe fn accessed(&self, address: u64, size: u8) -> Option<u64> {
        // SAFETY: the guest has accessed the address (the caller), so it is the guest's; and since an
        // engine has executed that access, there is one that handles exceptions.
        unsafe { crate::recovery::load(address, size) }
    }

    /// Reads a word of the guest's stack, which the guest has just written itself.
    ///
    /// # Safety
    /// `address` must be readable guest memory: the stack pointer of a running guest thread at a
    /// point where it has just pushed.
    #[inline]
    pub(crate) unsafe fn stack_word(&self, address: u64) -> u64 {
        // SAFETY: the caller's.
        unsafe { (address as *const u64).read_unaligned() }
    }

    /// The word at `address`.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        self.operand(address, 8)
    }

    /// The words from `address` on.
    pub(crate) fn words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let bytes = self.read(address, 8 * N)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
        Some(std::array::from_fn(word))
    }

    /// The 32-bit word at `address`, if it is mapped and aligned.
    pub(crate) fn word32(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read_into(address, &mut bytes).then(|| u32::from_le_bytes(bytes))
    }

    /// Seconds and nanoseconds of a `timespec`, unless these are none.
    fn timespec(&self, address: u64) -> Option<(i64, u32)> {
        let (seconds, nanoseconds) = (self.word(address)? as i64, self.word(address + 8)?);
        let nanoseconds = u32::try_from(nanoseconds).ok().filter(|&n| n < 1_000_000_000)?;
        Some((seconds, nanoseconds))
    }

    /// A `timespec` that tells how long something lasts; `None` if that is no such time.
    pub(crate) fn duration(&self, address: u64) -> Option<Duration> {
        let (seconds, nanoseconds) = self.timespec(address)?;
        Some(Duration::new(u64::try_from(seconds).ok()?, nanoseconds))
    }

    /// A NUL-terminated string, as long as a path can be.
    pub(crate) fn string(&self, address: u64) -> Option<Vec<u8>> {
        let range = crate::syscall::string(address, self)?;
        self.read(range.start, (range.end - range.start) as usize - 1)
    }
}

impl crate::syscall::GuestMemory for Guest {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.read_into(address, into)
    }
}

/// A word of guest memory that guest threads change at will.
///
/// # Safety
/// The address is a multiple of four, and the memory stays mapped while the reference is used.
pub(crate) unsafe fn atomic_word<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: the caller's.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

/// The owner's part of a robust lock's word.
const OWNER: u32 = 0x3fff_ffff;

/// Whether the calling thread holds a robust lock.
pub(crate) fn holds_lock(address: u64) -> bool {
    Guest.word32(address).is_some_and(|word| word & OWNER == thread_id() as u32)
}

/// Marks a robust lock whose owner, the calling thread, ends, and wakes one who waits for it.
pub(crate) fn abandon_lock(address: u64) {
    const OWNER_DIED: u32 = 0x4000_0000;
    const WAITERS: u32 = 0x8000_0000;
    if !address.is_multiple_of(4) || Guest.word32(address).is_none() {
        return;
    }
    let address = elsewhere::alias(address).unwrap_or(address);
    // SAFETY: the word is aligned and was readable just now. It is in a mutex that this thread
    // holds, which a correct program does not unmap; guest threads change it at will, which
    // atomic operations allow for.
    let word = unsafe { atomic_word(address) };
    let own = thread_id() as u32;
    let mark = |word: u32| (word & OWNER == own).then_some(word & WAITERS | OWNER_DIED);
    let before = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, mark);
    if before.is_ok_and(|before| before & WAITERS != 0) {
        // SAFETY: waking a waiter changes no memory, and the kernel checks the address.
        unsafe { syscall(libc::SYS_futex as u64, [address, libc::FUTEX_WAKE as u64, 1, 0, 0, 0]) };
    }
}

/// `futex(FUTEX_WAIT)` on a word of guest memory, until woken or changed, at most `timeout`.
pub(crate) fn futex_wait(address: u64, expected: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: the kernel checks `address`; `timeout` outlives the call.
    unsafe {
        syscall(
            libc::SYS_futex as u64,
            [
                address,
                libc::FUTEX_WAIT as u64,
                u64::from(expected),
                (&raw const timeout) as u64,
                0,
                0,
            ],
        );
    }
}

/// `futex(FUTEX_WAKE)` of everybody who waits on a word of guest memory.
pub(crate) fn futex_wake_all(address: u64) {
    // SAFETY: waking waiters changes no memory, and the kernel checks the address.
    unsafe {
        syscall(
            libc::SYS_futex as u64,
            [address, libc::FUTEX_WAKE as u64, i32::MAX as u64, 0, 0, 0],
        );
    }
}

/// `futex(FUTEX_WAKE_PRIVATE)` of one thread that waits on a word of guest memory.
pub(crate) fn futex_wake_one(address: u64) {
    futex_wake(address, 1);
}

/// The same, of all threads.
pub(crate) fn futex_wake_private(address: u64) {
    futex_wake(address, i32::MAX as u64);
}

fn futex_wake(address: u64, most: u64) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u64;
    // SAFETY: waking a waiter changes no memory, and the kernel checks the address.
    unsafe { syscall(libc::SYS_futex as u64, [address, operation, most, 0, 0, 0]) };
}
