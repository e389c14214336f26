//! What instructions tell of atomic accesses: locked ones whose results nobody uses, updates without a lock,
//! and loads that are watched.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind,
    RflagsBits,
};
use refrain_trace::CodeBlock;
use std::collections::{BTreeMap, BTreeSet};

/// The status flags, as iced names them.
pub(crate) const STATUS: u32 = RflagsBits::CF
    | RflagsBits::PF
    | RflagsBits::AF
    | RflagsBits::ZF
    | RflagsBits::SF
    | RflagsBits::OF;

/// Blocks that are looked at behind the one that an instruction is in.
const HOPS: usize = 4;

/// The locked instructions of these blocks that leave what was in memory nowhere: in no register, and
/// in no status flag that is read before it is overwritten. Flags do not live across calls and returns
/// (System V ABI). Where it is not known what comes next, they count as read.
pub fn unused_results(blocks: &[CodeBlock]) -> BTreeSet<u64> {
    let by_start: BTreeMap<u64, &CodeBlock> =
        blocks.iter().map(|block| (block.pc, block)).collect();
    let mut unused = BTreeSet::new();
    for block in blocks {
        let instructions = decoded(block);
        for (at, instruction) in instructions.iter().enumerate() {
            let flags = instruction.rflags_modified() & STATUS;
            if instruction.has_lock_prefix()
                && !has_register_result(instruction)
                && !reads_flags(&instructions[at + 1..], instruction.next_ip(), flags, &by_start)
            {
                unused.insert(instruction.ip());
            }
        }
    }
    unused
}

/// The instructions of these blocks that read and write memory, and are not atomic: without a lock
/// prefix, and no `xchg`.
pub fn plain_updates(blocks: &[CodeBlock]) -> BTreeSet<u64> {
    let mut infos = InstructionInfoFactory::new();
    let mut updates = |instruction: &Instruction| {
        let mut memory = infos.info(instruction).used_memory().iter();
        !instruction.has_lock_prefix()
            && instruction.mnemonic() != iced_x86::Mnemonic::Xchg
            && memory.any(|it| matches!(it.access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite))
    };
    let all = blocks.iter().flat_map(decoded);
    all.filter(|it| updates(it)).map(|it| it.ip()).collect()
}

/// Of the watched instructions in these blocks, those that only load.
pub fn watched_loads(blocks: &[CodeBlock]) -> BTreeSet<u64> {
    let mut infos = InstructionInfoFactory::new();
    let mut only_loads = |instruction: &Instruction| {
        let mut memory = infos.info(instruction).used_memory().iter();
        memory.all(|it| matches!(it.access(), OpAccess::Read | OpAccess::CondRead))
    };
    let watched = |block: &CodeBlock| {
        let offset = |it: &Instruction| u16::try_from(it.ip() - block.pc);
        let mut all = decoded(block);
        all.retain(|it| offset(it).is_ok_and(|offset| block.loads.contains(&offset)));
        all
    };
    blocks.iter().flat_map(watched).filter(|it| only_loads(it)).map(|it| it.ip()).collect()
}

/// The instructions of these blocks that call what a register or a word of memory says, which is not at a
/// fixed address.
pub fn indirect_calls(blocks: &[CodeBlock]) -> BTreeSet<u64> {
    let is_one = |it: &Instruction| it.is_call_near_indirect() && !it.is_ip_rel_memory_operand();
    blocks.iter().flat_map(decoded).filter(is_one).map(|it| it.ip()).collect()
}

fn decoded(block: &CodeBlock) -> Vec<Instruction> {
    Decoder::with_ip(64, &block.code, block.pc, DecoderOptions::NONE).into_iter().collect()
}

/// Whether an instruction leaves what was in memory in a register: all with a lock prefix and two
/// results do, and comparisons.
fn has_register_result(instruction: &Instruction) -> bool {
    use iced_x86::Mnemonic::{Cmpxchg, Cmpxchg8b, Cmpxchg16b, Xadd, Xchg};
    matches!(instruction.mnemonic(), Cmpxchg | Cmpxchg8b | Cmpxchg16b | Xadd | Xchg)
        || instruction.op0_kind() != OpKind::Memory
}

