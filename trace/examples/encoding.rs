//! How fast events are written and read, and how many bytes they take.
//!
//! `cargo run --release -p refrain-trace --example encoding [pairs]`: two threads that contend
//! for a few mutexes, with a system call now and then, like a compressor's work queue; then the
//! same with atomics on many objects, which is the harder stream to predict.

#![expect(clippy::disallowed_methods, reason = "real time is what is measured")]

use refrain_trace::container::MAX_EVENTS;
use refrain_trace::payload::{self, Effect, SyscallRecord};
use refrain_trace::verify::verify;
use refrain_trace::{Event, EventId, EventKind, Header, NO_TICKET, ThreadId, Trace, Writer, order};
use std::time::{Duration, Instant};

/// A xorshift generator: the noise in times and the order of threads.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between `min` and about `8 * min`, small values more often.
    fn about(&mut self, min: u64) -> u64 {
        let x = self.next();
        min + (x % min) * (x >> 32 & 7) * (x >> 40 & 1)
    }
}

/// One guest thread as the recorder sees it.
#[derive(Default)]
struct Guest {
    events: Vec<Event>,
    payloads: Vec<u8>,
    written: u64,
    clock: u64,
}

struct Run {
    guests: [Guest; 2],
    tickets: Vec<u64>,
    noise: Noise,
    writer: Writer<Vec<u8>>,
    encoding: Duration,
    events: u64,
}

impl Run {
    fn new() -> Run {
        Run {
            guests: Default::default(),
            tickets: vec![0; order::SLOTS],
            noise: Noise(0x5eed),
            writer: Writer::new(Vec::new(), &Header::default()).expect("writing to memory"),
            encoding: Duration::ZERO,
            events: 0,
        }
    }

    /// Both threads start, or exit.
    fn both(&mut self, kind: EventKind) {
        for t in 0..2 {
            let object = order::thread_object(ThreadId(t as u32));
            let event = Event { code: kind as u8, object, ..Event::default() };
            self.event(t, order::slot(object), event);
        }
    }

    fn event(&mut self, t: usize, slot: usize, mut event: Event) {
        let noise = &mut self.noise;
        let guest = &mut self.guests[t];
        event.sp = 0x7fff_f7d0_0000 - t as u64 * 0x80_0000 - (event.pc & 0xff0);
        event.begin = guest.clock + noise.about(400);
        event.end = event.begin + noise.about(40);
        guest.clock = event.end;
        if event.flags & NO_TICKET == 0 {
            event.ticket = self.tickets[slot];
            self.tickets[slot] += 1;
        }
        guest.events.push(event);
        if guest.events.len() == MAX_EVENTS {
            self.flush(t);
        }
    }

    fn flush(&mut self, t: usize) {
        let guest = &mut self.guests[t];
        let start = Instant::now();
        self.writer
            .events(ThreadId(t as u32), EventId(guest.written), &guest.events, &guest.payloads)
            .expect("writing to memory");
        self.encoding += start.elapsed();
        guest.written += guest.events.len() as u64;
        self.events += guest.events.len() as u64;
        guest.events.clear();
        guest.payloads.clear();
    }

    fn syscall(&mut self, t: usize) {
        let x = self.noise.next();
        let local = x & 3 != 0;
        let bytes: Vec<u8> =
            (0..16).map(|i| b"the quick brown fox jumps"[(x as usize + i) % 20]).collect();
        let record = SyscallRecord {
            args: [3, 0x5555_0000 + (x >> 8 & 0xfff), 16, 0, 0, 0],
            writes: vec![payload::Write { address: 0x5555_0000 + (x >> 8 & 0xfff), bytes }],
            effect: Effect::None,
        };
        payload::push(&mut self.guests[t].payloads, &record);
        let flags = refrain_trace::HAS_PAYLOAD | if local { NO_TICKET } else { 0 };
        let aux = if local { 0 } else { self.tickets[order::SYSCALL_SLOT] + 1 };
        let event = Event {
            code: EventKind::Syscall as u8,
            flags,
            pc: 0x40_3000,
            object: x,
            value: 16,
            aux,
            ..Event::default()
        };
        self.event(t, order::SYSCALL_SLOT, event);
    }

    fn pair(&mut self, t: usize, mutex: u64, site: u64) {
        for (kind, pc) in [(EventKind::MutexLock, site), (EventKind::MutexUnlock, site + 0x40)] {
            let event = Event { code: kind as u8, pc, object: mutex, ..Event::default() };
            self.event(t, order::slot(mutex), event);
        }
    }

    fn atomic(&mut self, t: usize) {
        let object = 0x5560_0000 + (self.noise.next() >> 20 & 0x3ff) * 64;
        let event = Event {
            code: EventKind::Atomic as u8,
            nr: 4,
            pc: 0x40_5000,
            object,
            value: self.noise.next() & 3,
            ..Event::default()
        };
        self.event(t, order::slot(object), event);
    }

    fn finish(mut self, what: &str) {
        self.both(EventKind::ThreadExit);
        self.flush(0);
        self.flush(1);
        let bytes = self.writer.bytes_written();
        let footer = refrain_trace::Footer {
            ending: refrain_trace::Ending::Exited(0),
            tsc_end: self.guests[0].clock,
            events: self.guests.iter().map(|g| g.written).collect(),
            cpu_ns: 0,
            output_bytes: 0,
        };
        let file = self.writer.finish(&footer).expect("writing to memory");
        let trace = Trace::from_bytes(file).expect("a trace just written");
        let start = Instant::now();
        let mut sum = 0;
        for t in 0..trace.threads() {
            let mut cursor = trace.cursor(ThreadId(t));
            while let Some(event) = cursor.next().expect("a trace just written") {
                sum ^= event.end;
            }
        }
        let decoding = start.elapsed();
        let start = Instant::now();
        let violations = verify(&trace).expect("a trace just written").len();
        let verifying = start.elapsed();
        let rate = |time: Duration| self.events as f64 / time.as_secs_f64() / 1e6;
        println!(
            "{what}: {} events, {:.2} bytes/event, encoding {:.1} M events/s, decoding {:.1} M events/s, \
             verifying {:.1} M events/s ({violations} violations, checksum {sum:x})",
            self.events,
            bytes as f64 / self.events as f64,
            rate(self.encoding),
            rate(decoding),
            rate(verifying),
        );
    }
}

fn main() {
    let pairs: u64 = std::env::args().nth(1).map_or(10_000_000, |n| n.parse().expect("a number"));
    let mut run = Run::new();
    run.both(EventKind::ThreadStart);
    for n in 0..pairs {
        let t = (run.noise.next() & 1) as usize;
        let x = run.noise.next();
        run.pair(t, 0x5555_8040 + (x & 3) * 40, 0x40_1000 + (x & 3) * 0x100);
        if n % 16 == 0 {
            run.syscall(t);
        }
    }
    run.finish("mutexes and system calls");
    let mut run = Run::new();
    run.both(EventKind::ThreadStart);
    for _ in 0..pairs / 2 {
        let t = (run.noise.next() & 1) as usize;
        run.atomic(t);
    }
    run.finish("atomics on 1,024 objects");
}
