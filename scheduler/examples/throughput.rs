//! How fast skeletons are built and replayed, as a table: `throughput [most events] [threads]...`.
//!
//! Each row is one size on one number of threads and as many modelled cores. *Private* threads
//! take locks of their own, *shared* ones eight locks between them, so that most acquisitions
//! wait.

use refrain_scheduler::{
    Builder, Config, Constraints, Elsc, Model, Orig, Scheduler, Skeleton, Waiting, simulate,
};
use refrain_trace::{Event, EventKind, ThreadId, order};

const HZ: u64 = 1_000_000_000;

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let most = arguments.first().copied().unwrap_or(10_000_000);
    let threads = if arguments.len() > 1 { &arguments[1..] } else { &[2, 8, 64][..] };
    println!("M events for each second of processor time");
    println!(
        "{:>11}  {:>7}  {:<7}  {:>6}  {:>6}  {:>6}",
        "events", "threads", "locks", "build", "elsc", "orig"
    );
    for &threads in threads {
        for shared in [false, true] {
            let sizes = std::iter::successors(Some(100_000), |size| Some(size * 10));
            for events in sizes.take_while(|&size| size <= most) {
                let (build, skeleton) = timed(events, || build(events, threads, shared));
                let locks = if shared { "shared" } else { "private" };
                let (elsc, orig) = (
                    rate(&skeleton, Waiting::Handover, Elsc),
                    rate(&skeleton, Waiting::Barging, Orig),
                );
                println!(
                    "{events:>11}  {threads:>7}  {locks:<7}  {build:>6.1}  {elsc:>6.1}  {orig:>6.1}"
                );
            }
        }
    }
}

fn timed<T>(events: u64, work: impl FnOnce() -> T) -> (f64, T) {
    let started = processor_time();
    let result = work();
    (events as f64 / (processor_time() - started) as f64 * 1e3, result)
}

/// Nanoseconds that this thread had a core for: other processes cost it none of them.
fn processor_time() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|time| time.parse().ok()).expect("a kernel with statistics")
}

fn rate<S: Scheduler>(skeleton: &Skeleton, waiting: Waiting, mut scheduler: S) -> f64 {
    let model = Model::waiting(waiting);
    let config = Config::typical(skeleton.threads() as u32, HZ);
    let constraints = Constraints::none();
    let run = || simulate(skeleton, &constraints, &config, &model, &mut scheduler, &mut ());
    let (rate, outcome) = timed(skeleton.events(), run);
    outcome.completed().expect("threads that hold one lock at a time cannot deadlock");
    rate
}

/// Critical sections of random threads, locks and lengths.
fn build(events: u64, threads: u64, shared: bool) -> Skeleton {
    let mut builder = Builder::new(threads as usize, HZ, 0);
    let mut tickets = vec![0u64; order::SLOTS];
    let mut clocks = vec![0u64; threads as usize];
    let mut state = 1u64;
    for _ in 0..events / 2 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let thread = (state >> 33) % threads;
        let lock = (state >> 40) % 8 + if shared { 0 } else { 8 * thread };
        let object = 0x1000 + 64 * lock;
        for kind in [EventKind::MutexLock, EventKind::MutexUnlock] {
            let ticket = &mut tickets[order::slot(object)];
            let clock = &mut clocks[thread as usize];
            *clock += (state >> 50) % 500;
            let (code, begin, end) = (kind as u8, *clock, *clock);
            let event = Event { code, object, ticket: *ticket, begin, end, ..Event::default() };
            *ticket += 1;
            builder.push(ThreadId(thread as u32), &event).expect("a sound event");
        }
    }
    builder.finish().expect("sound tickets")
}
