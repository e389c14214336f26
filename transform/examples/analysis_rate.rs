//! What an access and a critical section cost: `analysis_rate [sections per thread] [threads]`.

// A benchmark measures the host; nothing it measures goes back into an analysis.
#![allow(clippy::disallowed_methods)]

use refrain_trace::{Access, Event, EventId, EventKind, ThreadId};
use refrain_transform::{Collector, Sections, Topology, pairs};
use std::time::Instant;

fn main() {
    let argument = |n| std::env::args().nth(n).and_then(|text| text.parse::<u64>().ok());
    let (count, threads) = (argument(1).unwrap_or(1_000_000), argument(2).unwrap_or(2));
    let mut collectors = Vec::new();
    for thread in 0..threads {
        let mut collector = Collector::new(ThreadId(thread as u32), None);
        let access = |address, kind| Access { address, pc: 0, size: 8, kind };
        // Scattered over 1.8 MB; and in order over 32 KB, as most programs most of the time.
        let far = |n: u64| 0x10_0000 * (1 + n % 7) + n.wrapping_mul(0x9e38) % 0x40000;
        for (name, address) in
            [("far", &far as &dyn Fn(u64) -> u64), ("near", &|n| 0x10_0000 + n * 8)]
        {
            let batch: Vec<Access> = (0..4096).map(|n| access(address(n), Access::READ)).collect();
            let started = Instant::now();
            for _ in 0..4096 {
                collector.accesses(&batch);
            }
            let ns = started.elapsed().as_nanos() as f64 / (4096.0 * 4096.0);
            println!("t{thread}: {ns:.2} ns an access outside, {name}");
        }
        let started = Instant::now();
        let event = |kind: EventKind, n: u64, lock: u64| Event {
            code: kind as u8,
            object: 0x1000 + 64 * lock,
            ticket: n * threads + thread,
            pc: 0x100 + lock,
            sp: 0x7fff_0000_0000 + thread * 0x1000_0000,
            ..Event::default()
        };
        for n in 0..count {
            let lock = n % 4;
            collector.event(EventId(2 * n), &event(EventKind::MutexLock, n, lock));
            let slot = 0x100_0000 + lock * 0x1000 + n * (thread + 1) % 64 * 8;
            let inside = [
                access(0x7ffe_ffff_ff00 + thread * 0x1000_0000, Access::WRITE),
                access(slot, Access::READ),
                access(slot, Access::READ | Access::WRITE),
                access(0x200_0000, Access::READ),
            ];
            collector.accesses(&inside);
            collector.event(EventId(2 * n + 1), &event(EventKind::MutexUnlock, n, lock));
        }
        let ns = started.elapsed().as_nanos() as f64 / count as f64;
        println!("t{thread}: {ns:.0} ns a critical section of 4 accesses");
        collectors.push(collector);
    }
    let total = (count * threads) as f64;
    let rate = |what: &str, started: Instant| {
        let ns = started.elapsed().as_nanos() as f64 / total;
        println!("{what}: {ns:.0} ns a section");
    };
    let started = Instant::now();
    let sections = Sections::merge(collectors, &[], &[]).expect("sound");
    rate("merge", started);
    let started = Instant::now();
    let found = pairs(&sections).count();
    rate("pairs", started);
    let started = Instant::now();
    let topology = Topology::new(&sections);
    rate("topology", started);
    println!("{found} pairs, {} edges, {} sets", topology.edges().len(), sections.sets().len());
}
