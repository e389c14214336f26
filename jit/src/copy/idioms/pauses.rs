//! Where a thread orders its accesses by a fence, or lets others go on: `pause`, and the system calls by
//! which threads yield and wait for a word (`sched_yield`, `futex`), made by the function itself or by a
//! short one that it calls. Libraries of locks that use the kernel directly look at a word right before
//! or after that.

use crate::copy::listing::Listing;
use crate::copy::ordered::is_store;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use refrain_trace::linux::{FUTEX, yields};

/// Instructions behind the one that sets a call's number in which it is made.
const REACH: usize = 12;

/// What a function that is called does for other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::copy) enum Callee {
    /// It is short, and only lets them go on.
    Yields,
    /// It makes the system call that its first argument names, and that may let them go on.
    MakesCall,
    /// Nothing that is known.
    Other,
}

/// Of each instruction of a function, whether it is a fence or lets others go on. `callee` says what the
/// function that a call leads to does.
pub(in crate::copy) fn pauses(
    code: &Listing,
    mut callee: impl FnMut(&Instruction) -> Callee,
) -> Vec<bool> {
    let mut lets_go_on = |at: usize| {
        let i = &code[at];
        match () {
            () if code.is_branch(at) => leaves(code, at) && callee(i) == Callee::Yields,
            () if code.is_locked(at) => is_fence(i),
            () => matches!(i.mnemonic(), Mnemonic::Pause | Mnemonic::Mfence),
        }
    };
    let mut found: Vec<bool> = (0..code.len()).map(&mut lets_go_on).collect();
    for (at, instruction) in code.iter().enumerate() {
        if let Some(register) = holds_number(instruction) {
            let rest = code.iter().enumerate().skip(at + 1).take(REACH);
            let mut rest = rest.take_while(|(_, i)| !ends(i));
            let call = match register {
                Register::RAX => rest.find(|(_, i)| i.mnemonic() == Mnemonic::Syscall),
                _ => rest.find(|(_, i)| is_call(i)).filter(|(_, i)| callee(i) == Callee::MakesCall),
            };
            if let Some((call, _)) = call {
                found[call] = true;
            }
        }
    }
    found
}

/// What a function of these instructions does for other threads.
pub(in crate::copy) fn callee(code: &[Instruction]) -> Callee {
    const LONGEST: usize = 16;
    let short = &code[..code.len().min(LONGEST)];
    let Some(first) = short.iter().position(|i| i.mnemonic() == Mnemonic::Syscall) else {
        return Callee::Other;
    };
    let before = &short[..first];
    let by_argument = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Mov
            && i.op0_kind() == OpKind::Register
            && i.op0_register() == Register::RAX
            && i.op1_register() == Register::RDI
    };
    if before.iter().filter_map(holds_number).next_back() == Some(Register::RAX) {
        Callee::Yields
    } else if before.iter().any(by_argument) {
        Callee::MakesCall
    } else {
        Callee::Other
    }
}

/// The register into which an instruction puts the number of such a call: that of the kernel's
/// convention, or the first argument of the C library's `syscall`.
fn holds_number(instruction: &Instruction) -> Option<Register> {
    let number = moved_number(instruction).filter(|&it| it == FUTEX || yields(it));
    let is_register = number.is_some() && instruction.op0_kind() == OpKind::Register;
    let register = is_register.then(|| instruction.op0_register().full_register())?;
    matches!(register, Register::RAX | Register::RDI).then_some(register)
}

/// The number that an instruction moves somewhere, if it can be that of a system call.
pub(in crate::copy) fn moved_number(instruction: &Instruction) -> Option<u16> {
    let is_immediate = instruction.mnemonic() == Mnemonic::Mov
        && matches!(instruction.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64);
    is_immediate.then(|| u16::try_from(instruction.immediate(1)).ok()).flatten()
}

fn is_call(instruction: &Instruction) -> bool {
    instruction.is_call_near() || instruction.is_call_near_indirect()
}

/// Indices of the stores that fences order: the last store before each fence that is not on the stack,
/// by which a thread announces what it looks for behind the fence, and the first one behind it, which
/// publishes what was stored before.
pub(super) fn published(code: &[Instruction]) -> Vec<usize> {
    let is_fence = |i: &Instruction| i.mnemonic() == Mnemonic::Mfence || is_fence(i);
    let stays = |at: &usize| !ends(&code[*at]) && !is_call(&code[*at]);
    let own = |i: &Instruction| matches!(i.memory_base(), Register::RSP | Register::RBP);
    let is_meant = |at: &usize| is_store(&code[*at]) && !own(&code[*at]);
    let fences = code.iter().enumerate().filter(|(_, i)| is_fence(i)).map(|(at, _)| at);
    let around = fences.flat_map(|at| {
        let before = (0..at).rev().take(REACH).take_while(stays).find(is_meant);
        let behind = (at + 1..code.len()).take(REACH).take_while(stays).find(is_meant);
        [before, behind]
    });
    around.flatten().collect()
}

