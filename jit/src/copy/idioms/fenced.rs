//! Loops between two fences, such as that of a bakery, by which a thread draws the number behind all
//! numbers that others hold: it says that it is about to, looks at all of them, and says that it has.
//!
//! A loop computes as a rule, and what it loads is its thread's own. But a thread orders what it does by
//! fences only if others see it; so what a short loop between two of them loads may change meanwhile,
//! if it stores nothing but its own variables.

use crate::common::is_call;
use crate::copy::loops::Loop;
use crate::copy::ordered::{is_candidate, is_locked, is_on_stack, writes_memory};
use iced_x86::{FlowControl, Instruction, Mnemonic};

/// Instructions of a loop that is looked at.
const LONGEST: usize = 48;
/// Instructions between a fence and the loop.
const REACH: usize = 12;

/// Indices of the loads in such loops. `code` is a function's instructions in order, `loops` are its loops.
pub(super) fn fenced(code: &[Instruction], loops: &[Loop]) -> Vec<usize> {
    let mut found = Vec::new();
    for body in loops {
        let inside = || body.iter().flat_map(|block| block.clone());
        let (Some(first), Some(last)) = (inside().min(), inside().max()) else { continue };
        let is_quiet =
            |i: &Instruction| !is_call(i) && !is_fence(i) && (!writes_memory(i) || is_on_stack(i));
        if last - first < LONGEST
            && meets_fence(code[..first].iter().rev(), REACH, is_fence)
            && meets_fence(code[last + 1..].iter(), REACH, is_fence)
            && inside().all(|at| is_quiet(&code[at]))
        {
            found.extend(inside().filter(|&at| is_candidate(&code[at]) && !is_on_stack(&code[at])));
        }
    }
    found
}

/// Whether a fence is among the next `reach` instructions, before anything that leaves the function.
pub(super) fn meets_fence<'a>(
    code: impl Iterator<Item = &'a Instruction>,
    reach: usize,
    is_fence: impl Fn(&Instruction) -> bool,
) -> bool {
    let leaves = |i: &&Instruction| is_call(i) || i.flow_control() == FlowControl::Return;
    code.take(reach).take_while(|i| !leaves(i)).any(is_fence)
}

/// Whether the processor orders all accesses by it.
fn is_fence(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mfence || is_locked(instruction)
}

#[cfg(test)]
mod tests {
    use super::fenced;
    use crate::copy::loops::loops;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// As many loads as are found in a loop before which and behind which something stands.
    fn found(before: fn(&mut CodeAssembler), behind: fn(&mut CodeAssembler)) -> usize {
        let code = assembled(|a| {
            let mut again = a.create_label();
            before(a);
            a.xor(ecx, ecx).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(edx, dword_ptr(rdi + rcx * 4)).unwrap();
            a.cmp(eax, edx).unwrap();
            a.cmovb(eax, edx).unwrap();
            a.inc(rcx).unwrap();
            a.cmp(rcx, 3).unwrap();
            a.jne(again).unwrap();
            a.inc(eax).unwrap();
            behind(a);
            a.ret().unwrap();
        });
        fenced(&code, &loops(&code)).len()
    }

    #[test]
    fn a_number_behind_all_others() {
        let fence = |a: &mut CodeAssembler| a.mfence().unwrap();
        let store = |a: &mut CodeAssembler| a.xchg(dword_ptr(rsi), eax).unwrap();
        let nothing = |_: &mut CodeAssembler| ();
        assert_eq!(found(fence, store), 1);
        assert_eq!(found(store, fence), 1);
        assert_eq!(found(fence, nothing), 0);
        assert_eq!(found(nothing, fence), 0);
        assert_eq!(found(fence, |a| a.call(rax).unwrap()), 0);
    }
}
