//! The folder that a program runs in. Every run finds it as `setup` left it, under the same path.

use super::catalogue::Program;
use super::install;
use super::supervise::{self, Ended, Surroundings};
use crate::process::CommandLine;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long `setup` may take.
const SETUP: Duration = Duration::from_secs(300);

/// The folders of one program.
pub(super) struct Place {
    root: PathBuf,
    program: Program,
}

impl Place {
    /// Creates the folders and runs `setup`. They lie in the folder for temporary files, where other
    /// users can reach them: some servers give up the rights of root.
    pub(super) fn new(program: &Program) -> anyhow::Result<Place> {
        let all = std::env::temp_dir().join("refrain-programs");
        let place = Place { root: all.join(program.slug()), program: program.clone() };
        place.remove()?;
        for folder in [&place.work(), &place.traces(), &place.streams()] {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        for folder in [&all, &place.root, &place.work()] {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
        }
        for (name, text) in &program.files {
            let path = place.work().join(name);
            std::fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
            std::fs::write(&path, text)?;
        }
        let setup = place.shell("setup", &program.setup, SETUP)?;
        if setup.status != Some(0) {
            bail!("setup ended with {:?}: {}", setup.status, setup.errors.trim());
        }
        copy(&place.work(), &place.base())?;
        Ok(place)
    }

    /// The working directory of all runs.
    pub(super) fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    /// Where traces go.
    pub(super) fn traces(&self) -> PathBuf {
        self.root.join("traces")
    }

    fn base(&self) -> PathBuf {
        self.root.join("base")
    }

    fn streams(&self) -> PathBuf {
        self.root.join("streams")
    }

    /// Makes the working directory what it was after `setup`.
    pub(super) fn restore(&self) -> anyhow::Result<()> {
        std::fs::remove_dir_all(self.work())?;
        copy(&self.base(), &self.work())
    }

    /// Removes everything but the traces.
    pub(super) fn keep_traces(&self) -> anyhow::Result<()> {
        for folder in [self.base(), self.streams()] {
            std::fs::remove_dir_all(folder)?;
        }
        Ok(())
    }

    /// Removes everything.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        match std::fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.root.display()))
            }
            _ => Ok(()),
        }
    }

    /// The command, each word expanded by a shell in the working directory.
    pub(super) fn words(&self) -> anyhow::Result<CommandLine> {
        let script = format!("printf '%s\\0' {}", self.program.command.trim());
        let ended = self.shell("words", &script, SETUP)?;
        if ended.status != Some(0) {
            bail!("{:?}: {}", self.program.command, ended.errors.trim());
        }
        let words = ended.output.split(|&byte| byte == 0).map(|word| word.to_owned());
        let mut words: Vec<OsString> = words.map(OsString::from_vec).collect();
        words.pop();
        Ok(CommandLine::new(words))
    }

    /// Runs a shell script in the working directory.
    pub(super) fn shell(&self, name: &str, script: &str, limit: Duration) -> anyhow::Result<Ended> {
        let around = Surroundings { stdin: None, ..self.surroundings("setup", name) };
        supervise::run(&CommandLine::new(["sh", "-eu", "-c", script]), &around, limit)
    }

    /// What programs find around them. `cache` tells those apart that shall not know of each other what
    /// they have kept.
    pub(super) fn surroundings(&self, cache: &str, streams: &str) -> Surroundings {
        let work = self.work();
        let mut env: BTreeMap<String, String> = [
            ("HOME", work.display().to_string()),
            ("PWD", work.display().to_string()),
            ("XDG_CACHE_HOME", self.cache(cache).display().to_string()),
            ("PATH", install::path(&self.program)),
            ("LANG", "C.UTF-8".into()),
            ("TZ", "UTC".into()),
            ("USER", "root".into()),
            ("TERM", "dumb".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        for name in ["RUSTUP_HOME", "CARGO_HOME"] {
            env.extend(install::toolchains(name).map(|value| (name.to_owned(), value)));
        }
        if !self.program.npm.is_empty() {
            let modules = install::modules().display().to_string();
            env.insert("NODE_PATH".to_owned(), modules);
        }
        env.extend(self.program.env.clone());
        Surroundings {
            folder: work,
            env,
            stdin: self.program.stdin.as_ref().map(|name| self.work().join(name)),
            streams: self.streams().join(streams),
        }
    }

    /// Where programs keep what they want to find again, refrain among them.
    pub(super) fn cache(&self, name: &str) -> PathBuf {
        self.root.join(format!("cache-{name}"))
    }
}

/// Copies a folder with owners and rights.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    crate::root::must_quietly(
        std::process::Command::new("cp").arg("-a").arg("--").arg(from).arg(to),
    )
}
