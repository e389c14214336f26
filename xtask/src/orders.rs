//! What the orders of shared memory cost: `sync`, `stride`, and those that exist to be compared with
//! them (`leap`, `global`), as STRIDE's Tables II and III and its figures of scalability.

use crate::process::{self, CommandLine, median, same};
use crate::{root, table, workload};
use anyhow::{Context, bail};
use refrain_corpus::Variant;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ORDERS: [&str; 4] = ["sync", "stride", "leap", "global"];
/// Bytes that the compressors get.
const TEXT: u64 = 16 << 20;
/// Programs of the corpus whose second argument is the number of threads, and how much work they get.
const KERNELS: [(&str, &str); 7] = [
    ("locks", "1600000"),
    ("anneal", "800000"),
    ("grid", "800000"),
    ("tree", "80000"),
    ("blocks", "3200000"),
    ("tasks", "160000"),
    ("counts", "1600000"),
];
/// Those of them that are run with several numbers of threads.
const SCALED: [&str; 4] = ["locks", "grid", "tree", "counts"];
const THREADS: [&str; 4] = ["1", "2", "4", "8"];
/// A run may take so many times as long as natively, and a second; what takes longer is measured once.
const PATIENCE: u32 = 20;

/// How to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Runs of each kind; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Print the tables, and leave docs/orders.md as it is
    #[arg(long)]
    dry: bool,
    /// Only programs whose names contain one of these (implies --dry)
    names: Vec<String>,
}

/// Measures and writes the page.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let bench = Bench {
        runs: options.runs.max(1),
        refrain,
        scratch: tempfile::tempdir()?,
        cache: root::cache()?,
    };
    let wants = |name: &str| {
        let names = &options.names;
        names.is_empty() || names.iter().any(|wanted| name.contains(wanted.as_str()))
    };
    let (tools, missing) = workload::tools(&bench.cache, TEXT)?;
    for name in missing {
        eprintln!("SKIPPED: {name} is not installed");
    }
    let mut rows = Vec::new();
    for tool in tools.into_iter().filter(|tool| wants(&tool.name)) {
        rows.push(bench.row(&tool.name, &tool.line)?);
    }
    for (name, size) in KERNELS.into_iter().filter(|(name, _)| wants(name)) {
        rows.push(bench.row(name, &bench.kernel(name, &[size, "2"])?)?);
    }
    let mut scaling = Vec::new();
    let scales = |(name, _): &(&str, &str)| wants(name) && SCALED.contains(name);
    for (name, size) in KERNELS.into_iter().filter(scales) {
        for threads in THREADS {
            let line = bench.kernel(name, &[size, threads])?;
            scaling.push((name, threads, bench.row(&format!("{name}, {threads} threads"), &line)?));
        }
    }
    let page = page(&rows, &scaling, bench.runs);
    println!("{page}");
    if !options.dry && options.names.is_empty() {
        std::fs::write(root::directory().join("docs/orders.md"), page)?;
    }
    Ok(())
}

/// A program under all orders.
struct Row {
    name: String,
    native: Duration,
    orders: Vec<Cost>,
    /// Values that were compared for each load to find its store, with `sync`.
    comparisons: f64,
}

struct Cost {
    wall: Duration,
    events: u64,
    /// Of the events alone, compressed.
    bytes: f64,
}

struct Bench {
    runs: usize,
    refrain: PathBuf,
    scratch: tempfile::TempDir,
    cache: PathBuf,
}

impl Bench {
    fn kernel(&self, name: &str, arguments: &[&str]) -> anyhow::Result<CommandLine> {
        let program = refrain_corpus::find(name).context("the corpus has no such program")?;
        let variant = program.variants.first().copied().unwrap_or(Variant::Plain);
        let mut line = CommandLine::new([refrain_corpus::compile(program, variant, &self.cache)?]);
        line.words.extend(arguments.iter().map(Into::into));
        Ok(line)
    }

    fn row(&self, name: &str, line: &CommandLine) -> anyhow::Result<Row> {
        eprintln!("{name}");
        let trace = |order: &str| self.scratch.path().join(format!("{order}.refrain"));
        let mut native = Vec::new();
        let mut walls = vec![Vec::new(); ORDERS.len()];
        for number in 0..self.runs {
            let plain = process::run(line, self.scratch.path())?;
            native.push(plain.wall);
            for (order, walls) in ORDERS.iter().zip(&mut walls) {
                // One run of what takes very long says enough.
                let is_slow =
                    |wall: &Duration| *wall > plain.wall * PATIENCE + Duration::from_secs(1);
                if number > 0 && walls.iter().all(is_slow) {
                    continue;
                }
                let recorded = line.recorded_in(order, &self.refrain, &trace(order));
                let run = process::run(&recorded, self.scratch.path())?;
                same(&plain, &run, order)?;
                walls.push(run.wall);
            }
        }
        let mut orders = Vec::new();
        for (order, walls) in ORDERS.iter().zip(&walls) {
            let info = self.report("info", &trace(order))?;
            let number = |field: &str| info[field].as_f64().with_context(|| format!("no {field}"));
            orders.push(Cost {
                wall: median(walls),
                events: number("events")? as u64,
                bytes: number("event_bytes")?,
            });
        }
        let linkages = self.report("linkages", &trace(ORDERS[0]))?;
        let number = |field: &str| linkages[field].as_f64().unwrap_or(0.0);
        Ok(Row {
            name: name.to_owned(),
            native: median(&native),
            orders,
            comparisons: number("comparisons") / number("loads").max(1.0),
        })
    }

