//! The list of programs: TOML files, one for each group.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// A file of the list.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Group {
    /// Where the group stands on the page.
    position: u32,
    program: Vec<Program>,
}

/// A program in one mode.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Program {
    /// Name and mode, as the page has them.
    pub(super) name: String,
    /// Its group: the name of the file.
    #[serde(skip)]
    pub(super) group: String,
    /// Packages of Debian.
    #[serde(default)]
    pub(super) apt: Vec<String>,
    /// Packages of PyPI.
    #[serde(default)]
    pub(super) pip: Vec<String>,
    /// Packages of npm.
    #[serde(default)]
    pub(super) npm: Vec<String>,
    /// Variables of the environment.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// Files that are there before `setup`.
    #[serde(default)]
    pub(super) files: BTreeMap<String, String>,
    /// A shell script that prepares the folder. Its result is copied for each run.
    #[serde(default)]
    pub(super) setup: String,
    /// The program and its arguments. A shell expands them, but does not run the program.
    pub(super) command: String,
    /// A file that is the standard input; otherwise there is none.
    pub(super) stdin: Option<String>,
    /// What is done to a program that would not end by itself.
    pub(super) server: Option<Server>,
    /// The exit status, as a shell shows it.
    #[serde(default)]
    pub(super) status: i32,
    /// Native runs write different output: only status and ends are compared.
    #[serde(default)]
    pub(super) varies: bool,
    /// Files that the program writes, and that are to be equal to those of the native run.
    #[serde(default)]
    pub(super) writes: Vec<String>,
    /// Options of `refrain record`.
    #[serde(default)]
    pub(super) record: Vec<String>,
    /// The page's remark.
    #[serde(default)]
    pub(super) remark: String,
}

/// How a server is used. Its own output is not compared; that of `load` is.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Server {
    /// A shell script that succeeds once the server answers.
    pub(super) ready: String,
    /// A shell script that uses it.
    pub(super) load: String,
    /// The signal that ends the server; none if `load` does.
    pub(super) signal: Option<String>,
}

/// All programs, group by group.
pub(super) fn read() -> anyhow::Result<Vec<Program>> {
    let mut groups = Vec::new();
    for entry in std::fs::read_dir(super::lists())? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        let text = std::fs::read_to_string(&path)?;
        groups.push(parse(name, &text).with_context(|| path.display().to_string())?);
    }
    groups.sort_by_key(|group| group.position);
    let all: Vec<Program> = groups.into_iter().flat_map(|group| group.program).collect();
    let mut seen = BTreeSet::new();
    if let Some(twice) = all.iter().find(|program| !seen.insert(program.slug())) {
        bail!("two programs have the name {:?}", twice.name);
    }
    Ok(all)
}

fn parse(name: &str, text: &str) -> anyhow::Result<Group> {
    let mut group: Group = toml::from_str(text)?;
    group.program.iter_mut().for_each(|program| program.group = name.to_owned());
    Ok(group)
}

impl Program {
    /// The name, as a file may have it.
    pub(super) fn slug(&self) -> String {
        let keep = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let name: String = self.name.to_lowercase().chars().map(keep).collect();
        name.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_complete() {
        let all = read().expect("the list can be read");
        assert!(all.len() >= 120, "{} programs", all.len());
        for program in &all {
            assert!(!program.command.trim().is_empty(), "{}", program.name);
        }
    }

    #[test]
    fn names_are_names_of_files() {
        let text = "position = 1\n[[program]]\nname = 'sort, -j2 (a/b)'\ncommand = 'sort'\n";
        let group = parse("tools", text).expect("a group");
        assert_eq!(group.program[0].slug(), "sort-j2-a-b");
        assert_eq!(group.program[0].group, "tools");
    }
}
