//! Short functions that answer a question about what one argument points to, and do nothing else:
//! whether a flag is set, whether a counter has got to a number, what the word is.
//!
//! A loop that waits may ask such a function by a pointer to it: a virtual function, or what was given
//! to the loop as a predicate. Then nothing around the load tells that it is polled, and nothing around
//! the loop tells which function it asks. But such functions are rare: a few of a thousand.

use super::polls::reads_only;
use crate::common::without_padding;
use crate::copy::ordered::is_candidate;
use iced_x86::{
    ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, UsedMemory,
};
use std::slice;

/// Instructions of such a function.
const LONGEST: usize = 24;
/// The same if it searches.
const LONGEST_SEARCH: usize = 48;
/// Registers of further arguments.
const FURTHER_ARGUMENTS: [Register; 5] =
    [Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// The loads that such a function answers by, if these instructions are one: it answers by a truth value,
/// and may neither write anything nor call, nor look at what further arguments point to. If it
/// follows pointers, these are the loads behind them; and if it follows them in a loop, as who searches a list
/// or a tree does, all loads.
pub(super) fn answers(code: &[Instruction]) -> Vec<usize> {
    let code = without_padding(code);
    let returns = code.last().is_some_and(|i| i.flow_control() == FlowControl::Return);
    if returns && let Some(load) = counted(code).or_else(|| loads_only(code)) {
        return vec![load];
    }
    let searches = code.iter().any(goes_back);
    let longest = if searches { LONGEST_SEARCH } else { LONGEST };
    if code.len() > longest || !returns || !code.iter().any(is_truth) {
        return Vec::new();
    }
    let mut factory = InstructionInfoFactory::new();
    let mut state = State::default();
    let mut fields = Vec::new();
    let mut behind = Vec::new();
    for (at, i) in code.iter().enumerate() {
        let base = i.memory_base().full_register();
        let loads = is_candidate(i) && !is_own(i) && base.is_gpr();
        if loads {
            let follows = state.loaded[base.number()];
            if follows { behind.push(at) } else { fields.push(at) }
        }
        if !state.follow(i, loads, &mut factory) {
            return Vec::new();
        }
    }
    match behind.is_empty() {
        true => fields,
        false if searches => fields.into_iter().chain(behind).collect(),
        false => behind,
    }
}

/// Whether an instruction closes a loop.
fn goes_back(i: &Instruction) -> bool {
    i.flow_control() == FlowControl::ConditionalBranch && i.near_branch_target() <= i.ip()
}

/// The load by which a function of two loads returns what stands behind the counts of references that its
/// argument points to: Rust's `Arc` of an atomic variable, since other numbers are not shared so.
fn counted(code: &[Instruction]) -> Option<usize> {
    const COUNTS: u64 = 16;
    let [pointer, value, _] = code else { return None };
    let loads = |i: &Instruction, base: Register, offset: u64| {
        matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx)
            && is_candidate(i)
            && (i.memory_base(), i.memory_index()) == (base, Register::None)
            && i.memory_displacement64() == offset
    };
    let is_it = loads(pointer, Register::RDI, 0)
        && loads(value, pointer.op0_register(), COUNTS)
        && value.op0_register().full_register() == Register::RAX;
    is_it.then_some(1)
}

/// The load by which a function returns the word that its argument points to, or one far behind it, if it
/// does nothing else. Compilers put a function that short into its callers, unless it is in another crate:
/// what is left are methods of types around an atomic variable. Objects larger than a page are few, and threads
/// share them, such as the arenas of an allocator. (Of what LLVM returns from, 24 in 100,000 are such methods; Qt
/// has none.)
fn loads_only(code: &[Instruction]) -> Option<usize> {
    const PAGE: i64 = 4096;
    let [value, _] = code else { return None };
    let offset = value.memory_displacement64() as i64;
    let is_it = value.mnemonic() == Mnemonic::Mov
        && is_candidate(value)
        && value.op0_register().full_register() == Register::RAX
        && (value.memory_base(), value.memory_index()) == (Register::RDI, Register::None)
        && (offset == 0 || offset >= PAGE);
    is_it.then_some(0)
}

/// Whether an instruction makes a truth value, or loads one.
fn is_truth(i: &Instruction) -> bool {
    let is_answer = |i: &Instruction| i.op0_register().full_register() == Register::RAX;
    let loads_byte = i.op1_kind() == OpKind::Memory && i.memory_size().size() == 1;
    let sets = i.op_count() == 1 && i.condition_code() != ConditionCode::None;
    let loads = matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx);
    is_answer(i) && (sets || loads && loads_byte && is_candidate(i) && !is_own(i))
}

