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
        minor(elf).filter(|minor| MINORS.contains(minor))?;
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
        let (_, restorer) = elf.find(libc::PROT_READ | libc::PROT_EXEC, &RETURN_FROM_HANDLER)?;
        let restorer = bias.wrapping_add(restorer);
        Some(Cancellation { mark, test: test?, nothing: nothing?, restorer })
    }
}

/// Of glibc's version, as its banner has it, what follows "2.".
fn minor(library: &Elf) -> Option<u32> {
    const BANNER: &[u8] = b" release version 2.";
    const DIGITS: u64 = 2;
    let (at, _) = library.find(libc::PROT_READ, BANNER)?;
    let digits = library.bytes(at + BANNER.len() as u64, DIGITS)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hidden;
    use std::fs::File;
    use std::path::PathBuf;

    /// The C library of this process.
    fn library() -> Option<PathBuf> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
        let mut paths = maps.lines().filter_map(|line| line.split_whitespace().last());
        paths.find(|path| path.ends_with("/libc.so.6")).map(PathBuf::from)
    }

    /// What is read in pieces is found where it is in the whole.
    #[test]
    fn the_library_is_read_in_pieces() {
        let Some(path) = library() else { return };
        let file = Hidden::copy(File::open(&path).unwrap()).unwrap();
        let (lazily, whole) = (Elf::read_lazily(&path, file).unwrap(), Elf::read(&path).unwrap());
        let bytes = std::fs::read(&path).unwrap();
        let position = |wanted: &[u8]| bytes.windows(wanted.len()).position(|it| it == wanted);
        let code = libc::PROT_READ | libc::PROT_EXEC;
        let found = lazily.find(code, &RETURN_FROM_HANDLER).map(|(at, _)| at as usize);
        assert_eq!(found, position(&RETURN_FROM_HANDLER));
        assert_eq!(Cancellation::of(&lazily, 0x1000), Cancellation::of(&whole, 0x1000));
        let banner = String::from_utf8_lossy(&bytes);
        if banner.contains("stable release version 2.36.") {
            assert_eq!(minor(&lazily), Some(36));
            assert!(Cancellation::of(&lazily, 0).is_some());
        }
    }
}
