//! What is executed shortly before or after a lock of its function, and what is compared there.

use crate::copy::listing::Listing;
use crate::copy::ordered::compares;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use refrain_trace::fixed::FixedSet;

/// Instructions between a lock and what is beside it, at most.
const REACH: u32 = 64;
/// Instructions behind a load among which the first use of what it loaded is looked for.
pub(super) const FURTHEST: usize = 4;

/// Of each instruction, whether a way of at most [`REACH`] instructions leads from it to one of the
/// `locks`, or from one of them to it. Where indirect jumps lead is not known: the cases of an
/// interpreter are not beside each other. `code` is a function's instructions in order.
pub(in crate::copy) fn beside(code: &Listing, locks: &[bool]) -> Vec<bool> {
    connected(code, locks, REACH)
}

/// Of each instruction of a function with locks, whether it is a load that is only compared, and that a
/// way of any length connects with a lock, or one of the same field. A flag that is compared on the way
/// to a lock is the same flag in other cases of an interpreter.
pub(super) fn flags_of_locks(code: &Listing, locks: &[bool]) -> Vec<bool> {
    if !locks.contains(&true) {
        return vec![false; code.len()];
    }
    let connected = connected(code, locks, u32::MAX);
    let compared: Vec<bool> =
        (0..code.len()).map(|at| code.is_candidate(at) && is_compared(code, at)).collect();
    let fields: FixedSet<_> = (0..code.len())
        .filter(|&at| connected[at] && compared[at])
        .map(|at| compared_field(&code[at]))
        .collect();
    let is_flag = |at: usize| compared[at] && fields.contains(&compared_field(&code[at]));
    (0..code.len()).map(is_flag).collect()
}

/// Of each instruction, whether a way of at most so many instructions leads from it to one of the
/// `locks`, or from one of them to it.
pub(in crate::copy) fn connected(code: &Listing, locks: &[bool], reach: u32) -> Vec<bool> {
    if !locks.contains(&true) {
        return vec![false; code.len()];
    }
    let previous = |at: usize| at.checked_sub(1).filter(|&before| !code.ends_here(before));
    let jumps = (0..code.len()).filter_map(|at| Some((at, code.target(at)?)));
    let mut jumps: Vec<(usize, usize)> = jumps.collect();
    let behind = within_reach(locks, reach, |at| code.next(at), &jumps);
    for jump in &mut jumps {
        *jump = (jump.1, jump.0);
    }
    jumps.sort_unstable();
    let before = within_reach(locks, reach, previous, &jumps);
    behind.iter().zip(before).map(|(&behind, before)| behind || before).collect()
}

/// Whether the instruction at `at`, a load, only compares a field or a variable: by itself, or where
/// the register that it loads is used first.
pub(in crate::copy) fn is_compared(code: &[Instruction], at: usize) -> bool {
    comparison(code, at).is_some()
}

/// The instruction that compares what the one at `at` loads, if that load [only compares](is_compared).
pub(super) fn comparison(code: &[Instruction], at: usize) -> Option<&Instruction> {
    match code[at].memory_index() {
        Register::None => comparison_among(code, at, FURTHEST),
        _ => None,
    }
}

/// The same of any load, and if the register that it loads is used first among the next so many instructions.
pub(super) fn comparison_among(
    code: &[Instruction],
    at: usize,
    furthest: usize,
) -> Option<&Instruction> {
    let load = &code[at];
    if compares(load) {
        return Some(load);
    }
    let loaded = load.op0_register().full_register();
    let is_it = |register: Register| register.full_register() == loaded;
    let points = |i: &Instruction| is_it(i.memory_base()) || is_it(i.memory_index());
    let next = &code[first_use_among(code, at, furthest)?];
    (compares(next) && !points(next)).then_some(next)
}

/// Which field a load that is only compared is of, whatever points to it: how it is loaded, where it lies,
/// and the number that it is compared with, if that is part of the instruction.
fn compared_field(load: &Instruction) -> (Code, u64, Option<u64>) {
    let last = load.op_count().saturating_sub(1);
    let number = load.try_immediate(last).ok();
    (load.code(), load.memory_displacement64(), number)
}

/// Of the instruction at `at`, if it moves a load to a register: which of the next [`FURTHEST`] is the
/// first to name that register.
pub(in crate::copy) fn first_use(code: &[Instruction], at: usize) -> Option<usize> {
    first_use_among(code, at, FURTHEST)
}

fn first_use_among(code: &[Instruction], at: usize, furthest: usize) -> Option<usize> {
    let load = &code[at];
    if !matches!(load.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx)
        || load.op0_kind() != OpKind::Register
    {
        return None;
    }
    let loaded = load.op0_register().full_register();
    let is_it = |register: Register| register.full_register() == loaded;
    let names = |i: &Instruction| {
        let mut registers = i.op_kinds().zip(0..).filter(|&(kind, _)| kind == OpKind::Register);
        is_it(i.memory_base())
            || is_it(i.memory_index())
            || registers.any(|(_, op)| is_it(i.op_register(op)))
    };
    (at + 1..code.len()).take(furthest).find(|&next| names(&code[next]))
}

