//! The trace file: what is written is read, and what is damaged is noticed.

mod common;

use common::{record, small, trace};
use proptest::prelude::*;
use refrain_trace::container::{self, IndexState, MAX_EVENTS, MAX_PART, PAGE, PageRun};
use refrain_trace::payload::{self, SyscallRecord, Write};
use refrain_trace::{
    BlobId, Ending, Error, Event, EventId, EventKind, Footer, HAS_PAYLOAD, Header, Lack,
    MappedFile, Order, OwnedTrace, ThreadId, Trace, UNFINISHED, Writer, order,
};
use std::cell::RefCell;
use std::collections::BTreeMap;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_is_read(owned in trace()) {
        let bytes = owned.to_bytes().unwrap();
        let report = container::check_bytes(bytes.clone()).unwrap();
        let read = OwnedTrace::read(&Trace::from_bytes(bytes).unwrap()).unwrap();
        prop_assert_eq!(&read, &owned);
        prop_assert_eq!(report.events, owned.threads.iter().map(|t| t.len() as u64).sum::<u64>());
    }

    #[test]
    fn payloads_come_back(records in prop::collection::vec(record(), 1..4)) {
        let mut stream = Vec::new();
        records.iter().for_each(|record| payload::push(&mut stream, record));
        let call = Event { code: EventKind::Syscall as u8, flags: HAS_PAYLOAD, ..Event::default() };
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        writer.events(ThreadId(0), EventId(0), &vec![call; records.len()], &stream).unwrap();
        let trace = Trace::from_bytes(writer.abandon()).unwrap();
        let mut cursor = trace.cursor(ThreadId(0));
        for record in records {
            let peeked = cursor.peek_payload().unwrap();
            prop_assert_eq!(peeked.as_ref(), Some(&record));
            prop_assert!(cursor.next().unwrap().is_some());
            prop_assert_eq!(cursor.payload().unwrap(), Some(record));
        }
    }
}

fn content(bytes: Vec<u8>) -> Result<OwnedTrace, Error> {
    OwnedTrace::read(&Trace::from_bytes(bytes)?)
}

#[test]
fn a_trace_cut_at_any_byte_opens_up_to_its_last_whole_chunk() {
    let owned = small();
    let bytes = owned.to_bytes().unwrap();
    let mut events = 0;
    let mut opened = 0;
    for len in 0..bytes.len() {
        let trace = match Trace::from_bytes(bytes[..len].to_vec()) {
            Err(Error::Empty) => {
                assert_eq!(len, 0);
                continue;
            }
            Err(Error::CutOff) => {
                assert_eq!(opened, 0, "{len} bytes");
                continue;
            }
            other => other.unwrap(),
        };
        opened += 1;
        let read = OwnedTrace::read(&trace).unwrap();
        let lost = |footer: &refrain_trace::Footer| footer.ending == Ending::Lost;
        assert_eq!(trace.is_truncated(), read.footer.as_ref().is_none_or(lost));
        for (whole, part) in owned.threads.iter().zip(&read.threads) {
            assert_eq!(part[..], whole[..part.len()]);
        }
        assert!(trace.events() >= events, "{len} bytes");
        events = trace.events();
        let report = container::check_bytes(bytes[..len].to_vec()).unwrap();
        assert_eq!((&report.problems[..], report.events), (&[][..], events));
        assert_ne!(report.index, IndexState::Sound);
    }
    assert_eq!(events, owned.threads.iter().map(|t| t.len() as u64).sum::<u64>());
}

