//! Bytes as a trace file. The work is in `refrain_trace::fuzzing`, which `cargo test` runs too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| refrain_trace::fuzzing::trace_reader(data));
