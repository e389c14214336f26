//! Which processes can write to a file: those that have it open for writing, or mapped so.
//!
//! The kernel tells only whether there is one. Where the program itself is one, as a database is that maps a
//! file to read it and changes it by `write`, all other processes are looked through.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether a process can, other than this one. What the system does not show of other users' processes counts
/// as nothing.
pub(super) fn others_write(file: &Metadata) -> bool {
    let this = std::process::id().to_string();
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let names = processes.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut others =
        names.filter(|name| name.bytes().all(|it| it.is_ascii_digit()) && *name != this);
    others.any(|process| writes(&process, file))
}

/// Whether this process can: its number, or `self`.
pub(super) fn writes(process: &str, file: &Metadata) -> bool {
    let folder = Path::new("/proc").join(process);
    has_open(&folder, file) || has_mapped(&folder, file)
}

fn has_open(process: &Path, file: &Metadata) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let is_it = fs::metadata(descriptor.path())
            .is_ok_and(|of| (of.dev(), of.ino()) == (file.dev(), file.ino()));
        is_it && is_for_writing(&process.join("fdinfo").join(descriptor.file_name()))
    })
}

fn is_for_writing(information: &Path) -> bool {
    let text = fs::read_to_string(information).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

fn has_mapped(process: &Path, file: &Metadata) -> bool {
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    maps.lines().any(|map| {
        // start-end rwxs offset device inode name
        let mut words = map.split_ascii_whitespace().skip(1);
        let (rights, inode) = (words.next().unwrap_or_default(), words.nth(2).unwrap_or_default());
        inode.parse() == Ok(file.ino())
            && rights.as_bytes().get(1) == Some(&b'w')
            && rights.ends_with('s')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn who_writes_is_found_by_descriptors_and_by_mappings() {
        let path = std::env::temp_dir().join(format!("refrain-writers-{}", std::process::id()));
        let writing = File::create_new(&path).unwrap();
        writing.set_len(4096).unwrap();
        let known = writing.metadata().unwrap();
        assert!(writes("self", &known));
        assert!(!others_write(&known));
        drop(writing);
        assert!(!writes("self", &known));
        // Another process that has it open, for reading and then for writing.
        for (way, found) in [("<", false), (">>", true)] {
            let script = format!("exec 5{way}'{}'; echo ready; read line", path.display());
            let mut shell = std::process::Command::new("sh")
                .args(["-c", &script])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut ready = [0];
            std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut ready).unwrap();
            assert_eq!(others_write(&known), found, "{way}");
            drop(shell.stdin.take());
            shell.wait().unwrap();
        }
        fs::remove_file(&path).unwrap();
    }
}
