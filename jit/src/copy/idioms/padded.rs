//! Fields that are kept in cache lines of their own: the indices of a ring between two threads.
//!
//! A short function moves its own index on, and looks at the other thread's only when the ring seems full
//! or empty. It takes no lock, waits for nothing, and may be called by a pointer, so nothing around it tells
//! that others change what it looks at. But the two indices begin cache lines, so that threads do not
//! disturb each other: a function that loads and stores one such field of what its argument points to, and
//! only loads another one, looks at what another thread stores.

use crate::common::is_call;
use crate::copy::addresses::SymbolicAddress;
use crate::copy::ordered::{is_candidate, is_locked, is_store};
use iced_x86::{Instruction, Register};
use std::collections::BTreeSet;

/// Instructions of such a function.
const LONGEST: usize = 64;
const LINE: u64 = 64;

/// Indices of the accesses of such fields, if a function's `code` is such a function. `addresses` says
/// what operands name.
pub(super) fn padded(code: &[Instruction], addresses: &[Option<SymbolicAddress>]) -> Vec<usize> {
    if code.len() > LONGEST || code.iter().any(|i| is_call(i) || is_locked(i)) {
        return Vec::new();
    }
    let field = |at: usize| -> Option<(Register, u64)> {
        let (register, offset) = addresses[at]?.argument()?;
        let is_word = matches!(code[at].memory_size().size(), 4 | 8);
        let begins_line = offset != 0 && offset < 1 << 16 && offset.is_multiple_of(LINE);
        (is_word && begins_line && register != Register::RSP).then_some((register, offset))
    };
    let of = |wanted: fn(&Instruction) -> bool| -> BTreeSet<(Register, u64)> {
        (0..code.len()).filter(|&at| wanted(&code[at])).filter_map(field).collect()
    };
    let (loaded, stored) = (of(is_candidate), of(is_store));
    let own: BTreeSet<_> = loaded.intersection(&stored).collect();
    let others = loaded.difference(&stored);
    let is_ring = others.into_iter().any(|other| own.iter().any(|own| own.0 == other.0));
    if !is_ring {
        return Vec::new();
    }
    let accesses = |at: &usize| is_candidate(&code[*at]) || is_store(&code[*at]);
    (0..code.len()).filter(|&at| field(at).is_some()).filter(accesses).collect()
}

#[cfg(test)]
mod tests {
    use super::padded;
    use crate::copy::addresses::symbolic_addresses;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// As a value is put into a ring.
    fn found(own: i32, other: i32, moves: bool) -> Vec<usize> {
        let code = assembled(|a| {
            let mut full = a.create_label();
            a.mov(rax, qword_ptr(rdi + own)).unwrap();
            a.mov(rcx, qword_ptr(rdi + other)).unwrap();
            a.mov(qword_ptr(rdi + own + 8), rcx).unwrap();
            a.cmp(rax, rcx).unwrap();
            a.je(full).unwrap();
            a.inc(rax).unwrap();
            if moves {
                a.mov(qword_ptr(rdi + own), rax).unwrap();
            }
            a.set_label(&mut full).unwrap();
            a.ret().unwrap();
        });
        padded(&code, &symbolic_addresses(&code))
    }

    #[test]
    fn rings() {
        assert_eq!(found(0x40, 0x80, true), [0, 1, 6]);
        assert_eq!(found(0x40, 0x80, false), []);
        assert_eq!(found(0x40, 0x88, true), [], "in no line of its own");
    }
}
