//! Which loads and stores of a function are suspects, by what is around them: see `suspects`.

use super::ordered::{constant_address, is_load, is_locked, is_store};
use iced_x86::{FlowControl, Instruction, OpKind, Register};
use std::collections::BTreeMap;

/// Instructions of a function that is looked at although nothing in it is locked: it may be there
/// to read an atomic variable for others. Longer ones compute.
const LONGEST: usize = 40;

/// Addresses of a function's suspects, in ascending order. `code` is its instructions in order.
/// `locks` says that it has locked instructions, or calls a function that does, or the library's
/// locks.
pub(super) fn suspects(code: &[Instruction], locks: bool, trusted: bool) -> Box<[u64]> {
    if !locks && trusted {
        return Box::default();
    }
    if !locks && code.len() > LONGEST {
        return publishes(code);
    }
    let is_suspect = |instruction: &Instruction| {
        let own = matches!(instruction.segment_prefix(), Register::FS | Register::GS);
        let far = !trusted || constant_address(instruction).is_some();
        let near = !locks && instruction.memory_base().full_register() == Register::RSP;
        far && !near && !own && (is_load(instruction) || is_store(instruction))
    };
    outside_of_computations(code).filter(|i| is_suspect(i)).map(Instruction::ip).collect()
}

/// Addresses of the stores to global variables of a function that does not lock, in ascending
/// order.
pub(super) fn publishes(code: &[Instruction]) -> Box<[u64]> {
    let publishes = |i: &&Instruction| constant_address(i).is_some() && is_store(i);
    outside_of_computations(code).filter(publishes).map(Instruction::ip).collect()
}

/// Instructions that are in no inner loop without calls or locked instructions.
fn outside_of_computations(code: &[Instruction]) -> impl Iterator<Item = &Instruction> {
    let calls = !code.iter().any(is_locked);
    let mut eligible = vec![true; code.len()];
    let mut loops: Vec<_> = loops(code).into_iter().collect();
    // Inner loops are shorter, and have the last word.
    loops.sort_by_key(|&(start, end)| start.abs_diff(end));
    for (start, end) in loops.into_iter().rev() {
        let computes = !code[start..=end].iter().any(|i| is_locked(i) || calls && is_call(i));
        eligible[start..=end].fill(!computes);
    }
    code.iter().zip(eligible).filter(|&(_, eligible)| eligible).map(|(instruction, _)| instruction)
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// First and last instruction of each loop: what branches go back over. Branches to one place are
/// of one loop, as in a loop that tries again in several ways.
fn loops(code: &[Instruction]) -> BTreeMap<usize, usize> {
    let back = code.iter().enumerate().filter_map(|(end, branch)| {
        let goes_back = branch.op0_kind() == OpKind::NearBranch64
            && branch.flow_control() != FlowControl::Call
            && branch.near_branch_target() <= branch.ip();
        let target = branch.near_branch_target();
        let start = goes_back.then(|| code.binary_search_by_key(&target, Instruction::ip).ok());
        Some((start??, end))
    });
    // The last one is the one farthest down.
    back.collect()
}

#[cfg(test)]
mod tests {
    use super::suspects;
    use iced_x86::Mnemonic;
    use iced_x86::code_asm::*;

    /// Mnemonics of the suspects in what `write` assembles.
    fn found(locks: bool, trusted: bool, write: impl FnOnce(&mut CodeAssembler)) -> Vec<Mnemonic> {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        write(&mut a);
        let bytes = a.assemble(0x1000).expect("what the tests write can be encoded");
        let code: Vec<_> = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect();
        let found = suspects(&code, locks, trusted);
        code.iter().filter(|i| found.contains(&i.ip())).map(|i| i.mnemonic()).collect()
    }

    fn publish(a: &mut CodeAssembler) {
        a.lock().cmpxchg(qword_ptr(rdi), rcx).unwrap();
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.add(rax, qword_ptr(rsi)).unwrap();
        a.dec(rcx).unwrap();
        a.jne(again).unwrap();
        a.mov(qword_ptr(rdi + 8), rax).unwrap();
        a.cmp(dword_ptr(0x7000), 0).unwrap();
    }

    /// As in a queue: look at a slot's stamp, and again if it is not the one, and again if somebody
    /// else was quicker.
    #[test]
    fn a_loop_may_try_again_in_two_ways() {
        let tries = |a: &mut CodeAssembler| {
            let (mut again, mut take) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.mov(rcx, qword_ptr(rdx)).unwrap();
            a.cmp(rcx, rsi).unwrap();
            a.je(take).unwrap();
            a.jmp(again).unwrap();
            a.set_label(&mut take).unwrap();
            a.lock().cmpxchg(qword_ptr(rdi), rcx).unwrap();
            a.jne(again).unwrap();
        };
        assert_eq!(found(true, false, tries), [Mnemonic::Mov]);
    }

    #[test]
    fn inner_loops_compute() {
        assert_eq!(found(true, false, publish), [Mnemonic::Mov, Mnemonic::Cmp]);
        assert_eq!(found(true, true, publish), [Mnemonic::Cmp], "a global variable");
        let accessor = |a: &mut CodeAssembler| a.mov(rax, qword_ptr(rdi)).unwrap();
        assert_eq!(found(false, false, accessor), [Mnemonic::Mov]);
        assert_eq!(found(false, true, accessor), []);
        let long = |a: &mut CodeAssembler| (0..50).for_each(|_| accessor(a));
        assert_eq!(found(false, false, long), []);
        let clock = |a: &mut CodeAssembler| {
            long(a);
            a.mov(dword_ptr(0x7000), eax).unwrap();
            a.inc(dword_ptr(0x7008)).unwrap();
            a.mov(ecx, dword_ptr(0x7000)).unwrap();
        };
        assert_eq!(found(false, false, clock), [Mnemonic::Mov, Mnemonic::Inc], "stores");
    }
}
