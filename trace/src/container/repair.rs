//! Repairing a trace file: keeping what is sound, and writing a new index.

use super::body::Packer;
use super::check::{Problem, Survey};
use super::format::{self, Chunk, ChunkKind};
use super::source::Source;
use super::writer::index_and_trailer;
use crate::error::{Error, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

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

/// Writes what is usable of the trace at `path` to `out`, or in its place: chunks that cannot be
/// read are dropped, and with them the later events of the same thread. Chunks that are kept
/// are copied as they are. Fails if the header is lost, for then nothing can be replayed.
pub fn repair(path: &Path, out: Option<&Path>) -> Result<RepairReport> {
    let source = Source::open(path)?;
    let target = out.unwrap_or(path);
    let beside = beside(target);
    let action = || format!("write {}", beside.display());
    let file = File::create_new(&beside).map_err(Error::io(action()))?;
    let result = write_repaired(&source, BufWriter::new(file)).and_then(|(report, buffer)| {
        let file = buffer.into_inner().map_err(|e| Error::io(action())(e.into_error()))?;
        file.sync_all().map_err(Error::io(action()))?;
        fs::rename(&beside, target).map_err(Error::io(format!("replace {}", target.display())))?;
        Ok(report)
    });
    if result.is_err() {
        // The error that is reported matters more than a file left behind.
        let _ = fs::remove_file(&beside);
    }
    result
}

/// Repairs a trace in memory.
pub fn repair_bytes(bytes: Vec<u8>) -> Result<(RepairReport, Vec<u8>)> {
    write_repaired(&bytes.into(), Vec::new())
}

/// A name in the same directory, so that the new file can be renamed over the old one.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".repairing");
    path.with_file_name(name)
}

fn write_repaired<W: Write>(source: &Source, mut out: W) -> Result<(RepairReport, W)> {
    let survey = Survey::of(source)?;
    let kept = kept(&survey);
    if kept.first().is_none_or(|c| c.header.kind != ChunkKind::Header) {
        return Err(survey
            .problems
            .first()
            .map_or(Error::CutOff, |p| p.at.corrupt(p.what.clone())));
    }
    let failed = || Error::io("write the repaired trace");
    out.write_all(&format::preamble()).map_err(failed())?;
    let mut written = format::PREAMBLE as u64;
    let (mut headers, mut bytes) = (Vec::new(), Vec::new());
    for chunk in &kept {
        bytes.resize(chunk.header.size() as usize, 0);
        source.read_at(chunk.offset, &mut bytes)?;
        out.write_all(&bytes).map_err(failed())?;
        written += chunk.header.size();
        headers.extend_from_slice(&chunk.header.encode());
    }
    let tail = index_and_trailer(&mut Packer::new()?, &headers, written)?;
    out.write_all(&tail).and_then(|()| out.flush()).map_err(failed())?;
    let report = RepairReport {
        chunks: kept.len() as u64,
        events: survey.catalog.threads.values().map(|stream| stream.events).sum(),
        lost_bytes: source.len().saturating_sub(written + survey.tail),
        truncated: kept.last().is_none_or(|c| c.header.kind != ChunkKind::Footer),
        problems: survey.problems,
    };
    Ok((report, out))
}

/// The chunks to keep: the sound ones, but no footer that counts what is lost, and no payload
/// parts at the end whose events were cut off.
fn kept(survey: &Survey) -> Vec<Chunk> {
    let mut kept = survey.chunks.clone();
    if !survey.problems.is_empty() {
        kept.retain(|chunk| chunk.header.kind != ChunkKind::Footer);
    }
    while kept.last().is_some_and(|c| c.header.kind == ChunkKind::Payload) {
        kept.pop();
    }
    kept
}
