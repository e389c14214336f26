//! What a trace holds.

use super::numbers::{bytes, count, counted, date, duration, percent, signed};
use super::table::{self, Column};
use crate::output::Style;
use refrain_session::describe;
use refrain_session::text::escape;
use refrain_trace::{EventKind, Latencies, Order, ThreadId, Trace};
use serde::Serialize;

/// The description of a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// Command line.
    pub(crate) argv: Vec<String>,
    /// Path of the program.
    pub(crate) program: String,
    /// Working directory.
    pub(crate) cwd: String,
    /// What recorded it.
    pub(crate) recorder: String,
    /// Nanoseconds since the Unix epoch.
    pub(crate) started_unix_ns: u64,
    /// CPU model.
    pub(crate) cpu: String,
    /// What the program's processor had beyond x86-64-v2.
    pub(crate) processor: Vec<String>,
    /// Which order of shared memory was recorded: `sync` or `stride`.
    pub(crate) order: &'static str,
    /// Logical cores.
    pub(crate) cores: u32,
    /// Kernel release.
    pub(crate) kernel: String,
    /// What handing a lock over takes there, if it was measured.
    pub(crate) latencies: Option<Latencies>,
    /// From the first instruction to the end; `None` if the trace was cut off.
    pub(crate) wall_ns: Option<u64>,
    /// CPU time of all threads.
    pub(crate) cpu_ns: Option<u64>,
    /// How the run ended.
    pub(crate) ending: String,
    /// Bytes that the program sent out.
    pub(crate) output_bytes: Option<u64>,
    /// Bytes of the file.
    pub(crate) size: u64,
    /// Events of all threads.
    pub(crate) events: u64,
    /// Bytes of the file for each event, all that it holds included.
    pub(crate) bytes_per_event: f64,
    /// Bytes of the file that the events take.
    pub(crate) event_bytes: u64,
    /// Executed code.
    pub(crate) code_blocks: u64,
    /// Bytes of it.
    pub(crate) code_bytes: u64,
    /// Of a transformed trace, what replaces its freed locks.
    pub(crate) transformed: Option<Transformed>,
    /// Files that were mapped, of which the trace has the pages that were touched.
    pub(crate) mapped_files: Vec<MappedFile>,
    /// Threads.
    pub(crate) threads: Vec<Thread>,
    /// Kinds of events that occur, the most frequent first.
    pub(crate) kinds: Vec<Kind>,
    /// Modules, in the order in which they were mapped.
    pub(crate) modules: Vec<Mapped>,
}

/// What replaces freed locks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Transformed {
    /// Locks that are freed.
    pub(crate) locks: u64,
    /// Their critical sections.
    pub(crate) critical_sections: u64,
    /// Pairs of them that keep their order.
    pub(crate) causal_edges: u64,
}

/// A mapped file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct MappedFile {
    /// Path.
    pub(crate) path: String,
    /// Its length.
    pub(crate) bytes: u64,
    /// Bytes of its pages that the trace has.
    pub(crate) kept: u64,
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Thread {
    /// As in `t2`.
    pub(crate) thread: String,
    /// Its events.
    pub(crate) events: u64,
}

/// A kind of event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Kind {
    /// Name.
    pub(crate) kind: &'static str,
    /// How many there are.
    pub(crate) events: u64,
}

/// A module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Mapped {
    /// Path.
    pub(crate) path: String,
    /// GNU build id.
    pub(crate) build_id: Option<String>,
    /// First guest address.
    #[serde(with = "refrain_session::hex")]
    pub(crate) start: u64,
    /// End, exclusive.
    #[serde(with = "refrain_session::hex")]
    pub(crate) end: u64,
    /// Library functions recorded as events.
    pub(crate) hooks: u64,
}

