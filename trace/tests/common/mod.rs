//! Random traces.
#![allow(dead_code, reason = "each test binary uses a part")]

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use refrain_trace::container::PAGE;
use refrain_trace::payload::{Effect, SyscallRecord, Window, Write};
use refrain_trace::{
    BlobId, CausalEdge, CodeBlock, Ending, Entry, Event, EventKind, Footer, FreedSection, Header,
    Latencies, Locking, Machine, MappedFile, Mapping, Module, Order, OwnedEvent, OwnedTrace,
    ThreadId, Transformed,
};

/// Numbers as programs have them: small ones, addresses, extremes.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..16u64,
        2 => (0..8u64).prop_map(|n| 0x5555_0000 + 64 * n),
        1 => any::<u64>(),
        1 => Just(u64::MAX),
        1 => Just(1 << 63),
    ]
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let kind = prop::sample::select(EventKind::ALL);
    let small = (kind, any::<u8>(), prop_oneof![Just(0u16), any::<u16>()], any::<i32>());
    let large = (number(), number(), number(), number(), number());
    let times = (number(), number(), number(), number(), number(), number());
    (small, large, times).prop_map(|(small, large, times)| Event {
        code: small.0 as u8,
        flags: small.1,
        nr: small.2,
        result: small.3,
        pc: large.0,
        sp: large.1,
        object: large.2,
        ticket: large.3,
        value: large.4,
        aux: times.0,
        begin: times.1,
        end: times.2,
        overhead: times.3,
        busy: times.4,
        unrecorded: times.5,
    })
}

fn effect() -> impl Strategy<Value = Effect> {
    let window = (any::<u32>(), number(), number()).prop_map(|(blob, offset, len)| Window {
        blob: BlobId(blob),
        offset,
        len,
    });
    prop_oneof![
        Just(Effect::None),
        (any::<i32>(), number(), any::<u32>(), vec(any::<u8>(), 0..9))
            .prop_map(|(fd, len, crc, raced)| Effect::Output { fd, len, crc, raced }),
        prop::option::of(window).prop_map(|content| Effect::Memory { content }),
        any::<u32>().prop_map(|t| Effect::Clone { child: ThreadId(t) }),
        any::<u32>().prop_map(|blob| Effect::Exec { image: BlobId(blob) }),
    ]
}

pub(crate) fn record() -> impl Strategy<Value = SyscallRecord> {
    let write = (number(), vec(any::<u8>(), 0..40));
    let writes = vec(write.prop_map(|(address, bytes)| Write { address, bytes }), 0..3);
    let args = prop::array::uniform6(number());
    prop_oneof![
        1 => Just(SyscallRecord::default()),
        4 => (args, writes, effect())
            .prop_map(|(args, writes, effect)| SyscallRecord { args, writes, effect }),
    ]
}

fn header() -> impl Strategy<Value = Header> {
    let text = || ".*";
    let mapping = (number(), number(), any::<u32>(), prop::option::of(any::<u32>())).prop_map(
        |(address, len, prot, blob)| {
            let offset = blob.map_or(0, |blob| u64::from(blob) * PAGE as u64);
            Mapping { address, len, prot, content: blob.map(BlobId), offset }
        },
    );
    let strings = (vec(text(), 0..3), text(), text(), text(), text(), text(), vec(text(), 0..3));
    let numbers = (any::<u32>(), prop::array::uniform6(number()));
    let latencies = prop::option::of((number(), number()));
    let latencies =
        latencies.prop_map(|l| l.map(|(handoff_ns, wake_ns)| Latencies { handoff_ns, wake_ns }));
    let locking = prop::option::of((number(), number(), number()));
    let locking = locking.prop_map(|locking| {
        locking.map(|(native_ns, held_ns, free_ns)| Locking { native_ns, held_ns, free_ns })
    });
    let parts = (strings, numbers, latencies, locking, vec(mapping, 0..3));
    parts.prop_map(|(strings, (cores, n), latencies, locking, mappings)| Header {
        argv: strings.0,
        program: strings.1,
        cwd: strings.2,
        recorder: strings.3,
        machine: Machine { cpu: strings.4, cores, kernel: strings.5, latencies, locking },
        processor: strings.6,
        tsc_hz: n[0],
        tsc_start: n[1],
        started_unix_ns: n[2],
        entry: Entry { rip: n[3], rsp: n[4], brk: n[5] },
        mappings,
        order: if n[4] % 2 == 0 { Order::Sync } else { Order::Stride },
    })
}

fn module() -> impl Strategy<Value = Module> {
    let hooks = vec((number(), "[a-z_@. ]*"), 0..3);
    let constant = vec((number(), number()), 0..3);
    let id = prop::option::of("[0-9a-f]{0,8}");
    (".*", id, number(), number(), number(), hooks, constant).prop_map(
        |(path, build_id, bias, start, end, hooks, constant)| Module {
            path,
            build_id,
            bias,
            start,
            end,
            hooks,
            constant,
        },
    )
}

