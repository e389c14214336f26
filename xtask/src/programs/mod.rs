//! Programs that people have: each runs natively, is recorded, and is replayed on every engine, with the
//! default order of shared memory and with the order of every access. The list is data
//! (`xtask/programs/*.toml`); results are kept, so docs/programs.md can be written from several runs.
//!
//! # Reading order
//! `catalogue` (the list), `install` (what programs need), `place` (the folder that a program runs in),
//! `supervise` (running with limits, and leaving nothing behind), `service` (servers and their load),
//! `judge` (recordings, replays, verdicts), `results` (what is kept), `page`, `columns`, `carried` (rows of
//! the page that this checkout has no result of).

mod carried;
mod catalogue;
mod columns;
mod install;
mod judge;
mod page;
mod place;
mod replays;
mod results;
mod service;
mod supervise;

use crate::root;
use anyhow::{Context, bail};
use carried::Carried;
use catalogue::Program;
use judge::Judge;
use results::{Results, Row};
use std::path::PathBuf;

/// What to run.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Install what is missing: packages of Debian, PyPI and npm
    #[arg(long)]
    install: bool,
    /// Run nothing, and write docs/programs.md from the results that are kept
    #[arg(long)]
    page: bool,
    /// Run nothing, and list the programs with their kept results
    #[arg(long, conflicts_with = "page")]
    list: bool,
    /// Only programs of these groups
    #[arg(long, value_delimiter = ',')]
    group: Vec<String>,
    /// Only programs that have no result, neither kept nor on the page
    #[arg(long)]
    new: bool,
    /// Only programs whose result has another verdict than exact
    #[arg(long, conflicts_with = "new")]
    failed: bool,
    /// Orders of shared memory
    #[arg(long, value_delimiter = ',', default_values = results::ORDERS)]
    order: Vec<String>,
    /// Replays of each recording on each engine
    #[arg(long, default_value_t = 2)]
    replays: u32,
    /// Seconds that a native run may take; recordings and replays get a multiple
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Only programs whose names contain one of these
    names: Vec<String>,
}

/// Runs what is asked for, and writes the page if that was everything.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let all = catalogue::read()?;
    let kept = Results::open()?;
    let before = Carried::read();
    let mut wanted = Vec::new();
    for program in &all {
        let row = kept.get(program)?;
        let exact = row.as_ref().map(Row::is_exact).or_else(|| before.is_exact(program));
        if options.wants(program, exact) {
            wanted.push(program);
        }
    }
    if options.list {
        for program in &wanted {
            let row = kept.get(program)?;
            println!("{}", row.map_or_else(|| format!("{}: not run", program.name), |r| r.line()));
        }
        return Ok(());
    }
    if options.page {
        return page::write(&all, &kept);
    }
    if wanted.is_empty() {
        bail!("no program has such a name or group");
    }
    if options.install
        && let Err(error) = install::install(&wanted)
    {
        eprintln!("packages of several programs may conflict, so each gets its own: {error:#}");
    }
    let missing = install::missing(&wanted)?;
    if !missing.is_empty() {
        eprintln!("not installed (--install installs it): {}", missing.join(" "));
    }
    let judge = Judge::new(root::release_refrain()?, options)?;
    for (at, program) in wanted.iter().enumerate() {
        eprintln!("[{}/{}] {}", at + 1, wanted.len(), program.name);
        // Another program's packages may have taken the place of this one's.
        if options.install
            && let Err(error) = install::install(&[program])
        {
            eprintln!("not installed: {error:#}");
        }
        let old = kept.get(program)?;
        let row = judge.judge(program, old).with_context(|| format!("judging {}", program.name))?;
        println!("{}", row.line());
        kept.keep(program, &row)?;
    }
    if wanted.len() == all.len() { page::write(&all, &kept) } else { Ok(()) }
}

impl Options {
    /// Whether to run a program, of which is known whether it was exact, if it was run before.
    fn wants(&self, program: &Program, exact: Option<bool>) -> bool {
        let among = |list: &[String], is: &dyn Fn(&str) -> bool| {
            list.is_empty() || list.iter().any(|entry| is(entry))
        };
        among(&self.group, &|group| group == program.group)
            && among(&self.names, &|name| program.name.contains(name))
            && !(self.new && exact.is_some())
            && !(self.failed && exact != Some(false))
    }
}

/// Where the list of programs is.
fn lists() -> PathBuf {
    root::directory().join("xtask/programs")
}
