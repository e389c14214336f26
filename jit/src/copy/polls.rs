//! Loops that wait for another thread to change a word.
//!
//! A short loop that writes no memory and reads a word whose address it does not change can end
//! only because somebody else writes that word: compilers would have read an ordinary variable
//! once, before the loop. If the loop calls a function, that may be who writes it, unless it is
//! another module's (`sched_yield`, `usleep`). And what is read must not be held against what the
//! loop itself counts: then it goes through something up to its end.

use super::ordered::is_candidate;
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register, UsedRegister,
};

/// Instructions of a loop that is looked at.
const LONGEST: usize = 24;

/// Registers that a call may change.
const CLOBBERED: [Register; 9] = {
    use Register::*;
    [RAX, RCX, RDX, RSI, RDI, R8, R9, R10, R11]
};

/// Addresses of the loads that loops of a function poll, in ascending order. `code` is the
/// function's instructions in order; `foreign` tells whether a call goes to another module.
pub(super) fn polls(code: &[Instruction], foreign: impl Fn(&Instruction) -> bool) -> Box<[u64]> {
    let mut found = Vec::new();
    let mut factory = InstructionInfoFactory::new();
    for (end, branch) in code.iter().enumerate() {
        let is_branch =
            branch.op0_kind() == OpKind::NearBranch64 && branch.flow_control() != FlowControl::Call;
        if !is_branch || branch.near_branch_target() > branch.ip() {
            continue;
        }
        let target = branch.near_branch_target();
        let first = end.saturating_sub(LONGEST - 1);
        if let Ok(start) = code[first..=end].binary_search_by_key(&target, Instruction::ip)
            && let Some(body) = Loop::new(&code[first + start..=end], &foreign, &mut factory)
        {
            found.extend(body.polled().map(Instruction::ip));
        }
    }
    found.sort_unstable();
    found.dedup();
    found.into()
}

/// A loop that writes no memory.
struct Loop<'a> {
    body: &'a [Instruction],
    /// By instruction, the general registers that it reads and that it writes.
    uses: Vec<(Registers, Registers)>,
    /// Registers that some instruction writes.
    written: Registers,
    /// Registers that are carried from one round to the next.
    carried: Registers,
}

impl<'a> Loop<'a> {
    fn new(
        body: &'a [Instruction],
        foreign: &impl Fn(&Instruction) -> bool,
        factory: &mut InstructionInfoFactory,
    ) -> Option<Loop<'a>> {
        let mut uses = Vec::with_capacity(body.len());
        let (mut written, mut read_first) = (Registers::default(), Registers::default());
        for instruction in body {
            let (read, write) = if is_call(instruction) {
                if !foreign(instruction) {
                    return None;
                }
                (Registers::default(), Registers::of(CLOBBERED.into_iter()))
            } else {
                let info = factory.info(instruction);
                if !info.used_memory().iter().all(|used| is_harmless(used.access())) {
                    return None;
                }
                let of = |wanted: fn(OpAccess) -> bool| {
                    let used = info.used_registers().iter();
                    Registers::of(used.filter(|u| wanted(u.access())).map(UsedRegister::register))
                };
                (of(|access| access != OpAccess::Write), of(|access| !is_harmless(access)))
            };
            read_first = read_first.or(read.without(written));
            written = written.or(write);
            uses.push((read, write));
        }
        let carried = read_first.and(written);
        Some(Loop { body, uses, written, carried })
    }

    /// The loads whose words it polls.
    fn polled(&self) -> impl Iterator<Item = &'a Instruction> {
        let loads = self.body.iter().enumerate().filter(|&(at, load)| {
            let address = [load.memory_base(), load.memory_index()];
            is_candidate(load)
                && Registers::of(address.into_iter()).and(self.written).is_empty()
                && !self.is_held_against_carried(at)
        });
        loads.map(|(_, load)| load)
    }

    /// Whether what the load reads meets something that is carried: in the load itself, or where
    /// the register that it goes to is used first.
    fn is_held_against_carried(&self, at: usize) -> bool {
        let (read, result) = self.uses[at];
        if !read.and(self.carried).is_empty() {
            return true;
        }
        let uses = self.uses[at + 1..].iter().find(|(read, _)| !read.and(result).is_empty());
        uses.is_some_and(|(read, _)| !read.and(self.carried).without(result).is_empty())
    }
}

