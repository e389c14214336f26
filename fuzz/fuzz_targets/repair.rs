//! Bytes as a damaged trace that is mended. The work is in `refrain_trace::fuzzing`, which
//! `cargo test` runs too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| refrain_trace::fuzzing::repair(data));
