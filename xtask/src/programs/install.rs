//! What programs need: packages of Debian, of PyPI in an environment of their own, and of npm.

use super::catalogue::Program;
use crate::root;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// Installs what is missing.
pub(super) fn install(programs: &[&Program]) -> anyhow::Result<()> {
    let debian = missing_debian(&names(programs, |program| &program.apt))?;
    if !debian.is_empty() {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "--yes", "--no-install-recommends"]).args(&debian);
        root::must(apt.env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    let python = missing_python(&names(programs, |program| &program.pip));
    if !python.is_empty() {
        if !environment().join("bin/pip").is_file() {
            let mut create = Command::new("/usr/bin/python3");
            root::must(create.args(["-m", "venv"]).arg(environment()))?;
        }
        let mut pip = Command::new(environment().join("bin/pip"));
        root::must(pip.args(["install", "--quiet"]).args(&python))?;
    }
    let node = missing_node(&names(programs, |program| &program.npm));
    if !node.is_empty() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-save", "--prefix"]).arg(folder().join("npm"));
        // Without all of its packages npm would remove those of earlier runs.
        root::must(npm.args(names(programs, |program| &program.npm)))?;
    }
    Ok(())
}

/// What is missing, as the registries call it.
pub(super) fn missing(programs: &[&Program]) -> anyhow::Result<Vec<String>> {
    let mut missing = missing_debian(&names(programs, |program| &program.apt))?;
    missing.extend(missing_python(&names(programs, |program| &program.pip)));
    missing.extend(missing_node(&names(programs, |program| &program.npm)));
    Ok(missing)
}

fn names(programs: &[&Program], of: impl Fn(&Program) -> &[String]) -> BTreeSet<String> {
    programs.iter().flat_map(|program| of(program)).cloned().collect()
}

fn missing_debian(names: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    // It fails if it does not know one of them, and says of the others what is asked for.
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${db:Status-Status} ${Package}\n"]).args(names);
    let output = String::from_utf8_lossy(&query.output()?.stdout).into_owned();
    let there: BTreeSet<&str> =
        output.lines().filter_map(|line| line.strip_prefix("installed ")).collect();
    Ok(names.iter().filter(|name| !there.contains(name.as_str())).cloned().collect())
}

/// A package of PyPI is there if its metadata is.
fn missing_python(names: &BTreeSet<String>) -> Vec<String> {
    let plain = |name: &str| name.to_lowercase().replace(['-', '.'], "_");
    let libraries = std::fs::read_dir(environment().join("lib")).into_iter().flatten().flatten();
    let packages =
        libraries.filter_map(|it| std::fs::read_dir(it.path().join("site-packages")).ok());
    let there: BTreeSet<String> = packages
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (package, _) = name.strip_suffix(".dist-info")?.rsplit_once('-')?;
            Some(plain(package))
        })
        .collect();
    names.iter().filter(|name| !there.contains(&plain(name))).cloned().collect()
}

fn missing_node(names: &BTreeSet<String>) -> Vec<String> {
    names.iter().filter(|name| !modules().join(name).is_dir()).cloned().collect()
}

/// Where installed packages and results are.
pub(super) fn folder() -> PathBuf {
    root::directory().join("target/xtask/programs")
}

fn environment() -> PathBuf {
    folder().join("venv")
}

/// Where packages of npm are.
pub(super) fn modules() -> PathBuf {
    folder().join("npm/node_modules")
}

/// Where a program finds others: Debian's, after those of the registries that it needs.
pub(super) fn path(program: &Program) -> String {
    let mut folders = Vec::new();
    if !program.pip.is_empty() {
        folders.push(environment().join("bin"));
    }
    if !program.npm.is_empty() {
        folders.push(modules().join(".bin"));
    }
    let mut path: Vec<String> = folders.iter().map(|it| it.display().to_string()).collect();
    path.extend(["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/games"].map(str::to_owned));
    path.join(":")
}

/// Where rustup keeps what programs through it need: they have another home.
pub(super) fn toolchains(variable: &str) -> Option<String> {
    let folder = match variable {
        "RUSTUP_HOME" => ".rustup",
        _ => ".cargo",
    };
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(folder));
    let path = std::env::var_os(variable).map(PathBuf::from).or_else(home)?;
    path.is_dir().then(|| path.display().to_string())
}
