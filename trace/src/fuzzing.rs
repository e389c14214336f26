//! What the fuzz targets run. `cargo test` runs some rounds of it too.

use crate::container::{self, Trace};
use crate::{OwnedTrace, ThreadId, verify};

/// Prints and compares traces up to this size only: the reader is what is tested.
const SMALL: usize = 1 << 16;

/// Reads `data` as a trace in three ways: as the file itself, as a recipe for chunks whose
/// checksums are right, and, if it is the text form, as what that stands for.
pub fn trace_reader(data: &[u8]) {
    read(data.to_vec());
    read(container::chunks_from(data));
    let text = std::str::from_utf8(data).ok();
    let owned: Option<OwnedTrace> = text.and_then(|text| text.parse().ok());
    if let Some(bytes) = owned.and_then(|owned| owned.to_bytes().ok()) {
        read(bytes);
    }
}

/// Parses `data` as text; what parses must print as text that parses to the same.
pub fn text_parser(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(trace) = text.parse::<OwnedTrace>() else { return };
    let again: OwnedTrace = trace.to_string().parse().expect("what was printed parses");
    assert_eq!(trace, again, "text that was printed says something else");
    // A trace that the container refuses (a module with an endless path) is no concern here.
    if let Ok(opened) = trace.to_trace() {
        let mut read = OwnedTrace::read(&opened).expect("a trace that was just written");
        // The file does not tell a thread without events from no thread.
        read.threads.resize(trace.threads.len(), Vec::new());
        assert_eq!(trace, read, "the container says something else");
    }
}

/// Repairs `data`, as it is and as a recipe for chunks; what is repaired is sound, and needs no
/// second repair.
pub fn repair(data: &[u8]) {
    for bytes in [data.to_vec(), container::chunks_from(data)] {
        let Ok((report, repaired)) = container::repair_bytes(bytes) else { continue };
        let check = container::check_bytes(repaired.clone()).expect("a repaired trace");
        assert!(check.problems.is_empty(), "{:?}", check.problems);
        let (again, _) = container::repair_bytes(repaired).expect("a repaired trace");
        assert_eq!((again.lost_bytes, again.events), (0, report.events), "a second repair");
    }
}

/// A mutant of the trace whose text form `seed_trace` is, chosen by `data`: it can be written,
/// read, checked and repaired. Returns its file, for those who replay it.
pub fn mutant(seed_trace: &OwnedTrace, data: &[u8]) -> Option<Vec<u8>> {
    let seed = data.iter().fold(0_u64, |seed, &byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).wrapping_add(1)
    });
    let bytes = crate::mutants::mutant(seed_trace, seed).trace.to_bytes().ok()?;
    read(bytes.clone());
    repair(&bytes);
    Some(bytes)
}

fn read(bytes: Vec<u8>) {
    let checked = container::check_bytes(bytes.clone());
    let repaired = container::repair_bytes(bytes.clone());
    let trace = Trace::from_bytes(bytes);
    if let Ok((report, bytes)) = repaired {
        let again = container::check_bytes(bytes.clone()).expect("a repaired trace");
        assert!(again.is_sound(), "{again:?}");
        assert_eq!(again.events, report.events, "repaired");
        let trace = Trace::from_bytes(bytes).expect("a repaired trace opens");
        walk(&trace).expect("a repaired trace can be read");
    }
    let Ok(trace) = trace else { return };
    let walked = walk(&trace);
    let report = checked.expect("a trace that opens can be checked");
    assert!(walked.is_ok() || !report.problems.is_empty(), "{walked:?} was not found");
}

fn walk(trace: &Trace) -> crate::Result<()> {
    let mut events = 0;
    for t in 0..trace.threads() {
        let mut cursor = trace.cursor(ThreadId(t));
        while let Some(event) = cursor.next()? {
            cursor.payload()?;
            events += 1;
            if events < 8 {
                let mut other = trace.cursor_at(ThreadId(t), cursor.position());
                assert_eq!(other.peek()?, cursor.peek()?, "after {event:?}");
            }
        }
        assert_eq!(cursor.position().0, trace.events_of(ThreadId(t)), "every event is counted");
    }
    verify::verify(trace)?;
    let mut size = 0;
    for id in trace.blobs() {
        size += trace.blob_len(id)? as usize;
        trace.blob_parts(id)?.try_for_each(|part| part.map(drop))?;
    }
    for id in trace.files() {
        trace.pages(id, |_, bytes| size += bytes.len())?;
    }
    trace.transformed()?;
    let blocks = trace.blocks()?;
    if size + blocks.len() + events < SMALL {
        compare(&OwnedTrace::read(trace)?);
    }
    Ok(())
}

fn compare(owned: &OwnedTrace) {
    let text = owned.to_string();
    if text.len() < 16 * SMALL {
        let again: OwnedTrace = text.parse().expect("what was printed parses");
        assert_eq!(*owned, again, "text that was printed says something else");
    }
}
