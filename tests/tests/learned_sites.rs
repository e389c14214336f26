//! What recordings do at sites that are known to race.
//!
//! What a program sends while other threads change it is kept, and a replay sends that, as a watched load
//! reads what was recorded. Accesses of 16 bytes are executed in their turns, as locked instructions are.

use refrain_tests::Bench;
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{EventKind, Module, OwnedEvent, OwnedTrace, Trace};
use std::path::PathBuf;

const SENDS: &str = r#"
#include <unistd.h>
int main(void) {
    return write(1, "hello\n", 6) != 6;
}
"#;

const TRACE: &str = "a.refrain";

fn bench() -> Bench {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    bench.cc(SENDS, &["-o", "sends"]);
    bench
}

fn path(bench: &Bench) -> PathBuf {
    bench.path().join(TRACE)
}

fn recorded(bench: &Bench) -> OwnedTrace {
    let recorded = bench.refrain(["record", "--force", "-o", TRACE, "--", "./sends"]);
    assert_eq!(recorded.succeeds().text(), "hello\n");
    trace(bench)
}

fn trace(bench: &Bench) -> OwnedTrace {
    OwnedTrace::read(&Trace::open(&path(bench)).expect("a trace")).expect("can be read")
}

/// The event of the one call that sends something.
fn sending(trace: &mut OwnedTrace) -> &mut OwnedEvent {
    let mut events = trace.threads[0].iter_mut();
    let sends = |it: &&mut OwnedEvent| {
        let effect = it.payload.as_ref().map(|record| &record.effect);
        matches!(effect, Some(Effect::Output { .. }))
    };
    events.find(sends).expect("it writes")
}

/// Has the bench's next recordings look out for what races at these addresses.
fn learn(bench: &Bench, module: &Module, sites: &[u64]) {
    let sites: Vec<u64> = sites.iter().map(|pc| pc - module.bias).collect();
    let profile = format!(r#"{{"sites": {{"{}": {sites:?}}}}}"#, module.identity());
    bench.file("profile.json", profile.as_bytes());
    bench.refrain(["sites", "import", "profile.json"]).succeeds();
}

#[test]
fn bytes_that_are_known_to_race_are_kept() {
    let bench = bench();
    let mut trace = recorded(&bench);
    let pc = sending(&mut trace).event.pc;
    let mut modules = trace.modules.iter();
    let library = modules.find(|it| (it.start..it.end).contains(&pc)).expect("it is code");
    learn(&bench, library, &[pc]);
    let mut trace = recorded(&bench);
    let kept = &sending(&mut trace).payload;
    let Some(SyscallRecord { effect: Effect::Output { raced, .. }, .. }) = kept else {
        panic!("{kept:?}");
    };
    assert_eq!(raced, b"hello\n");
    for engine in ["tiered", "cranelift", "copy"] {
        bench.refrain(["replay", "--engine", engine, TRACE]).succeeds();
    }
}

/// The replayed program sends "hello"; the recorded one sent something else, and the trace has it, or
/// something that cannot be it.
#[test]
fn bytes_that_raced_are_taken_from_the_trace() {
    /// CRC-32 of "HELLO" and a line feed.
    const CRC: u32 = 0xfdac_d76e;
    let bench = bench();
    let trace = recorded(&bench);
    for (kept, status) in [("HELLO\n", 0), ("HELLo\n", 1), ("", 1)] {
        let mut other = trace.clone();
        let record = sending(&mut other).payload.as_mut().expect("it has one");
        record.effect = Effect::Output { fd: 1, len: 6, crc: CRC, raced: kept.into() };
        std::fs::write(path(&bench), other.to_bytes().expect("can be written")).expect("ours");
        for engine in ["tiered", "cranelift", "copy"] {
            let replay = bench.refrain(["replay", "--engine", engine, TRACE]);
            assert_eq!(replay.status, status, "{kept:?}: {replay:?}");
        }
    }
}

/// Two threads that exchange 16 bytes with nothing to order them, and say what they have seen. Neither stores
/// so often without the other that it would own what it stores to.
const EXCHANGES: &str = r#"
#include <emmintrin.h>
#include <pthread.h>
#include <stdio.h>
static volatile __m128i words[2];
static pthread_barrier_t barrier;
static void *exchange(void *own) {
    volatile __m128i *mine = &words[own != 0], *other = &words[own == 0];
    long seen = 0;
    for (int i = 0; i < 4000; i++) {
        if (i % 16 == 0)
            pthread_barrier_wait(&barrier);
        *mine = _mm_set1_epi32(i);
        __m128i it = *other;
        seen = seen * 31 + _mm_cvtsi128_si32(it) + _mm_cvtsi128_si32(_mm_srli_si128(it, 12));
    }
    return (void *)seen;
}
int main(void) {
    pthread_t thread;
    pthread_barrier_init(&barrier, 0, 2);
    pthread_create(&thread, 0, exchange, (void *)1);
    long mine = (long)exchange(0);
    void *other;
    pthread_join(thread, &other);
    printf("%ld %ld\n", mine, (long)other);
}
"#;

#[test]
fn accesses_of_sixteen_bytes_have_their_turns() {
    let bench = bench();
    bench.cc(EXCHANGES, &["-O1", "-pthread", "-o", "sends"]);
    let record = || {
        bench.refrain(["record", "--force", "-o", TRACE, "--", "./sends"]).succeeds();
        trace(&bench)
    };
    let program = record().modules.swap_remove(0);
    let all: Vec<u64> = (program.start..program.end).collect();
    learn(&bench, &program, &all);
    for _ in 0..5 {
        let trace = record();
        let events = trace.threads.iter().flatten().map(|it| it.event);
        let wide = events.filter(|it| it.kind() == EventKind::Atomic && it.nr == 16).count();
        assert!(wide > 1000, "{wide} events");
        for engine in ["tiered", "cranelift", "copy"] {
            bench.refrain(["replay", "--engine", engine, TRACE]).succeeds();
        }
    }
}
