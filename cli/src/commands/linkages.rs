//! `refrain linkages`: which store each watched load read.

use crate::args::Linkages;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::progress::Progress;
use crate::report::linkages::{Read, Report, Site, render};
use anyhow::bail;
use refrain_analysis::linkages::{Linkage, Stores, Writer};
use refrain_session::symbols::{Code, Symbols};
use refrain_session::trace_file::{self, advise};
use refrain_session::{Purpose, Session};
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, EventId, ThreadId, Trace};
use std::cmp::Reverse;

/// Prints the counts, and the loads that are asked for.
pub(crate) fn run(args: &Linkages, session: &Session) -> Outcome {
    session.confine(&Purpose::Read { trace: &args.trace, symbols: true })?;
    let trace = trace_file::read(&args.trace)?;
    can_be_linked(&trace, args)?;
    let progress = Progress::spin("reading");
    let report = report(&trace, args).map_err(|error| advise(&args.trace, error))?;
    drop(progress);
    if args.json {
        output::print_json("linkages", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}

fn can_be_linked(trace: &Trace, args: &Linkages) -> anyhow::Result<()> {
    let there = trace.threads();
    if let Some(missing) = args.thread.iter().find(|&&thread| thread >= there) {
        bail!("there is no t{missing}: the trace has {there} threads, the first of them t0");
    }
    if trace.header().order.is_of_every_access() {
        bail!(
            "{} has the order of every access, and no values of loads: record with --order sync to \
             see what they read",
            args.trace.display()
        );
    }
    Ok(())
}

/// What is known of the loads of one instruction.
#[derive(Default)]
struct Loads {
    count: u64,
    others: u64,
    comparisons: u64,
    /// By the instruction of the store.
    writers: FixedMap<u64, u64>,
}

/// Shows the events of a thread.
fn each(
    trace: &Trace,
    thread: ThreadId,
    mut look: impl FnMut(EventId, &Event),
) -> Result<(), refrain_trace::Error> {
    let mut cursor = trace.cursor(thread);
    loop {
        let id = cursor.position();
        let Some(event) = cursor.next()? else { return Ok(()) };
        look(id, &event);
    }
}

fn report(trace: &Trace, args: &Linkages) -> Result<Report, refrain_trace::Error> {
    let mut report = Report { trace: args.trace.display().to_string(), ..Report::default() };
    let threads = || (0..trace.threads()).map(ThreadId);
    let mut stores = Stores::default();
    for thread in threads() {
        each(trace, thread, |id, event| {
            stores.add(thread, id, event);
            report.without_event += event.unrecorded;
        })?;
    }
    let mut loads = stores.complete();
    for thread in threads() {
        each(trace, thread, |_, event| loads.look(event))?;
    }
    (report.words, report.stores) = loads.counts();
    let linker = loads.complete();
    let mut symbols = Symbols::new(trace.modules());
    let mut wanted = Wanted { args, sites: FixedMap::default() };
    let mut sites: FixedMap<u64, Loads> = FixedMap::default();
    for thread in threads() {
        let mut linker = linker.thread(thread);
        each(trace, thread, |id, event| {
            let Some(linkage) = linker.event(id, event) else { return };
            count(&mut report, thread, linkage);
            sites.entry(event.pc).or_default().add(thread, linkage);
            if wanted.has(thread, event.pc, &mut symbols) {
                report.reads.push(read(&mut symbols, (thread, id, event), linkage));
            }
        })?;
    }
    report.sites = top(sites, args.top, &mut symbols);
    Ok(report)
}

impl Loads {
    fn add(&mut self, thread: ThreadId, linkage: Linkage) {
        self.count += 1;
        self.comparisons += u64::from(linkage.comparisons);
        if let Writer::Store { thread: writer, pc, .. } = linkage.writer {
            self.others += u64::from(writer != thread);
            *self.writers.entry(pc).or_default() += 1;
        }
    }
}

/// Which loads are to be listed.
struct Wanted<'a> {
    args: &'a Linkages,
    /// By instruction, whether it is at a place that is asked for.
    sites: FixedMap<u64, bool>,
}

impl Wanted<'_> {
    fn has(&mut self, thread: ThreadId, pc: u64, symbols: &mut Symbols) -> bool {
        let Linkages { thread: threads, site, .. } = self.args;
        match site {
            None => threads.contains(&thread.0),
            Some(_) if !threads.is_empty() && !threads.contains(&thread.0) => false,
            Some(text) => *self
                .sites
                .entry(pc)
                .or_insert_with(|| symbols.place(Code::At(pc)).short().contains(text.as_str())),
        }
    }
}

fn count(report: &mut Report, thread: ThreadId, linkage: Linkage) {
    report.loads += 1;
    report.comparisons += u64::from(linkage.comparisons);
    report.most_comparisons = report.most_comparisons.max(linkage.comparisons);
    let counter = match linkage.writer {
        Writer::Store { thread: writer, .. } if writer == thread => &mut report.own,
        Writer::Store { .. } => &mut report.others,
        Writer::Initial => &mut report.initial,
        Writer::Unwatched => &mut report.unwatched,
        Writer::Mixed => &mut report.mixed,
    };
    *counter += 1;
}

/// A load for the list.
fn read(
    symbols: &mut Symbols,
    (thread, id, load): (ThreadId, EventId, &Event),
    linkage: Linkage,
) -> Read {
    let (writer, written_at) = match linkage.writer {
        Writer::Store { thread, event, pc } => {
            (format!("{thread} {event}"), Some(symbols.place(Code::At(pc)).short()))
        }
        Writer::Initial => ("the value before all stores".to_owned(), None),
        Writer::Unwatched => ("what no watched store wrote".to_owned(), None),
        Writer::Mixed => ("a store to another piece".to_owned(), None),
    };
    Read {
        load: format!("{thread} {id}"),
        address: load.object,
        value: load.value,
        place: symbols.place(Code::At(load.pc)).short(),
        writer,
        written_at,
    }
}

/// The sites with most loads.
fn top(sites: FixedMap<u64, Loads>, top: usize, symbols: &mut Symbols) -> Vec<Site> {
    let mut sites: Vec<(u64, Loads)> = sites.into_iter().collect();
    sites.sort_by_key(|(pc, loads)| (Reverse(loads.count), *pc));
    sites.truncate(top);
    let site = |(pc, loads): (u64, Loads)| {
        let most = loads.writers.into_iter().max_by_key(|&(pc, count)| (count, Reverse(pc)));
        Site {
            place: symbols.place(Code::At(pc)).short(),
            loads: loads.count,
            others: loads.others,
            comparisons: loads.comparisons as f64 / loads.count as f64,
            writer: most.map(|(pc, _)| symbols.place(Code::At(pc)).short()),
        }
    };
    sites.into_iter().map(site).collect()
}
