//! Bytes as what a replay child says to its parent. The work is in `refrain_cli::fuzzing`; the
//! tests of the command run it too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| refrain_cli::fuzzing::child_protocol(data));