    fn report(&self, command: &str, trace: &Path) -> anyhow::Result<Value> {
        let line = CommandLine::new([
            self.refrain.as_os_str(),
            command.as_ref(),
            "--json".as_ref(),
            trace.as_os_str(),
        ]);
        let run = process::run(&line, self.scratch.path())?;
        if run.status != 0 {
            bail!("{}: {}", line.shown(), run.errors.trim());
        }
        serde_json::from_slice(&run.output).context("the report is no JSON")
    }
}

impl Row {
    fn factor(&self, order: usize) -> f64 {
        self.orders[order].wall.as_secs_f64() / self.native.as_secs_f64()
    }
}

fn page(rows: &[Row], scaling: &[(&str, &str, Row)], runs: usize) -> String {
    let mut page = format!(
        "# Orders of shared memory\n\nWritten by `cargo xtask orders` on {}. Wall-clock times, medians \
         of {runs} alternating runs (one, where a recording takes more than {PATIENCE} times as long \
         as the native run and a second), as multiples of the native run beside them; starting and \
         ending the recorder included.\n\n`sync` is the default; `stride` orders every access, by \
         lines that threads own, and takes the place of the paper's STRIDE. `leap` gives each access to \
         a line that a second thread has come to a place in the line's order, as LEAP does to each \
         access of a shared variable; `global` gives all of these a place in one order. Both know \
         which lines are shared by what happened, where LEAP has an analysis of the source.\n\n\
         ## Time (STRIDE, Table II)\n\n*Comparisons*: values that were compared for each watched \
         load of `sync` to find the store that it read (`refrain linkages`).\n\n",
        root::machine()
    );
    let header = ["program", "native", "sync", "stride", "leap", "global", "comparisons"];
    let time = |row: &Row| {
        let mut cells = vec![row.name.clone(), format!("{:.0} ms", row.native.as_secs_f64() * 1e3)];
        cells.extend((0..ORDERS.len()).map(|order| format!("{:.2}", row.factor(order))));
        cells.push(format!("{:.2}", row.comparisons));
        cells
    };
    page += &table::render(&header, &rows.iter().map(time).collect::<Vec<_>>());
    page += "\n## Size of the log (STRIDE, Table III)\n\nEvents, and the bytes that they take in the \
             file, compressed.\n\n";
    let mut header = vec!["program".to_owned()];
    for order in ORDERS {
        header.extend([format!("{order}, events"), "KiB".to_owned()]);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let size = |row: &Row| {
        let costs = row.orders.iter();
        let cells =
            costs.flat_map(|it| [it.events.to_string(), format!("{:.0}", it.bytes / 1024.0)]);
        [row.name.clone()].into_iter().chain(cells).collect()
    };
    page += &table::render(&header, &rows.iter().map(size).collect::<Vec<_>>());
    page += &totals(rows);
    page += "\n## Threads (STRIDE, the figures of scalability)\n\nThe same work by more threads, on the \
             machine's cores.\n\n";
    let header = ["program", "threads", "native", "sync", "stride", "leap", "global"];
    let thread = |(name, threads, row): &(&str, &str, Row)| {
        let mut cells = vec![(*name).to_owned(), (*threads).to_owned()];
        cells.push(format!("{:.0} ms", row.native.as_secs_f64() * 1e3));
        cells.extend((0..ORDERS.len()).map(|order| format!("{:.2}", row.factor(order))));
        cells
    };
    page += &table::render(&header, &scaling.iter().map(thread).collect::<Vec<_>>());
    page
}

/// How `stride` stands to `leap` in the middle.
fn totals(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let middle = |of: &dyn Fn(&Row) -> f64| {
        let mut all: Vec<f64> = rows.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let [_, stride, leap, _] = [0, 1, 2, 3];
    let overhead = |row: &Row, order: usize| (row.factor(order) - 1.0).max(0.01);
    format!(
        "\nMedian over the programs: `stride` takes {:.2} times as long as natively; `leap` costs {:.2} \
         times what `stride` does, start included, and its log is {:.2} times as large (the paper: 2.5 \
         and 3.9).\n",
        middle(&|row| row.factor(stride)),
        middle(&|row| overhead(row, leap) / overhead(row, stride)),
        middle(&|row| row.orders[leap].bytes / row.orders[stride].bytes.max(1.0)),
    )
}
