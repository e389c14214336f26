//! Loads of lock-free algorithms, as instructions tell of them.

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
    RflagsBits,
};
use refrain_trace::CodeBlock;
use std::collections::{BTreeMap, BTreeSet};

/// Instructions between an exchange that has failed and the next attempt, at most.
const FURTHEST: usize = 64;
/// The prefix of locked instructions.
const LOCK: u8 = 0xf0;

/// The loads that a lock-free algorithm repeats: those on a way from a compare-exchange that has failed to
/// its next attempt. Other threads change what these loads read meanwhile, such as the sequence number of a
/// queue's slot, or the link of a list's node.
///
/// `blocks` are what was executed; the way of an exchange that never failed was not, and its `code` is
/// looked at if that is known. What is local to a function, on its stack, is none. Where it cannot be told
/// which way the failed exchange goes, or that is a way out of the function, nothing is found.
pub fn retried_loads(blocks: &[CodeBlock], code: impl Fn(u64) -> Option<Vec<u8>>) -> BTreeSet<u64> {
    let by_start: BTreeMap<u64, &CodeBlock> =
        blocks.iter().map(|block| (block.pc, block)).collect();
    let block_at = |pc: u64| match by_start.get(&pc) {
        Some(block) => Some(block_of(pc, &block.code)),
        None => code(pc).map(|code| block_of(pc, &code)),
    };
    let mut retried = BTreeSet::new();
    let mut looked_at = BTreeSet::new();
    for block in blocks.iter().filter(|block| block.code.contains(&LOCK)) {
        let instructions = block_of(block.pc, &block.code);
        let exchanges = instructions.iter().enumerate().filter(|(_, it)| is_exchange(it));
        for (at, exchange) in exchanges {
            if let Some(failed) = where_failed(&instructions[at + 1..])
                && looked_at.insert((exchange.ip(), failed))
            {
                retry(block_at, failed, exchange.ip(), &mut retried);
            }
        }
    }
    retried
}

/// The instructions from `pc` on, up to and with the first that is not followed by the next one: a branch,
/// or what is no instruction.
fn block_of(pc: u64, code: &[u8]) -> Vec<Instruction> {
    let mut block = Vec::new();
    for instruction in Decoder::with_ip(64, code, pc, DecoderOptions::NONE) {
        block.push(instruction);
        if instruction.flow_control() != FlowControl::Next {
            break;
        }
    }
    block
}

fn is_exchange(instruction: &Instruction) -> bool {
    use Mnemonic::{Cmpxchg, Cmpxchg8b, Cmpxchg16b};
    instruction.has_lock_prefix()
        && matches!(instruction.mnemonic(), Cmpxchg | Cmpxchg8b | Cmpxchg16b)
}

/// Where a block goes on when the exchange before these instructions, its last ones, has failed.
fn where_failed(behind: &[Instruction]) -> Option<u64> {
    // The zero flag has this value then, and the register is zero, or not.
    let (mut flag, mut register) = (Some(false), None);
    for instruction in behind {
        if instruction.flow_control() == FlowControl::ConditionalBranch {
            let is_taken = match instruction.condition_code() {
                ConditionCode::e => flag?,
                ConditionCode::ne => !flag?,
                _ => return None,
            };
            let target = instruction.near_branch_target();
            return Some(if is_taken { target } else { instruction.next_ip() });
        }
        let copies = matches!(instruction.mnemonic(), Mnemonic::Sete | Mnemonic::Setne);
        if copies && instruction.op0_kind() == OpKind::Register {
            let zero = (instruction.mnemonic() == Mnemonic::Sete) != flag?;
            register = Some((instruction.op0_register().full_register(), zero));
        } else if let Some((_, zero)) =
            register.filter(|&(register, _)| tests(instruction, register))
        {
            flag = Some(zero);
        } else if instruction.rflags_modified() & RflagsBits::ZF != 0 {
            flag = None;
        }
    }
    None
}

