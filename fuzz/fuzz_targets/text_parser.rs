//! Bytes as the text form of a trace. The work is in `refrain_trace::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| refrain_trace::fuzzing::text_parser(data));