fn footer() -> impl Strategy<Value = Footer> {
    let ending = prop_oneof![
        any::<i32>().prop_map(Ending::Exited),
        any::<i32>().prop_map(Ending::Signaled),
        any::<i32>().prop_map(Ending::Stopped),
        Just(Ending::Lost),
    ];
    (ending, vec(number(), 0..3), number(), number(), number()).prop_map(
        |(ending, events, tsc_end, cpu_ns, output_bytes)| Footer {
            ending,
            tsc_end,
            events,
            cpu_ns,
            output_bytes,
        },
    )
}

/// A transformation of anything.
fn transformed() -> impl Strategy<Value = Transformed> {
    let events = prop::array::uniform6(any::<u32>());
    let section = (events, any::<bool>(), any::<bool>()).prop_map(|(n, shared, after_wait)| {
        let [lock, thread, acquire, release, reads, writes] = n;
        FreedSection { lock, thread, acquire, release, reads, writes, shared, after_wait }
    });
    let edge =
        (any::<u32>(), any::<u32>()).prop_map(|(target, source)| CausalEdge { target, source });
    let sets = vec(vec((number(), number()), 0..3), 0..3);
    let state = prop::option::of(any::<u32>());
    (vec(number(), 0..3), sets, vec(section, 0..5), vec(edge, 0..5), state).prop_map(
        |(locks, sets, sections, edges, state)| Transformed { locks, sets, sections, edges, state },
    )
}

/// A trace of anything that can be written, whether or not it makes sense.
pub(crate) fn trace() -> impl Strategy<Value = OwnedTrace> {
    let block = (number(), vec(any::<u8>(), 0..20), vec(any::<u16>(), 0..3))
        .prop_map(|(pc, code, loads)| CodeBlock { pc, code, loads });
    let owned = (event(), prop::option::weighted(0.2, record()))
        .prop_map(|(event, payload)| OwnedEvent::new(event, payload));
    let threads = vec(vec(owned, 0..40), 0..3).prop_map(|mut threads| {
        while threads.last().is_some_and(Vec::is_empty) {
            threads.pop();
        }
        threads
    });
    let blobs = btree_map((0..9u32).prop_map(BlobId), vec(any::<u8>(), 0..80), 0..3);
    let pages = btree_map((0..9u64).prop_map(|n| n * PAGE as u64), any::<u8>(), 0..3)
        .prop_map(|pages| pages.into_iter().map(|(at, byte)| (at, vec![byte; PAGE])).collect());
    let len = prop_oneof![8 * PAGE as u64 + 1..9 * PAGE as u64, Just(u64::MAX)];
    let file = (".*", len, number()).prop_map(|(path, len, modified_ns)| MappedFile {
        path,
        len,
        modified_ns,
    });
    let files = btree_map((9..12u32).prop_map(BlobId), (file, pages), 0..2);
    let parts = (vec(module(), 0..3), blobs, files, vec(block, 0..4));
    let ends = (prop::option::of(transformed()), prop::option::of(footer()));
    (header(), parts, threads, ends).prop_map(
        |(header, (modules, blobs, files, blocks), threads, (transformed, footer))| OwnedTrace {
            header,
            modules,
            blobs,
            files,
            blocks,
            threads,
            transformed,
            footer,
        },
    )
}

/// A small trace that makes sense, with one of everything.
pub(crate) const SMALL: &str = r#"
argv "prog" "-v"
program "/bin/prog"
machine cpu="some cpu" cores=2 kernel="6.1"
processor "avx" "avx2"
clock hz=2000000000 start=1000
entry rip=0x400000 rsp=0x7fff0000 brk=0x600000
map 0x400000 len=0x1000 prot=5 content=blob0
module "/bin/prog" build_id="c0ffee" start=0x400000 end=0x401000 hook=0x400100:"pthread_mutex_lock"
blob0 4831c0c3
blk0 0x400000 4831c0c3
t0 start at=1000
t0 create pc=0x400020
t0 syscall nr=56 value=7 args=0x11 clone=t1 at=+10+5
t1 start at=1100
t0 mutex.lock obj=0x50000 pc=0x400040 at=+100+3
t0 mutex.unlock obj=0x50000 pc=0x400050 at=+40
t1 mutex.lock obj=0x50000 pc=0x400040 at=+10+200
t1 mutex.unlock obj=0x50000 pc=0x400050 at=+40
t1 syscall nr=1 value=3 args=1,0x6000,3 output=1,3,0x12345678 write=0x6000:616263 at=+7+9
t1 exit at=+3
t0 join obj=t1 at=+3+500
t0 syscall nr=231 args=0 payload unfinished
end exited=0 tsc=99999 output=3
"#;

/// [`SMALL`], parsed.
pub(crate) fn small() -> OwnedTrace {
    SMALL.parse().expect("the text above is a trace")
}
