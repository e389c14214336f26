//! A few rounds of what the fuzz targets do, from the same seeds.

mod common;

use proptest::prelude::*;
use refrain_trace::fuzzing;

#[test]
fn seeds() {
    let bytes = common::small().to_bytes().unwrap();
    fuzzing::trace_reader(&bytes);
    fuzzing::trace_reader(common::SMALL.as_bytes());
    fuzzing::text_parser(common::SMALL.as_bytes());
}

#[test]
fn repairs_and_mutants() {
    let trace = common::small();
    let bytes = trace.to_bytes().unwrap();
    for length in 0..bytes.len() {
        fuzzing::repair(&bytes[..length]);
    }
    for seed in 0..500_u32 {
        fuzzing::mutant(&trace, &seed.to_le_bytes());
    }
}

/// What the fuzzers found.
#[test]
fn findings() {
    // A chunk of no events: t0 was there when read, and not when printed.
    let mut no_events = vec![4, 0, 0, 0, 12];
    no_events.resize(17, 0);
    fuzzing::trace_reader(&no_events);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn reader(data in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzzing::trace_reader(&data);
    }

    #[test]
    fn reader_of_damaged_traces(
        at in any::<prop::sample::Index>(),
        with in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut bytes = common::small().to_bytes().unwrap();
        let at = at.index(bytes.len());
        let end = bytes.len().min(at + with.len() / 2);
        bytes.splice(at..end, with);
        fuzzing::trace_reader(&bytes);
    }

    #[test]
    fn text(data in "(t0 |start|mutex.lock|syscall|\n| |obj=|write=1:|args=|[0-9a-fx+.,]{1,4}){0,40}") {
        fuzzing::text_parser(data.as_bytes());
    }
}
