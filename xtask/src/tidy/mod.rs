//! Rules of the house that neither the compiler nor clippy checks. All violations are printed,
//! not only the first.

mod circles;
mod dependencies;
mod links;
mod linux;
mod sources;
mod unused;

use crate::root;
use anyhow::bail;
use std::path::{Path, PathBuf};

/// Checks everything.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = root::directory();
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let packages = dependencies::packages()?;
    let mut violations = dependencies::check(&packages);
    let mut code = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file);
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let text = std::fs::read_to_string(file)?;
                violations.extend(sources::check(name, &text));
                code.push((name.to_owned(), text));
            }
            Some("md") => {
                violations.extend(links::check(&root, name, &std::fs::read_to_string(file)?))
            }
            _ => {}
        }
    }
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?;
    violations.extend(unused::check(&root, &manifest, &packages, &code));
    violations.extend(circles::check(&code));
    violations.extend(linux::check(&code));
    for violation in &violations {
        println!("{violation}");
    }
    if !violations.is_empty() {
        bail!("{} violations", violations.len());
    }
    println!("tidy: {} files", files.len());
    Ok(())
}

/// All files of the checkout, build products and hidden directories left out.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // `artifacts` and `corpus` of cargo-fuzz lie below `fuzz`, which has its own ignore file.
        let skipped = name.starts_with('.') || name == "target";
        let kind = entry.file_type()?;
        if kind.is_dir() && !skipped {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Whether an attribute says that an item is compiled for tests only.
fn is_for_tests(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
}