#[test]
fn a_trace_that_ends_in_zeros_opens_too() {
    // What a file system may leave after a loss of power.
    let mut bytes = OwnedTrace { footer: None, ..small() }.to_bytes().unwrap();
    bytes.resize(bytes.len() + 10_000, 0);
    assert_eq!(content(bytes.clone()).unwrap().footer, None);
    assert_eq!(content(bytes.clone()).unwrap().threads, small().threads);
    bytes.push(1);
    assert!(matches!(content(bytes), Err(Error::Corrupt(..))));
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_nothing() {
    for owned in [small(), OwnedTrace { footer: None, ..small() }] {
        let bytes = owned.to_bytes().unwrap();
        let mut errors = 0;
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match content(flipped.clone()) {
                Ok(read) => assert_eq!(read, owned, "bit {bit}"),
                Err(Error::Corrupt(at, _)) => {
                    assert!(at.offset <= bit as u64 / 8, "bit {bit}: {at}");
                    errors += 1;
                    let problems = container::check_bytes(flipped).unwrap().problems;
                    assert!(problems.iter().any(|p| p.at.offset == at.offset), "{problems:?}");
                }
                Err(Error::NotATrace) => assert!(bit < 64, "bit {bit}"),
                Err(Error::Version { .. }) => assert!((64..96).contains(&bit), "bit {bit}"),
                Err(error) => panic!("bit {bit}: {error}"),
            }
        }
        assert!(errors > bytes.len() * 4, "{errors} errors");
    }
}

#[test]
fn files_that_are_no_traces_get_one_clear_line() {
    let message = |bytes: &[u8]| Trace::from_bytes(bytes.to_vec()).unwrap_err().to_string();
    assert_eq!(message(b""), "empty file: nothing was recorded, or it was lost");
    assert_eq!(message(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0"), "not a refrain trace");
    assert_eq!(message(b"x"), "not a refrain trace");
    let mut future = small().to_bytes().unwrap();
    future[8] = 17;
    assert_eq!(message(&future), "made by a newer refrain (format 17, this one reads 16)");
    future[8] = 0;
    assert_eq!(message(&future), "made by an older refrain (format 0, this one reads 16)");
    assert_eq!(
        message(&future[..5]),
        "cut off before its header was complete: nothing in it can be replayed"
    );
    let dir = Trace::open(std::path::Path::new("/")).unwrap_err().to_string();
    assert!(dir.starts_with("cannot open /: "), "{dir}");
    let none = Trace::open(std::path::Path::new("/no/such/file")).unwrap_err().to_string();
    assert!(none.starts_with("cannot open /no/such/file: "), "{none}");
}

#[test]
fn repair_keeps_what_is_sound() {
    let mut owned = small();
    // Events in several chunks, so that there is something behind the damage.
    let filler = owned.threads[0][4].clone();
    owned.threads[0].splice(4..4, std::iter::repeat_n(filler, 3 * MAX_EVENTS));
    let counts = owned.threads.iter().map(|t| t.len() as u64).collect();
    owned.footer.as_mut().unwrap().events = counts;
    let dir = tempfile::tempdir().unwrap();
    let (path, fixed) = (dir.path().join("a.refrain"), dir.path().join("b.refrain"));
    let mut bytes = owned.to_bytes().unwrap();
    std::fs::write(&path, &bytes).unwrap();
    assert!(container::check(&path).unwrap().is_sound());
    // Headers of chunks of events of t0, the copies in the index left out.
    let mut chunks: Vec<usize> = (0..bytes.len() - 12)
        .filter(|&i| bytes[i..i + 5] == *b"\xc7rfc\x04" && bytes[i + 8..i + 12] == [0; 4])
        .collect();
    chunks.truncate(4);
    bytes[chunks[2] + 50] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let report = container::check(&path).unwrap();
    assert!(!report.is_sound());
    assert_eq!(report.problems.len(), 3, "{:?}", report.problems);
    assert_eq!(container::repair_in_place(&path).unwrap(), None);
    let repaired = container::repair_to(&path, std::fs::File::create(&fixed).unwrap()).unwrap();
    assert_eq!(repaired.events, 2 * MAX_EVENTS as u64 + owned.threads[1].len() as u64);
    assert!(repaired.truncated && repaired.lost_bytes > 0);
    let trace = Trace::open(&fixed).unwrap();
    assert!(trace.is_indexed());
    assert_eq!(trace.events_of(ThreadId(0)), 2 * MAX_EVENTS as u64);
    let report = container::check(&fixed).unwrap();
    assert!(report.is_sound() && report.truncated, "{report:?}");
}

/// What stands behind a damaged part of the code may need it.
#[test]
fn repair_keeps_nothing_behind_lost_code() {
    let mut bytes = small().to_bytes().unwrap();
    let code = bytes.windows(5).position(|w| w == b"\xc7rfc\x06").unwrap();
    bytes[code + 41] ^= 4;
    let (report, repaired) = container::repair_bytes(bytes).unwrap();
    assert_eq!(report.events, 0);
    assert!(container::check_bytes(repaired).unwrap().is_sound());
}

#[test]
fn a_trace_that_was_cut_off_is_repaired_in_its_place() {
    let whole = small().to_bytes().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.refrain");
    for len in (12..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..len]).unwrap();
        let Ok(Some(report)) = container::repair_in_place(&path) else {
            assert!(Trace::open(&path).is_err(), "{len}");
            continue;
        };
        let before = Trace::from_bytes(whole[..len].to_vec()).unwrap();
        assert_eq!(report.events, before.events(), "{len}");
        let check = container::check(&path).unwrap();
        assert!(check.is_sound(), "{len}: {check:?}");
        assert_eq!(check.truncated, before.is_truncated(), "{len}");
    }
}

