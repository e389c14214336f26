//! Which store each watched load read (STRIDE, section IV).

use crate::error::bail;
use crate::symbols::{Code, Symbols};
use crate::trace_file;
use refrain_analysis::linkages::{Linkage, Stores, Writer};
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, EventId, ThreadId, Trace};
use serde::Serialize;
use std::cmp::Reverse;
use std::path::Path;

/// Which loads are listed one by one, and how many sites.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// Those of these threads. With a `site`, of any thread if there are none here.
    pub threads: Vec<ThreadId>,
    /// Those at places that contain this text.
    pub site: Option<String>,
    /// The sites with most loads.
    pub top: usize,
}

/// The counts of a trace, and the loads that were asked for.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Linkages {
    /// The file.
    pub trace: String,
    /// Watched loads that have an event.
    pub loads: u64,
    /// Those that have none: they read what their thread had met last.
    pub without_event: u64,
    /// Words that are stored to by watched stores and locked instructions.
    pub words: u64,
    /// How often they are.
    pub stores: u64,
    /// Loads of what another thread stored.
    pub others: u64,
    /// Of what their own thread stored.
    pub own: u64,
    /// Of what was there before.
    pub initial: u64,
    /// Of what no watched store wrote.
    pub unwatched: u64,
    /// Of a word that is stored to in other pieces.
    pub mixed: u64,
    /// Values that were compared to find the stores.
    pub comparisons: u64,
    /// The same for one load, at most.
    pub most_comparisons: u32,
    /// The instructions that loaded most often.
    pub sites: Vec<Site>,
    /// The loads that were asked for, thread by thread.
    pub reads: Vec<Read>,
}

/// An instruction.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Site {
    /// Where it is.
    pub place: String,
    /// How often it loaded.
    pub loads: u64,
    /// How many read what another thread stored.
    pub others: u64,
    /// On average.
    pub comparisons: f64,
    /// Where most of what they read was stored.
    pub writer: Option<String>,
}

/// A load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Read {
    /// Its thread and event.
    pub load: String,
    /// What it read at,
    pub address: u64,
    /// what it read there,
    pub value: u64,
    /// and by which line of the source.
    pub place: String,
    /// Thread and event of the store, if it has one, or what else it read.
    pub writer: String,
    /// Where the store is.
    pub written_at: Option<String>,
}

/// Reads the trace at `path`.
pub fn linkages(path: &Path, listing: &Listing) -> crate::Result<Linkages> {
    let trace = trace_file::read(path)?;
    trace_file::must_have(&trace, &listing.threads)?;
    can_be_linked(path, &trace)?;
    link(path, &trace, listing).map_err(|error| trace_file::advise(path, error))
}

fn can_be_linked(path: &Path, trace: &Trace) -> crate::Result<()> {
    if trace.header().order.is_of_every_access() {
        bail!(
            Refused,
            "{} has the order of every access, and no values of loads: record with --order sync to \
             see what they read",
            path.display()
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
) -> refrain_trace::Result<()> {
    let mut cursor = trace.cursor(thread);
    loop {
        let id = cursor.position();
        let Some(event) = cursor.next()? else { return Ok(()) };
        look(id, &event);
    }
}

fn link(path: &Path, trace: &Trace, listing: &Listing) -> refrain_trace::Result<Linkages> {
    let mut report = Linkages { trace: path.display().to_string(), ..Linkages::default() };
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
    let mut wanted = Wanted { listing, sites: FixedMap::default() };
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
    report.sites = top(sites, listing.top, &mut symbols);
    Ok(report)
}

impl Loads {
    fn add(&mut self, thread: ThreadId, linkage: Linkage) {
        self.count += 1;
        self.comparisons += u64::from(linkage.comparisons);
        let (other, pc) = match linkage.writer {
            Writer::Store { thread: writer, pc, .. } => (writer != thread, pc),
            Writer::Owner { pc, .. } => (true, pc),
            _ => return,
        };
        self.others += u64::from(other);
        *self.writers.entry(pc).or_default() += 1;
    }
}

/// Which loads are to be listed.
struct Wanted<'a> {
    listing: &'a Listing,
    /// By instruction, whether it is at a place that is asked for.
    sites: FixedMap<u64, bool>,
}

impl Wanted<'_> {
    fn has(&mut self, thread: ThreadId, pc: u64, symbols: &mut Symbols) -> bool {
        let Listing { threads, site, .. } = self.listing;
        match site {
            None => threads.contains(&thread),
            Some(_) if !threads.is_empty() && !threads.contains(&thread) => false,
            Some(text) => *self
                .sites
                .entry(pc)
                .or_insert_with(|| symbols.place(Code::At(pc)).short().contains(text.as_str())),
        }
    }
}

fn count(report: &mut Linkages, thread: ThreadId, linkage: Linkage) {
    report.loads += 1;
    report.comparisons += u64::from(linkage.comparisons);
    report.most_comparisons = report.most_comparisons.max(linkage.comparisons);
    let counter = match linkage.writer {
        Writer::Store { thread: writer, .. } if writer == thread => &mut report.own,
        Writer::Store { .. } | Writer::Owner { .. } => &mut report.others,
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
        Writer::Owner { thread, pc } => {
            let owner =
                thread.map_or("a thread that has ended".into(), |thread| thread.to_string());
            (format!("{owner} without an event"), Some(symbols.place(Code::At(pc)).short()))
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
