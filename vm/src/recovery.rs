//! Accessing guest memory that may not be there, or that another guest thread may be taking away.
//!
//! A table says of a few instructions of the host's that a fault there is one of the guest's memory, and
//! where to go on. Engines handle the processor's exceptions, and ask it ([`recovery`]).

use std::arch::asm;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the process has an engine that asks [`recovery`].
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// From here on, whoever handles SIGSEGV and SIGBUS asks [`recovery`], as long as the process exists.
pub fn recovery_is_asked() {
    IS_ASKED.store(true, Ordering::Release);
}

/// Notes, in assembly, that a fault of the instruction at one label is one of reading guest memory, and
/// goes on at another one.
#[macro_export]
macro_rules! recovers {
    ($at:literal, $to:literal) => {
        concat!(
            ".pushsection refrain_recoveries, \"awR\", @progbits\n",
            ".quad ",
            $at,
            ", ",
            $to,
            "\n.popsection"
        )
    };
}

/// What [`recovers`] has noted: where, and where to go on.
type Recovery = [u64; 2];

unsafe extern "C" {
    // The linker names the ends of a section so.
    #[link_name = "__start_refrain_recoveries"]
    safe static FIRST_RECOVERY: Recovery;
    #[link_name = "__stop_refrain_recoveries"]
    safe static END_OF_RECOVERIES: Recovery;
}

/// If a fault at `rip` is one of reading guest memory: where to go on. To be asked by whoever handles
/// SIGSEGV and SIGBUS.
#[must_use]
pub fn recovery(rip: u64) -> Option<u64> {
    let (first, end) = (&raw const FIRST_RECOVERY, &raw const END_OF_RECOVERIES);
    let count = (end.addr() - first.addr()) / size_of::<Recovery>();
    // SAFETY: the section holds what `recovers` has put there, which nobody writes.
    let all = unsafe { std::slice::from_raw_parts(first, count) };
    all.iter().find(|&&[at, _]| at == rip).map(|&[_, to]| to)
}

/// What an operand of 1, 2, 4 or 8 bytes holds; `None` of other sizes, and if it cannot be read.
///
/// # Safety
/// The address is the guest's, and an engine handles exceptions, if the memory may be taken away.
#[inline]
pub(crate) unsafe fn load(address: u64, size: u8) -> Option<u64> {
    macro_rules! load {
        ($instruction:literal) => {{
            let (value, done): (u64, u32);
            // SAFETY: reads guest memory, if it is there, as the guest would; for the rest, the caller.
            unsafe {
                asm!(
                    "xor {done:e}, {done:e}",
                    "3:",
                    $instruction,
                    "mov {done:e}, 1",
                    "2:",
                    recovers!("3b", "2b"),
                    at = in(reg) address,
                    value = out(reg) value,
                    done = out(reg) done,
                    options(nostack, readonly),
                );
            }
            (done != 0).then_some(value)
        }};
    }
    match size {
        1 => load!("movzx {value:e}, byte ptr [{at}]"),
        2 => load!("movzx {value:e}, word ptr [{at}]"),
        4 => load!("mov {value:e}, dword ptr [{at}]"),
        8 => load!("mov {value}, qword ptr [{at}]"),
        _ => None,
    }
}

/// Copies bytes between host and guest, as far as the guest's are there: whether all of them were. Nothing
/// is copied in a process without an engine that asks [`recovery`].
///
/// # Safety
/// The host's bytes live, and nobody else uses them if they are written; none of the host's memory lies where
/// the guest's bytes do, if those are written.
#[inline]
unsafe fn copy(from: u64, to: u64, len: usize) -> bool {
    if !IS_ASKED.load(Ordering::Acquire) {
        return false;
    }
    let left: usize;
    // SAFETY: copies as long as both are there; for the rest, the caller.
    unsafe {
        asm!(
            "3:",
            "rep movsb",
            "2:",
            recovers!("3b", "2b"),
            inout("rcx") len => left,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
    left == 0
}

/// Reads guest memory without the kernel. `false` if that is not possible: part of it may have been read.
#[inline]
pub(crate) fn read(address: u64, bytes: &mut [u8]) -> bool {
    // SAFETY: the bytes are borrowed exclusively; whatever the guest names is only read.
    unsafe { copy(address, bytes.as_mut_ptr() as u64, bytes.len()) }
}

/// Writes guest memory without the kernel. `false` if that is not possible: part of it may have been written.
///
/// # Safety
/// The guest may have memory there ([`crate::layout::guest_may_map`]).
#[inline]
pub(crate) unsafe fn write(address: u64, bytes: &[u8]) -> bool {
    // SAFETY: the bytes are borrowed; for the rest, the caller.
    unsafe { copy(bytes.as_ptr() as u64, address, bytes.len()) }
}

#[cfg(test)]
mod tests {
    use super::{load, recovery};

    #[test]
    fn operands_have_the_size_that_is_asked_for() {
        let word = 0x8182_8384_8586_8788_u64;
        let at = &raw const word as u64;
        // SAFETY: the word is there.
        let loaded = [1, 2, 4, 8, 3].map(|size| unsafe { load(at, size) });
        let expected = [Some(0x88), Some(0x8788), Some(0x8586_8788), Some(word), None];
        assert_eq!(loaded, expected);
    }

    #[test]
    fn other_faults_are_nobodys() {
        assert_eq!(recovery(load as *const () as u64), None);
    }
}
