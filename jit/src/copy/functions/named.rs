//! Variables that locked instructions name by their addresses, anywhere in a module.
//!
//! Such a variable is atomic wherever the module names it: what one function locks by a locked
//! instruction, another one lets go of by a store.
//!
//! The instructions are found by their bytes, since decoding a whole module would take long. Other
//! bytes seldom look so, and then a variable more is watched.

use super::Functions;
use crate::copy::ordered::is_locked;
use crate::memory::read_guest;
use iced_x86::{Decoder, DecoderOptions, OpKind};
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_vm::layout::LIBRARIES;
use std::ops::Range;
use std::sync::Arc;

/// The prefix of locked instructions.
const LOCK: u8 = 0xf0;
/// The opcodes of exchanges with memory, which need no prefix.
const EXCHANGES: [u8; 2] = [0x86, 0x87];
/// Of a `ModRM` byte, the bits that say which memory is named, and what they are where it is named by
/// its distance.
const MEMORY: u8 = 0xc7;
const BY_DISTANCE: u8 = 0x05;
/// Bytes between the prefix and the `ModRM` byte, at most: two prefixes, and an opcode of two bytes.
const BEFORE: usize = 4;
/// Bytes of an instruction, at most.
const LONGEST: usize = 15;

/// By where a module begins, what its locked instructions name.
#[derive(Default)]
pub(super) struct Named(FixedMap<u64, Arc<FixedSet<u64>>>);

impl Named {
    /// Code or what is known of it has changed.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

impl Functions {
    /// Whether all code of a module may be looked through. That touches its pages, which the trace keeps
    /// then, whether the program uses them or not.
    pub(super) fn is_small(module: &Range<u64>) -> bool {
        let largest = if LIBRARIES.contains(&module.start) { 256 << 10 } else { 1 << 20 };
        module.end - module.start <= largest
    }

    /// The variables that locked instructions of a module name by their addresses; of a large module
    /// nothing is known.
    pub(super) fn named_by_locked(&mut self, module: &Range<u64>) -> Arc<FixedSet<u64>> {
        let found =
            self.named.0.entry(module.start).or_insert_with(|| match Self::is_small(module) {
                true => Arc::new(search(module)),
                false => Arc::default(),
            });
        Arc::clone(found)
    }
}

fn search(module: &Range<u64>) -> FixedSet<u64> {
    let mut code = vec![0; (module.end - module.start) as usize + LONGEST];
    let readable = read_guest(module.start, &mut code);
    let code = &code[..readable];
    let starts = code.iter().enumerate().filter(|&(at, &byte)| match byte {
        LOCK => code[at + 1..].iter().take(BEFORE + 1).any(|it| it & MEMORY == BY_DISTANCE),
        byte if EXCHANGES.contains(&byte) => {
            code.get(at + 1).is_some_and(|it| it & MEMORY == BY_DISTANCE)
        }
        _ => false,
    });
    let named = starts.filter_map(|(at, _)| {
        let bytes = &code[at..code.len().min(at + LONGEST)];
        let ip = module.start + at as u64;
        let i = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
        let names = is_locked(&i) && i.op0_kind() == OpKind::Memory && i.is_ip_rel_memory_operand();
        names.then(|| i.ip_rel_memory_address())
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use crate::copy::functions::tests::write_functions;
    use iced_x86::code_asm::*;

    /// An instruction that names a variable behind the code by its distance, in the function of this
    /// number.
    fn by_distance(a: &mut CodeAssembler, code: &[u8], function: u32, variable: u32) {
        let next = 16 * function + code.len() as u32 + 4;
        a.db(code).unwrap();
        a.dd(&[0x4000 + variable - next]).unwrap();
    }

    /// A flag that one function takes and others look at and give back; one that is exchanged; a third
    /// one that nobody locks.
    #[test]
    fn what_locked_instructions_name_is_watched_in_other_functions() {
        const TAKE: [u8; 4] = [0xf0, 0x0f, 0xb1, 0x0d];
        const EXCHANGE: [u8; 3] = [0x48, 0x87, 0x05];
        const LOAD: [u8; 2] = [0x8b, 0x05];
        const STORE: [u8; 2] = [0x89, 0x05];
        let (mut functions, starts) = write_functions(&[
            |a| by_distance(a, &TAKE, 0, 0),
            |a| by_distance(a, &LOAD, 1, 0),
            |a| by_distance(a, &STORE, 2, 0),
            |a| by_distance(a, &EXCHANGE, 3, 8),
            |a| by_distance(a, &STORE, 4, 8),
            |a| by_distance(a, &STORE, 5, 16),
        ]);
        let mut sites = |at: usize| functions.idioms(starts[at]).expect("known").sites.len();
        assert_eq!([1, 2, 4, 5].map(&mut sites), [1, 1, 1, 0]);
    }
}
