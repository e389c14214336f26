//! Instructions lifted to Cranelift IR against the processor itself.
//!
//! The input seeds the oracle's generator, so that every input is a valid experiment: which
//! encodings, which operands, which state. Runs on x86-64 Linux only.
#![no_main]

#[path = "../../jit/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use refrain_vm::{Count, EngineConfig, Processor};
use std::sync::OnceLock;
use support::generate::{self, Random};
use support::native::Native;

fuzz_target!(|input: &[u8]| {
    static NATIVE: OnceLock<(Native, Vec<iced_x86::Code>)> = OnceLock::new();
    let (native, codes) = NATIVE.get_or_init(|| (Native::new(), generate::codes()));
    // Each two bytes choose an encoding; all together seed the operands and states.
    let seed = input
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut random = Random::new(seed);
    let mut cases = Vec::new();
    for choice in input.chunks_exact(2).take(32) {
        let code = codes[usize::from(u16::from_le_bytes([choice[0], choice[1]])) % codes.len()];
        cases.extend(generate::case(code, support::address(cases.len()), 4, &mut random));
    }
    let watched = seed & 1 != 0;
    let config = EngineConfig {
        accesses: watched,
        calls: watched,
        count: if watched { Count::Instructions } else { Count::Nothing },
        processor: Processor::host(),
        ..EngineConfig::default()
    };
    let differences = support::compare(native, &cases, &config);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
});