/// Whether compilers mean a fence by it: a locked instruction that changes nothing, on the stack.
fn is_fence(instruction: &Instruction) -> bool {
    let nothing = matches!(instruction.mnemonic(), Mnemonic::Or | Mnemonic::Add);
    instruction.has_lock_prefix()
        && nothing
        && instruction.memory_base() == Register::RSP
        && instruction.op1_kind() != OpKind::Register
        && instruction.immediate(1) == 0
}

/// Whether it is a call, or a jump that ends the function.
fn leaves(code: &Listing, at: usize) -> bool {
    let i = &code[at];
    let jumps = i.is_jmp_short_or_near() && code.target(at).is_none();
    is_call(i) || jumps || i.is_jmp_near_indirect()
}

fn ends(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Return | FlowControl::IndirectBranch)
}

#[cfg(test)]
mod tests {
    use super::{Callee, callee, pauses, published};
    use crate::copy::tests::assembled as code;
    use iced_x86::Mnemonic;
    use iced_x86::code_asm::*;

    /// Mnemonics of what lets others go on; 0x5000 is a function that yields, 0x2000 the library's `syscall`.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Mnemonic> {
        let code = code(write);
        let found = pauses(&code, |call| match call.near_branch_target() {
            0x5000 => Callee::Yields,
            0x2000 => Callee::MakesCall,
            _ => Callee::Other,
        });
        code.iter().zip(found).filter(|(_, is)| *is).map(|(i, _)| i.mnemonic()).collect()
    }

    #[test]
    fn what_a_fence_orders() {
        let found = |fence: bool| {
            let code = code(|a| {
                a.mov(qword_ptr(rdi), rax).unwrap();
                a.mov(qword_ptr(rdi + 8), rax).unwrap();
                if fence {
                    a.mfence().unwrap();
                }
                a.mov(qword_ptr(rbp - 8), rax).unwrap();
                a.mov(qword_ptr(rsi + rcx * 8), rdi).unwrap();
                a.mov(qword_ptr(rsi + 8), rdi).unwrap();
            });
            published(&code)
        };
        assert_eq!((found(true), found(false)), (vec![1, 4], vec![]));
    }

    #[test]
    fn calls_that_wait_are_told_from_others() {
        use Mnemonic::*;
        let by_itself = |number: u32| {
            found(|a| {
                a.mov(edi, 202).unwrap();
                a.mov(eax, number).unwrap();
                a.syscall().unwrap();
            })
        };
        assert_eq!(by_itself(202), [Syscall]);
        assert_eq!(by_itself(1), []);
        let by_function = |number: u32| {
            found(|a| {
                a.mov(edi, number).unwrap();
                a.xor(eax, eax).unwrap();
                a.call(0x2000).unwrap();
            })
        };
        assert_eq!(by_function(202), [Call]);
        assert_eq!(by_function(24), [Call]);
        assert_eq!(by_function(39), []);
        // A list's node has 24 bytes.
        let allocates = found(|a| {
            a.mov(edi, 24).unwrap();
            a.call(0x6000).unwrap();
        });
        assert_eq!(allocates, []);
        assert_eq!(found(|a| a.pause().unwrap()), [Pause]);
        assert_eq!(found(|a| a.mfence().unwrap()), [Mfence]);
        assert_eq!(found(|a| a.lock().or(qword_ptr(rsp), 0).unwrap()), [Or]);
        assert_eq!(found(|a| a.lock().or(qword_ptr(rsp), 1).unwrap()), []);
        assert_eq!(found(|a| a.call(0x5000).unwrap()), [Call]);
        assert_eq!(found(|a| a.jmp(0x5000).unwrap()), [Jmp]);
        assert_eq!(found(|a| a.call(0x6000).unwrap()), []);
    }

    #[test]
    fn functions_that_yield() {
        let yields = |number: u32| {
            callee(&code(|a| {
                a.mov(eax, number).unwrap();
                a.syscall().unwrap();
                a.ret().unwrap();
            }))
        };
        assert_eq!(
            [yields(24), yields(202), yields(39)],
            [Callee::Yields, Callee::Yields, Callee::Other]
        );
        let makes_call = code(|a| {
            a.mov(rax, rdi).unwrap();
            a.mov(rdi, rsi).unwrap();
            a.syscall().unwrap();
        });
        assert_eq!(callee(&makes_call), Callee::MakesCall);
        assert_eq!(callee(&code(|a| a.ret().unwrap())), Callee::Other);
    }
}
