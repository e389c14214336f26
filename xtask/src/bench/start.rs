//! Short programs: what starting a recording and a replay costs, and how large their traces are.

use super::Options;
use crate::process::{self, CommandLine, median, same, tool};
use crate::table;
use anyhow::bail;
use std::path::Path;
use std::time::Duration;

/// Programs that are over soon; those that are not installed are left out.
const PROGRAMS: [&[&str]; 7] = [
    &["true"],
    &["python3", "-c", "pass"],
    &["ld.lld", "--version"],
    &["gdb", "--version"],
    &["node", "-e", "0"],
    &["R", "--version"],
    &["octave-cli", "--version"],
];
/// What a recording may take beyond the limit that is a factor.
const RECORD_BEYOND: Duration = Duration::from_millis(15);
/// What a replay may.
const REPLAY_BEYOND: Duration = Duration::from_millis(300);

/// Times of one program, and the size of its trace.
pub(super) struct Start {
    name: String,
    native: Duration,
    record: Duration,
    replay: Duration,
    bytes: u64,
    /// How much slower than native it may be, beside what is allowed to every program.
    factor: u32,
}

/// Alternates native runs, recordings and replays.
pub(super) fn measure(
    options: &Options,
    refrain: &Path,
    scratch: &Path,
) -> anyhow::Result<Vec<Start>> {
    let mut rows = Vec::new();
    let trace = scratch.join("start.refrain");
    for words in PROGRAMS {
        // Debian's, where there are others: a script in front of a program is another program.
        let system = Path::new("/usr/bin").join(words[0]);
        let Some(program) = Some(system).filter(|path| path.is_file()).or_else(|| tool(words[0]))
        else {
            eprintln!("{} is not installed", words[0]);
            continue;
        };
        let name = words.join(" ");
        eprintln!("start {name}");
        let mut line = CommandLine::new([program]);
        line.words.extend(words[1..].iter().map(Into::into));
        let record = line.recorded(refrain, &trace);
        let replay = CommandLine::new([refrain.as_os_str(), "replay".as_ref(), trace.as_os_str()]);
        let (mut native, mut recorded, mut replayed) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.runs {
            let plain = process::run(&line, scratch)?;
            let run = process::run(&record, scratch)?;
            same(&plain, &run, "recording")?;
            native.push(plain.wall);
            recorded.push(run.wall);
            let run = process::run(&replay, scratch)?;
            if run.status != 0 {
                bail!("{name}: {} {}", run.errors, String::from_utf8_lossy(&run.output));
            }
            replayed.push(run.wall);
        }
        rows.push(Start {
            name,
            native: median(&native),
            record: median(&recorded),
            replay: median(&replayed),
            bytes: std::fs::metadata(&trace)?.len(),
            factor: if words.len() == 1 { 1 } else { 3 },
        });
    }
    Ok(rows)
}

/// The section of the page.
pub(super) fn section(rows: &[Start]) -> String {
    let header = ["program", "native", "record", "limit", "replay", "limit", "trace"];
    let rows: Vec<_> = rows.iter().map(row).collect();
    format!(
        "\n## Short programs\n\nEach row times a whole run of `refrain record` and of `refrain \
         replay`. These programs are so short that starting and ending take most of it. A limit is \
         a multiple of the native time, plus a constant.\n\n{}",
        table::render(&header, &rows)
    )
}

fn row(start: &Start) -> Vec<String> {
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let limit = |time: Duration, factor: u32, beyond: Duration| {
        let verdict = if time <= start.native * factor + beyond { "met" } else { "MISSED" };
        format!("{factor}× + {} ms {verdict}", beyond.as_millis())
    };
    vec![
        start.name.clone(),
        ms(start.native),
        ms(start.record),
        limit(start.record, start.factor, RECORD_BEYOND),
        ms(start.replay),
        limit(start.replay, 3, REPLAY_BEYOND),
        format!("{} KiB", start.bytes.div_ceil(1024)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_a_factor_and_a_time() {
        let start = Start {
            name: "true".into(),
            native: Duration::from_millis(2),
            record: Duration::from_micros(17_100),
            replay: Duration::from_millis(306),
            bytes: 5000,
            factor: 1,
        };
        let row = row(&start);
        assert_eq!(row[3..], ["1× + 15 ms MISSED", "306.0 ms", "3× + 300 ms met", "5 KiB"]);
    }
}