/// Whether the zero flag says afterwards whether the register is zero.
fn tests(instruction: &Instruction, register: Register) -> bool {
    let is_it = |op| {
        instruction.op_kind(op) == OpKind::Register
            && instruction.op_register(op).full_register() == register
    };
    match instruction.mnemonic() {
        Mnemonic::Test => is_it(0) && is_it(1),
        Mnemonic::Cmp => is_it(0) && matches!(instruction.try_immediate(1), Ok(0)),
        _ => false,
    }
}

/// A block on the way from a failed exchange to the next attempt.
struct Way {
    instructions: Vec<Instruction>,
    /// The first instruction's number on the shortest way here.
    from: usize,
    /// The exchange is in the block.
    arrives: bool,
    next: Vec<u64>,
}

/// Adds the loads on the short ways from `failed` to the exchange.
fn retry(
    block_at: impl Fn(u64) -> Option<Vec<Instruction>>,
    failed: u64,
    exchange: u64,
    loads: &mut BTreeSet<u64>,
) {
    let mut ways: BTreeMap<u64, Way> = BTreeMap::new();
    // The nearest first, so each block is met on its shortest way.
    let mut open = BTreeSet::from([(0, failed)]);
    while let Some((from, pc)) = open.pop_first() {
        if from >= FURTHEST || ways.contains_key(&pc) {
            continue;
        }
        let Some(mut instructions) = block_at(pc) else { continue };
        let arrival = instructions.iter().position(|it| it.ip() == exchange);
        let next = match arrival {
            Some(at) => {
                instructions.truncate(at);
                Vec::new()
            }
            None => instructions.last().map(followers).unwrap_or_default(),
        };
        open.extend(next.iter().map(|&next| (from + instructions.len(), next)));
        ways.insert(pc, Way { instructions, from, arrives: arrival.is_some(), next });
    }
    // How far it is from the start of each to the exchange.
    let mut to: BTreeMap<u64, usize> = BTreeMap::new();
    loop {
        let mut changed = false;
        for (&pc, way) in &ways {
            let behind = way.next.iter().filter_map(|next| to.get(next)).min().copied();
            let rest = if way.arrives { Some(0) } else { behind };
            let Some(far) = rest.map(|rest| rest + way.instructions.len()) else { continue };
            if to.get(&pc).is_none_or(|&known| far < known) {
                to.insert(pc, far);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let is_short =
        |(pc, way): &(&u64, &Way)| to.get(pc).is_some_and(|to| way.from + to <= FURTHEST);
    let on_the_way = ways.iter().filter(is_short).flat_map(|(_, way)| &way.instructions);
    loads.extend(on_the_way.filter(|it| is_load(it)).map(Instruction::ip));
}

/// Where a block may go on behind its last instruction, calls apart.
fn followers(last: &Instruction) -> Vec<u64> {
    match last.flow_control() {
        FlowControl::ConditionalBranch => vec![last.next_ip(), last.near_branch_target()],
        FlowControl::UnconditionalBranch => vec![last.near_branch_target()],
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => vec![last.next_ip()],
        _ => Vec::new(),
    }
}

/// Whether an instruction moves a word of memory that is not on the stack into a register, or compares it.
fn is_load(instruction: &Instruction) -> bool {
    use Mnemonic::{Cmp, Mov, Movsx, Movsxd, Movzx, Test};
    let base = instruction.memory_base().full_register();
    let op = match instruction.mnemonic() {
        Mov | Movzx | Movsx | Movsxd => 1..2,
        Cmp | Test => 0..2,
        _ => return false,
    };
    let reads = op.into_iter().any(|op| instruction.op_kind(op) == OpKind::Memory);
    reads && !matches!(base, Register::RSP | Register::RBP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    /// Blocks as a recording has them: each ends with a branch.
    fn blocks(code: &[u8]) -> Vec<CodeBlock> {
        let all: Vec<_> = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).into_iter().collect();
        let mut starts = BTreeSet::from([0]);
        for it in all.iter().filter(|it| it.flow_control() != FlowControl::Next) {
            starts.extend(followers(it));
        }
        let block = |&start: &u64| {
            let from = all.iter().filter(|it| it.ip() >= start);
            let mut end = start;
            for it in from {
                end = it.next_ip();
                if it.flow_control() != FlowControl::Next {
                    break;
                }
            }
            let code = code.get(start as usize..end as usize)?.to_vec();
            Some(CodeBlock { pc: start, code, loads: Vec::new() })
        };
        starts.iter().filter_map(block).collect()
    }

    /// The displacements of the operands of what is found.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<u64> {
        let mut a = CodeAssembler::new(64).expect("64 bits are supported");
        write(&mut a);
        let code = a.assemble(0).expect("the instructions are valid");
        let retried = retried_loads(&blocks(&code), |_| None);
        // Of a run in which no exchange has failed: no jump back has led anywhere.
        let all = blocks(&code);
        let behind = |block: &&CodeBlock| {
            let starts = |it: &CodeBlock| it.pc + it.code.len() as u64 == block.pc;
            block.pc == 0 || all.iter().any(starts)
        };
        let executed: Vec<_> = all.iter().filter(behind).cloned().collect();
        assert_eq!(
            retried_loads(&executed, |pc| code.get(pc as usize..).map(<[u8]>::to_vec)),
            retried
        );
        let all = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE).into_iter();
        let mut found: Vec<_> = all
            .filter(|it| retried.contains(&it.ip()))
            .map(|it| it.memory_displacement64())
            .collect();
        found.sort_unstable();
        found
    }

    /// A bounded queue: the slot's sequence number, and then the exchange of the position.
    #[test]
    fn the_sequence_number_of_a_slot() {
        let queue = found(|a| {
            let (mut outer, mut again, mut full) =
                (a.create_label(), a.create_label(), a.create_label());
            a.set_label(&mut outer).unwrap();
            a.mov(rdx, qword_ptr(rdi + 0x10)).unwrap();
            a.mov(rax, qword_ptr(rsi + 0x20)).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(rcx, qword_ptr(rbx + rax * 8 + 0x30)).unwrap();
            a.cmp(rcx, rax).unwrap();
            a.jne(full).unwrap();
            a.mov(r8, qword_ptr(rsp + 0x40)).unwrap();
            a.lock().cmpxchg(qword_ptr(rsi + 0x20), r9).unwrap();
            a.jne(again).unwrap();
            a.mov(r10, qword_ptr(rdi + 0x50)).unwrap();
            a.dec(rdi).unwrap();
            a.jne(outer).unwrap();
            a.set_label(&mut full).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(queue, [0x30], "neither what is local nor what comes before the next operation");
    }

    #[test]
    fn an_answer_in_a_register() {
        let stack = |fails_with_zero: bool| {
            found(|a| {
                let (mut again, mut done) = (a.create_label(), a.create_label());
                a.set_label(&mut again).unwrap();
                a.mov(rdx, qword_ptr(rax + 0x10)).unwrap();
                a.lock().cmpxchg(qword_ptr(rsi), rdx).unwrap();
                if fails_with_zero {
                    a.sete(cl).unwrap();
                } else {
                    a.setne(cl).unwrap();
                }
                a.mov(rbx, rax).unwrap();
                a.test(cl, cl).unwrap();
                a.jne(done).unwrap();
                a.mov(rdi, qword_ptr(rax + 0x20)).unwrap();
                a.jmp(again).unwrap();
                a.set_label(&mut done).unwrap();
                a.ret().unwrap();
            })
        };
        assert_eq!(stack(true), [0x10, 0x20]);
        assert_eq!(stack(false), [], "the way to the next exchange is that of success");
    }

    #[test]
    fn not_what_is_far_away() {
        let far = |more: usize| {
            found(|a| {
                let mut again = a.create_label();
                a.set_label(&mut again).unwrap();
                a.mov(rdx, qword_ptr(rax + 0x10)).unwrap();
                (0..more).for_each(|_| a.inc(rbx).unwrap());
                a.lock().cmpxchg(qword_ptr(rsi), rdx).unwrap();
                a.jne(again).unwrap();
                a.ret().unwrap();
            })
        };
        assert_eq!(far(FURTHEST - 1), [0x10]);
        assert_eq!(far(FURTHEST), []);
    }
}