/// Whether the operand in memory is on the stack.
fn is_own(i: &Instruction) -> bool {
    points_to_stack(i.memory_base())
}

fn points_to_stack(register: Register) -> bool {
    matches!(register, Register::RSP | Register::RBP)
}

/// Whether an instruction that accesses these places writes none but the stack.
pub(in crate::copy) fn writes_only_stack(places: &[UsedMemory]) -> bool {
    places.iter().all(|place| reads_only(place.access()) || points_to_stack(place.base()))
}

/// Whether an instruction may make the address of a field, or of one of two fields, or take marks off a link.
fn makes_address(i: &Instruction) -> bool {
    use Mnemonic::*;
    let chooses = i.condition_code() != ConditionCode::None && i.op_count() == 2;
    let computes = matches!(i.mnemonic(), Lea | Mov | Add | Sub | And) || chooses;
    let loads = i.op1_kind() == OpKind::Memory && i.mnemonic() != Lea;
    computes && !loads && i.op0_kind() == OpKind::Register && i.op0_register().is_gpr64()
}

/// What is known of registers, by number.
#[derive(Default)]
struct State {
    /// The function has written it.
    written: [bool; 16],
    /// It has what was loaded, but not from the stack, or an address that was made of it.
    loaded: [bool; 16],
    /// It points to the function's own stack.
    own: [bool; 16],
}

impl State {
    /// Whether an instruction may be part of such a function; if so, what it does to registers.
    fn follow(
        &mut self,
        i: &Instruction,
        loads: bool,
        factory: &mut InstructionInfoFactory,
    ) -> bool {
        let stays = matches!(
            i.flow_control(),
            FlowControl::Next | FlowControl::Return | FlowControl::ConditionalBranch
        );
        let points = |register: Register| {
            let register = register.full_register();
            FURTHER_ARGUMENTS.contains(&register) && !self.written[register.number()]
        };
        let follows_other = points(i.memory_base()) || points(i.memory_index());
        let info = factory.info(i);
        if !stays
            || follows_other && i.mnemonic() != Mnemonic::Nop
            || !info.used_memory().iter().all(|place| self.may_be(place))
        {
            return false;
        }
        let is_own = i.mnemonic() == Mnemonic::Lea && points_to_stack(i.memory_base());
        let has_loaded = |register: Register| register.is_gpr64() && self.loaded[register.number()];
        let used = info.used_registers();
        let made = makes_address(i) && used.iter().any(|used| has_loaded(used.register()));
        for used in used.iter().filter(|used| used.access() != OpAccess::Read) {
            let register = used.register().full_register();
            if register.is_gpr() {
                self.written[register.number()] = true;
                self.loaded[register.number()] = loads || made;
                self.own[register.number()] = is_own;
            }
        }
        true
    }

    /// Whether an access of a place in memory writes the stack at most.
    fn may_be(&self, place: &UsedMemory) -> bool {
        let base = place.base();
        writes_only_stack(slice::from_ref(place)) || base.is_gpr64() && self.own[base.number()]
    }
}

