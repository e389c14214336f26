//! Building a program with the system's compilers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Language, Program, Variant};

/// Why a program could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked for a variant that the source does not hold.
    #[error("{program} has no variant {}", variant.name())]
    NoSuchVariant {
        /// The program's name.
        program: &'static str,
        /// What was asked for.
        variant: Variant,
    },
    /// The machine lacks the compiler, or `$CC`, `$CXX` or `$RUSTC` is wrong.
    #[error("cannot run the compiler `{compiler}` (set ${variable} to another one): {answer}")]
    NoCompiler {
        /// The command.
        compiler: String,
        /// The environment variable that chooses it.
        variable: &'static str,
        /// What the system said.
        answer: io::Error,
    },
    /// The compiler rejects the source: our bug, or an unsupported compiler.
    #[error("`{command}` failed:\n{stderr}")]
    Failed {
        /// The command with its arguments.
        command: String,
        /// What the compiler printed.
        stderr: String,
    },
    /// The source cannot be read or the output directory not be written.
    #[error("{}: {answer}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        answer: io::Error,
    },
}

/// Builds a variant of a program into `out_dir` and returns the executable.
///
/// The file's name holds a hash of all that goes into it, so an executable that
/// is there is reused; concurrent builders do not disturb each other.
///
/// # Errors
/// See [`Error`].
pub fn compile(program: &Program, variant: Variant, out_dir: &Path) -> Result<PathBuf, Error> {
    compile_with(program, variant, &[], out_dir)
}

/// As [`compile()`], with further compiler flags, such as those of a sanitizer.
///
/// # Errors
/// See [`Error`].
pub fn compile_with(
    program: &Program,
    variant: Variant,
    flags: &[&str],
    out_dir: &Path,
) -> Result<PathBuf, Error> {
    if !program.variants.contains(&variant) {
        return Err(Error::NoSuchVariant { program: program.name, variant });
    }
    // The compiler runs in another directory.
    let out_dir = std::path::absolute(out_dir)
        .map_err(|answer| Error::Io { path: out_dir.into(), answer })?;
    let words = command_line(program, variant, flags);
    let target = out_dir.join(format!(
        "{}-{}-{:016x}",
        program.name,
        variant.name(),
        fingerprint(program, &words)?
    ));
    if target.is_file() {
        return Ok(target);
    }
    fs::create_dir_all(&out_dir).map_err(|answer| Error::Io { path: out_dir.clone(), answer })?;
    let temporary = temporary_name(&target);
    run(program.language, &words, &temporary)?;
    fs::rename(&temporary, &target).map_err(|answer| Error::Io { path: target.clone(), answer })?;
    Ok(target)
}

/// Compilers run here. Debug information calls this directory `corpus`, so that
/// a source's name there does not depend on where the checkout lies.
const CORPUS: &str = env!("CARGO_MANIFEST_DIR");

fn command_line(program: &Program, variant: Variant, flags: &[&str]) -> Vec<String> {
    let (variable, otherwise) = compiler(program.language);
    let chosen = std::env::var(variable).ok().filter(|c| !c.trim().is_empty());
    // The variable may carry arguments, as in `ccache gcc`.
    let mut words: Vec<String> =
        chosen.as_deref().unwrap_or(otherwise).split_whitespace().map(String::from).collect();
    if program.language == Language::Rust {
        words.extend(["--edition", "2024", "-O", "-g"].map(String::from));
        words.push(format!("--remap-path-prefix={CORPUS}=corpus"));
        if variant == Variant::Fixed {
            words.extend(["--cfg", "fixed"].map(String::from));
        }
    } else {
        let standard = if program.language == Language::C { "-std=gnu11" } else { "-std=gnu++17" };
        words.extend([standard, "-O2", "-g", "-pthread"].map(String::from));
        words.push(format!("-ffile-prefix-map={CORPUS}=corpus"));
        if variant == Variant::Fixed {
            words.push("-DFIXED=1".into());
        }
    }
    words.push(program.source.into());
    words.extend(program.flags.iter().chain(flags).map(|&flag| flag.to_owned()));
    words
}

/// The environment variable that chooses the compiler, and the default.
fn compiler(language: Language) -> (&'static str, &'static str) {
    match language {
        Language::C => ("CC", "cc"),
        Language::Cxx => ("CXX", "c++"),
        Language::Rust => ("RUSTC", "rustc"),
    }
}

fn run(language: Language, words: &[String], output: &Path) -> Result<(), Error> {
    let (program, arguments) = words.split_first().expect("starts with the compiler");
    let result = Command::new(program)
        .args(arguments)
        .arg("-o")
        .arg(output)
        .current_dir(CORPUS)
        .output()
        .map_err(|answer| Error::NoCompiler {
            compiler: program.clone(),
            variable: compiler(language).0,
            answer,
        })?;
    if result.status.success() {
        return Ok(());
    }
    Err(Error::Failed {
        command: words.join(" "),
        stderr: String::from_utf8_lossy(&result.stderr).into_owned(),
    })
}

/// FNV-1a over the command and the contents of the source and the headers.
fn fingerprint(program: &Program, words: &[String]) -> Result<u64, Error> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes.iter().chain(&[0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    words.iter().for_each(|word| add(word.as_bytes()));
    let headers =
        ["c/common.h", "pairs/pair.h", "races/race.h"].map(|header| Path::new(CORPUS).join(header));
    for path in [program.path()].into_iter().chain(headers) {
        add(&fs::read(&path).map_err(|answer| Error::Io { path, answer })?);
    }
    Ok(hash)
}

/// A name that no other builder uses, in the directory of the target.
fn temporary_name(target: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{}.{unique}.tmp", std::process::id()));
    name.into()
}
