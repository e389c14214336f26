//! Finding the program to record, and saying why it cannot be recorded before anything is
//! written.

use crate::error::{Error, bail};
use crate::runtimes;
use rustix::fs::Access;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Finds the program as `execvp` does and checks that it is an x86-64 ELF file, or a script for
/// one.
pub(super) fn find(command: &[OsString]) -> crate::Result<PathBuf> {
    let Some(name) = command.first() else { bail!(Refused, "no command was given") };
    let path = if name.as_bytes().contains(&b'/') {
        check_executable(Path::new(name))?;
        PathBuf::from(name)
    } else {
        search(name)?
    };
    check_elf(&path)?;
    check_other(&path)?;
    Ok(path)
}

/// The first executable file of this name in PATH. Like `execvp`, a file that may not be executed
/// is passed over, and reported only if there is no other.
fn search(name: &OsStr) -> crate::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let mut refused = None;
    for directory in std::env::split_paths(&path) {
        let candidate = directory.join(name);
        match check_executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(Error::NotFound(_)) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let name = name.display();
        Error::NotFound(format!("{name}: not found in PATH; give its path, as in ./{name}"))
    }))
}

/// A recorder runs in the process that it records, and there cannot be two.
fn check_other(path: &Path) -> crate::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| std::fs::metadata(path).map(|it| (it.dev(), it.ino()));
    match (identity(path), identity(Path::new("/proc/self/exe"))) {
        (Ok(program), Ok(own)) if program == own => bail!(
            NotExecutable,
            "{}: is refrain, which cannot record itself; record the program alone, or replay its \
             trace",
            path.display()
        ),
        _ => Ok(()),
    }
}

fn check_executable(path: &Path) -> crate::Result<()> {
    let shown = path.display();
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            Error::NotFound(format!("{shown}: no such program"))
        }
        _ => Error::NotExecutable(format!("{shown}: {error}")),
    })?;
    if metadata.is_dir() {
        bail!(NotExecutable, "{shown}: is a directory, not a program");
    }
    if metadata.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok() {
        return Ok(());
    }
    // To make executable what is no program helps nobody.
    let no_program = metadata.is_file().then(|| head(path).ok().and_then(|head| refusal(&head)));
    match no_program.flatten() {
        Some(why) => bail!(NotExecutable, "{shown}: {why}"),
        None => bail!(NotExecutable, "{shown}: is not executable; try chmod +x {shown}"),
    }
}

/// Bytes of the file that are looked at: a script's first line, as far as the kernel reads it.
const HEAD: u64 = 256;
/// Bytes of the ELF header up to and with `e_machine`.
const ELF_HEAD: usize = 20;

fn head(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}

fn check_elf(path: &Path) -> crate::Result<()> {
    let shown = path.display();
    let head = head(path)
        .map_err(|error| Error::NotExecutable(format!("{shown}: cannot be read: {error}")))?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return check_executable(&interpreter(line)).map_err(|error| {
            let why = format!("{shown}: a script whose interpreter cannot be executed: {error}");
            Error::NotExecutable(why)
        });
    }
    if let Some(why) = refusal(&head) {
        bail!(NotExecutable, "{shown}: {why}");
    }
    if let Some(sanitizer) = runtimes::sanitizer(path) {
        bail!(
            NotExecutable,
            "{shown}: is built with {sanitizer}, whose memory lies where a recording has its own; \
             build it without -fsanitize"
        );
    }
    Ok(())
}

/// The interpreter that a script's first line, from behind its mark, names.
fn interpreter(line: &[u8]) -> PathBuf {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    let word = line.split(|byte| b" \t".contains(byte)).next().unwrap_or_default();
    PathBuf::from(OsStr::from_bytes(word))
}

/// Why a file that starts like this cannot be recorded.
fn refusal(head: &[u8]) -> Option<String> {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const EXECUTABLE_TYPES: [u16; 2] = [2, 3];
    const X86_64: u16 = 62;
    if head.starts_with(b"#!") {
        return None;
    }
    if !head.starts_with(b"\x7fELF") {
        return Some("is not an ELF program; refrain records x86-64 Linux programs".into());
    }
    if head.len() < ELF_HEAD {
        return Some("is cut off: its ELF header is not whole".into());
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let machine = half(18);
    if head[5] == LITTLE_ENDIAN && machine == X86_64 && head[4] != CLASS_64 {
        return Some("is an x32 ELF program; refrain records 64-bit ones".into());
    }
    if head[4] != CLASS_64 {
        return Some("is a 32-bit ELF program; refrain records x86-64 ones".into());
    }
    if head[5] != LITTLE_ENDIAN || machine != X86_64 {
        let name =
            machine_name(if head[5] == LITTLE_ENDIAN { machine } else { machine.swap_bytes() });
        return Some(format!("is an ELF program for {name}; refrain records x86-64 ones"));
    }
    if !EXECUTABLE_TYPES.contains(&half(16)) {
        return Some("is an ELF file but not a program (an object or core file)".into());
    }
    None
}

fn machine_name(machine: u16) -> String {
    match machine {
        8 => "MIPS".into(),
        20 | 21 => "PowerPC".into(),
        22 => "S/390".into(),
        40 => "ARM".into(),
        62 => "big-endian x86-64".into(),
        183 => "AArch64".into(),
        243 => "RISC-V".into(),
        258 => "LoongArch".into(),
        other => format!("machine {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(class: u8, data: u8, kind: u16, machine: u16) -> Vec<u8> {
        let mut head = b"\x7fELF".to_vec();
        head.extend([class, data, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        head.extend(kind.to_le_bytes());
        head.extend(machine.to_le_bytes());
        head
    }

    #[test]
    fn programs_are_told_from_other_files() {
        assert_eq!(refusal(&head(2, 1, 2, 62)), None);
        assert_eq!(refusal(&head(2, 1, 3, 62)), None);
        for (bytes, word) in [
            (head(2, 1, 1, 62), "not a program"),
            (head(1, 1, 2, 3), "32-bit"),
            (head(1, 1, 2, 62), "x32"),
            (head(2, 1, 3, 183), "AArch64"),
            (head(2, 2, 3, 22u16.swap_bytes()), "S/390"),
            (head(2, 1, 3, 62)[..10].to_vec(), "cut off"),
            (b"MZ".to_vec(), "not an ELF"),
            (Vec::new(), "not an ELF"),
        ] {
            let why = refusal(&bytes).expect("is refused");
            assert!(why.contains(word), "{why:?} does not say {word:?}");
        }
    }

    #[test]
    fn a_script_names_its_interpreter() {
        assert_eq!(interpreter(b"/bin/sh\n"), Path::new("/bin/sh"));
        assert_eq!(interpreter(b" /usr/bin/awk -f\nBEGIN"), Path::new("/usr/bin/awk"));
        assert_eq!(interpreter(b"\n"), Path::new(""));
    }

    #[test]
    fn what_is_missing_is_told_from_what_is_no_program() {
        let error = |name: &str| find(&[name.into()]).expect_err("cannot be recorded");
        for missing in ["no-such-program-anywhere", "./no/such/program"] {
            assert!(matches!(error(missing), Error::NotFound(_)), "{missing}");
        }
        for other in ["/etc", "/etc/passwd"] {
            let error = error(other);
            assert!(matches!(error, Error::NotExecutable(_)), "{other}");
            assert!(!error.to_string().contains("chmod"), "{error}");
        }
    }
}