impl Report {
    /// Reads a whole trace, whose file has so many bytes.
    pub(crate) fn of(trace: &Trace, size: u64) -> refrain_trace::Result<Report> {
        let (header, footer) = (trace.header(), trace.footer());
        let (threads, kinds) = census(trace)?;
        let (mut code_blocks, mut code_bytes) = (0, 0);
        for run in trace.block_runs() {
            let run = run?;
            code_blocks += run.len() as u64;
            code_bytes += run.iter().map(|block| block.code.len() as u64).sum::<u64>();
        }
        let began = trace.began()?;
        let ticks = footer.map(|footer| footer.tsc_end.saturating_sub(began));
        let nanoseconds = |ticks: u64| {
            let per_second = u128::from(header.tsc_hz.max(1));
            u64::try_from(u128::from(ticks) * 1_000_000_000 / per_second).unwrap_or(u64::MAX)
        };
        let events = trace.events();
        Ok(Report {
            argv: header.argv.clone(),
            program: header.program.clone(),
            cwd: header.cwd.clone(),
            recorder: header.recorder.clone(),
            started_unix_ns: header.started_unix_ns,
            cpu: header.machine.cpu.clone(),
            processor: header.processor.clone(),
            order: header.order.name(),
            cores: header.machine.cores,
            kernel: header.machine.kernel.clone(),
            latencies: header.machine.latencies,
            wall_ns: ticks.map(nanoseconds),
            cpu_ns: footer.map(|footer| footer.cpu_ns),
            ending: describe(footer.map(|footer| footer.ending)),
            output_bytes: footer.map(|footer| footer.output_bytes),
            size,
            events,
            bytes_per_event: size as f64 / events.max(1) as f64,
            event_bytes: trace.event_bytes(),
            code_blocks,
            code_bytes,
            transformed: trace.transformed()?.map(|record| Transformed {
                locks: record.locks.len() as u64,
                critical_sections: record.sections.len() as u64,
                causal_edges: record.edges.len() as u64,
            }),
            mapped_files: mapped_files(trace)?,
            threads,
            kinds,
            modules: modules(trace),
        })
    }
}

/// Counts the events by thread and by kind.
fn census(trace: &Trace) -> refrain_trace::Result<(Vec<Thread>, Vec<Kind>)> {
    let mut threads = Vec::new();
    let mut counts = [0u64; 256];
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        while let Some(event) = cursor.next()? {
            counts[usize::from(event.code)] += 1;
        }
        threads.push(Thread { thread: thread.to_string(), events: trace.events_of(thread) });
    }
    let mut kinds: Vec<Kind> = EventKind::ALL
        .iter()
        .map(|&kind| Kind { kind: kind.name(), events: counts[kind as usize] })
        .filter(|kind| kind.events > 0)
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.events));
    Ok((threads, kinds))
}

fn mapped_files(trace: &Trace) -> refrain_trace::Result<Vec<MappedFile>> {
    let mut files = Vec::new();
    for id in trace.files() {
        let Some(file) = trace.file(id)? else { continue };
        let mut kept = 0;
        trace.pages(id, |_, pages| kept += pages.len() as u64)?;
        files.push(MappedFile { path: file.path, bytes: file.len, kept });
    }
    Ok(files)
}

fn modules(trace: &Trace) -> Vec<Mapped> {
    let modules = trace.modules().iter().map(|module| Mapped {
        path: module.path.clone(),
        build_id: module.build_id.clone(),
        start: module.start,
        end: module.end,
        hooks: module.hooks.len() as u64,
    });
    modules.collect()
}

fn machine(report: &Report) -> String {
    let cores = counted(report.cores.into(), "core");
    let mut text = format!("{}, {cores}, Linux {}", report.cpu, report.kernel);
    if let Some(Latencies { handoff_ns, wake_ns }) = report.latencies {
        let time = |ns: u64| duration(signed(ns));
        let (handoff, wake) = (time(handoff_ns), time(wake_ns));
        text += &format!("; hand-off {handoff}, wake-up {wake}");
    }
    text
}

/// The description for people.
pub(crate) fn render(report: &Report, style: Style) -> String {
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

fn facts(report: &Report) -> Vec<(&'static str, String)> {
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
        let (kept, all) = files.fold((0, 0), |(kept, all), file| {
            (u64::saturating_add(kept, file.kept), u64::saturating_add(all, file.bytes))
        });
        let files = counted(report.mapped_files.len() as u64, "file");
        facts.push(("mapped", format!("{} of the {} of {files}", bytes(kept), bytes(all))));
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
    use refrain_trace::OwnedTrace;

    fn report(text: &str) -> Report {
        let trace: OwnedTrace = text.parse().expect("the text is a trace");
        let bytes = trace.to_bytes().expect("can be written");
        let trace = Trace::from_bytes(bytes).expect("can be read");
        Report::of(&trace, 4096).expect("can be read to its end")
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