/// Takes so many bytes, and then no more; a write over the limit is a short one, or fails.
struct Disk {
    bytes: Vec<u8>,
    room: usize,
    short: bool,
}

impl std::io::Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = self.room - self.bytes.len();
        let n = if self.short || bytes.len() <= room { bytes.len().min(room) } else { 0 };
        self.bytes.extend_from_slice(&bytes[..n]);
        if n == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(n) }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl container::Truncate for Disk {
    fn truncate_to(&mut self, len: u64) -> std::io::Result<()> {
        self.bytes.truncate(len as usize);
        Ok(())
    }
}

/// A disk that is full after any number of bytes: what was written before is a whole trace.
#[test]
fn a_full_disk_leaves_a_whole_trace() {
    let event = |value| Event { code: 64, value, begin: value, end: value, ..Event::default() };
    let write = |writer: &mut Writer<Disk>| -> refrain_trace::Result<()> {
        writer.blob(BlobId(0), &[7; 100])?;
        for n in 0..60 {
            let (thread, first) = (ThreadId(n as u32 % 2), EventId(n / 2));
            writer.events(thread, first, &[event(n)], &[])?;
        }
        Ok(())
    };
    let mut whole = 0;
    for short in [false, true] {
        for room in (400..4000).step_by(11) {
            let disk = Disk { bytes: Vec::new(), room, short };
            let Ok(mut writer) = Writer::new(disk, &Header::default()) else { continue };
            if write(&mut writer).is_ok() {
                break;
            }
            let written = writer.bytes_written();
            let (salvaged, disk) = writer.salvage(60).unwrap();
            let check = container::check_bytes(disk.bytes.clone()).unwrap();
            assert_eq!(check.problems, [], "{room}");
            assert_eq!((check.is_sound(), check.events), (salvaged.whole, salvaged.events));
            let trace = Trace::from_bytes(disk.bytes).unwrap();
            assert!(trace.is_truncated());
            whole += usize::from(salvaged.whole);
            // What makes room for the end is no more than that takes, twice over.
            assert!(!salvaged.whole || salvaged.bytes + 3 * 700 > written, "{room}");
        }
    }
    assert!(whole > 100, "{whole} of the traces are whole");
}

