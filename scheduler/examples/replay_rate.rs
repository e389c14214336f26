//! Events per second of building a skeleton and of replaying it: `replay_rate [events] [threads]`.

// A benchmark measures the host; nothing it measures goes back into a replay.
#![allow(clippy::disallowed_methods)]

use refrain_scheduler::{Builder, Config, Constraints, Elsc, Orig, simulate};
use refrain_trace::{Event, EventKind, ThreadId, order};
use std::time::Instant;

fn main() {
    let argument = |n| std::env::args().nth(n).and_then(|text| text.parse::<u64>().ok());
    let (events, threads) = (argument(1).unwrap_or(10_000_000), argument(2).unwrap_or(2));
    let started = Instant::now();
    let mut builder = Builder::new(threads as usize, 1_000_000_000, 0);
    let mut tickets = vec![0u64; order::SLOTS];
    let mut state = 1u64;
    let mut clocks = vec![0u64; threads as usize];
    for _ in 0..events / 2 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let thread = (state >> 33) % threads;
        let object = 0x1000 + 64 * ((state >> 40) % 8);
        for kind in [EventKind::MutexLock, EventKind::MutexUnlock] {
            let ticket = &mut tickets[order::slot(object)];
            let clock = &mut clocks[thread as usize];
            *clock += (state >> 50) % 500;
            let code = kind as u8;
            let event = Event {
                code,
                object,
                ticket: *ticket,
                begin: *clock,
                end: *clock,
                ..Event::default()
            };
            *ticket += 1;
            builder.push(ThreadId(thread as u32), &event).expect("sound");
        }
    }
    let skeleton = builder.finish().expect("sound");
    let rate = |started: Instant| events as f64 / started.elapsed().as_secs_f64() / 1e6;
    println!("build: {:.1} M events/s", rate(started));
    for cores in [threads as u32, 2] {
        let config = Config::typical(cores, 1_000_000_000);
        let started = Instant::now();
        let run =
            simulate(&skeleton, &Constraints::none(), &config, &mut Elsc, &mut ()).completed();
        let duration = run.expect("no deadlock").duration;
        println!("elsc, {cores} cores: {:.1} M events/s, T = {duration} ns", rate(started));
        let started = Instant::now();
        let run = simulate(&skeleton, &Constraints::none(), &config, &mut Orig::exact(), &mut ());
        let duration = run.completed().expect("no deadlock").duration;
        println!("orig, {cores} cores: {:.1} M events/s, T = {duration} ns", rate(started));
    }
}
