//! Searches of a table of pointers that other threads fill without a lock: `while (entry = table[i]) …`.
//!
//! A search goes from place to place until it has found the key or an empty place, and remains in the table
//! by a mask. Who inserts puts a pointer into the empty place by a locked instruction, mostly in another
//! function; the search itself has neither a lock nor a fence. What tells is that each round loads anew where
//! the table lies. Compilers keep that in a register, unless another thread may change it meanwhile, or
//! the round calls something.

use crate::copy::loops::Loop;
use crate::copy::ordered::is_candidate;
use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register};

/// Instructions of a loop that is looked at.
const LONGEST: usize = 96;

/// Indices of the loads of such places. `code` is a function's instructions in order, `loops` are its loops.
pub(super) fn probes(code: &[Instruction], loops: &[Loop]) -> Vec<usize> {
    let mut found = Vec::new();
    for body in loops {
        let inside = || body.iter().flat_map(|block| block.clone());
        if inside().count() > LONGEST {
            continue;
        }
        let is_inside = |address: u64| inside().any(|at| code[at].ip() == address);
        let writes = |i: &Instruction, register: Register| {
            i.op0_kind() == OpKind::Register && i.op0_register().full_register() == register
        };
        let is_loaded = |base: Register| {
            inside().any(|at| {
                let i = &code[at];
                i.code() == Code::Mov_r64_rm64 && i.op1_kind() == OpKind::Memory && writes(i, base)
            })
        };
        let is_masked = |index: Register| {
            inside().any(|at| code[at].mnemonic() == Mnemonic::And && writes(&code[at], index))
        };
        found.extend(inside().filter(|&at| {
            let i = &code[at];
            let is_place = i.code() == Code::Mov_r64_rm64
                && i.memory_index_scale() == size_of::<u64>() as u32
                && is_candidate(i);
            is_place
                && is_loaded(i.memory_base())
                && is_masked(i.memory_index())
                && if_empty(&code[at..]).is_some_and(|target| !is_inside(target))
        }));
    }
    found
}

/// Where the code jumps if its first instruction loads a null pointer; `None` if the next two do not test that.
fn if_empty(code: &[Instruction]) -> Option<u64> {
    let [load, test, branch, ..] = code else { return None };
    let is_test = test.code() == Code::Test_rm64_r64
        && test.op0_register() == load.op0_register()
        && test.op1_register() == load.op0_register();
    (is_test && branch.condition_code() == ConditionCode::e).then(|| branch.near_branch_target())
}

#[cfg(test)]
mod tests {
    use super::probes;
    use crate::copy::loops::loops;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// Which loads are found in a search, as LLVM compiles that of Rust's `lock_free_hashtable`.
    fn found(
        place: AsmMemoryOperand,
        reloads: bool,
        mask: impl FnOnce(&mut CodeAssembler),
    ) -> Vec<usize> {
        let code = assembled(|a| {
            let (mut again, mut done) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            if reloads {
                a.mov(rsi, qword_ptr(rcx)).unwrap();
            } else {
                a.mov(rax, qword_ptr(rcx)).unwrap();
            }
            a.mov(r12, place).unwrap();
            a.test(r12, r12).unwrap();
            a.je(done).unwrap();
            a.cmp(qword_ptr(r12), rbx).unwrap();
            a.je(done).unwrap();
            a.inc(rdi).unwrap();
            mask(a);
            a.dec(rdx).unwrap();
            a.jne(again).unwrap();
            a.set_label(&mut done).unwrap();
            a.ret().unwrap();
        });
        probes(&code, &loops(&code))
    }

    #[test]
    fn a_search_that_an_empty_place_ends() {
        let mask = |a: &mut CodeAssembler| a.and(rdi, r8).unwrap();
        assert_eq!(found(qword_ptr(rsi + rdi * 8), true, mask), [1]);
        assert_eq!(found(qword_ptr(rsi + rdi * 8), true, |a| a.and(edi, r8d).unwrap()), [1]);
        assert_eq!(found(qword_ptr(rsi + rdi * 8), false, mask), [], "the table stays where it is");
        assert_eq!(found(qword_ptr(rsi + rdi), true, mask), [], "no table of pointers");
        assert_eq!(found(qword_ptr(rsi + rdi * 8), true, |_| ()), [], "an array");
    }
}
