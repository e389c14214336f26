//! Checking a trace file: every chunk is read and decoded, and every problem is reported.

use super::catalog::Catalog;
use super::format::{Chunk, ChunkKind, PREAMBLE};
use super::pages;
use super::reader::Scratch;
use super::references;
use super::scan::{self, Stop};
use super::source::Source;
use crate::error::{ChunkAt, Error, Result};
use crate::{Ending, Footer, Header, Module, Order, payload};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// What is wrong with a part of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The chunk.
    pub at: ChunkAt,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)
    }
}

/// The state of a trace's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexState {
    /// There, and right.
    Sound,
    /// Not there; the file is scanned instead.
    Missing,
    /// There, but damaged; the file is scanned instead.
    Broken,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckReport {
    /// Length of the file.
    pub bytes: u64,
    /// Chunks that are sound, the index left out.
    pub chunks: u64,
    /// Threads with events.
    pub threads: u64,
    /// Events that can be read.
    pub events: u64,
    /// Blobs that are whole.
    pub blobs: u64,
    /// Whether the end of the recording is missing.
    pub truncated: bool,
    /// Whether the trace was ended by a footer, even if that says that the end is missing.
    pub closed: bool,
    /// The index.
    pub index: IndexState,
    /// Whether pages are in their files alone, which may be missing: that is nothing that is wrong with the trace.
    pub refers: bool,
    /// Everything that is wrong, in the order of the file. A file that was merely cut off has no
    /// problems.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    /// Whether nothing is wrong or missing.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.closed && self.index == IndexState::Sound
    }
}

/// Checks the trace at `path`. An `Err` says why it cannot be checked at all: it cannot be read,
/// or is no trace.
pub fn check(path: &Path) -> Result<CheckReport> {
    check_source(&Source::open(path)?)
}

/// Checks a trace in memory.
pub fn check_bytes(bytes: Vec<u8>) -> Result<CheckReport> {
    check_source(&bytes.into())
}

fn check_source(source: &Source) -> Result<CheckReport> {
    let survey = Survey::of(source)?;
    let catalog = &survey.catalog;
    let chunks = &survey.chunks;
    let whole = |parts: &&Vec<usize>| parts.last().is_some_and(|&n| chunks[n].header.count == 0);
    Ok(CheckReport {
        bytes: source.len(),
        chunks: chunks.len() as u64,
        threads: catalog.threads.len() as u64,
        events: catalog.threads.values().map(|stream| stream.events).sum(),
        blobs: (catalog.blobs.values().filter(whole).count() + catalog.files.len()) as u64,
        truncated: catalog.footer.is_none() || survey.ending == Some(Ending::Lost),
        closed: catalog.footer.is_some(),
        index: survey.index,
        refers: chunks.iter().any(|chunk| chunk.header.kind == ChunkKind::References),
        problems: survey.problems,
    })
}

/// The sound chunks of a file and everything that is wrong with the others.
pub(crate) struct Survey {
    /// Chunks that can be decoded and belong where they stand.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) catalog: Catalog,
    pub(crate) index: IndexState,
    pub(crate) problems: Vec<Problem>,
    /// Bytes of the index and what follows it.
    pub(crate) tail: u64,
    /// When the last event ended.
    pub(crate) last: u64,
    /// What the footer says.
    ending: Option<Ending>,
}

impl Survey {
    pub(crate) fn of(source: &Source) -> Result<Survey> {
        let mut problems = Vec::new();
        let (found, tail) = all_chunks(source, &mut problems)?;
        let index = index_state(source);
        let mut chunks = decode_all(source, &found, &mut problems)?;
        let mut catalog = sort(&mut chunks, &mut problems)?;
        let mut last = 0;
        let mut broken = broken_events(source, &chunks, &catalog, &mut problems, &mut last)?;
        if catalog.is_transformed(&chunks) {
            let parts = &catalog.transformed;
            let read = Scratch::new()?.transformed(source, &chunks, parts).map(drop);
            if !sift(&chunks[parts[0]], read, &mut problems)? {
                broken.extend(parts.iter().map(|&part| chunks[part].number));
            }
        }
        if !broken.is_empty() {
            chunks.retain(|chunk| !broken.contains(&chunk.number));
            catalog = sort(&mut chunks, &mut problems)?;
        }
        let mut survey = Survey { chunks, catalog, index, problems, tail, last, ending: None };
        survey.check_footer(source)?;
        survey.problems.sort_by_key(|p| p.at.offset);
        survey.problems.dedup();
        Ok(survey)
    }

    /// The footer counts events; what it counts must be there.
    fn check_footer(&mut self, source: &Source) -> Result<()> {
        let Some(n) = self.catalog.footer else { return Ok(()) };
        let footer: Footer = Scratch::new()?.record(source, &self.chunks[n])?;
        self.ending = Some(footer.ending);
        for (thread, &events) in footer.events.iter().enumerate() {
            let found = self.catalog.threads.get(&(thread as u32)).map_or(0, |s| s.events);
            if found != events {
                let what = format!("it counts {events} events of t{thread}, but {found} are there");
                self.problems.push(Problem { at: self.chunks[n].at(), what });
            }
        }
        Ok(())
    }
}

fn problem(chunk: &Chunk, error: &Error) -> Problem {
    match error {
        Error::Corrupt(at, what) => Problem { at: *at, what: what.clone() },
        other => Problem { at: chunk.at(), what: other.to_string() },
    }
}

