//! Words on the thread's own stack that it has told other threads of, and that it waits for.
//!
//! A thread that hands work to another one, or queues up for a lock, leaves a word on its stack for
//! the answer, and then does other work, or sleeps, until the answer is there. In the code this is a loop
//! that calls something, or has a locked instruction (it works with other threads), and compares a word
//! that the loop does not write and whose address the function has taken.

use super::beside::is_compared;
use crate::copy::loops::Loop;
use crate::copy::ordered::{is_locked, writes_memory};
use iced_x86::{FlowControl, Instruction, Mnemonic, Register};
use std::collections::BTreeSet;

/// Bytes of something whose address is taken.
const LARGEST: u64 = 32;

/// Indices of the instructions that compare or load such words. `code` is a function's instructions
/// in order, and `loops` are its loops.
pub(super) fn lent(code: &[Instruction], loops: &[Loop]) -> BTreeSet<usize> {
    let taken: BTreeSet<u64> = code
        .iter()
        .filter(|i| i.mnemonic() == Mnemonic::Lea && i.memory_base() == Register::RSP)
        .filter(|i| i.memory_index() == Register::None)
        .map(Instruction::memory_displacement64)
        .collect();
    if taken.is_empty() {
        return BTreeSet::new();
    }
    let is_taken = |word: u64| {
        let at = taken.range(..=word).next_back();
        at.is_some_and(|at| word - at < LARGEST)
    };
    let is_lent = |at: usize| {
        code[at].memory_base() == Register::RSP
            && code[at].memory_index() == Register::None
            && is_taken(code[at].memory_displacement64())
            && is_compared(code, at)
    };
    let lent: BTreeSet<usize> = (0..code.len()).filter(|&at| is_lent(at)).collect();
    if lent.is_empty() {
        return lent;
    }
    let mut found = BTreeSet::new();
    for body in loops {
        let inside = || body.iter().flat_map(|block| block.clone());
        if !inside().any(|at| calls(&code[at]) || is_locked(&code[at])) {
            continue;
        }
        let written: BTreeSet<u64> = inside().filter_map(|at| written(&code[at])).collect();
        found.extend(inside().filter(|at| {
            lent.contains(at) && !written.contains(&code[*at].memory_displacement64())
        }));
    }
    found
}

fn calls(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// The word of the stack that an instruction may write.
fn written(instruction: &Instruction) -> Option<u64> {
    let is_stack = writes_memory(instruction)
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None;
    is_stack.then(|| instruction.memory_displacement64())
}

#[cfg(test)]
mod tests {
    use super::lent;
    use crate::copy::listing::Listing;
    use crate::copy::loops::loops;
    use iced_x86::code_asm::*;

    /// Which instructions load a lent word in: take an address, and, in a loop, call, do something
    /// more, and compare a word.
    fn found(taken: i32, more: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        let mut again = a.create_label();
        a.lea(rdx, qword_ptr(rsp + taken)).unwrap();
        a.mov(qword_ptr(rax), rdx).unwrap();
        a.set_label(&mut again).unwrap();
        more(&mut a);
        a.mov(rax, qword_ptr(rsp + 0x40)).unwrap();
        a.cmp(rax, 3).unwrap();
        a.jne(again).unwrap();
        let bytes = a.assemble(0x1000).expect("what the tests write can be encoded");
        let code = Listing::new(iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect());
        lent(&code, &loops(&code)).into_iter().collect()
    }

    #[test]
    fn words_that_others_answer_in() {
        let works = |a: &mut CodeAssembler| a.call(rdx).unwrap();
        assert_eq!(found(0x40, works), [3]);
        assert_eq!(found(0x38, works), [3], "a field of what others know");
        assert_eq!(found(0x48, works), [], "nobody was told of it");
        assert_eq!(found(0x40, |a| a.nop().unwrap()), [], "nobody else can have written it");
        let updates = |a: &mut CodeAssembler| a.xchg(dword_ptr(rbx), ecx).unwrap();
        assert_eq!(found(0x40, updates), [3], "it works with others meanwhile");
        let writes = |a: &mut CodeAssembler| {
            a.call(rdx).unwrap();
            a.mov(qword_ptr(rsp + 0x40), rax).unwrap();
        };
        assert_eq!(found(0x40, writes), [], "the loop's own");
    }
}
