//! Dependencies that a manifest lists and nothing uses.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Checks the workspace's list and every package; `sources` are the files of the checkout, by their
/// names relative to `root`.
pub(super) fn check(
    root: &Path,
    manifest: &str,
    packages: &[Value],
    sources: &[(PathBuf, String)],
) -> Vec<String> {
    let mut violations = Vec::new();
    let mut wanted = BTreeSet::new();
    for package in packages {
        let directory = package["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
        let Some(directory) = directory.and_then(|path| path.strip_prefix(root).ok()) else {
            continue;
        };
        let own: Vec<_> = sources.iter().filter(|(name, _)| name.starts_with(directory)).collect();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["name"].as_str().unwrap_or_default();
            wanted.insert(name);
            let code = library(name, packages);
            // Tests may use what the library uses, but not the other way round.
            let for_tests = dependency["kind"].as_str() == Some("dev");
            let is_named = own.iter().any(|(file, text)| {
                for_tests && examples_import(text, &code)
                    || (for_tests || is_product(file, directory)) && names(text, &code)
            });
            if !is_named {
                let directory = directory.display();
                violations.push(format!("{directory}/Cargo.toml: nothing uses {name}"));
            }
        }
    }
    let listed = listed(manifest).filter(|name| !wanted.contains(name));
    violations.extend(listed.map(|name| format!("Cargo.toml: no crate of ours wants {name}")));
    violations
}

/// Whether a file is compiled into what the package provides.
fn is_product(file: &Path, package: &Path) -> bool {
    let inside = file.strip_prefix(package).unwrap_or(file);
    inside.starts_with("src") || inside == Path::new("build.rs")
}

/// How Rust code names a package.
fn library(package: &str, packages: &[Value]) -> String {
    let ours = packages.iter().find(|other| other["name"].as_str() == Some(package));
    let targets = ours.and_then(|ours| ours["targets"].as_array());
    let is_library = |target: &&Value| target["kind"][0].as_str() == Some("lib");
    let library = targets.and_then(|targets| targets.iter().find(is_library));
    let name = library.and_then(|library| library["name"].as_str()).unwrap_or(package);
    name.replace('-', "_")
}

/// Whether code, comments apart, has `name` as a word that a path could begin with.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).any(|line| {
        line.match_indices(name).any(|(at, _)| {
            !line[..at].ends_with(is_word) && !line[at + name.len()..].starts_with(is_word)
        })
    })
}

/// Whether an example in a documentation comment imports something of `name`.
fn examples_import(text: &str, name: &str) -> bool {
    let imported = text.lines().filter_map(|line| {
        let comment = line.trim_start().strip_prefix("//")?;
        comment.strip_prefix(['!', '/'])?.trim_start().strip_prefix("use ")
    });
    imported.filter_map(|path| path.strip_prefix(name)).any(|rest| rest.starts_with("::"))
}

/// What `[workspace.dependencies]` lists.
fn listed(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_nobody_names_is_found() {
        let dependency = |name, kind| json!({ "name": name, "kind": kind });
        let package = json!({
            "name": "a",
            "manifest_path": "/w/a/Cargo.toml",
            "dependencies": [
                dependency("used-here", Value::Null),
                dependency("tests-use", Value::Null),
                dependency("tests-use", "dev".into()),
                dependency("examples-use", "dev".into()),
                dependency("examples-mention", "dev".into()),
                dependency("comments-name", Value::Null),
                dependency("b", "dev".into()),
            ],
        });
        let b = json!({ "name": "b", "targets": [{ "kind": ["lib"], "name": "b_lib" }] });
        let sources = [
            ("a/src/lib.rs", "//! use examples_use::X;\nuse used_here::X; // comments_name::Y"),
            ("a/src/a.rs", "//! What examples_mention::X is."),
            ("a/tests/t.rs", "tests_use::f(); b_lib::g();"),
            ("b/src/lib.rs", "use comments_name::Y;"),
        ]
        .map(|(name, text)| (PathBuf::from(name), text.to_owned()));
        let manifest = "[workspace.dependencies]\nused-here = \"1\"\nnobody = \"2\"\n\n[profile]\n";
        let found = check(Path::new("/w"), manifest, &[package, b], &sources);
        let expected = [
            "a/Cargo.toml: nothing uses tests-use",
            "a/Cargo.toml: nothing uses examples-mention",
            "a/Cargo.toml: nothing uses comments-name",
            "Cargo.toml: no crate of ours wants nobody",
        ];
        assert_eq!(found, expected);
    }
}
