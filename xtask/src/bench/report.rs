//! The page that the measurements are kept on.

use super::rows::{Memory, Results, Size, Speed};
use super::start;
use crate::{root, table};
use std::time::Duration;

/// The whole page, in Markdown.
pub(super) fn page(results: &Results, runs: usize) -> String {
    let mut page = format!(
        "# Benchmarks\n\nWritten by `cargo xtask bench` on {}. Wall-clock times, medians of {runs} \
         alternating runs; a factor is relative to the native run beside it. `valgrind` is \
         `valgrind --tool=none`.\n\n## Speed\n\n",
        root::machine()
    );
    let speed: Vec<_> = results.speed.iter().map(speed_row).collect();
    let header =
        ["program", "mode", "native", "refrain", "factor", "limit", "valgrind", "its factor"];
    page += &table::render(&header, &speed);
    page += &start::sections(&results.starts);
    page += "\n## Size of traces\n\nThe whole file, initial memory and executed code included.\n\n";
    let sizes: Vec<_> = results.sizes.iter().map(size_row).collect();
    page += &table::render(&["program", "events", "bytes", "bytes per event"], &sizes);
    if let Some(memory) = &results.memory {
        page += &memory_paragraph(memory);
    }
    page
}

fn speed_row(speed: &Speed) -> Vec<String> {
    let factor = |time: Duration| {
        let factor = time.as_secs_f64() / speed.native.as_secs_f64();
        (factor, format!("{factor:.2}×"))
    };
    let (factor_found, factor_shown) = factor(speed.refrain);
    let limit = speed.limit.map_or(String::new(), |limit| {
        let verdict = if factor_found <= limit { "met" } else { "MISSED" };
        format!("{limit:.1}× {verdict}")
    });
    vec![
        speed.name.clone(),
        speed.mode.to_owned(),
        seconds(speed.native),
        seconds(speed.refrain),
        factor_shown,
        limit,
        speed.valgrind.map_or(String::new(), seconds),
        speed.valgrind.map_or(String::new(), |time| factor(time).1),
    ]
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn size_row(size: &Size) -> Vec<String> {
    vec![
        size.name.clone(),
        size.events.to_string(),
        size.bytes.to_string(),
        format!("{:.1}", size.bytes as f64 / size.events.max(1) as f64),
    ]
}

fn memory_paragraph(memory: &Memory) -> String {
    let mib = |kib: u64| kib as f64 / 1024.0;
    format!(
        "\n## Memory of the recorder\n\nA run with {} events: peak resident memory {:.1} MiB, of \
         which the program itself takes {:.1} MiB natively.\n",
        memory.events,
        mib(memory.refrain_kib),
        mib(memory.native_kib)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_limit_is_visible() {
        let speed = Speed {
            name: "fib".into(),
            mode: "record",
            native: Duration::from_millis(1000),
            refrain: Duration::from_millis(1900),
            valgrind: Some(Duration::from_millis(7000)),
            limit: Some(1.8),
        };
        let row = speed_row(&speed);
        assert_eq!(
            row,
            ["fib", "record", "1.000 s", "1.900 s", "1.90×", "1.8× MISSED", "7.000 s", "7.00×"]
        );
    }
}
