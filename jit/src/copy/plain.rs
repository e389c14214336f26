//! Instructions that are known to be copied as they are, by a look at their bytes.
//!
//! Most instructions of most programs are moves, sums and comparisons. To decode one of these in full takes
//! several times as long as to copy it, and nothing that a decoder finds out about it is needed but its length.
//! What is not in the few tables here is for the decoder.

/// What follows an opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// It is not known here.
    Other,
    /// An immediate of so many bytes, or nothing.
    Short(u8),
    /// An immediate of eight bytes with REX.W, and else of four.
    Wide,
    /// Operands as ModRM says, and an immediate of so many bytes.
    ModRm(u8),
    /// The same, for these operations (bits by the `reg` of ModRM) alone.
    Only(u8, u8),
    /// The same; the immediate is that of the first operation alone, and there is no second one.
    Unary(u8),
    /// Operands as ModRM says, one of them in memory.
    Memory,
}

use Form::{Memory, ModRm, Only, Other, Short, Unary, Wide};

/// Bytes of an immediate that has two with the prefix for operands of two bytes.
const FULL: u8 = 4;
/// The prefix for operands of two bytes.
const NARROW: u8 = 0x66;
const REX_W: u8 = 8;

/// Opcodes of one byte.
const ONE: [Form; 256] = {
    let mut all = [Other; 256];
    let mut operation = 0;
    while operation < 8 {
        let first = operation * 8;
        let mut form = 0;
        while form < 4 {
            all[first + form] = ModRm(0);
            form += 1;
        }
        all[first + 4] = Short(1);
        all[first + 5] = Short(FULL);
        // push, pop; mov of an immediate
        all[0x50 + operation] = Short(0);
        all[0x58 + operation] = Short(0);
        all[0xb0 + operation] = Short(1);
        all[0xb8 + operation] = Wide;
        operation += 1;
    }
    all[0x68] = Short(FULL);
    all[0x69] = ModRm(FULL);
    all[0x6a] = Short(1);
    all[0x6b] = ModRm(1);
    all[0x80] = ModRm(1);
    all[0x81] = ModRm(FULL);
    all[0x83] = ModRm(1);
    all[0x84] = ModRm(0);
    all[0x85] = ModRm(0);
    all[0x88] = ModRm(0);
    all[0x89] = ModRm(0);
    all[0x8a] = ModRm(0);
    all[0x8b] = ModRm(0);
    all[0x8d] = Memory;
    all[0x98] = Short(0);
    all[0x99] = Short(0);
    all[0xa8] = Short(1);
    all[0xa9] = Short(FULL);
    // Shifts, but for the one without a name.
    let shifts = [0xc0, 0xc1, 0xd0, 0xd1, 0xd2, 0xd3];
    let mut n = 0;
    while n < shifts.len() {
        all[shifts[n]] = Only(0b1011_1111, if n < 2 { 1 } else { 0 });
        n += 1;
    }
    // test, not, neg, mul, div
    all[0xf6] = Unary(1);
    all[0xf7] = Unary(FULL);
    all[0xc6] = Only(1, 1);
    all[0xc7] = Only(1, FULL);
    // inc, dec
    all[0xfe] = Only(3, 0);
    all[0xff] = Only(3, 0);
    all
};

/// Opcodes behind 0x0f.
const TWO: [Form; 256] = {
    let mut all = [Other; 256];
    let mut condition = 0;
    while condition < 16 {
        // cmov, set
        all[0x40 + condition] = ModRm(0);
        all[0x90 + condition] = ModRm(0);
        condition += 1;
    }
    all[0x1f] = Only(1, 0);
    all[0xaf] = ModRm(0);
    all[0xb6] = ModRm(0);
    all[0xb7] = ModRm(0);
    all[0xbe] = ModRm(0);
    all[0xbf] = ModRm(0);
    all
};

/// The form of an opcode behind 0x0f with this prefix, or none (0).
fn vector(prefix: u8, opcode: u8) -> Form {
    let known = match prefix {
        0 => matches!(opcode, 0x10 | 0x11 | 0x28 | 0x29 | 0x54 | 0x57),
        NARROW => matches!(
            opcode,
            0x10 | 0x11 | 0x28 | 0x29 | 0x54 | 0x57 | 0x6c..=0x6f | 0x7e | 0x7f | 0xd6 | 0xef
        ),
        0xf3 => matches!(opcode, 0x10 | 0x11 | 0x6f | 0x7e | 0x7f),
        _ => matches!(opcode, 0x10 | 0x11),
    };
    if known { ModRm(0) } else { Other }
}

/// The length of the instruction that `code` begins with, if it is one of those that are copied as they
/// are: no branch, and no operand relative to the instruction's address.
pub(super) fn length(code: &[u8]) -> Option<usize> {
    known(code, false)
}

/// The length of the instruction that `code` begins with, if it is one of those, a branch, or one with an
/// operand relative to its address: at least it is not locked.
pub(super) fn unlocked(code: &[u8]) -> Option<usize> {
    const CALL: u8 = 2;
    const JUMP: u8 = 4;
    let len = match *code {
        [0xc3 | 0xc9 | 0xcc, ..] => 1,
        [0x70..=0x7f | 0xeb, ..] => 2,
        // endbr64
        [0xf3, 0x0f, 0x1e, 0xfa, ..] => 4,
        [0xe8 | 0xe9, ..] => 5,
        [0x0f, 0x80..=0x8f, ..] => 6,
        [0xff, modrm, ..] if matches!(modrm >> 3 & 7, CALL | JUMP) => {
            1 + operands(&code[1..], true)?
        }
        _ => return known(code, true),
    };
    (len <= code.len()).then_some(len)
}

