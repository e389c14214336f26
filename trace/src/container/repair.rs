//! Repairing a trace file: keeping what is sound, and writing a footer and an index behind it.
//!
//! A repaired trace is whole, and can be replayed as far as any trace that was cut off. So it is a
//! trace that might have been cut off: behind the first damage nothing is kept, unless the damage
//! is to the events of threads, whose other chunks are then left out alone.

use super::body::Packer;
use super::catalog::Catalog;
use super::check::{Problem, Survey};
use super::format::{self, Chunk, ChunkKind};
use super::source::Source;
use super::writer::{footer_and_tail, index_and_trailer};
use crate::error::{Error, Result};
use crate::{Ending, Footer};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// What a repair kept and lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepairReport {
    /// Chunks that were kept.
    pub chunks: u64,
    /// Events that were kept.
    pub events: u64,
    /// Bytes of the old file that are not in the new one, the index left out.
    pub lost_bytes: u64,
    /// Whether the end of the recording is missing now: it was before, or events were lost, so
    /// that the footer no longer holds.
    pub truncated: bool,
    /// Why something was lost.
    pub problems: Vec<Problem>,
}

/// Repairs a trace in its place: one that was cut off, or whose index is lost. Nothing is lost
/// but half a chunk, and next to no space is needed. `None` if it takes more than that: the file
/// is as it was.
pub fn repair_in_place(path: &Path) -> Result<Option<RepairReport>> {
    let plan = Plan::of(&Source::open(path)?)?;
    if !plan.problems.is_empty() {
        return Ok(None);
    }
    let action = || format!("write {}", path.display());
    let mut file = File::options().write(true).open(path).map_err(Error::io(action()))?;
    let tail = plan.tail()?;
    file.set_len(plan.end())
        .and_then(|()| file.seek(SeekFrom::Start(plan.end())))
        .and_then(|_| file.write_all(&tail))
        .and_then(|()| file.sync_all())
        .map_err(Error::io(action()))?;
    Ok(Some(plan.report()))
}

/// Writes what is usable of the trace at `path` to `out`. Chunks that are kept are copied as they
/// are. Fails if the header is lost, for then nothing can be replayed.
pub fn repair_to(path: &Path, out: impl Write) -> Result<RepairReport> {
    Ok(write_repaired(&Source::open(path)?, out)?.0)
}

/// Repairs a trace in memory.
pub fn repair_bytes(bytes: Vec<u8>) -> Result<(RepairReport, Vec<u8>)> {
    write_repaired(&bytes.into(), Vec::new())
}

fn write_repaired<W: Write>(source: &Source, mut out: W) -> Result<(RepairReport, W)> {
    let plan = Plan::of(source)?;
    let failed = || Error::io("write the repaired trace");
    out.write_all(&format::preamble()).map_err(failed())?;
    let mut bytes = Vec::new();
    for chunk in &plan.kept {
        bytes.resize(chunk.header.size() as usize, 0);
        source.read_at(chunk.offset, &mut bytes)?;
        out.write_all(&bytes).map_err(failed())?;
    }
    let tail = plan.tail()?;
    out.write_all(&tail).and_then(|()| out.flush()).map_err(failed())?;
    Ok((plan.report(), out))
}

/// What is kept.
struct Plan {
    kept: Vec<Chunk>,
    events: Vec<u64>,
    /// When the last event that can be read ended.
    last: u64,
    problems: Vec<Problem>,
    /// Bytes of the file without its index.
    bytes: u64,
}

impl Plan {
    fn of(source: &Source) -> Result<Plan> {
        let survey = Survey::of(source)?;
        let (kept, catalog) = kept(&survey)?;
        if kept.first().is_none_or(|c| c.header.kind != ChunkKind::Header) {
            let why = survey.problems.first();
            return Err(why.map_or(Error::CutOff, |p| p.at.corrupt(p.what.clone())));
        }
        let threads = catalog.threads.last_key_value().map_or(0, |(&last, _)| last + 1);
        let of = |thread| catalog.threads.get(&thread).map_or(0, |stream| stream.events);
        let events = (0..threads).map(of).collect();
        let bytes = source.len() - survey.tail;
        Ok(Plan { kept, events, last: survey.last, problems: survey.problems, bytes })
    }

    /// Where the last chunk ends in the new file.
    fn end(&self) -> u64 {
        format::PREAMBLE as u64 + self.kept.iter().map(|chunk| chunk.header.size()).sum::<u64>()
    }

    fn has_footer(&self) -> bool {
        self.kept.last().is_some_and(|c| c.header.kind == ChunkKind::Footer)
    }

    /// What comes behind the chunks that are kept.
    fn tail(&self) -> Result<Vec<u8>> {
        let mut packer = Packer::new()?;
        if self.has_footer() {
            let headers: Vec<u8> = self.kept.iter().flat_map(|c| c.header.encode()).collect();
            return index_and_trailer(&mut packer, &headers, self.end());
        }
        let (ending, tsc_end, events) = (Ending::Lost, self.last, self.events.clone());
        let footer = Footer { ending, tsc_end, events, cpu_ns: 0, output_bytes: 0 };
        footer_and_tail(&mut packer, &footer, &self.kept, self.end())
    }

    fn report(self) -> RepairReport {
        RepairReport {
            chunks: self.kept.len() as u64,
            events: self.events.iter().sum(),
            lost_bytes: self.bytes.saturating_sub(self.end()),
            truncated: !self.has_footer(),
            problems: self.problems,
        }
    }
}

/// The chunks to keep, and what they hold.
fn kept(survey: &Survey) -> Result<(Vec<Chunk>, Catalog)> {
    let mut kept = survey.chunks.clone();
    if !survey.problems.is_empty() {
        // It counts what is lost.
        kept.retain(|chunk| chunk.header.kind != ChunkKind::Footer);
    }
    // Later events of any thread may need what is damaged.
    let needed = |problem: &&Problem| {
        let of_a_thread = [ChunkKind::Events, ChunkKind::Payload, ChunkKind::Entered];
        let harmless = [ChunkKind::Footer, ChunkKind::Index];
        !problem.at.kind.is_some_and(|kind| of_a_thread.contains(&kind) || harmless.contains(&kind))
    };
    if let Some(first) = survey.problems.iter().find(needed) {
        kept.retain(|chunk| chunk.offset < first.at.offset);
    }
    if kept.last().is_none_or(|chunk| chunk.header.kind != ChunkKind::Footer) {
        // It may be half there, or name events that are lost.
        kept.retain(|chunk| chunk.header.kind != ChunkKind::Transformed);
    }
    while kept.last().is_some_and(|c| c.header.kind == ChunkKind::Payload) {
        kept.pop();
    }
    loop {
        let mut misfits = Vec::new();
        let catalog = Catalog::new(&kept, |chunk, _| {
            misfits.push(chunk.number);
            Ok(())
        })?;
        if misfits.is_empty() {
            return Ok((kept, catalog));
        }
        kept.retain(|chunk| !misfits.contains(&chunk.number));
    }
}