/// A set of general registers.
#[derive(Clone, Copy, Default)]
struct Registers(u16);

impl Registers {
    fn of(registers: impl Iterator<Item = Register>) -> Registers {
        let general = registers.filter(|register| register.is_gpr());
        Registers(general.fold(0, |set, r| set | 1 << r.full_register().number()))
    }

    fn or(self, other: Registers) -> Registers {
        Registers(self.0 | other.0)
    }

    fn and(self, other: Registers) -> Registers {
        Registers(self.0 & other.0)
    }

    fn without(self, other: Registers) -> Registers {
        Registers(self.0 & !other.0)
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Whether an access changes nothing.
fn is_harmless(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None)
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

#[cfg(test)]
mod tests {
    use super::polls;
    use iced_x86::code_asm::*;
    use iced_x86::{Instruction, Mnemonic};

    const FOREIGN: u64 = 0x5000;

    /// Mnemonics of the loads that are polled in what `write` assembles.
    fn polled(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Mnemonic> {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        write(&mut a);
        let bytes = a.assemble(0x1000).expect("what the tests write can be encoded");
        let code: Vec<_> = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect();
        let foreign = |call: &Instruction| call.near_branch_target() == FOREIGN;
        let found = polls(&code, foreign);
        code.iter().filter(|i| found.contains(&i.ip())).map(Instruction::mnemonic).collect()
    }

    #[test]
    fn loops_that_wait_are_found() {
        let spin = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.pause().unwrap();
            a.mov(eax, dword_ptr(rdi + 8)).unwrap();
            a.test(eax, eax).unwrap();
            a.je(again).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(spin, [Mnemonic::Mov]);
        let counting = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.inc(rcx).unwrap();
            a.cmp(byte_ptr(rbx), 0).unwrap();
            a.je(again).unwrap();
        });
        assert_eq!(counting, [Mnemonic::Cmp]);
        let yielding = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.call(FOREIGN).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.cmp(rax, rbp).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(yielding, [Mnemonic::Mov]);
        let backing_off = polled(|a| {
            let (mut again, mut spin) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.inc(ebp).unwrap();
            a.cmp(ebp, 100).unwrap();
            a.jb(spin).unwrap();
            a.call(FOREIGN).unwrap();
            a.set_label(&mut spin).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.cmp(rax, r12).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(backing_off, [Mnemonic::Mov]);
    }

    #[test]
    fn loops_that_work_are_not() {
        let scan = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.inc(rdi).unwrap();
            a.cmp(byte_ptr(rdi), 0).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(scan, []);
        let list = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rax)).unwrap();
            a.test(rax, rax).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(list, []);
        let fill = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.mov(qword_ptr(rdi + rcx * 8), rax).unwrap();
            a.dec(rcx).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(fill, []);
        let drain = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rdi, rbx).unwrap();
            a.call(0x4000).unwrap();
            a.cmp(qword_ptr(rbx + 8), 0).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(drain, []);
        let progress = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.call(FOREIGN).unwrap();
            a.inc(rbp).unwrap();
            a.cmp(rbp, qword_ptr(rbx)).unwrap();
            a.jb(again).unwrap();
        });
        assert_eq!(progress, []);
        let iteration = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.call(FOREIGN).unwrap();
            a.mov(rax, qword_ptr(rbx + 8)).unwrap();
            a.add(rbp, 16).unwrap();
            a.cmp(rax, rbp).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(iteration, []);
    }
}