/// What is reached from `sources` by at most so many steps: each to the neighbour that `step` says,
/// or by one of the jumps, which are in ascending order.
fn within_reach(
    sources: &[bool],
    reach: u32,
    step: impl Fn(usize) -> Option<usize>,
    jumps: &[(usize, usize)],
) -> Vec<bool> {
    let mut reached = sources.to_vec();
    let mut front: Vec<usize> = (0..sources.len()).filter(|&at| sources[at]).collect();
    for _ in 0..reach {
        if front.is_empty() {
            break;
        }
        let mut next = Vec::new();
        for at in front {
            let first = jumps.partition_point(|jump| jump.0 < at);
            let jumps = jumps[first..].iter().take_while(|jump| jump.0 == at);
            for to in step(at).into_iter().chain(jumps.map(|jump| jump.1)) {
                if !std::mem::replace(&mut reached[to], true) {
                    next.push(to);
                }
            }
        }
        front = next;
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::{REACH, beside, connected, is_compared};
    use crate::copy::ordered::{is_load, is_locked};
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// Which instructions of what `write` assembles are beside a locked one.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<bool> {
        let code = assembled(write);
        let locks: Vec<bool> = code.iter().map(is_locked).collect();
        beside(&code, &locks)
    }

    #[test]
    fn a_lock_has_two_sides() {
        let far = REACH as usize + 2;
        let line = found(|a| {
            (0..far).for_each(|_| a.inc(rax).unwrap());
            a.lock().inc(qword_ptr(rdi)).unwrap();
            (0..far).for_each(|_| a.inc(rax).unwrap());
        });
        let near = line.iter().filter(|&&near| near).count();
        assert_eq!((near, line[0], line[far], line[2 * far]), (2 * far - 3, false, true, false));
        assert_eq!(found(|a| a.inc(rax).unwrap()), [false]);
    }

    /// An interpreter: one case of three takes a lock, far from where it begins.
    #[test]
    fn cases_of_an_interpreter_are_not_connected() {
        let code = assembled(|a| {
            let mut slow = a.create_label();
            a.test(rcx, rcx).unwrap();
            a.je(slow).unwrap();
            a.jmp(rax).unwrap();
            a.inc(rbx).unwrap();
            a.jmp(rax).unwrap();
            a.set_label(&mut slow).unwrap();
            (0..2 * REACH).for_each(|_| a.inc(rbx).unwrap());
            a.lock().inc(qword_ptr(rdi)).unwrap();
            a.jmp(rax).unwrap();
        });
        let locks: Vec<bool> = code.iter().map(is_locked).collect();
        let connected = connected(&code, &locks, u32::MAX);
        assert_eq!(connected[..6], [true, true, false, false, false, true]);
        assert!(!beside(&code, &locks)[0], "it is far");
    }

    /// Which loads of what `write` assembles are only compared.
    fn compared(write: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(write);
        (0..code.len()).filter(|&at| is_load(&code[at]) && is_compared(&code, at)).collect()
    }

    #[test]
    fn flags_are_compared_and_data_are_used() {
        let flags = compared(|a| {
            a.mov(eax, dword_ptr(rdi + 0x64)).unwrap();
            a.mov(rcx, rdx).unwrap();
            a.test(eax, eax).unwrap();
            a.cmp(byte_ptr(rdi + 8), 0).unwrap();
            a.movzx(eax, byte_ptr(rdi)).unwrap();
            a.cmp(al, 3).unwrap();
        });
        assert_eq!(flags, [0, 3, 4]);
        let data = compared(|a| {
            a.mov(rax, qword_ptr(rdi)).unwrap();
            a.cmp(qword_ptr(rax + rcx * 8), 7).unwrap();
            a.mov(rdx, qword_ptr(rdi + rcx * 8)).unwrap();
            a.test(rdx, rdx).unwrap();
            a.mov(rax, qword_ptr(rdi)).unwrap();
            a.add(rax, rcx).unwrap();
            a.test(rax, rax).unwrap();
        });
        assert_eq!(data, [], "a pointer's target, an element, a number");
    }

    #[test]
    fn ways_go_through_branches() {
        let jumps = found(|a| {
            let (mut over, mut lock) = (a.create_label(), a.create_label());
            a.test(rax, rax).unwrap();
            a.je(lock).unwrap();
            a.jmp(over).unwrap();
            a.inc(rcx).unwrap();
            a.jmp(rax).unwrap();
            a.set_label(&mut lock).unwrap();
            a.lock().inc(qword_ptr(rdi)).unwrap();
            a.ret().unwrap();
            a.set_label(&mut over).unwrap();
            a.inc(rdx).unwrap();
        });
        assert_eq!(jumps, [true, true, false, false, false, true, true, false]);
    }
}
