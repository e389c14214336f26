//! Flags that loops look at in each round, whatever else they do: `while (!stop) work();`.
//!
//! What decides whether a loop goes on, lies at the same address in each round, and is written by
//! nothing in the loop, is what somebody else writes: another thread, or a function that the loop
//! calls. Of functions of the same module that are called directly, it is looked up whether they
//! write such a field. The loop may also ask a short function for the flag.

use super::beside::{FURTHEST, first_use};
use crate::common::is_call;
use crate::copy::listing::{Listing, numbers};
use crate::copy::loops::Loop;
use crate::copy::ordered::compares;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;

/// Instructions of a loop that is looked at.
const LONGEST: usize = 1024;
/// How many pointers are followed to the flag.
const POINTERS: u32 = 2;

/// Indices of the loads of such flags. `code` is a function's instructions in order, `loops` are its
/// loops. `writes` tells whether the function that a call leads to may write a field at an offset.
pub(super) fn flags(
    code: &Listing,
    loops: &[Loop],
    writes: impl Fn(&Instruction, u64) -> bool,
) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for body in loops {
        let inside: BTreeSet<usize> = body.iter().flat_map(|block| block.clone()).collect();
        if inside.len() > LONGEST {
            continue;
        }
        let mut round = None;
        for &at in &inside {
            if code.is_candidate(at)
                && code[at].memory_index() == Register::None
                && let Some(comparison) = ends_loop(code, &inside, at)
            {
                let round = round.get_or_insert_with(|| Round::new(code, &inside));
                if round.is_flag(at, comparison, &writes) {
                    found.insert(at);
                }
            }
        }
    }
    found
}

/// Which instruction compares what the load at `at` loads, if a branch behind it leaves the loop.
fn ends_loop(code: &Listing, inside: &BTreeSet<usize>, at: usize) -> Option<usize> {
    let load = &code[at];
    let comparison = if compares(load) {
        at
    } else {
        let loaded = load.op0_register().full_register();
        first_use(code, at).filter(|&next| {
            compares(&code[next]) && code[next].memory_base().full_register() != loaded
        })?
    };
    branches_out(code, inside, comparison).then_some(comparison)
}

/// Whether right behind a comparison a conditional branch leaves the loop.
fn branches_out(code: &Listing, inside: &BTreeSet<usize>, comparison: usize) -> bool {
    const BRANCH: usize = 5;
    let mut behind = (comparison + 1..code.len()).take(BRANCH);
    let branch = behind.find(|&next| code[next].flow_control() != FlowControl::Next);
    branch.is_some_and(|branch| {
        let leads_out = |to: Option<usize>| to.is_none_or(|to| !inside.contains(&to));
        let is_branch = code[branch].flow_control() == FlowControl::ConditionalBranch;
        let leaves = leads_out(code.target(branch)) || leads_out(Some(branch + 1));
        is_branch && inside.contains(&branch) && leaves
    })
}

/// Calls whose answers decide whether a loop of the function goes on, and for each of them the other
/// calls of that loop; calls with an address on the stack are left out, which ask an object of the
/// function's own.
pub(in crate::copy) fn questions<'a>(
    code: &'a Listing,
    loops: &[Loop],
) -> Vec<(&'a Instruction, Vec<&'a Instruction>)> {
    let mut found = Vec::new();
    for body in loops {
        let inside: BTreeSet<usize> = body.iter().flat_map(|block| block.clone()).collect();
        if inside.len() > LONGEST {
            continue;
        }
        let calls = || inside.iter().copied().filter(|&at| code.is_call(at));
        for at in calls().filter(|&at| code[at].is_call_near()) {
            if !takes_own(&code[..at]) && answer_ends_loop(code, &inside, at) {
                found.push((&code[at], calls().filter(|&o| o != at).map(|o| &code[o]).collect()));
            }
        }
    }
    found
}

/// Whether what comes right before a call takes an address on the stack.
fn takes_own(before: &[Instruction]) -> bool {
    const ARGUMENTS: usize = 6;
    let arguments = before.iter().rev().take(ARGUMENTS).take_while(|i| !is_call(i));
    let mut own = arguments.filter(|i| {
        i.mnemonic() == Mnemonic::Lea && matches!(i.memory_base(), Register::RSP | Register::RBP)
    });
    own.next().is_some()
}

/// Whether the answer of the call at `at` is compared with a constant, and a branch behind that leaves
/// the loop.
fn answer_ends_loop(code: &Listing, inside: &BTreeSet<usize>, at: usize) -> bool {
    let turns = |i: &Instruction| i.mnemonic() == Mnemonic::Xor && i.op1_kind() != OpKind::Register;
    let mut behind = (at + 1..code.len()).take(FURTHEST);
    let comparison = behind.find(|&next| !turns(&code[next]));
    comparison.is_some_and(|comparison| {
        let i = &code[comparison];
        let of_answer = i.op0_kind() == OpKind::Register
            && i.op0_register().full_register() == Register::RAX
            && (i.op1_kind() != OpKind::Register || i.op1_register() == i.op0_register());
        of_answer && compares(i) && branches_out(code, inside, comparison)
    })
}