/// Whether one of these flags is read, or may be read, by the instructions or by what comes behind them;
/// `next` is where that is if there are none.
fn reads_flags(
    instructions: &[Instruction],
    mut next: u64,
    mut flags: u32,
    blocks: &BTreeMap<u64, &CodeBlock>,
) -> bool {
    let mut instructions = instructions.to_vec();
    for _ in 0..HOPS {
        for instruction in &instructions {
            if instruction.rflags_read() & flags != 0 {
                return true;
            }
            flags &= !instruction.rflags_modified();
            if flags == 0 {
                return false;
            }
            next = match instruction.flow_control() {
                FlowControl::Call | FlowControl::IndirectCall | FlowControl::Return => {
                    return false;
                }
                FlowControl::Next => instruction.next_ip(),
                FlowControl::UnconditionalBranch => instruction.near_branch_target(),
                _ => return true,
            };
        }
        let Some(block) = blocks.get(&next) else { return true };
        instructions = decoded(block);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    fn unused(write: impl FnOnce(&mut CodeAssembler)) -> Vec<u64> {
        let mut assembler = CodeAssembler::new(64).expect("64 bits are supported");
        write(&mut assembler);
        let code = assembler.assemble(0).expect("the instructions are valid");
        let block = CodeBlock { pc: 0, code, loads: Vec::new() };
        unused_results(&[block]).into_iter().collect()
    }

    #[test]
    fn what_only_loads_of_what_is_watched() {
        let mut a = CodeAssembler::new(64).expect("64 bits are supported");
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.mov(dword_ptr(rdi), ecx).unwrap();
        a.cmp(dword_ptr(rsi), eax).unwrap();
        a.mov(edx, dword_ptr(rsi)).unwrap();
        let code = a.assemble(0x1000).expect("the instructions are valid");
        let block = CodeBlock { pc: 0x1000, code, loads: vec![0, 2, 4] };
        assert_eq!(watched_loads(&[block]), [0x1000, 0x1004].into());
    }

    #[test]
    fn updates_without_a_lock_prefix() {
        let mut a = CodeAssembler::new(64).expect("64 bits are supported");
        a.add(dword_ptr(rdi), 1).expect("is encoded");
        a.lock().add(dword_ptr(rdi), 1).expect("is encoded");
        a.xchg(dword_ptr(rdi), eax).expect("is encoded");
        a.mov(dword_ptr(rdi), eax).expect("is encoded");
        a.cmp(dword_ptr(rdi), eax).expect("is encoded");
        a.inc(byte_ptr(rdi)).expect("is encoded");
        let code = a.assemble(0).expect("the instructions are valid");
        let last = code.len() as u64 - 2;
        let block = CodeBlock { pc: 0, code, loads: Vec::new() };
        assert_eq!(plain_updates(&[block]).into_iter().collect::<Vec<_>>(), [0, last]);
    }

    #[test]
    fn results_are_in_registers_and_flags() {
        let counted = unused(|a| {
            a.lock().add(dword_ptr(rdi), 1).expect("is encoded");
            a.ret().expect("is encoded");
        });
        assert_eq!(counted, [0]);
        let tested = unused(|a| {
            a.lock().sub(dword_ptr(rdi), 1).expect("is encoded");
            a.sete(al).expect("is encoded");
            a.ret().expect("is encoded");
        });
        let fetched = unused(|a| {
            a.lock().xadd(dword_ptr(rdi), eax).expect("is encoded");
            a.ret().expect("is encoded");
        });
        let unknown = unused(|a| a.lock().add(dword_ptr(rdi), 1).expect("is encoded"));
        let branches = unused(|a| {
            let mut there = a.create_label();
            a.lock().add(dword_ptr(rdi), 1).expect("is encoded");
            a.jmp(there).expect("is encoded");
            a.set_label(&mut there).expect("is new");
            a.je(there).expect("is encoded");
        });
        assert!(tested.is_empty() && fetched.is_empty() && unknown.is_empty());
        assert!(branches.is_empty());
        let overwritten = unused(|a| {
            a.lock().or(dword_ptr(rdi), 1).expect("is encoded");
            a.cmp(eax, 1).expect("is encoded");
            a.sete(al).expect("is encoded");
            a.ret().expect("is encoded");
        });
        assert_eq!(overwritten, [0]);
    }

    /// A branch leads to the next block, and that returns.
    #[test]
    fn blocks_that_follow() {
        let code = |bytes: &[u8], pc| CodeBlock { pc, code: bytes.to_vec(), loads: Vec::new() };
        // lock add dword ptr [rdi], 1; jmp 0x10
        let first = code(&[0xf0, 0x83, 0x07, 1, 0xeb, 0x0a], 0);
        assert!(unused_results(std::slice::from_ref(&first)).is_empty());
        let returns = code(&[0xc3], 0x10);
        assert_eq!(unused_results(&[first, returns]), [0].into());
    }
}
