//! The streams under the writer's rounds, which come every millisecond here.

use super::writer::Start;
use super::*;
use refrain_trace::container::{Truncate, check_bytes};
use refrain_trace::{CodeBlock, Ending, EventId, EventKind, Header, NO_TICKET, Trace};
use std::io::{self, Write};
use std::sync::atomic::AtomicU64;

/// A file that takes so many bytes, and that others can look at.
#[derive(Clone, Default)]
struct Shelf {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: Option<usize>,
}

impl Shelf {
    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().expect("nobody panics with it").clone()
    }

    fn trace(&self) -> Trace {
        Trace::from_bytes(self.bytes()).expect("a trace at any moment")
    }

    /// Waits until the trace is like that; it would be a hang if it never were.
    fn until(&self, like: impl Fn(&Trace) -> bool) -> Trace {
        loop {
            let trace = self.trace();
            if like(&trace) {
                return trace;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Write for Shelf {
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().expect("nobody panics with it");
        if self.room.is_some_and(|room| bytes.len() + new.len() > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        bytes.extend_from_slice(new);
        Ok(new.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Truncate for Shelf {
    fn truncate_to(&mut self, len: u64) -> io::Result<()> {
        self.bytes.lock().expect("nobody panics with it").truncate(len as usize);
        Ok(())
    }
}

fn begin(shelf: &Shelf, strict: Option<Box<dyn FnOnce() + Send>>) -> (Log, WriterThread) {
    let contents = vec![(BlobId(0), vec![7; 32])];
    let blocks = || Vec::<CodeBlock>::new();
    let (file, mapped) = (shelf.clone(), Arc::default());
    let start_with = Start { file, contents, blobs: 1, blocks, mapped, strict };
    start(&Header::default(), start_with).expect("there is room for the header")
}

fn footer(events: Vec<u64>) -> Footer {
    Footer { ending: Ending::Exited(0), tsc_end: 0, events, cpu_ns: 0, output_bytes: 0 }
}

fn event(value: u64) -> Event {
    Event { code: EventKind::Rdtsc as u8, flags: NO_TICKET, value, ..Event::default() }
}

fn values(trace: &Trace, thread: ThreadId) -> Vec<u64> {
    let mut cursor = trace.cursor(thread);
    let next = || cursor.next().expect("can be read").map(|event| event.value);
    std::iter::from_fn(next).collect()
}

/// A thread that does nothing more has its events in the file, the call that it waits in too.
#[test]
fn a_thread_that_waits_is_written() {
    let shelf = Shelf::default();
    let (log, writer) = begin(&shelf, None);
    let stream = log.stream(ThreadId(0), Presence::default());
    stream.append(|| event(1), None).expect("is open");
    let trace = shelf.until(|trace| trace.events() == 1);
    assert_eq!(values(&trace, ThreadId(0)), [1]);
    let call = Event { code: EventKind::Syscall as u8, value: 2, ..Event::default() };
    stream.pending(|| call, SyscallRecord::default()).expect("is open");
    let trace = shelf.until(|trace| trace.events() == 2);
    let mut cursor = trace.cursor_at(ThreadId(0), EventId(1));
    let last = cursor.next().expect("can be read").expect("is there");
    assert!(last.flags & UNFINISHED != 0, "{last:?}");
    stream.append(|| Event { value: 3, ..call }, Some(&SyscallRecord::default())).expect("is open");
    let trace = shelf.until(|trace| values(trace, ThreadId(0)) == [1, 3]);
    assert_eq!(trace.events(), 2);
    log.finish(footer(log.close(|| ())));
    writer.join().expect("does not panic").expect("the file takes everything");
    assert!(check_bytes(shelf.bytes()).expect("a trace").is_sound());
}

/// Compilers make several loads of one that a loop polls: which of them finds something new does not matter.
#[test]
fn a_thread_waits_for_a_word_since_it_polled_it_first() {
    let shelf = Shelf::default();
    let (log, writer) = begin(&shelf, None);
    let stream = log.stream(ThreadId(0), Presence::default());
    stream.append(|| event(1), None).expect("is open");
    let load = |pc, object, begin| Event { pc, object, begin, ..event(0) };
    let mut busy = stream.enter().expect("is open");
    busy.known_load(&load(1, 0x1000, 10), OrderedKind::Load);
    assert_eq!(busy.waits_since(&load(1, 0x1000, 11), OrderedKind::Poll), (11, 0), "not polled");
    busy.known_load(&load(1, 0x1000, 20), OrderedKind::Poll);
    busy.known_load(&load(2, 0x1000, 30), OrderedKind::Poll);
    assert_eq!(busy.waits_since(&load(2, 0x1000, 40), OrderedKind::Poll), (20, 1));
    assert_eq!(busy.waits_since(&load(2, 0x1008, 40), OrderedKind::Poll), (40, 0), "another word");
    assert_eq!(busy.waits_since(&load(3, 0x1000, 40), OrderedKind::Load), (40, 0), "not in a loop");
    busy.push(event(2));
    assert_eq!(busy.waits_since(&load(1, 0x1000, 50), OrderedKind::Poll), (50, 0), "it is over");
    drop(busy);
    log.finish(footer(log.close(|| ())));
    writer.join().expect("does not panic").expect("the file takes everything");
}

/// Nothing is lost, doubled or out of order, however often the writer comes.
#[test]
fn threads_append_while_the_writer_visits_them() {
    const THREADS: u32 = 3;
    const EVENTS: u64 = 60_000;
    let shelf = Shelf::default();
    let (log, writer) = begin(&shelf, None);
    std::thread::scope(|scope| {
        for thread in (0..THREADS).map(ThreadId) {
            let presence = Presence::default();
            let stream = log.stream(thread, presence.clone());
            scope.spawn(move || {
                presence.enter();
                for value in 0..EVENTS {
                    match value % 7 {
                        0 => {
                            stream.append_open(|| event(0)).expect("is open");
                            stream.amend(|event| event.value = value);
                        }
                        1 => {
                            let record = SyscallRecord::default();
                            let code = EventKind::Syscall as u8;
                            let call = Event { code, ..event(value) };
                            stream.append(|| call, Some(&record)).expect("is open");
                        }
                        _ => match stream.try_enter().filter_map_room() {
                            Some(mut busy) => busy.push(event(value)),
                            None => stream.append(|| event(value), None).expect("is open"),
                        },
                    }
                }
            });
        }
    });
    let counts = log.close(|| ());
    assert_eq!(counts, [EVENTS; THREADS as usize]);
    log.finish(footer(counts));
    writer.join().expect("does not panic").expect("the file takes everything");
    assert!(check_bytes(shelf.bytes()).expect("a trace").is_sound());
    let trace = shelf.trace();
    for thread in (0..THREADS).map(ThreadId) {
        assert!(values(&trace, thread).into_iter().eq(0..EVENTS), "{thread}");
    }
}

/// Whoever comes and goes in guest code is not interrupted outside of it by those who insert, and neither
/// disturbs the other.
#[test]
fn others_insert_while_a_thread_comes_and_goes() {
    const ROUNDS: u64 = 2_000;
    let shelf = Shelf::default();
    let (log, writer) = begin(&shelf, None);
    let presence = Presence::default();
    let stream = log.stream(ThreadId(0), presence.clone());
    let over = AtomicBool::new(false);
    let inserted = std::thread::scope(|scope| {
        let inserts = scope.spawn(|| {
            let mut inserted = 0;
            while !over.load(Ordering::Relaxed) {
                let handover = Event { code: EventKind::Handover as u8, ..event(inserted) };
                log.insert(ThreadId(0), |made| made, || handover).expect("is open");
                inserted += 1;
            }
            inserted
        });
        for round in 0..ROUNDS {
            presence.enter();
            for value in [3 * round, 3 * round + 1] {
                match stream.try_enter().filter_map_room() {
                    Some(mut busy) => busy.push(event(value)),
                    None => stream.append(|| event(value), None).expect("is open"),
                }
            }
            presence.leave();
            stream.append(|| event(3 * round + 2), None).expect("is open");
        }
        over.store(true, Ordering::Relaxed);
        inserts.join().expect("does not panic")
    });
    let counts = log.close(|| ());
    assert_eq!(counts, [3 * ROUNDS + inserted]);
    log.finish(footer(counts));
    writer.join().expect("does not panic").expect("the file takes everything");
    let trace = shelf.trace();
    let mut cursor = trace.cursor(ThreadId(0));
    let events: Vec<Event> = std::iter::from_fn(|| cursor.next().expect("can be read")).collect();
    let of = |handed: bool| {
        let is_handed = |event: &Event| event.code == EventKind::Handover as u8;
        let of_kind = events.iter().filter(move |event| is_handed(event) == handed);
        of_kind.map(|event| event.value)
    };
    assert!(of(false).eq(0..3 * ROUNDS));
    assert!(of(true).eq(0..inserted));
}

/// What another thread inserts stands behind the accesses that it has counted, and the thread's own
/// events count on from there; one that is open is amended all the same.
#[test]
fn what_others_insert_has_its_place_among_the_accesses() {
    let shelf = Shelf::default();
    let (log, writer) = begin(&shelf, None);
    let (count, window) = (AtomicU64::new(0), AtomicU8::new(0));
    let none = crate::LineTable { lines: std::ptr::null(), pairs: std::ptr::null() };
    let kept = std::ptr::null();
    let filter = Filter { count: &count, window: &window, readable: none, writable: none, kept };
    let stream = log.stream(ThreadId(0), Presence::default());
    stream.count_accesses(filter);
    let made = || count.load(Ordering::Relaxed);
    let handover = |ticket| Event { code: EventKind::Handover as u8, ticket, ..Event::default() };
    stream.append(|| event(1), None).expect("is open");
    count.store(5, Ordering::Relaxed);
    assert_eq!(log.insert(ThreadId(0), |_| made(), || handover(0)).expect("is open"), 0);
    count.store(7, Ordering::Relaxed);
    stream.append_open(|| event(2)).expect("is open");
    assert_eq!(log.insert(ThreadId(0), |_| made(), || handover(1)).expect("is open"), 1);
    stream.amend(|event| event.end = 9);
    count.store(10, Ordering::Relaxed);
    stream.append(|| Event { begin: 9, end: 9, ..event(3) }, None).expect("is open");
    log.finish(footer(log.close(|| ())));
    writer.join().expect("does not panic").expect("the file takes everything");
    let trace = shelf.trace();
    let mut cursor = trace.cursor(ThreadId(0));
    let next = || cursor.next().expect("can be read").map(|e| (e.value, e.unrecorded, e.end));
    let events: Vec<_> = std::iter::from_fn(next).collect();
    assert_eq!(events, [(1, 0, 0), (0, 5, 0), (2, 2, 9), (0, 0, 9), (3, 3, 9)]);
    assert!(
        log.insert(ThreadId(0), |_| made(), || handover(2)).is_err(),
        "nobody appends any more"
    );
}

/// As the functions that translated code calls do it.
trait WithRoom {
    fn filter_map_room(self) -> Self;
}

impl WithRoom for Option<Busy<'_>> {
    fn filter_map_room(self) -> Self {
        self.and_then(|mut busy| busy.has_room(1).then_some(busy))
    }
}

/// After a failed write the threads go on, and what was written is a whole trace.
#[test]
fn a_full_disk_ends_the_trace_and_nothing_else() {
    for room in (300..3000).step_by(90) {
        let shelf = Shelf { room: Some(room), ..Shelf::default() };
        let (log, writer) = begin(&shelf, None);
        let stream = log.stream(ThreadId(0), Presence::default());
        let mut value = 0;
        while !writer.is_finished() {
            stream.append(|| event(value), None).expect("is open");
            value += 1;
        }
        let written = writer.join().expect("does not panic").expect("is salvaged");
        let lost = written.lost.expect("the end is lost");
        stream.append(|| event(value), None).expect("is open still");
        let report = check_bytes(shelf.bytes()).expect("a trace");
        assert!(report.problems.is_empty() && report.truncated, "{room}: {report:?}");
        assert_eq!((report.events, report.bytes), (lost.events, written.bytes), "{room}");
        assert!(values(&shelf.trace(), ThreadId(0)).into_iter().eq(0..lost.events), "{room}");
        log.finish(footer(log.close(|| ())));
    }
}

#[test]
fn a_strict_recording_is_told_to_stop() {
    let shelf = Shelf { room: Some(900), ..Shelf::default() };
    let (stop, stopped) = crossbeam::channel::bounded(1);
    let strict = Box::new(move || stop.send(()).expect("somebody listens"));
    let (log, writer) = begin(&shelf, Some(strict));
    let stream = log.stream(ThreadId(0), Presence::default());
    let mut value = 0;
    while stopped.try_recv().is_err() {
        stream.append(|| event(value), None).expect("is open");
        value += 1;
    }
    let error = writer.join().expect("does not panic").expect_err("the file is full");
    assert!(error.to_string().contains("cannot write the trace"), "{error}");
}

/// A thread that waits for a ticket whose holder is over does not keep the recording from ending.
#[test]
fn a_thread_in_the_middle_of_an_event_is_freed() {
    let shelf = Shelf::default();
    let (log, writer) = begin(&shelf, None);
    let stream = log.stream(ThreadId(0), Presence::default());
    let free = AtomicBool::new(false);
    let (begun, begins) = crossbeam::channel::bounded(1);
    let counts = std::thread::scope(|scope| {
        scope.spawn(|| {
            let make = || {
                begun.send(()).expect("somebody listens");
                while !free.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                event(1)
            };
            stream.append(make, None).expect("was open");
        });
        begins.recv().expect("the thread comes to its event");
        log.close(|| free.store(true, Ordering::SeqCst))
    });
    assert_eq!(counts, [1]);
    log.finish(footer(counts));
    writer.join().expect("does not panic").expect("the file takes everything");
    assert_eq!(values(&shelf.trace(), ThreadId(0)), [1]);
}