/// A call that a thread waits in is its last event, until there are others.
#[test]
fn an_entered_call_holds_until_the_next_events() {
    let start = Event { code: EventKind::ThreadStart as u8, ..Event::default() };
    let call = |value, flags| Event {
        code: EventKind::Syscall as u8,
        flags: HAS_PAYLOAD | flags,
        value,
        ..Event::default()
    };
    let record = SyscallRecord { args: [1, 2, 3, 4, 5, 6], ..SyscallRecord::default() };
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    let entered = call(0, UNFINISHED);
    assert!(matches!(
        writer.entered(ThreadId(0), EventId(0), &entered, &record),
        Err(Error::Misuse(_))
    ));
    writer.events(ThreadId(0), EventId(0), &[start], &[]).unwrap();
    writer.entered(ThreadId(0), EventId(1), &entered, &record).unwrap();
    let mut payloads = Vec::new();
    payload::push(&mut payloads, &record);
    let cut = writer.bytes_written() as usize;
    writer.events(ThreadId(0), EventId(1), &[call(9, 0)], &payloads).unwrap();
    let bytes = writer.abandon();
    for (len, value, flags) in [(cut, 0, UNFINISHED), (bytes.len(), 9, 0)] {
        assert_eq!(container::check_bytes(bytes[..len].to_vec()).unwrap().problems, []);
        let trace = Trace::from_bytes(bytes[..len].to_vec()).unwrap();
        assert_eq!(trace.events(), 2);
        let mut cursor = trace.cursor_at(ThreadId(0), EventId(1));
        let last = cursor.next().unwrap().unwrap();
        assert_eq!((last.value, last.flags & UNFINISHED), (value, flags));
        assert_eq!(cursor.payload().unwrap(), Some(record.clone()));
        assert_eq!(cursor.next().unwrap(), None);
    }
}

#[test]
fn repair_restores_a_lost_index_exactly() {
    let bytes = small().to_bytes().unwrap();
    for len in [bytes.len() - 1, bytes.len() - 17, bytes.len() - 30] {
        let (report, repaired) = container::repair_bytes(bytes[..len].to_vec()).unwrap();
        assert_eq!((report.truncated, &report.problems[..]), (false, &[][..]));
        assert_eq!(repaired, bytes, "cut to {len} bytes");
    }
}

#[test]
fn payloads_and_blobs_longer_than_a_chunk_are_split() {
    let long: Vec<u8> = (0..3 * MAX_PART as u32 + 5).map(|i| (i ^ i >> 9) as u8).collect();
    let record = |n: usize| SyscallRecord {
        writes: vec![Write { address: 7, bytes: long[..n].to_vec() }],
        ..SyscallRecord::default()
    };
    let sizes = [10, long.len(), MAX_PART - 20, MAX_PART, 100, 2 * MAX_PART, 0];
    let mut stream = Vec::new();
    sizes.iter().for_each(|&n| payload::push(&mut stream, &record(n)));
    let call = Event { code: EventKind::Syscall as u8, flags: HAS_PAYLOAD, ..Event::default() };
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    writer.blob(BlobId(3), &long).unwrap();
    writer.blob(BlobId(1), &[]).unwrap();
    writer.events(ThreadId(0), EventId(0), &[call; 7], &stream).unwrap();
    let bytes = writer.abandon();
    assert!(container::check_bytes(bytes.clone()).unwrap().problems.is_empty());
    let trace = Trace::from_bytes(bytes).unwrap();
    assert!(trace.blob(BlobId(3)).unwrap() == long);
    assert_eq!(trace.blob_len(BlobId(3)).unwrap(), long.len() as u64);
    assert_eq!(trace.blob(BlobId(1)).unwrap(), []);
    assert_eq!(trace.blob(BlobId(0)).unwrap_err().to_string(), "the trace has no blob0");
    for start in 0..sizes.len() {
        let mut cursor = trace.cursor_at(ThreadId(0), EventId(start as u64));
        for &n in &sizes[start..] {
            cursor.next().unwrap().unwrap();
            assert!(cursor.payload().unwrap() == Some(record(n)), "{n} bytes");
        }
        assert_eq!(cursor.next().unwrap(), None);
    }
}

