//! Loads that compilers would have folded into the instruction that uses them, had the word been an
//! ordinary one.
//!
//! A value that one instruction alone uses need not go through a register: `add rax, [rdi]` does what
//! `mov rdx, [rdi]` and `add rax, rdx` do, and so does `add qword ptr [rdi], 1` for three instructions.
//! Compilers fold what they load so, but not what is atomic or volatile, or what an `asm` loads. So a
//! register that is loaded, used once where a memory operand could stand, and not read again, tells of a
//! word that threads share, whatever is around it: a counter of another thread's that a monitor adds up,
//! the record of a hazard pointer, a bit by which a task is told to stop. (Of a thousand loads in libraries
//! that share nothing, about one looks so. LLVM folds what is volatile, and keeps what is atomic apart.)

use super::left_behind::LeftBehind;
use crate::common::is_call;
use crate::copy::addresses::{is_by_frame_pointer, is_unoptimised};
use crate::copy::listing::Listing;
use crate::copy::ordered::writes_memory;
use iced_x86::{
    Code, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use std::cell::LazyCell;

/// Instructions between a load and its use, at most, and one more: what compilers put there while the load
/// is under way.
const APART: usize = 6;
/// Bytes of a call by a register, at most.
const BY_REGISTER: usize = 3;
/// Instructions behind the use in which the register must be written again.
const REACH: usize = 160;

/// Indices of such loads in a function's code, and of the stores of what was folded with neither, in
/// ascending order.
pub(super) fn unfolded(code: &Listing) -> Vec<usize> {
    if is_unoptimised(code) {
        return Vec::new();
    }
    // What a frame pointer names is the function's own.
    let is_own = is_by_frame_pointer(code);
    let mut factory = InstructionInfoFactory::new();
    // Where nothing is locked, more of these would be words that nobody shares.
    let left_behind = LazyCell::new(|| {
        (0..code.len()).any(|at| code.is_locked(at)).then(|| LeftBehind::of(code))
    });
    let cannot_take = |at: usize, register: Register| {
        left_behind.as_ref().is_some_and(|left| left.cannot_take(at, register))
    };
    let mut found = Vec::new();
    let mut joined = None;
    // A load before one of them may be one of several, one on each way there.
    let mut is_joined = |from: usize, to: usize| {
        joined.get_or_insert_with(|| code.joints()).range(from + 1..=to).next().is_some()
    };
    for (at, load) in code.iter().enumerate() {
        if !code.is_candidate(at) || is_own(load) {
            continue;
        }
        let loaded = match load.code() {
            Code::Mov_r32_rm32 | Code::Mov_r64_rm64 => load.op0_register(),
            // Elements of arrays are characters, as a rule.
            Code::Movzx_r32_rm8 if load.memory_index() == Register::None => {
                lowest_byte(load.op0_register())
            }
            _ => continue,
        };
        let Some((by, points)) = first_use(code, at, &mut factory) else { continue };
        if points {
            continue;
        }
        // Where a loop computes with elements of arrays, a store may have come between once.
        let is_element = load.memory_index() != Register::None && load.memory_index_scale() > 1;
        if takes_memory(&code[by], loaded) {
            if is_element {
                continue;
            }
            let store = sum_stored_back(code, at, by);
            let returns = if store.is_some() { Returns::Single } else { Returns::Pairs };
            if is_dead(code, by + 1, loaded, returns, &cannot_take, &mut factory)
                && !is_joined(at, store.unwrap_or(by))
            {
                found.push(at);
                found.extend(store);
            }
        } else if let Some(store) = stored_back(code, at, by)
            && is_dead(code, store + 1, loaded, Returns::Pairs, &cannot_take, &mut factory)
            && !is_joined(at, store)
        {
            found.extend([at, store]);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Which of the next instructions is the first to name the register that the one at `at` loads, with
/// nothing between that might keep a compiler from loading there; and whether an address needs it.
fn first_use(
    code: &[Instruction],
    at: usize,
    factory: &mut InstructionInfoFactory,
) -> Option<(usize, bool)> {
    let loaded = code[at].op0_register().full_register();
    let is_it = |register: Register| register.full_register() == loaded;
    for (next, i) in code.iter().enumerate().skip(at + 1).take(APART) {
        let used = factory.info(i).used_registers();
        if used.iter().any(|used| is_it(used.register())) {
            return Some((next, is_it(i.memory_base()) || is_it(i.memory_index())));
        }
        if i.flow_control() != FlowControl::Next || writes_memory(i) || is_call(i) {
            return None;
        }
    }
    None
}

/// Whether an instruction has a register as the operand in whose place one in memory could stand, and
/// nowhere else.
fn takes_memory(instruction: &Instruction, register: Register) -> bool {
    use Mnemonic::*;
    let i = instruction;
    let is_one = |at: u32| i.op_kind(at) == OpKind::Register && i.op_register(at) == register;
    let loaded_byte = register.size() == 1;
    if i.op_count() != 2 {
        return false;
    }
    match i.mnemonic() {
        Add | Sub | And | Or | Xor | Imul => {
            i.op0_kind() == OpKind::Register && is_one(1) && !is_one(0)
        }
        // Of bits further up in a word, compilers make it depend on how long the instruction becomes.
        Test if i.op1_kind() == OpKind::Immediate8 => {
            !loaded_byte && i.op0_register() == lowest_byte(register)
        }
        // Words are loaded to be tested, whatever they are, and characters to be compared.
        Test => loaded_byte && is_one(0) && is_one(1),
        Cmp if !loaded_byte => {
            let other = |at: u32| i.op_kind(at) == OpKind::Register && !is_one(at);
            is_one(0) && other(1) || is_one(1) && other(0) || is_one(0) && has_number(i)
        }
        _ => false,
    }
}

/// The lowest byte of a register of four or eight bytes.
fn lowest_byte(register: Register) -> Register {
    use Register::*;
    const BYTES: [Register; 16] =
        [AL, CL, DL, BL, SPL, BPL, SIL, DIL, R8L, R9L, R10L, R11L, R12L, R13L, R14L, R15L];
    BYTES[register.number()]
}

/// Whether the second operand is a number other than 0, with which compilers compare registers.
fn has_number(instruction: &Instruction) -> bool {
    instruction.try_immediate(1).is_ok_and(|number| number != 0)
}

/// Of what the instruction at `at` loads and the one at `by` changes: the store that writes it back.
fn stored_back(code: &[Instruction], at: usize, by: usize) -> Option<usize> {
    use Mnemonic::*;
    let (load, change) = (&code[at], &code[by]);
    let changes = matches!(change.mnemonic(), Add | Sub | And | Or | Xor | Inc | Dec)
        && change.op0_kind() == OpKind::Register
        && change.op0_register() == load.op0_register()
        && (change.op_count() < 2 || change.op1_kind() != OpKind::Memory);
    changes.then(|| stored_next(code, at, by)).flatten()
}

/// The same if the one at `by` adds what is loaded to another register, and that is written back.
fn sum_stored_back(code: &[Instruction], at: usize, by: usize) -> Option<usize> {
    use Mnemonic::*;
    let (load, sum) = (&code[at], &code[by]);
    let combines = matches!(sum.mnemonic(), Add | And | Or | Xor)
        && sum.op0_kind() == OpKind::Register
        && sum.op1_kind() == OpKind::Register
        && sum.op1_register() == load.op0_register();
    combines.then(|| stored_next(code, at, by)).flatten()
}

/// The next instruction behind the one at `by`, if it stores what that one has made where the one at `at` has
/// loaded from.
fn stored_next(code: &[Instruction], at: usize, by: usize) -> Option<usize> {
    let (load, made) = (&code[at], code[by].op0_register());
    let is_store = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Mov
            && i.op0_kind() == OpKind::Memory
            && i.op1_kind() == OpKind::Register
            && i.op1_register() == made
            && i.op1_register().size() >= 4
            && (i.memory_base(), i.memory_index(), i.memory_index_scale())
                == (load.memory_base(), load.memory_index(), load.memory_index_scale())
            && i.memory_displacement64() == load.memory_displacement64()
    };
    let address = [load.memory_base(), load.memory_index()].map(Register::full_register);
    let stays = [load.op0_register(), made].iter().all(|r| !address.contains(&r.full_register()));
    let next = by + 1;
    // Where the flags are asked, compilers may not have seen that they could fold.
    let asks = code.get(next + 1).is_some_and(|i| i.condition_code() != ConditionCode::None);
    (stays && !asks && code.get(next).is_some_and(is_store)).then_some(next)
}

/// What a function may return.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Returns {
    /// One value: who returns what a word was before it was changed returns that alone.
    Single,
    /// Two values, one of them in RDX.
    Pairs,
}

/// Whether no instruction from `start` on reads a register before it is written, on whatever way.
/// `returns` says what is read behind the function's end, `cannot_take` which calls take no argument in
/// which register.
fn is_dead(
    code: &Listing,
    start: usize,
    register: Register,
    returns: Returns,
    cannot_take: &impl Fn(usize, Register) -> bool,
    factory: &mut InstructionInfoFactory,
) -> bool {
    let register = register.full_register();
    let is_tested = code[start - 1].mnemonic() == Mnemonic::Test;
    let mut ways = vec![start];
    let mut seen = Vec::new();
    while let Some(at) = ways.pop() {
        if seen.contains(&at) {
            continue;
        }
        seen.push(at);
        let Some(i) = code.get(at).filter(|_| seen.len() <= REACH) else { return false };
        let is_clobbered = || matches!(register, Register::RAX | Register::R10 | Register::R11);
        match i.flow_control() {
            _ if is_call(i) => {
                // A call by a register that is known to hold a slot's value names the slot, and is as short as
                // it was.
                let is_slot = i.is_ip_rel_memory_operand() && i.len() <= BY_REGISTER;
                let reads_register = i.op0_kind() == OpKind::Register
                    || [i.memory_base(), i.memory_index()]
                        .iter()
                        .any(|part| part.full_register() == register);
                if (is_clobbered() || cannot_take(at, register)) && !is_slot && !reads_register {
                    continue;
                }
                return false;
            }
            FlowControl::Return => {
                use Register::*;
                let is_clobbered = matches!(register, RCX | RSI | RDI | R8 | R9 | R10 | R11);
                if is_clobbered || register == RDX && returns == Returns::Single {
                    continue;
                }
                return false;
            }
            FlowControl::Next
            | FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch => {}
            _ => return false,
        }
        let used = factory.info(i).used_registers().iter();
        let mut used = used.filter(|used| used.register().full_register() == register).peekable();
        if used.peek().is_some() {
            let is_whole = |access, part: Register| access == OpAccess::Write && part.size() >= 4;
            if used.all(|used| is_whole(used.access(), used.register())) {
                continue;
            }
            return false;
        }
        let branches = i.flow_control() != FlowControl::Next;
        if branches {
            match code.target(at) {
                Some(to) => ways.push(to),
                // Compilers put what is done in rare cases elsewhere, such as throwing an exception.
                None if is_tested && i.flow_control() == FlowControl::ConditionalBranch => {}
                None => return false,
            }
        }
        if i.flow_control() != FlowControl::UnconditionalBranch {
            ways.push(at + 1);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::unfolded;
    use crate::copy::listing::Listing;
    use crate::copy::tests::{assembled, instructions};
    use iced_x86::code_asm::*;
    use iced_x86::{Code, Instruction, MemoryOperand, Register};

    /// Distributions compile optimised code with frame pointers, and functions whose variables are
    /// aligned to cache lines have one anyhow.
    #[test]
    fn frames() {
        let found = |is_optimised: bool| {
            unfolded(&assembled(|a| {
                a.push(rbp).unwrap();
                a.mov(rbp, rsp).unwrap();
                if !is_optimised {
                    a.mov(qword_ptr(rbp - 8), rdi).unwrap();
                    a.mov(rdi, qword_ptr(rbp - 8)).unwrap();
                }
                a.mov(rcx, qword_ptr(rdi)).unwrap();
                a.cmp(rcx, -1).unwrap();
                a.mov(rcx, qword_ptr(rbp - 16)).unwrap();
                a.add(rax, rcx).unwrap();
                a.pop(rbp).unwrap();
                a.ret().unwrap();
            }))
        };
        assert_eq!(found(true), [2], "and nothing on the function's own stack");
        assert_eq!(found(false), []);
    }

    /// As threads' counters are added up.
    #[test]
    fn sums() {
        let folded = |reads_again: bool| {
            unfolded(&assembled(|a| {
                a.mov(rdx, qword_ptr(rdi + 8)).unwrap();
                a.add(rax, rdx).unwrap();
                if reads_again {
                    a.mov(rcx, rdx).unwrap();
                }
                a.mov(edx, 1).unwrap();
                a.ret().unwrap();
            }))
        };
        assert_eq!(folded(false), [0]);
        assert_eq!(folded(true), []);
    }

    /// As an allocator counts its pages: what is added lies in a register already.
    #[test]
    fn sums_that_go_back() {
        let found = |loaded: AsmRegister64, to: i32, again: fn(&mut CodeAssembler)| {
            unfolded(&assembled(|a| {
                a.shr(r12, 12).unwrap();
                a.mov(loaded, qword_ptr(rdi + 0x25a8)).unwrap();
                a.add(r12, loaded).unwrap();
                a.mov(qword_ptr(rdi + to), r12).unwrap();
                again(a);
                a.pop(r12).unwrap();
                a.ret().unwrap();
            }))
        };
        assert_eq!(found(rdx, 0x25a8, |_| ()), [1, 3]);
        assert_eq!(found(rdx, 0x25a0, |_| ()), [], "the value may be half of a result");
        assert_eq!(found(rcx, 0x25a0, |_| ()), [1]);
        assert_eq!(found(rax, 0x25a8, |_| ()), [], "it returns what the word was");
        assert_eq!(found(rdx, 0x25a8, |a| a.mov(rsi, rdx).unwrap()), []);
    }

    /// A hook of the program's: one that is not the usual one is called by the register, which the call
    /// does not name any more ([`crate::copy::functions`]).
    #[test]
    fn what_is_called_later() {
        let slot = MemoryOperand::with_base_displ(Register::RIP, 0x7000);
        let named = Instruction::with1(Code::Call_rm64, slot).expect("is an instruction");
        for (bytes, found) in [(2, &[][..]), (6, &[0])] {
            let mut code = instructions(|a| {
                a.mov(r10, qword_ptr(0x7000)).unwrap();
                a.cmp(r10, 0x1234).unwrap();
                a.call(r10).unwrap();
            });
            code[2] = named;
            code[2].set_len(bytes);
            assert_eq!(unfolded(&Listing::new(code)), found);
        }
    }

    /// A collector looks at the records of all threads, and calls by pointers in memory later.
    #[test]
    fn where_calls_lead_is_in_memory() {
        let found = |pointer: AsmRegister64, between: usize| {
            unfolded(&assembled(|a| {
                a.mov(r10, qword_ptr(r8)).unwrap();
                a.cmp(r10, -1).unwrap();
                (0..between).for_each(|_| a.inc(rcx).unwrap());
                a.call(qword_ptr(pointer)).unwrap();
                a.ret().unwrap();
            }))
        };
        assert_eq!(found(rax, 0), [0]);
        assert_eq!(found(rax, 150), [0], "in a long function");
        assert_eq!(found(r10, 0), [], "the register names that memory");
    }

    /// As where a record is looked at before the entries of a list are called for. The loop around these calls
    /// tells that they take one argument.
    #[test]
    fn registers_of_arguments() {
        let found = |locks: bool, loops: bool| {
            unfolded(&assembled(|a| {
                let mut again = a.create_label();
                a.mov(r9, qword_ptr(r8)).unwrap();
                a.cmp(r9, -1).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(rdi, qword_ptr(rbx)).unwrap();
                a.call(qword_ptr(rbx + 8)).unwrap();
                a.add(rbx, 16).unwrap();
                a.cmp(rbx, rbp).unwrap();
                if loops {
                    a.jne(again).unwrap();
                }
                if locks {
                    a.lock().inc(qword_ptr(rsi)).unwrap();
                }
                a.mov(ecx, 1).unwrap();
                a.ret().unwrap();
                if !loops {
                    a.jmp(again).unwrap();
                }
            }))
        };
        assert_eq!(found(true, true), [0]);
        assert_eq!(found(true, false), [], "it may be the sixth argument");
        assert_eq!(found(false, true), [], "nothing is shared here");
    }

    /// As a task asks whether it is to stop, by a bit of a word that also says who has stolen it.
    #[test]
    fn bits() {
        let tested = |test: fn(&mut CodeAssembler), reads_again: bool| {
            unfolded(&assembled(|a| {
                let mut stops = a.create_label();
                a.mov(rax, qword_ptr(rax + 0x38)).unwrap();
                test(a);
                a.jne(stops).unwrap();
                a.xor(eax, eax).unwrap();
                a.ret().unwrap();
                a.set_label(&mut stops).unwrap();
                if reads_again {
                    a.and(rax, -4).unwrap();
                }
                a.mov(eax, 1).unwrap();
                a.ret().unwrap();
            }))
        };
        assert_eq!(tested(|a| a.test(al, 2).unwrap(), false), [0]);
        assert_eq!(tested(|a| a.test(al, 2).unwrap(), true), [], "it says who, too");
        assert_eq!(tested(|a| a.test(eax, 0x200).unwrap(), false), [], "further up");
        assert_eq!(tested(|a| a.test(ah, 2).unwrap(), false), []);
        let mut elsewhere = instructions(|a| {
            a.mov(rax, qword_ptr(rax + 0x38)).unwrap();
            a.test(al, 2).unwrap();
            a.jne(0x10_0000).unwrap();
            a.xor(eax, eax).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(
            unfolded(&Listing::new(elsewhere.clone())),
            [0],
            "who is told to stop throws, in the cold part"
        );
        elsewhere[2] = assembled(|a| a.jmp(0x10_0000).unwrap())[0];
        assert_eq!(unfolded(&Listing::new(elsewhere)), [], "another function may take it");
    }

    #[test]
    fn what_could_not_be_folded() {
        let code = assembled(|a| {
            a.mov(edx, dword_ptr(rdi)).unwrap();
            a.add(rax, rdx).unwrap();
            a.mov(rdx, qword_ptr(rdi)).unwrap();
            a.mov(qword_ptr(rsi), rax).unwrap();
            a.add(rax, rdx).unwrap();
            a.mov(rdx, qword_ptr(rdi)).unwrap();
            a.add(rdx, rax).unwrap();
            a.mov(rcx, qword_ptr(rdi)).unwrap();
            a.add(rax, qword_ptr(rcx)).unwrap();
            a.xor(edx, edx).unwrap();
            a.xor(ecx, ecx).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(unfolded(&code), [], "wider; behind a store; the sum itself; a pointer");
    }

    /// As a loop looks whether records are free, with something else between.
    #[test]
    fn bytes() {
        let tested = |reads_again: bool| {
            unfolded(&assembled(|a| {
                let mut out = a.create_label();
                a.movzx(eax, byte_ptr(r8 + 0x64)).unwrap();
                a.mov(rcx, qword_ptr(r8 + 0x58)).unwrap();
                a.test(al, al).unwrap();
                a.js(out).unwrap();
                if reads_again {
                    a.add(rcx, rax).unwrap();
                }
                a.set_label(&mut out).unwrap();
                a.mov(eax, 1).unwrap();
                a.ret().unwrap();
            }))
        };
        assert_eq!(tested(false), [0]);
        assert_eq!(tested(true), []);
    }

    /// As a thread says whether its record is free.
    #[test]
    fn comparisons() {
        let compared = |read_at_target: bool| {
            unfolded(&assembled(|a| {
                let mut out = a.create_label();
                a.mov(ecx, dword_ptr(rdx - 0x1030)).unwrap();
                a.cmp(ecx, 1).unwrap();
                a.je(out).unwrap();
                a.ret().unwrap();
                a.set_label(&mut out).unwrap();
                if read_at_target {
                    a.mov(eax, ecx).unwrap();
                }
                a.ret().unwrap();
            }))
        };
        assert_eq!(compared(false), [0]);
        assert_eq!(compared(true), []);
    }

    /// A counter that one thread alone changes.
    #[test]
    fn counters() {
        let counts = |folds: bool| {
            unfolded(&assembled(|a| {
                if folds {
                    a.add(qword_ptr(rdi + rsi * 8), 1).unwrap();
                } else {
                    a.mov(rcx, qword_ptr(rdi + rsi * 8)).unwrap();
                    a.add(rcx, 1).unwrap();
                    a.mov(qword_ptr(rdi + rsi * 8), rcx).unwrap();
                }
                a.ret().unwrap();
            }))
        };
        let joins = assembled(|a| {
            let mut end = a.create_label();
            a.je(end).unwrap();
            a.mov(rcx, qword_ptr(rdi)).unwrap();
            a.set_label(&mut end).unwrap();
            a.sub(rcx, rax).unwrap();
            a.mov(qword_ptr(rdi), rcx).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(unfolded(&joins), [], "one of two loads");
        assert_eq!(counts(false), [0, 2]);
        assert_eq!(counts(true), []);
    }
}