/// The same, with or without instructions whose operands are `relative` to their address.
fn known(code: &[u8], relative: bool) -> Option<usize> {
    let mut at = 0;
    let mut opcode = *code.first()?;
    let mut prefix = 0;
    if matches!(opcode, NARROW | 0xf2 | 0xf3) {
        prefix = opcode;
        at += 1;
        opcode = *code.get(at)?;
    }
    let mut rex = 0;
    if opcode & 0xf0 == 0x40 {
        rex = opcode;
        at += 1;
        opcode = *code.get(at)?;
    }
    let form = if opcode == 0x0f {
        at += 1;
        let opcode = *code.get(at)?;
        match TWO[usize::from(opcode)] {
            known if known != Other && matches!(prefix, 0 | NARROW) => known,
            _ => vector(prefix, opcode),
        }
    } else if matches!(prefix, 0 | NARROW) {
        ONE[usize::from(opcode)]
    } else {
        Other
    };
    at += 1;
    let modrm = || code.get(at).copied();
    let operation = || modrm().map(|modrm| modrm >> 3 & 7);
    let immediate = match form {
        Other => return None,
        Short(immediate) => immediate,
        Wide if rex & REX_W != 0 => 8,
        Wide => FULL,
        ModRm(immediate) => immediate,
        Only(known, immediate) => {
            if known >> operation()? & 1 == 0 {
                return None;
            }
            immediate
        }
        Unary(immediate) => match operation()? {
            0 => immediate,
            1 => return None,
            _ => 0,
        },
        Memory if modrm()? >= 0xc0 => return None,
        Memory => 0,
    };
    // An immediate would be shorter, or not, as REX.W has it.
    if immediate >= FULL && prefix == NARROW {
        return None;
    }
    if !matches!(form, Short(_) | Wide) {
        at += operands(code.get(at..)?, relative)?;
    }
    let len = at + usize::from(immediate);
    (len <= code.len()).then_some(len)
}

/// Bytes of ModRM and what belongs to it, unless the operand is relative to the instruction's address and
/// that is not asked for.
fn operands(code: &[u8], relative: bool) -> Option<usize> {
    const SIB: u8 = 4;
    const NO_BASE: u8 = 5;
    let modrm = *code.first()?;
    let (mode, rm) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(1);
    }
    let (base, before) = if rm == SIB { (code.get(1)? & 7, 2) } else { (rm, 1) };
    match mode {
        0 if base == NO_BASE && rm != SIB && !relative => None,
        0 if base == NO_BASE => Some(before + 4),
        0 => Some(before),
        1 => Some(before + 1),
        _ => Some(before + 4),
    }
}

#[cfg(test)]
mod tests {
    use super::super::classify::{Action, Copied};
    use super::super::ordered::is_locked;
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};
    use refrain_vm::Processor;

    /// The decoder says the same of all opcodes with all prefixes that are known here, and all operands.
    #[test]
    fn the_decoder_agrees() {
        const LONGEST: usize = 15;
        let mut copied = Copied::default();
        let (mut known, mut more) = (0, 0);
        let prefixes: [&[u8]; 10] = [
            &[],
            &[0x41],
            &[0x48],
            &[0x4f],
            &[0x66],
            &[0x66, 0x48],
            &[0xf2],
            &[0xf3],
            &[0xf3, 0x44],
            &[0x65],
        ];
        let opcodes = (0..=255).map(|opcode| vec![opcode]);
        let opcodes: Vec<_> = opcodes.chain((0..=255).map(|opcode| vec![0x0f, opcode])).collect();
        for (prefix, opcode) in prefixes.iter().flat_map(|&p| opcodes.iter().map(move |o| (p, o))) {
            for operands in 0..=u16::MAX {
                // All of ModRM, and of SIB what decides about a displacement.
                let [modrm, sib] = operands.to_le_bytes();
                if sib & 0xf8 != 0x20 {
                    continue;
                }
                let code = [prefix, opcode, &[modrm, sib], &[0x5a; LONGEST]].concat();
                let code = &code[..LONGEST];
                let Some(len) = unlocked(code) else {
                    assert_eq!(length(code), None);
                    continue;
                };
                let instruction = Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).decode();
                assert!(!instruction.is_invalid() && !is_locked(&instruction), "{code:x?}");
                assert_eq!(instruction.len(), len, "{code:x?}");
                assert!((0..len).all(|end| unlocked(&code[..end]).is_none()), "{code:x?}");
                if length(code).is_none() {
                    more += 1;
                    continue;
                }
                assert_eq!(length(code), Some(len), "{code:x?}");
                assert!(!instruction.is_ip_rel_memory_operand(), "{code:x?}");
                let action = copied.classify(&instruction, Processor::V2);
                assert_eq!(action, Action::Copy, "{code:x?}");
                // What is cut off is not known.
                assert!((0..len).all(|end| length(&code[..end]).is_none()), "{code:x?}");
                known += 1;
            }
        }
        assert!(known > 100_000 && more > 10_000, "{known} {more}");
    }
}