#[test]
fn a_cursor_can_begin_anywhere() {
    let event = |n: u64| Event { code: EventKind::Atomic as u8, value: n, ..Event::default() };
    let count = 2 * MAX_EVENTS as u64 + 10;
    let events: Vec<Event> = (0..count).map(event).collect();
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    writer.events(ThreadId(1), EventId(0), &events, &[]).unwrap();
    let trace = Trace::from_bytes(writer.abandon()).unwrap();
    assert_eq!((trace.threads(), trace.events_of(ThreadId(1))), (2, count));
    for n in [0, 1, MAX_EVENTS as u64 - 1, MAX_EVENTS as u64, count - 1, count, u64::MAX] {
        let mut cursor = trace.cursor_at(ThreadId(1), EventId(n));
        assert_eq!(cursor.position(), EventId(n));
        let expected = (n < count).then(|| event(n));
        assert_eq!(cursor.peek().unwrap().copied(), expected);
        assert_eq!(cursor.next().unwrap(), expected);
    }
    assert_eq!(trace.cursor(ThreadId(0)).next().unwrap(), None);
}

/// A recording that comes to a program whose every access is to be ordered says so behind its header.
/// The end of a run with so many events in each thread.
fn footer(events: Vec<u64>) -> Footer {
    Footer { ending: Ending::Exited(0), tsc_end: 0, events, cpu_ns: 0, output_bytes: 0 }
}

#[test]
fn a_trace_may_get_another_order() {
    let written = |orders: &[Order]| {
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        writer.events(ThreadId(0), EventId(0), &[Event::default()], &[]).unwrap();
        orders.iter().for_each(|&order| writer.order(order).unwrap());
        writer.finish(&footer(vec![1])).unwrap()
    };
    let bytes = written(&[Order::Stride]);
    assert_eq!(Trace::from_bytes(bytes.clone()).unwrap().header().order, Order::Stride);
    assert_eq!(container::check_bytes(bytes.clone()).unwrap().problems, []);
    assert_eq!(content(bytes).unwrap().header.order, Order::Stride);
    assert_eq!(Trace::from_bytes(written(&[])).unwrap().header().order, Order::Sync);
    let twice = written(&[Order::Stride, Order::Sync]);
    assert!(matches!(Trace::from_bytes(twice), Err(Error::Corrupt { .. })));
}

#[test]
fn misuse_of_the_writer_is_an_error() {
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    let call = Event { code: EventKind::Syscall as u8, flags: HAS_PAYLOAD, ..Event::default() };
    let unknown = Event { code: 200, ..Event::default() };
    let mut refused = |thread, first, event: Event, payloads: &[u8]| {
        let result = writer.events(ThreadId(thread), EventId(first), &[event], payloads);
        assert!(matches!(result, Err(Error::Misuse(_))), "{result:?}");
    };
    refused(0, 1, Event::default(), &[]);
    refused(u32::MAX, 0, Event::default(), &[]);
    refused(0, 0, call, &[]);
    refused(0, 0, unknown, &[]);
    refused(1, 0, Event::default(), &[0; 4]);
}

#[test]
fn a_full_disk_leaves_a_readable_trace() {
    struct Disk(Vec<u8>, usize);
    impl std::io::Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let n = bytes.len().min(self.1 - self.0.len());
            self.0.extend_from_slice(&bytes[..n]);
            if n == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(n) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut disk = Disk(Vec::new(), 3000);
    let mut writer = Writer::new(&mut disk, &Header::default()).unwrap();
    let (mut first, mut failed) = (0, None);
    while failed.is_none() {
        let event = Event { code: 64, value: first, ..Event::default() };
        failed = writer.events(ThreadId(0), EventId(first), &[event], &[]).err();
        first += 1;
    }
    assert!(matches!(failed, Some(Error::Io { .. })), "{failed:?}");
    assert!(matches!(writer.blob(BlobId(0), &[1]), Err(Error::Misuse(_))));
    let trace = Trace::from_bytes(disk.0).unwrap();
    assert!(trace.is_truncated());
    assert_eq!(trace.events(), first - 1);
}

