//! PerfPlay's tables and figures over our programs: recordings of the corpus and of compressors, some
//! with several numbers of threads and several inputs, through `refrain perfplay`.

use crate::process::{self, CommandLine};
use crate::{root, text_data, workload};
use anyhow::{Context, bail};
use refrain_corpus::{PAIRS, Variant, compile, find};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Programs of the corpus with the paper's cases, which run with their own arguments.
const CASES: [&str; 8] =
    ["fig03", "fig04", "fig17", "fig18", "case02", "case09", "benign", "two_atomics"];
/// Pairs whose slow variant runs with other numbers of threads and rounds, too: no, few and many
/// ULCPs, as the paper's canneal, bodytrack and fluidanimate have them.
const SERIES: [&str; 3] = ["needed-1us", "null-1us", "read-1us"];
const THREADS: [&str; 3] = ["2", "4", "8"];
/// What rounds are divided by.
const PARTS: [u32; 3] = [4, 2, 1];
/// Bytes of text for the compressors, and their numbers of threads.
const TEXTS: [u64; 2] = [1 << 20, 4 << 20];
const WORKERS: [&str; 3] = ["-p2", "-p4", "-p8"];

/// How to draw.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Print the tables, and leave docs/perfplay.md as it is
    #[arg(long)]
    dry: bool,
    /// Keep the page with the figures here
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Records, draws and writes the page.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let scratch = tempfile::tempdir()?;
    let mut traces: Vec<OsString> = Vec::new();
    for (number, line) in lines(scratch.path())?.iter().enumerate() {
        eprintln!("{}", line.shown());
        let trace = scratch.path().join(format!("{number}.refrain"));
        let recorded = process::run(&line.recorded(&refrain, &trace), scratch.path())?;
        if recorded.status != 0 {
            bail!("{}: {}", line.shown(), recorded.errors.trim());
        }
        traces.push(trace.into());
    }
    let mut line = CommandLine::new([refrain.as_os_str(), "perfplay".as_ref()]);
    if let Some(path) = &options.html {
        line.words.extend(["--html".into(), path.clone().into()]);
    }
    line.words.extend(traces);
    let drawn = process::run(&line, scratch.path())?;
    if drawn.status != 0 {
        bail!("{}", drawn.errors.trim());
    }
    let text = String::from_utf8(drawn.output).context("the tables are no text")?;
    let page = page(&text);
    println!("{page}");
    if !options.dry {
        std::fs::write(root::directory().join("docs/perfplay.md"), page)?;
    }
    Ok(())
}

/// What is recorded. Programs are copied to names that a reader can tell apart.
fn lines(scratch: &Path) -> anyhow::Result<Vec<CommandLine>> {
    let cache = root::cache()?;
    let named = |name: &str, from: PathBuf| -> anyhow::Result<PathBuf> {
        let to = scratch.join(name);
        std::fs::copy(from, &to).with_context(|| format!("cannot copy {name}"))?;
        Ok(to)
    };
    let line = |program: &Path, arguments: &[&str]| {
        let mut line = CommandLine::new([program]);
        line.words.extend(arguments.iter().map(OsString::from));
        line
    };
    let mut lines = Vec::new();
    for case in CASES {
        let program = find(case).with_context(|| format!("the corpus has no {case}"))?;
        let from = compile(program, program.variants[0], &cache)?;
        lines.push(line(&named(case, from)?, program.args));
    }
    for series in SERIES {
        let pair = PAIRS.iter().find(|pair| pair.name == series);
        let pair = pair.with_context(|| format!("the corpus has no pair {series}"))?;
        let program = named(series, compile(&pair.program, Variant::Ulcp, &cache)?)?;
        let [rounds, two, inside, outside] = pair.args;
        let most: u32 = rounds.parse().context("rounds are a number")?;
        for part in PARTS {
            let rounds = (most / part).to_string();
            lines.push(line(&program, &[rounds.as_str(), two, inside, outside]));
        }
        for threads in THREADS.iter().filter(|threads| **threads != two) {
            let rounds = (most / PARTS[0]).to_string();
            lines.push(line(&program, &[rounds.as_str(), threads, inside, outside]));
        }
    }
    let (tools, missing) = workload::tools(&cache, TEXTS[0])?;
    for name in missing {
        eprintln!("SKIPPED: {name} is not installed");
    }
    for tool in &tools {
        lines.push(tool.line.clone());
    }
    // The paper's BUG 2 is pbzip2's.
    if let Some(pbzip2) = process::tool("pbzip2") {
        let text = |bytes| text_data::file(&cache, bytes);
        for workers in &WORKERS[1..] {
            let mut more = line(&pbzip2, &[workers, "-k", "-c"]);
            more.words.push(text(TEXTS[0])?.into());
            lines.push(more);
        }
        let mut longer = line(&pbzip2, &[WORKERS[0], "-k", "-c"]);
        longer.words.push(text(TEXTS[1])?.into());
        lines.push(longer);
    }
    Ok(lines)
}

fn page(text: &str) -> String {
    format!(
        "# PerfPlay's tables and figures\n\nWritten by `cargo xtask perfplay` on {}: `refrain \
         perfplay` of one recording of each program. Times are the virtual clock's, on as many cores \
         as the machine has. What differs from the paper: T_real is the modelled time of the original, since the \
         recording's own has the recorder's work in it; locks are granted as threads come; T_rw is by how \
         much less threads wait without ULCPs, less T_pd, since the ΔT of pairs overlap; Figure 19 is of \
         the group that costs most in each program. `--html FILE` draws the figures as bars.\n\n\
         ```text\n{text}```\n",
        root::machine()
    )
}
