//! What a C library has for cancelling threads: known of glibc 2.36 to 2.40.

use crate::elf::Elf;

/// The versions of which the bits are known: 2.MINOR.
const MINORS: std::ops::RangeInclusive<u32> = 36..=40;

/// `mov rax, SYS_rt_sigreturn; syscall`, which is all that the function does by which handlers
/// return.
const RETURN_FROM_HANDLER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// What a C library has for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cancellation {
    /// Where the mark is, from the thread pointer on.
    pub(super) mark: u64,
    /// `pthread_testcancel`.
    pub(super) test: u64,
    /// A function that does nothing but return.
    pub(super) nothing: u64,
    /// The function by which handlers return.
    pub(super) restorer: u64,
}

impl Cancellation {
    /// If the library is one that is known. It is loaded with this bias.
    pub(super) fn of(elf: &Elf, bias: u64) -> Option<Cancellation> {
        minor(elf.whole()?).filter(|minor| MINORS.contains(minor))?;
        let [mut test, mut nothing] = [None; 2];
        elf.functions(|name, address| match name {
            "pthread_testcancel" => test = Some(bias.wrapping_add(address)),
            crate::hooks::ERRNO_LOCATION => nothing = Some(bias.wrapping_add(address)),
            _ => {}
        });
        // For debuggers: how long the mark is, in bits, how many there are, and where.
        let [bits, count, offset] = elf.words_of("_thread_db_pthread_cancelhandling")?;
        let mark = Some(u64::from(offset)).filter(|_| (bits, count) == (32, 1))?;
        // No symbol names it.
        let restorer = bias.wrapping_add(elf.address_of(&RETURN_FROM_HANDLER)?);
        Some(Cancellation { mark, test: test?, nothing: nothing?, restorer })
    }
}

/// Of glibc's version, as its banner has it, what follows "2.".
fn minor(library: &[u8]) -> Option<u32> {
    const BANNER: &[u8] = b" release version 2.";
    let at = library.windows(BANNER.len()).position(|window| window == BANNER)?;
    let digits = &library[at + BANNER.len()..];
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_banner() {
        let banner = b"..GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n";
        assert_eq!(minor(banner), Some(36));
        assert_eq!(minor(b"musl libc"), None);
    }
}
