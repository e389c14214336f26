//! Stores by which a thread announces what others wait for, in functions that wait in their turn.
//!
//! Where threads hand work on by flags alone (barriers of flags, buffers that go round), a function has
//! loops that do nothing but wait for a word, and stores words of that width for the others. Both are
//! elements of arrays, and nothing in the addresses says that they are of the same one. So in a function
//! that has such a loop and no locked instruction, those stores are watched whose value is at hand: a
//! constant, or what a register has that the innermost loop around the store does not write. What a
//! loop computes or copies are data.

use crate::common::{has_memory, writes_register};
use crate::copy::addresses::has_frame;
use crate::copy::listing::Listing;
use crate::copy::loops::{Flow, Loop};
use crate::copy::ordered::{compares, is_candidate, is_store};
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpKind, Register,
};
use refrain_trace::fixed::FixedSet;

/// Indices of such stores. `code` is a function's instructions in order, `polls` are the addresses of
/// the loads that its loops poll, `pauses` says what lets others go on, and `loops` are its loops, inner
/// ones first.
pub(super) fn announced(
    code: &Listing,
    (flow, loops): (&Flow, &[Loop]),
    polls: &[u64],
    pauses: &[bool],
) -> Vec<usize> {
    if polls.is_empty() || (0..code.len()).any(|at| code.is_locked(at)) {
        return Vec::new();
    }
    let is_polled = |i: &Instruction| polls.binary_search(&i.ip()).is_ok() && is_candidate(i);
    let only_waits = |at: usize| is_polled(&code[at]) || is_idle(&code[at]) || pauses[at];
    let rounds = flow.quiet_rounds(only_waits);
    let blocks = rounds.iter().flat_map(|(round, _)| round);
    let waiting = blocks.flat_map(|block| &code[block.clone()]);
    let widths: FixedSet<MemorySize> =
        waiting.filter(|i| is_polled(i)).map(|i| width(i.memory_size())).collect();
    if widths.is_empty() {
        return Vec::new();
    }
    let has_frame = has_frame(code);
    let is_elsewhere = |i: &Instruction| match i.memory_base() {
        Register::RSP => false,
        Register::RBP => !has_frame,
        _ => i.segment_prefix() == Register::None,
    };
    let is_flag = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Mov
            && is_store(i)
            && is_elsewhere(i)
            && widths.contains(&width(i.memory_size()))
    };
    let mut factory = InstructionInfoFactory::new();
    let mut is_at_hand = |at: usize| {
        let around = loops.iter().find(|body| body.iter().any(|block| block.contains(&at)));
        let inside = around.into_iter().flatten().flat_map(|block| &code[block.clone()]);
        code[at].op1_kind() != OpKind::Register
            || !writes_register(inside, code[at].op1_register().full_register(), &mut factory)
    };
    (0..code.len()).filter(|&at| is_flag(&code[at]) && is_at_hand(at)).collect()
}

/// Whether an instruction does nothing but compare registers, or branch within its function.
fn is_idle(instruction: &Instruction) -> bool {
    let reads_memory = has_memory(instruction);
    let branches = matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    );
    let is_nop = instruction.mnemonic() == Mnemonic::Nop;
    branches || is_nop || compares(instruction) && !reads_memory
}

/// A width, whatever the sign.
fn width(size: MemorySize) -> MemorySize {
    match size {
        MemorySize::Int8 => MemorySize::UInt8,
        MemorySize::Int16 => MemorySize::UInt16,
        MemorySize::Int32 => MemorySize::UInt32,
        MemorySize::Int64 => MemorySize::UInt64,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::announced;
    use crate::copy::addresses::symbolic_addresses;
    use crate::copy::idioms::pauses::{Callee, pauses};
    use crate::copy::idioms::polls::polls;
    use crate::copy::loops::Flow;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// The stores that are found in what `write` assembles: their places among all instructions.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(write);
        let flow = Flow::of(&code);
        let polls = polls(&code, &symbolic_addresses(&code), &flow, |_| false);
        announced(&code, (&flow, &flow.loops()), &polls, &pauses(&code, |_| Callee::Other))
    }

    /// Waits until an element of 8 bytes is 0.
    fn wait(a: &mut CodeAssembler) {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.nop().unwrap();
        a.cmp(qword_ptr(rdi + rsi * 8), 0).unwrap();
        a.jne(again).unwrap();
    }

    /// As in OpenBLAS: each thread clears the flag that it has waited for, and sets those of all others.
    #[test]
    fn values_at_hand() {
        let flags = found(|a| {
            let mut next = a.create_label();
            wait(a);
            a.mov(qword_ptr(rax + rcx), 0).unwrap();
            a.set_label(&mut next).unwrap();
            a.mov(qword_ptr(rcx), rbx).unwrap();
            a.add(rcx, 128).unwrap();
            a.cmp(rcx, rdx).unwrap();
            a.jl(next).unwrap();
            a.mov(qword_ptr(rcx + 8), rbx).unwrap();
        });
        assert_eq!(flags, [3, 4, 8]);
    }

    #[test]
    fn data() {
        let data = found(|a| {
            let mut next = a.create_label();
            wait(a);
            a.set_label(&mut next).unwrap();
            a.mov(rbx, qword_ptr(rsi + rcx)).unwrap();
            a.mov(qword_ptr(rcx), rbx).unwrap();
            a.add(rcx, 8).unwrap();
            a.cmp(rcx, rdx).unwrap();
            a.jl(next).unwrap();
            a.mov(dword_ptr(rdi), 1).unwrap();
            a.mov(qword_ptr(rsp + 8), 1).unwrap();
        });
        assert_eq!(data, [], "copied, of another width, and its own");
    }

    #[test]
    fn not_without_waiting_and_not_beside_locks() {
        let locks = found(|a| {
            wait(a);
            a.mov(qword_ptr(rcx), 1).unwrap();
            a.lock().inc(dword_ptr(rdx)).unwrap();
        });
        assert_eq!(locks, [], "with a locked instruction, other idioms tell");
        let works = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.add(rcx, qword_ptr(rdi)).unwrap();
            a.dec(rdx).unwrap();
            a.jne(again).unwrap();
            a.mov(qword_ptr(rcx), 1).unwrap();
        });
        assert_eq!(works, []);
    }
}