#[test]
fn an_average_event_takes_less_than_eight_bytes() {
    let mut tickets = vec![0u64; order::SLOTS];
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random >> 33
    };
    let mut clocks = [1u64 << 40; 2];
    let mut threads = [Vec::new(), Vec::new()];
    for _ in 0..20_000 {
        let t = next() as usize & 1;
        let mutex = 0x5555_8040 + (next() & 7) * 40;
        for (kind, pc) in [(EventKind::MutexLock, 0x40_1000), (EventKind::MutexUnlock, 0x40_1040)] {
            let begin = clocks[t] + 100 + next() % 3000;
            let end = begin + 20 + next() % 200;
            let ticket = &mut tickets[order::slot(mutex)];
            threads[t].push(Event {
                code: kind as u8,
                pc,
                sp: 0x7fff_0000,
                object: mutex,
                ticket: *ticket,
                begin,
                end,
                ..Event::default()
            });
            (clocks[t], *ticket) = (end, *ticket + 1);
        }
    }
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    for (t, events) in threads.iter().enumerate() {
        writer.events(ThreadId(t as u32), EventId(0), events, &[]).unwrap();
    }
    let events = threads.iter().map(|t| t.len() as u64).collect();
    let bytes = writer.finish(&footer(events)).unwrap().len();
    let per_event = bytes as f64 / 40_000.0;
    assert!(per_event < 8.0, "{per_event} bytes per event");
}

#[test]
fn files_have_the_pages_that_were_written() {
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    let pages = 2 * MAX_PART / PAGE;
    let file =
        MappedFile { path: "/lib/x.so".into(), len: (pages * PAGE + 10) as u64, modified_ns: 7 };
    writer.file(BlobId(4), &file).unwrap();
    // More than a chunk holds, in runs that do not end where chunks do.
    let runs: Vec<PageRun> =
        (0..pages as u32 / 16).map(|n| PageRun { first: 16 * n + 3, count: 9 }).collect();
    let bytes: Vec<u8> = runs
        .iter()
        .flat_map(|run| (run.first..run.first + run.count).flat_map(|n| vec![n as u8; PAGE]))
        .collect();
    writer.pages(BlobId(4), &runs, &bytes).unwrap();
    let last = PageRun { first: pages as u32, count: 1 };
    writer.pages(BlobId(4), &[last], &[9; PAGE]).unwrap();
    assert!(matches!(writer.pages(BlobId(4), &[last], &[9]), Err(Error::Misuse(_))));
    let trace = Trace::from_bytes(writer.abandon()).unwrap();
    assert_eq!(trace.files().collect::<Vec<_>>(), [BlobId(4)]);
    assert_eq!(trace.file(BlobId(4)).unwrap(), Some(file));
    assert_eq!(trace.file(BlobId(5)).unwrap(), None);
    let mut seen = Vec::new();
    trace
        .pages(BlobId(4), |offset, bytes| {
            for (n, page) in bytes.chunks(PAGE).enumerate() {
                let number = offset / PAGE as u64 + n as u64;
                let expected = if number == pages as u64 { 9 } else { number as u8 };
                assert!(page.iter().all(|&byte| byte == expected), "page {number}");
                seen.push(number as u32);
            }
        })
        .unwrap();
    let written = runs.iter().chain([&last]).flat_map(|run| run.first..run.first + run.count);
    assert_eq!(seen, written.collect::<Vec<_>>());
}

