//! Links in Markdown that lead to files which are not there.

use std::path::Path;

/// Checks the relative links of one file; `name` is relative to `root`.
pub(super) fn check(root: &Path, name: &Path, text: &str) -> Vec<String> {
    let directory = root.join(name.parent().unwrap_or(Path::new("")));
    let mut violations = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            continue;
        }
        for target in targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:") {
                let path = directory.join(path);
                if !path.exists() {
                    violations.push(format!("{}:{number}: dead link {target}", name.display()));
                }
            }
        }
    }
    violations
}

/// What stands in the round brackets of `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_relative_links_are_reported() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "[a](src/main.rs) [b](https://x.y/z) [c](#here) [d](no/such.md#part)\n\
                    ```\n[e](nor/this)\n```\n";
        let violations = check(root, Path::new("README.md"), text);
        assert_eq!(violations, ["README.md:1: dead link no/such.md#part"]);
    }
}