/// What a loop does in a round.
struct Round<'a> {
    code: &'a Listing,
    inside: &'a BTreeSet<usize>,
    /// By number, the instructions that write a general register, calls apart.
    writers: [Vec<usize>; 16],
    /// The instructions that write memory.
    stores: Vec<&'a Instruction>,
    calls: Vec<&'a Instruction>,
}

impl<'a> Round<'a> {
    fn new(code: &'a Listing, inside: &'a BTreeSet<usize>) -> Round<'a> {
        let writers = std::array::from_fn(|_| Vec::new());
        let mut round = Round { code, inside, writers, stores: Vec::new(), calls: Vec::new() };
        for &at in inside {
            let i = &code[at];
            if code.is_call(at) {
                round.calls.push(i);
                continue;
            }
            numbers(code.written(at)).for_each(|number| round.writers[number].push(at));
            if code.writes_memory(at) {
                round.stores.push(i);
            }
        }
        round
    }

    fn is_flag(
        &self,
        at: usize,
        comparison: usize,
        writes: &impl Fn(&Instruction, u64) -> bool,
    ) -> bool {
        let (load, compared) = (&self.code[at], &self.code[comparison]);
        let offset = load.memory_displacement64();
        let against = compared.op_kinds().zip(0..).filter(|&(kind, _)| kind == OpKind::Register);
        let mut against = against.map(|(_, op)| compared.op_register(op));
        let loads = load.op0_kind() == OpKind::Register && comparison != at;
        let loaded = loads.then(|| load.op0_register().full_register());
        self.stays(at, POINTERS)
            && !against.any(|r| Some(r.full_register()) != loaded && self.steps(r))
            && !self.calls.iter().any(|call| writes(call, offset))
    }

    /// Whether the operand of the instruction at `at` is the same word in each round, and nothing in
    /// the loop writes this word.
    fn stays(&self, at: usize, pointers: u32) -> bool {
        let operand = &self.code[at];
        let (base, offset) = (operand.memory_base(), operand.memory_displacement64());
        let is_stack = |base: Register| matches!(base, Register::RSP | Register::RBP);
        let is_written = self.stores.iter().any(|store| {
            let other = store.memory_base();
            let same_base = other == base;
            let fields = offset != 0 && !is_stack(base) && !is_stack(other);
            store.memory_displacement64() == offset && (same_base || fields)
        });
        if is_written || operand.memory_index() != Register::None {
            return false;
        }
        if matches!(base, Register::None | Register::RIP | Register::RSP) {
            return true;
        }
        let writers = &self.writers[base.full_register().number()];
        if writers.is_empty() {
            return base != Register::RAX || self.calls.is_empty();
        }
        // Before the load, the loop must have loaded the pointer from where it stays, or have made it the
        // address of a variable: in a case of an interpreter, registers are used for many things.
        let before = self
            .inside
            .range(..at)
            .rev()
            .find(|&&before| is_call(&self.code[before]) || writers.contains(&before));
        before.is_some_and(|&before| {
            let i = &self.code[before];
            if i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand() {
                return true;
            }
            pointers > 0
                && i.mnemonic() == Mnemonic::Mov
                && i.op0_kind() == OpKind::Register
                && i.op1_kind() == OpKind::Memory
                && i.segment_prefix() == Register::None
                && self.stays(before, pointers - 1)
        })
    }

    /// Whether a register may hold something else in each round, by the loop's own doing.
    fn steps(&self, register: Register) -> bool {
        let register = register.full_register();
        if !register.is_gpr() {
            return true;
        }
        let writers = &self.writers[register.number()];
        writers.iter().any(|&at| {
            let i = &self.code[at];
            let loads = matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx)
                && i.op1_kind() == OpKind::Memory;
            !loads || !self.stays(at, POINTERS)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{flags, questions};
    use crate::copy::listing::Listing;
    use crate::copy::loops::loops;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;
    use iced_x86::{Instruction, Mnemonic};

    const WRITES_8: u64 = 0x5000;

    /// Mnemonics of the flags in what `write` assembles.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Mnemonic> {
        let code = assembled(write);
        let writes =
            |call: &Instruction, offset| call.near_branch_target() == WRITES_8 && offset == 8;
        flags(&code, &loops(&code), writes).into_iter().map(|at| code[at].mnemonic()).collect()
    }

    /// As in `while (!object->stop) { work(object); object->rounds++; }`.
    fn works(offset: i32, call: u64) -> Vec<Mnemonic> {
        found(|a| {
            let (mut again, mut done) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.movzx(eax, byte_ptr(rbx + offset)).unwrap();
            a.test(al, al).unwrap();
            a.jne(done).unwrap();
            a.mov(rdi, rbx).unwrap();
            a.call(call).unwrap();
            a.add(dword_ptr(rbx + 16), 1).unwrap();
            a.jmp(again).unwrap();
            a.set_label(&mut done).unwrap();
            a.ret().unwrap();
        })
    }

    #[test]
    fn what_ends_a_loop_and_nothing_in_it_writes() {
        assert_eq!(works(8, 0x6000), [Mnemonic::Movzx]);
        assert_eq!(works(16, 0x6000), [], "the loop writes it");
        assert_eq!(works(8, WRITES_8), [], "what is called writes it");
        assert_eq!(works(12, WRITES_8), [Mnemonic::Movzx]);
    }

    /// A case of an interpreter.
    #[test]
    fn in_a_variable_whose_address_is_taken_each_time() {
        let flags = found(|a| {
            let (mut stopped, mut variables) = (a.create_label(), a.create_label());
            a.jmp(qword_ptr(rbx)).unwrap();
            a.mov(rax, qword_ptr(rsp)).unwrap();
            a.mov(qword_ptr(rax + 0x40), rcx).unwrap();
            a.lea(rax, ptr(variables)).unwrap();
            a.mov(esi, dword_ptr(rax + 0x20)).unwrap();
            a.test(esi, esi).unwrap();
            a.jne(stopped).unwrap();
            a.mov(rax, qword_ptr(rsp + 8)).unwrap();
            a.jmp(qword_ptr(rbx + 8)).unwrap();
            a.set_label(&mut stopped).unwrap();
            a.ret().unwrap();
            a.set_label(&mut variables).unwrap();
            a.nop().unwrap();
        });
        assert_eq!(flags, [Mnemonic::Mov]);
    }

    #[test]
    fn behind_a_pointer_that_stays() {
        let behind = |walks: bool| {
            found(|a| {
                let mut again = a.create_label();
                a.set_label(&mut again).unwrap();
                a.mov(qword_ptr(rcx), rdx).unwrap();
                a.mov(rax, qword_ptr(rbx + 8)).unwrap();
                if walks {
                    a.mov(qword_ptr(rbx + 8), rdx).unwrap();
                }
                a.cmp(dword_ptr(rax), 0).unwrap();
                a.jne(again).unwrap();
            })
        };
        assert_eq!(behind(false), [Mnemonic::Cmp]);
        assert_eq!(behind(true), []);
    }

    #[test]
    fn data_and_ends_of_arrays_are_none() {
        let array = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(qword_ptr(rcx + rsi * 8), 0).unwrap();
            a.inc(rsi).unwrap();
            a.cmp(rsi, qword_ptr(rbx + 8)).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(array, []);
        let list = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rbx, qword_ptr(rbx)).unwrap();
            a.cmp(qword_ptr(rbx + 8), 0).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(list, []);
        let inside = found(|a| {
            let (mut again, mut over) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.mov(qword_ptr(rcx), rdx).unwrap();
            a.cmp(qword_ptr(rbx + 8), 0).unwrap();
            a.jne(over).unwrap();
            a.inc(rdx).unwrap();
            a.set_label(&mut over).unwrap();
            a.dec(rsi).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(inside, [], "both ways stay in the loop");
    }

    #[test]
    fn loops_that_ask_a_function() {
        let asks = |own: bool, compared: bool| {
            let mut a = CodeAssembler::new(64).expect("64 is a bitness");
            let (mut again, mut done) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            if own {
                a.lea(rdi, ptr(rsp + 8)).unwrap();
            } else {
                a.mov(rdi, rbx).unwrap();
            }
            a.call(0x5000).unwrap();
            a.xor(eax, 1).unwrap();
            if compared {
                a.test(al, al).unwrap();
            } else {
                a.cmp(eax, ebx).unwrap();
            }
            a.je(done).unwrap();
            a.call(0x6000).unwrap();
            a.jmp(again).unwrap();
            a.set_label(&mut done).unwrap();
            a.ret().unwrap();
            let bytes = a.assemble(0x1000).expect("what the tests write can be encoded");
            let code =
                Listing::new(iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect());
            let questions = questions(&code, &loops(&code));
            let targets = |(call, others): (&Instruction, Vec<&Instruction>)| {
                let others: Vec<u64> = others.iter().map(|i| i.near_branch_target()).collect();
                (call.near_branch_target(), others)
            };
            questions.into_iter().map(targets).collect::<Vec<_>>()
        };
        assert_eq!(asks(false, true), [(0x5000, vec![0x6000])]);
        assert_eq!(asks(true, true), [], "an object on the stack");
        assert_eq!(asks(false, false), [], "a number that is compared with another one");
    }
}