/// What a trace refers to comes from the file, unless the trace has it or the file has changed.
#[test]
fn a_packed_trace_has_what_it_referred_to() {
    let mut contents: Vec<u8> = (0..5 * PAGE + 10).map(|at| (at / 7) as u8).collect();
    let file = MappedFile { path: "/lib/x.so".into(), len: contents.len() as u64, modified_ns: 7 };
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    writer.file(BlobId(0), &file).unwrap();
    let runs = [PageRun { first: 4, count: 2 }, PageRun { first: 1, count: 2 }];
    let read = |run: PageRun, bytes: &mut [u8]| {
        let end = contents.len().min((run.offset() + run.len()) as usize);
        let found = &contents[run.offset() as usize..end];
        bytes[..found.len()].copy_from_slice(found);
    };
    writer.references(BlobId(0), &runs, read).unwrap();
    writer.pages(BlobId(0), &[PageRun { first: 2, count: 1 }], &[9; PAGE]).unwrap();
    let bytes = writer.abandon();
    assert!(container::check_bytes(bytes.clone()).unwrap().refers);
    assert!(refers_to_files(&bytes));
    let trace = Trace::from_bytes(bytes).unwrap();
    assert_eq!(trace.kept(BlobId(0)).unwrap(), (PAGE as u64, 4 * PAGE as u64));
    let error = trace.pages(BlobId(0), |_, _| {}).unwrap_err();
    assert!(matches!(&error, Error::Referenced { path, .. } if path == "/lib/x.so"), "{error}");

    let packed = |contents: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, contents).unwrap();
        container::write_packed(&trace, |_| file.try_clone(), Vec::new())
    };
    let whole = packed(&contents).unwrap();
    assert!(!refers_to_files(&whole));
    let whole = Trace::from_bytes(whole).unwrap();
    let mut pages = std::collections::BTreeMap::new();
    whole.pages(BlobId(0), |offset, bytes| drop(pages.insert(offset, bytes.to_vec()))).unwrap();
    let numbers: Vec<u64> = pages.keys().map(|offset| offset / PAGE as u64).collect();
    assert_eq!(numbers, [1, 2, 4, 5]);
    for (offset, page) in pages {
        let mut expected = [0; PAGE];
        read(PageRun { first: (offset / PAGE as u64) as u32, count: 1 }, &mut expected);
        assert_eq!(page, if offset == 2 * PAGE as u64 { [9; PAGE] } else { expected });
    }

    contents[2 * PAGE] ^= 1;
    packed(&contents).unwrap();
    contents[4 * PAGE] ^= 1;
    let error = packed(&contents).unwrap_err();
    assert!(matches!(error, Error::Referenced { lack: Lack::Changed, .. }), "{error}");
    let error = packed(&contents[..4 * PAGE]).unwrap_err();
    assert!(matches!(error, Error::Referenced { lack: Lack::Changed, .. }), "{error}");
    let missing = |_: &MappedFile| Err(std::io::ErrorKind::NotFound.into());
    let error = container::write_packed(&trace, missing, Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Referenced { lack: Lack::Unreadable(_), .. }), "{error}");
}

fn refers_to_files(bytes: &[u8]) -> bool {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    container::refers_to_files(file).unwrap()
}

/// The index tells, too.
#[test]
fn an_index_tells_of_references() {
    for refers in [false, true] {
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        let file = MappedFile { path: "/lib/x.so".into(), len: PAGE as u64, modified_ns: 7 };
        writer.file(BlobId(0), &file).unwrap();
        let runs = [PageRun { first: 0, count: 1 }];
        match refers {
            true => writer.references(BlobId(0), &runs, |_, page| page.fill(1)).unwrap(),
            false => writer.pages(BlobId(0), &runs, &[1; PAGE]).unwrap(),
        }
        let bytes = writer.finish(&footer(Vec::new())).unwrap();
        assert!(Trace::from_bytes(bytes.clone()).unwrap().is_indexed());
        assert_eq!(refers_to_files(&bytes), refers);
    }
}

