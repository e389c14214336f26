//! The programs that `exact`, `bench` and `soak` run.

use crate::process::{CommandLine, tool};
use crate::text_data;
use refrain_corpus::{Group, PROGRAMS, Variant};
use std::path::Path;

/// A program with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// How reports call it.
    pub(crate) name: String,
    /// What to run.
    pub(crate) line: CommandLine,
    /// Whether it races outside all synchronization, on purpose.
    pub(crate) racy: bool,
}

/// How much work a corpus program gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    /// None: it is left out.
    None,
    /// Its arguments for slow tools.
    Small,
    /// Its own arguments.
    Full,
}

/// The corpus programs in every variant, with as much work as `size` says of their group.
pub(crate) fn corpus(cache: &Path, size: impl Fn(Group) -> Size) -> anyhow::Result<Vec<Workload>> {
    let mut workloads = Vec::new();
    for program in PROGRAMS {
        let arguments = match size(program.group) {
            Size::None => continue,
            Size::Small => program.small,
            Size::Full => program.args,
        };
        for &variant in program.variants {
            let executable = refrain_corpus::compile(program, variant, cache)?;
            let line = CommandLine::new([executable.as_os_str()]);
            let name = match variant {
                Variant::Plain => program.name.to_owned(),
                _ => format!("{}-{}", program.name, variant.name()),
            };
            let racy = matches!(program.group, Group::Racy | Group::Litmus);
            workloads.push(Workload { name, line: with(line, arguments), racy });
        }
    }
    Ok(workloads)
}

fn with(mut line: CommandLine, arguments: &[&str]) -> CommandLine {
    line.words.extend(arguments.iter().map(Into::into));
    line
}

/// The tools of the acceptance list that are installed, on `bytes` bytes of text; and the names
/// of those that are not.
pub(crate) fn tools(cache: &Path, bytes: u64) -> anyhow::Result<(Vec<Workload>, Vec<String>)> {
    let data = text_data::file(cache, bytes)?;
    let list: [(&str, &[&str]); 6] = [
        ("pbzip2", &["-p2", "-k", "-c"]),
        ("pigz", &["-p4", "-k", "-c"]),
        ("xz", &["-T2", "-1", "-k", "-c"]),
        ("zstd", &["-T2", "-q", "-c"]),
        ("sort", &["--parallel=2"]),
        ("sha256sum", &[]),
    ];
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, arguments) in list {
        let Some(executable) = tool(name) else {
            missing.push(name.to_owned());
            continue;
        };
        let mut line = with(CommandLine::new([executable.as_os_str()]), arguments);
        line.words.push(data.clone().into());
        let name = [&[name], arguments].concat().join(" ");
        found.push(Workload { name, line, racy: false });
    }
    Ok((found, missing))
}
