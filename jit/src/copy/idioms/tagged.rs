//! Pointers with tags, of which a function only asks whether they point to anything.
//!
//! Whoever shares pointers without locks keeps marks and versions in their low bits, and libraries that
//! free memory by epochs have a type of pointer for that. A reader takes the bits off each pointer that it
//! loads, and asks at once whether anything is left: `and` with a mask, and a branch on zero. It may not take
//! a lock, nor go on to the next node in a loop, as those do that `marked` finds: a tree is searched by
//! calls, and its root is looked at once. But a structure has marks in its pointers for other threads (a tree
//! that keeps a node's color there is the exception). So these loads are watched, and so are those by which
//! the same function looks at the tag of the same field.

use super::marked::{is_masked, loads, masks, moved};
use crate::copy::addresses::is_by_frame_pointer;
use crate::copy::ordered::{compares, is_candidate};
use iced_x86::{ConditionCode, FlowControl, Instruction, Register};
use std::collections::BTreeSet;

/// Instructions between such a load and the branch.
const REACH: usize = 6;

/// Indices of the loads of such pointers in a function's `code`.
pub(super) fn tagged(code: &[Instruction]) -> Vec<usize> {
    let is_own = is_by_frame_pointer(code);
    let may_be = |at: &usize| {
        let i = &code[*at];
        loads(i) && is_candidate(i) && i.memory_base() != Register::RIP && !is_own(i)
    };
    if !code.iter().any(masks) {
        return Vec::new();
    }
    let all = || (0..code.len()).filter(may_be);
    let asked: BTreeSet<usize> = all().filter(|&at| is_asked(code, at)).collect();
    let fields: BTreeSet<u64> = asked.iter().map(|&at| code[at].memory_displacement64()).collect();
    let is_same =
        |at: usize| fields.contains(&code[at].memory_displacement64()) && is_masked(code, at);
    all().filter(|&at| asked.contains(&at) || is_same(at)).collect()
}

/// Whether the bits are taken off what the instruction at `at` loads, and the next instruction is a branch
/// on whether anything is left. Nothing but moves of registers, and what does not concern it, lies between.
fn is_asked(code: &[Instruction], at: usize) -> bool {
    let mut carries = BTreeSet::from([code[at].op0_register()]);
    let behind = &code[at + 1..code.len().min(at + 1 + REACH)];
    for (i, next) in behind.iter().zip(behind.iter().skip(1)) {
        if i.flow_control() != FlowControl::Next {
            return false;
        }
        if masks(i) && carries.contains(&i.op0_register()) {
            return is_branch_on_zero(next);
        }
        match moved(i) {
            Some((from, to)) if carries.contains(&from) => {
                carries.insert(to);
            }
            _ if compares(i) => {}
            _ => {
                carries.remove(&i.op0_register().full_register());
            }
        }
    }
    false
}

fn is_branch_on_zero(i: &Instruction) -> bool {
    matches!(i.condition_code(), ConditionCode::e | ConditionCode::ne)
        && i.flow_control() == FlowControl::ConditionalBranch
}

#[cfg(test)]
mod tests {
    use super::tagged;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// A function that looks at a child of a node: it loads the pointer, does what `behind` writes, and branches.
    fn found(behind: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(|a| {
            let mut none = a.create_label();
            a.mov(r13, qword_ptr(rdi + 0x120)).unwrap();
            behind(a);
            a.je(none).unwrap();
            a.mov(rax, qword_ptr(r13 + 0xe0)).unwrap();
            a.set_label(&mut none).unwrap();
            a.mov(rcx, qword_ptr(rsi + 0x120)).unwrap();
            a.cmp(rcx, 4).unwrap();
            a.setb(al).unwrap();
            a.ret().unwrap();
        });
        tagged(&code)
    }

    #[test]
    fn asks_for_a_node() {
        assert_eq!(found(|a| a.and(r13, -4).unwrap()), [0, 4], "and what looks at the tag alone");
        let copied = found(|a| {
            a.mov(rbx, r13).unwrap();
            a.xor(edx, edx).unwrap();
            a.and(rbx, -2).unwrap();
        });
        assert_eq!(copied, [0, 6]);
    }

    #[test]
    fn other_questions() {
        assert_eq!(found(|a| a.and(r13, -64).unwrap()), [], "a number that is rounded");
        assert_eq!(found(|a| a.test(r13, r13).unwrap()), [], "a pointer without a tag");
        let compared = found(|a| {
            a.and(r13, -4).unwrap();
            a.cmp(r13, rsi).unwrap();
        });
        assert_eq!(compared, [], "the color in a tree's link to the parent");
        let another = found(|a| {
            a.mov(r13, rdx).unwrap();
            a.and(r13, -4).unwrap();
        });
        assert_eq!(another, [], "not what was loaded");
    }
}
