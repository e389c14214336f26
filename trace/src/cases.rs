//! Case files: a trace as text and what is expected of it, in one file.
//!
//! A case begins with comments that say what it shows. What follows the line `---- expected` is what
//! the function under test returns for what precedes it. `cargo xtask bless` writes there what the
//! function returns today; the change is then to be read in `git diff`.
//!
//! For tests.

use std::fs;
use std::path::Path;

const MARK: &str = "---- expected\n";

/// Runs `test` on the input of every `*.case` file in `directory`.
///
/// # Panics
/// If there is no case, if a file cannot be read or written, or if a result is not the expected one.
/// All cases run first; each that failed is printed.
pub fn check(directory: &Path, test: impl Fn(&str) -> String) {
    let bless = std::env::var_os("BLESS").is_some();
    let entries = fs::read_dir(directory).expect("the directory of cases is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "case"));
    paths.sort();
    assert!(!paths.is_empty(), "no case in {}", directory.display());
    let mut failures = 0;
    for path in &paths {
        let text = fs::read_to_string(path).expect("a case can be read");
        let (input, expected) = text.split_once(MARK).unwrap_or((&text, ""));
        let mut actual = test(input);
        if !actual.is_empty() && !actual.ends_with('\n') {
            actual.push('\n');
        }
        if actual == expected {
            continue;
        }
        if bless {
            fs::write(path, format!("{input}{MARK}{actual}")).expect("a case can be written");
        } else {
            failures += 1;
            eprintln!("{}:\n-- expected\n{expected}-- actual\n{actual}", path.display());
        }
    }
    assert!(failures == 0, "{failures} of {} cases; `cargo xtask bless` accepts", paths.len());
}
