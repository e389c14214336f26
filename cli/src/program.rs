//! Finding the program to record, and saying why it cannot be recorded before anything is
//! written.

use crate::failure::Failure;
use anyhow::anyhow;
use rustix::fs::Access;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A program that can be recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    /// Path of the file, as the kernel is given it.
    pub(crate) path: PathBuf,
    /// The command line as it was given.
    pub(crate) argv: Vec<OsString>,
}

impl Program {
    /// The name that a trace of the program gets by default.
    pub(crate) fn default_trace(&self) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or(OsStr::new("program")).to_owned();
        name.push(".refrain");
        PathBuf::from(name)
    }
}

/// Finds the program as `execvp` does and checks that it is an x86-64 ELF file, or a script for
/// one.
pub(crate) fn find(command: &[OsString]) -> Result<Program, Failure> {
    let name = command.first().ok_or_else(|| anyhow!("no command was given"))?;
    let path = if name.as_bytes().contains(&b'/') {
        check_executable(Path::new(name))?;
        PathBuf::from(name)
    } else {
        search(name)?
    };
    check_elf(&path)?;
    check_other(&path)?;
    Ok(Program { path, argv: command.to_vec() })
}

/// The first executable file of this name in PATH. Like `execvp`, a file that may not be executed
/// is passed over, and reported only if there is no other.
fn search(name: &OsStr) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let mut refused = None;
    for directory in std::env::split_paths(&path) {
        let candidate = directory.join(name);
        match check_executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(failure) if failure.status == 127 => {}
            Err(failure) => refused = refused.or(Some(failure)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let name = name.display();
        Failure::not_found(anyhow!("{name}: not found in PATH; give its path, as in ./{name}"))
    }))
}

/// A recorder runs in the process that it records, and there cannot be two.
fn check_other(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| std::fs::metadata(path).map(|it| (it.dev(), it.ino()));
    match (identity(path), identity(Path::new("/proc/self/exe"))) {
        (Ok(program), Ok(own)) if program == own => Err(Failure::cannot_execute(anyhow!(
            "{}: is refrain, which cannot record itself; record the program alone, or replay its \
             trace",
            path.display()
        ))),
        _ => Ok(()),
    }
}

fn check_executable(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            Failure::not_found(anyhow!("{shown}: no such program"))
        }
        _ => Failure::cannot_execute(anyhow!("{shown}: {error}")),
    })?;
    if metadata.is_dir() {
        return Err(Failure::cannot_execute(anyhow!("{shown}: is a directory, not a program")));
    }
    if !metadata.is_file() || rustix::fs::access(path, Access::EXEC_OK).is_err() {
        return Err(Failure::cannot_execute(anyhow!(
            "{shown}: is not executable; try chmod +x {shown}"
        )));
    }
    Ok(())
}

/// Bytes of the file that are looked at: a script's first line, as far as the kernel reads it.
const HEAD: usize = 256;
/// Bytes of the ELF header up to and with `e_machine`.
const ELF_HEAD: usize = 20;

fn check_elf(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let mut head = Vec::with_capacity(HEAD);
    File::open(path)
        .and_then(|file| file.take(HEAD as u64).read_to_end(&mut head))
        .map_err(|error| Failure::cannot_execute(anyhow!("{shown}: cannot be read: {error}")))?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let interpreter = interpreter(line);
        return check_executable(&interpreter).map_err(|failure| {
            let why = format!("{shown}: a script whose interpreter cannot be executed: {failure}");
            Failure::cannot_execute(anyhow!(why))
        });
    }
    match refusal(&head) {
        None => Ok(()),
        Some(why) => Err(Failure::cannot_execute(anyhow!("{shown}: {why}"))),
    }
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
    fn missing_programs_are_127_and_others_126() {
        let status = |name: &str| find(&[name.into()]).expect_err("cannot be recorded").status;
        assert_eq!(status("no-such-program-anywhere"), 127);
        assert_eq!(status("./no/such/program"), 127);
        assert_eq!(status("/etc"), 126);
        assert_eq!(status("/etc/passwd"), 126);
    }
}