#[cfg(test)]
mod tests {
    use super::answers;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        answers(&assembled(write))
    }

    /// As LLVM's OpenMP has it.
    #[test]
    fn behind_a_pointer() {
        let found = found(|a| {
            a.mov(rax, qword_ptr(rdi + 0x28)).unwrap();
            a.mov(rax, qword_ptr(rax)).unwrap();
            a.mov(rcx, rax).unwrap();
            a.and(rcx, -2).unwrap();
            a.cmp(qword_ptr(rdi + 0x20), 0).unwrap();
            a.cmove(rcx, rax).unwrap();
            a.cmp(rcx, qword_ptr(rdi + 0x30)).unwrap();
            a.sete(al).unwrap();
            a.ret().unwrap();
            a.nop().unwrap();
        });
        assert_eq!(found, [1]);
    }

    #[test]
    fn flags_and_comparisons() {
        let flag = |more: fn(&mut CodeAssembler)| {
            found(|a| {
                a.movzx(eax, byte_ptr(rdi + 8)).unwrap();
                more(a);
                a.ret().unwrap();
            })
        };
        assert_eq!(flag(|_| ()), [0]);
        assert_eq!(flag(|a| a.and(eax, 1).unwrap()), [0]);
        assert_eq!(flag(|a| a.mov(byte_ptr(rdi + 8), al).unwrap()), [], "it writes");
        assert_eq!(flag(|a| a.call(0x5000).unwrap()), [], "it calls");
        assert_eq!(flag(|a| a.add(eax, dword_ptr(rsi)).unwrap()), [], "another argument");
        assert_eq!(flag(|a| a.mov(esi, eax).unwrap()), [0]);
        let number = found(|a| {
            a.mov(eax, dword_ptr(rdi + 8)).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(number, []);
        let compares = found(|a| {
            a.cmp(dword_ptr(rdi + 8), 0).unwrap();
            a.sete(al).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(compares, [0]);
        let reaches = found(|a| {
            a.mov(ecx, dword_ptr(rdi)).unwrap();
            a.xor(eax, eax).unwrap();
            a.cmp(ecx, esi).unwrap();
            a.sete(al).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(reaches, [0]);
        let orders = found(|a| {
            a.mov(rax, qword_ptr(rdi)).unwrap();
            a.mov(rcx, qword_ptr(rsi)).unwrap();
            a.cmp(rax, rcx).unwrap();
            a.setl(al).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(orders, [], "for a function that sorts");
    }

    /// Tokio has such a method for the state of a channel.
    #[test]
    fn the_word_itself() {
        let loads = |write: fn(&mut CodeAssembler)| {
            found(|a| {
                write(a);
                a.ret().unwrap();
            })
        };
        assert_eq!(loads(|a| a.mov(rax, qword_ptr(rdi)).unwrap()), [0]);
        assert_eq!(loads(|a| a.mov(eax, dword_ptr(rdi)).unwrap()), [0]);
        assert_eq!(loads(|a| a.mov(rax, qword_ptr(rdi + 8)).unwrap()), [], "a field");
        assert_eq!(
            loads(|a| a.mov(rax, qword_ptr(rdi + 0x25a8)).unwrap()),
            [0],
            "a large object's"
        );
        assert_eq!(loads(|a| a.mov(rax, qword_ptr(rdi - 8)).unwrap()), []);
        assert_eq!(loads(|a| a.mov(rax, qword_ptr(rsi)).unwrap()), []);
        assert_eq!(loads(|a| a.lea(rax, ptr(rdi)).unwrap()), []);
    }

    /// As clang compiles the search through a tree whose links are atomic: which child comes next is chosen by
    /// its address.
    #[test]
    fn searches() {
        let tree = found(|a| {
            let (mut again, mut leaf) = (a.create_label(), a.create_label());
            a.mov(rax, qword_ptr(rdi + 0x10)).unwrap();
            a.mov(rcx, qword_ptr(rax + 8)).unwrap();
            a.test(rcx, rcx).unwrap();
            a.je(leaf).unwrap();
            a.set_label(&mut again).unwrap();
            a.lea(rcx, qword_ptr(rax + 8)).unwrap();
            a.lea(rdx, qword_ptr(rax + 16)).unwrap();
            a.cmp(dword_ptr(rax), esi).unwrap();
            a.cmovg(rdx, rcx).unwrap();
            a.mov(rax, qword_ptr(rdx)).unwrap();
            a.mov(rdx, qword_ptr(rax + 8)).unwrap();
            a.test(rdx, rdx).unwrap();
            a.jne(again).unwrap();
            a.set_label(&mut leaf).unwrap();
            a.cmp(dword_ptr(rax), esi).unwrap();
            a.sete(al).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(tree, [0, 1, 6, 8, 9, 12]);
        let keeps = |to: AsmRegister64| {
            found(|a| {
                let mut again = a.create_label();
                a.mov(r8d, 5).unwrap();
                a.lea(r10, qword_ptr(rsp - 0x38)).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(rdi, qword_ptr(rdi + r8 * 8)).unwrap();
                a.mov(qword_ptr(to + r8 * 8), rdi).unwrap();
                a.cmp(dword_ptr(rdi), esi).unwrap();
                a.jl(again).unwrap();
                a.sete(al).unwrap();
                a.ret().unwrap();
            })
        };
        assert_eq!(keeps(r10), [2, 4], "on the stack");
        assert_eq!(keeps(r11), []);
        let list = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rdi, qword_ptr(rdi + 8)).unwrap();
            a.and(rdi, -2).unwrap();
            a.mov(eax, dword_ptr(rdi)).unwrap();
            a.cmp(eax, esi).unwrap();
            a.jl(again).unwrap();
            a.sete(al).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(list, [0, 2]);
    }

    /// As compilers have it without optimisation.
    #[test]
    fn through_the_stack() {
        let found = found(|a| {
            a.push(rbp).unwrap();
            a.mov(rbp, rsp).unwrap();
            a.mov(qword_ptr(rbp - 8), rdi).unwrap();
            a.mov(rax, qword_ptr(rbp - 8)).unwrap();
            a.mov(rax, qword_ptr(rax + 8)).unwrap();
            a.mov(eax, dword_ptr(rax)).unwrap();
            a.test(eax, eax).unwrap();
            a.setne(al).unwrap();
            a.pop(rbp).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(found, [5]);
    }
}