/// Every chunk with a sound header, also behind damage; and the length of index and trailer.
fn all_chunks(source: &Source, problems: &mut Vec<Problem>) -> Result<(Vec<Chunk>, u64)> {
    scan::check_preamble(source)?;
    let mut chunks = Vec::new();
    let (mut offset, mut number) = (PREAMBLE as u64, 0);
    loop {
        let mut walk = scan::walk(source, offset, number)?;
        number += walk.chunks.len() as u64 + 1;
        chunks.append(&mut walk.chunks);
        let (at, what) = match walk.stop {
            Stop::End | Stop::CutOff => return Ok((chunks, source.len() - walk.index_from)),
            Stop::Damage(at, what) => (at, what),
        };
        let next = scan::resync(source, walk.end + 1)?;
        let lost = next.unwrap_or(source.len()) - walk.end;
        problems.push(Problem { at, what: format!("{what}; {lost} bytes skipped") });
        match next {
            Some(next) => offset = next,
            None => return Ok((chunks, 0)),
        }
    }
}

fn index_state(source: &Source) -> IndexState {
    match scan::find(source) {
        Ok(layout) if layout.indexed => IndexState::Sound,
        _ if scan::has_trailer(source) => IndexState::Broken,
        _ => IndexState::Missing,
    }
}

/// The chunks that can be decoded; those of events are judged when it is known what belongs to
/// them.
fn decode_all(
    source: &Source,
    chunks: &[Chunk],
    problems: &mut Vec<Problem>,
) -> Result<Vec<Chunk>> {
    let mut scratch = Scratch::new()?;
    let (mut events, mut payloads) = (Vec::new(), Vec::new());
    let mut sound = Vec::new();
    let mut lens = BTreeMap::new();
    for chunk in chunks {
        let header = &chunk.header;
        let result = match chunk.header.kind {
            ChunkKind::Header => scratch.record::<Header>(source, chunk).map(drop),
            ChunkKind::Module => scratch.record::<Module>(source, chunk).map(drop),
            ChunkKind::Footer => scratch.record::<Footer>(source, chunk).map(drop),
            ChunkKind::Order => scratch.record::<Order>(source, chunk).map(drop),
            ChunkKind::Blocks => scratch.blocks(source, chunk).map(drop),
            ChunkKind::Blob | ChunkKind::Payload | ChunkKind::Index | ChunkKind::Transformed => {
                scratch.unpacker.unpack(source, chunk, &mut scratch.body)
            }
            ChunkKind::Events => Ok(()),
            // Those that were overtaken are in no stream, so nobody looks at them again.
            ChunkKind::Entered => scratch
                .events(source, &[], chunk, &mut events, &mut payloads)
                .and_then(|()| read_payloads(chunk, &payloads)),
            ChunkKind::File => scratch.file(source, chunk).map(|file| {
                lens.insert(header.id, file.len);
            }),
            ChunkKind::Pages => scratch
                .unpacker
                .unpack(source, chunk, &mut scratch.body)
                .and_then(|()| pages::check(chunk, &scratch.body, lens.get(&header.id).copied())),
            ChunkKind::References => {
                scratch.unpacker.unpack(source, chunk, &mut scratch.body).and_then(|()| {
                    references::check(chunk, &scratch.body, lens.get(&header.id).copied())
                })
            }
        };
        if sift(chunk, result, problems)? {
            sound.push(*chunk);
        }
    }
    Ok(sound)
}

/// Whether the chunk is sound. Failing to read is nothing that is wrong with the chunk.
fn sift(chunk: &Chunk, result: Result<()>, problems: &mut Vec<Problem>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error @ Error::Io { .. }) => Err(error),
        Err(error) => {
            problems.push(problem(chunk, &error));
            Ok(false)
        }
    }
}

/// Sorts the chunks and leaves out those that do not fit. Refusing a chunk undoes all that it
/// does to the catalog, so a second round only confirms the first; a chunk that it refused all
/// the same would break what [`Survey::chunks`] promises.
fn sort(chunks: &mut Vec<Chunk>, problems: &mut Vec<Problem>) -> Result<Catalog> {
    loop {
        let mut misfits = BTreeSet::new();
        let catalog = Catalog::new(chunks, |chunk, error| {
            problems.push(problem(chunk, &error));
            misfits.insert(chunk.number);
            Ok(())
        })?;
        if misfits.is_empty() {
            return Ok(catalog);
        }
        chunks.retain(|chunk| !misfits.contains(&chunk.number));
    }
}

/// The chunks of events that cannot be decoded.
fn broken_events(
    source: &Source,
    chunks: &[Chunk],
    catalog: &Catalog,
    problems: &mut Vec<Problem>,
    last: &mut u64,
) -> Result<BTreeSet<u64>> {
    let mut scratch = Scratch::new()?;
    let (mut events, mut payloads) = (Vec::new(), Vec::new());
    let mut broken = BTreeSet::new();
    for at in catalog.threads.values().flat_map(|stream| &stream.chunks) {
        let chunk = &chunks[at.chunk];
        let parts = &chunks[at.chunk - at.parts..at.chunk];
        let result = scratch
            .events(source, parts, chunk, &mut events, &mut payloads)
            .and_then(|()| read_payloads(chunk, &payloads));
        if sift(chunk, result, problems)? {
            *last = events.iter().map(|event| event.end).fold(*last, u64::max);
        } else {
            broken.insert(chunk.number);
        }
    }
    Ok(broken)
}

fn read_payloads(chunk: &Chunk, payloads: &[u8]) -> Result<()> {
    let mut stream = payloads;
    while let Some(len) = payload::record_len(stream) {
        if payload::read(stream).is_none() {
            return Err(chunk.corrupt("it holds a payload that is not readable"));
        }
        stream = &stream[len..];
    }
    Ok(())
}
