//! What a trace holds.

use super::numbers::{bytes, count, counted, date, duration, percent, signed};
use super::table::{self, Column};
use crate::output::Style;
use refrain_session::info::Info;
use refrain_trace::harmless::escape;
use refrain_trace::{Latencies, Locking, Order};

fn machine(report: &Info) -> String {
    let cores = counted(report.cores.into(), "core");
    let mut text = format!("{}, {cores}, Linux {}", report.cpu, report.kernel);
    let time = |ns: u64| duration(signed(ns));
    if let Some(Latencies { handoff_ns, wake_ns }) = report.latencies {
        text += &format!("; hand-off {}", time(handoff_ns));
        if wake_ns > 0 {
            text += &format!(", wake-up {}", time(wake_ns));
        }
    }
    if let Some(Locking { native_ns, held_ns, free_ns }) = report.locking {
        let recorded = held_ns.saturating_add(free_ns);
        text += &format!("; a lock {}, recorded {}", time(native_ns), time(recorded));
    }
    text
}

/// The description for people.
pub(crate) fn render(report: &Info, style: Style) -> String {
    let mut text = table::pairs(&facts(report));
    let threads = report.threads.iter().map(|t| vec![t.thread.clone(), count(t.events)]);
    text.push('\n');
    text += &table::render(
        &[("thread", Column::Left), ("events", Column::Right)],
        threads.collect(),
        style,
    );
    let kinds = report.kinds.iter().map(|kind| {
        let share = kind.events as f64 / report.events.max(1) as f64;
        vec![kind.kind.to_owned(), count(kind.events), percent(share)]
    });
    text.push('\n');
    text += &table::render(
        &[("kind", Column::Left), ("events", Column::Right), ("share", Column::Right)],
        kinds.collect(),
        style,
    );
    let modules = report.modules.iter().map(|module| {
        vec![format!("{:#x}", module.start), count(module.hooks), escape(&module.path)]
    });
    text.push('\n');
    text += &table::render(
        &[("module at", Column::Right), ("hooks", Column::Right), ("path", Column::Left)],
        modules.collect(),
        style,
    );
    text
}

fn facts(report: &Info) -> Vec<(&'static str, String)> {
    let nanoseconds = |ns: u64| duration(i64::try_from(ns).unwrap_or(i64::MAX));
    let mut facts = vec![
        ("program", report.program.clone()),
        (
            "arguments",
            report.argv.iter().skip(1).map(|arg| quoted(arg)).collect::<Vec<_>>().join(" "),
        ),
        ("directory", report.cwd.clone()),
        ("recorded", format!("{} by {}", date(report.started_unix_ns), report.recorder)),
        ("machine", machine(report)),
    ];
    let features = report.processor.join(", ");
    let beyond = if features.is_empty() { features } else { format!(" with {features}") };
    facts.push(("processor", format!("x86-64-v2{beyond}")));
    if report.order != Order::default().name() {
        facts.push(("order", report.order.to_owned()));
    }
    facts.push(("ending", report.ending.clone()));
    if let (Some(wall), Some(cpu)) = (report.wall_ns, report.cpu_ns) {
        facts.push(("time", format!("{} wall, {} CPU", nanoseconds(wall), nanoseconds(cpu))));
    }
    if let Some(output) = report.output_bytes {
        facts.push(("output", bytes(output)));
    }
    facts.push((
        "code",
        format!("{}, {}", counted(report.code_blocks, "block"), bytes(report.code_bytes)),
    ));
    if let Some(transformed) = &report.transformed {
        let locks = counted(transformed.locks, "lock");
        let sections = counted(transformed.critical_sections, "critical section");
        let edges = counted(transformed.causal_edges, "causal edge");
        facts.push(("transformed", format!("{locks} freed, {sections}, {edges}")));
    }
    if !report.mapped_files.is_empty() {
        let files = report.mapped_files.iter();
        let (mut kept, mut referenced, mut all) = (0u64, 0u64, 0u64);
        for file in files {
            kept = kept.saturating_add(file.kept);
            referenced = referenced.saturating_add(file.referenced);
            all = all.saturating_add(file.bytes);
        }
        let files = counted(report.mapped_files.len() as u64, "file");
        facts.push(("mapped", format!("{} of the {} of {files}", bytes(kept), bytes(all))));
        if referenced > 0 {
            facts.push((
                "referenced",
                format!("{} of these files, not in the trace", bytes(referenced)),
            ));
        }
    }
    facts.push((
        "size",
        format!(
            "{}, {}, {:.1} bytes per event",
            bytes(report.size),
            counted(report.events, "event"),
            report.bytes_per_event
        ),
    ));
    facts
}

/// An argument as a shell would need it, as far as reading goes.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("{argument:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use refrain_trace::{OwnedTrace, Trace};

    fn report(text: &str) -> Info {
        let trace: OwnedTrace = text.parse().expect("the text is a trace");
        let bytes = trace.to_bytes().expect("can be written");
        let trace = Trace::from_bytes(bytes).expect("can be read");
        Info::of(&trace, 4096).expect("can be read to its end")
    }

    const TRACE: &str = r#"
        argv "./server" "--port=80" "two words" ""
        program "/opt/server"
        cwd "/srv"
        recorder "refrain 0.1.0"
        machine cpu="Example CPU" cores=2 kernel="6.1.0" handoff_ns=120 wake_ns=45000
        processor "avx" "avx2"
        clock hz=2000000000 start=1000 unix_ns=1795246701000000000
        module "/opt/server" bias=0x10000000 start=0x10000000 end=0x10004000 build_id="00ff"
        module "/lib/libc.so.6" bias=0x20000000 start=0x20000000 end=0x20200000 hook=0x20001000:"sem_post"
        file blob0 "/lib/libc.so.6" len=2000000 modified_ns=7
        page blob0 0x1000 00
        blk0 0x10001000 90c3
        t0 start
        t1 start
        t0 mutex.lock obj=0x1000
        t0 mutex.unlock obj=0x1000
        t1 mutex.lock obj=0x1000
        t1 mutex.unlock obj=0x1000
        t1 exit
        t0 exit
    "#;

    #[test]
    fn a_whole_trace() {
        let report = report(&format!("{TRACE}\nend exited=3 tsc=2001000 cpu_ns=900000 output=17"));
        assert_snapshot!(render(&report, Style { width: 80, colour: false }));
    }

    #[test]
    fn a_trace_that_was_cut_off() {
        assert_snapshot!(crate::output::json("info", &report(TRACE)).expect("can be written"));
    }
}