/// Pages that all processors pack make the file that one makes of them.
#[test]
fn pages_are_packed_in_their_order() {
    let files: Vec<Vec<PageRun>> = (0..40)
        .map(|n| (0..n).map(|run| PageRun { first: run * 100, count: 1 + run * n % 99 }).collect())
        .collect();
    let fill = |file: usize, run: PageRun, bytes: &mut [u8]| {
        for (page, bytes) in (run.first..).zip(bytes.chunks_mut(PAGE)) {
            bytes.fill((page as usize * 7 + file) as u8);
        }
    };
    let written = |write: &dyn Fn(&mut Writer<Vec<u8>>)| {
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        for id in 0..files.len() as u32 {
            let file =
                MappedFile { path: String::new(), len: 10_000 * PAGE as u64, modified_ns: 0 };
            writer.file(BlobId(id), &file).unwrap();
        }
        write(&mut writer);
        writer.abandon()
    };
    let one_by_one = written(&|writer| {
        for (file, runs) in files.iter().enumerate() {
            writer
                .pages_read(BlobId(file as u32), runs, |run, page| fill(file, run, page), |_, _| {})
                .unwrap();
        }
    });
    let chunks: RefCell<Vec<(u32, Vec<u8>)>> = RefCell::default();
    let at_once = written(&|writer| {
        let all: Vec<_> = (0..).map(BlobId).zip(files.iter().map(Vec::as_slice)).collect();
        let mut pages = BTreeMap::new();
        let packed = |place: usize, runs: &[PageRun], chunk: &[u8]| {
            pages.entry(place).or_insert(Vec::new()).extend_from_slice(runs);
            chunks.borrow_mut().push((place as u32, chunk.to_vec()));
        };
        writer.pages_of_all(&all, fill, packed).unwrap();
        let count = |runs: &[PageRun]| runs.iter().map(|run| run.len()).sum::<u64>();
        assert!(pages.iter().all(|(place, runs)| count(runs) == count(&files[*place])));
    });
    assert!(at_once == one_by_one);
    // What one writer has packed, another one writes as it is, of a file with another number.
    let swap = |id: u32| BlobId(files.len() as u32 - 1 - id);
    let copied = written(&|writer| {
        for (id, chunk) in chunks.borrow().iter() {
            let mut damaged = chunk.clone();
            *damaged.last_mut().unwrap() ^= 1;
            assert!(!writer.packed_pages(swap(*id), &mut damaged).unwrap());
            assert!(
                !writer.packed_pages(swap(*id), &mut chunk[..chunk.len() - 1].to_vec()).unwrap()
            );
            assert!(writer.packed_pages(swap(*id), &mut chunk.clone()).unwrap());
        }
        assert!(!writer.packed_pages(BlobId(0), &mut []).unwrap());
    });
    let pages = |bytes: Vec<u8>, id| {
        let mut pages = BTreeMap::new();
        let trace = Trace::from_bytes(bytes).unwrap();
        trace.pages(id, |offset, bytes| drop(pages.insert(offset, bytes.to_vec()))).unwrap();
        pages
    };
    for id in 0..files.len() as u32 {
        let expected = pages(at_once.clone(), BlobId(id));
        assert!(pages(copied.clone(), swap(id)) == expected, "file {id}");
    }
}

#[test]
fn pages_of_nothing_and_beyond_the_end_are_refused() {
    let page = PageRun { first: 1, count: 1 };
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    writer.pages(BlobId(4), &[page], &[0; PAGE]).unwrap();
    let error = Trace::from_bytes(writer.abandon()).unwrap_err();
    assert!(error.to_string().contains("blob4 is no file"), "{error}");

    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    let file = MappedFile { len: PAGE as u64, ..MappedFile::default() };
    writer.file(BlobId(4), &file).unwrap();
    writer.pages(BlobId(4), &[page], &[0; PAGE]).unwrap();
    let trace = Trace::from_bytes(writer.abandon()).unwrap();
    let error = trace.pages(BlobId(4), |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("beyond the end"), "{error}");
}
