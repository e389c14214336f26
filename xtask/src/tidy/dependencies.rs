//! Which crate may depend on which: the table of ARCHITECTURE.md, checked.

use crate::root::cargo;
use anyhow::{Context, bail};
use serde_json::Value;

/// A crate's directory name, and the crates of this workspace that it may use. `cli`, `tests` and
/// `xtask` are at the top and may use all.
const MAY_USE: &[(&str, &[&str])] = &[
    ("trace", &[]),
    ("corpus", &[]),
    ("scheduler", &["trace"]),
    ("vm", &["trace", "scheduler"]),
    ("jit", &["vm", "trace"]),
    ("transform", &["trace"]),
    ("analysis", &["trace"]),
    ("session", &["trace", "scheduler", "vm", "jit", "transform", "analysis"]),
];

/// Crates of the world that a crate must not know of, directly.
const MUST_NOT_USE: &[(&str, &[&str], &str)] = &[
    ("trace", &["iced-x86", "libc", "object"], "a trace knows no CPU and no files' meaning"),
    ("scheduler", &["iced-x86", "libc"], "a scheduler knows no code"),
    (
        "vm",
        &["iced-x86", "cranelift-codegen", "cranelift-jit", "cranelift-frontend"],
        "the machine knows no engine",
    ),
    ("jit", &["refrain-scheduler"], "an engine knows no schedule"),
    (
        "session",
        &["clap", "comfy-table", "indicatif", "minijinja", "tracing-subscriber"],
        "a session parses no command line, knows no terminal and renders nothing",
    ),
];

/// Only these may use `anyhow`: everywhere else errors are enums.
const ANYHOW: &[&str] = &["cli", "tests", "xtask"];

/// The packages of the workspace, as cargo describes them.
pub(super) fn packages() -> anyhow::Result<Vec<Value>> {
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut metadata: Value = serde_json::from_slice(&output.stdout)?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => bail!("cargo metadata knows no packages"),
    }
}

/// Checks every crate of the workspace.
pub(super) fn check(packages: &[Value]) -> Vec<String> {
    let mut violations = Vec::new();
    for package in packages {
        let name = directory_name(package["name"].as_str().unwrap_or_default());
        // Tests may use what they like.
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let normal = dependencies
            .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
            .filter_map(|dependency| dependency["name"].as_str());
        violations.extend(check_one(name, &normal.collect::<Vec<_>>()));
    }
    violations
}

/// `refrain-vm` lies in `vm`, `refrain` in `cli`.
fn directory_name(package: &str) -> &str {
    if package == "refrain" { "cli" } else { package.strip_prefix("refrain-").unwrap_or(package) }
}

fn check_one(name: &str, dependencies: &[&str]) -> Vec<String> {
    let mut violations = Vec::new();
    let top = ["cli", "tests", "xtask"].contains(&name);
    let allowed = MAY_USE.iter().find(|(crate_name, _)| *crate_name == name);
    if allowed.is_none() && !top {
        violations.push(format!("{name}: no rule says what this crate may depend on"));
    }
    for dependency in dependencies {
        if let (Some((_, allowed)), Some(used)) = (allowed, dependency.strip_prefix("refrain-"))
            && !allowed.contains(&used)
        {
            violations.push(format!("{name} depends on {used}, which it must not know"));
        }
        if *dependency == "anyhow" && !ANYHOW.contains(&name) {
            violations.push(format!("{name} depends on anyhow; its errors must be an enum"));
        }
        for (crate_name, banned, why) in MUST_NOT_USE {
            if *crate_name == name && banned.contains(dependency) {
                violations.push(format!("{name} depends on {dependency}, but {why}"));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_directions_are_found() {
        assert!(check_one("vm", &["refrain-trace", "refrain-scheduler", "libc"]).is_empty());
        assert!(check_one("cli", &["refrain-jit", "anyhow"]).is_empty());
        for (name, dependency) in [
            ("vm", "refrain-jit"),
            ("vm", "iced-x86"),
            ("trace", "refrain-vm"),
            ("jit", "refrain-scheduler"),
            ("transform", "anyhow"),
            ("session", "anyhow"),
            ("session", "clap"),
            ("session", "refrain-corpus"),
            ("newcomer", "serde"),
        ] {
            assert!(!check_one(name, &[dependency]).is_empty(), "{name} -> {dependency}");
        }
    }
}
