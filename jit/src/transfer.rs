//! Branches that are executed by themselves, because they access memory out of the guest's reach: calls
//! and jumps through it, and a stack that lies there.

use crate::memory::{read_instruction, read_word, write_guest};
use crate::values::value_of;
use iced_x86::{Instruction, OpKind, Register};
use refrain_vm::{Context, Fault, reg};

/// Executes the branch at `rip`. `None` if it is none, or does nothing with memory.
pub(crate) fn step(context: &mut Context) -> Option<Result<(), Fault>> {
    let i = read_instruction(context.rip)?;
    step_moved(&i, context, None)
}

/// The same of this branch; if there is a place, the operand that says where it goes to is there.
pub(crate) fn step_moved(
    i: &Instruction,
    context: &mut Context,
    place: Option<u64>,
) -> Option<Result<(), Fault>> {
    let indirect = i.is_call_near_indirect() || i.is_jmp_near_indirect();
    let calls = i.is_call_near() || i.is_call_near_indirect();
    if !indirect && !calls && !is_return(i) {
        return None;
    }
    Some(execute(i, (calls, indirect), context, place))
}

fn is_return(i: &Instruction) -> bool {
    matches!(i.code(), iced_x86::Code::Retnq | iced_x86::Code::Retnq_imm16)
}

fn execute(
    i: &Instruction,
    (calls, indirect): (bool, bool),
    context: &mut Context,
    place: Option<u64>,
) -> Result<(), Fault> {
    let sp = context.gpr[reg::RSP];
    let target = match (indirect, calls) {
        (true, _) if i.op0_kind() == OpKind::Memory => {
            let value = |register: Register, at, size| value_of(context, register, at, size);
            word(place.or_else(|| i.virtual_address(0, 0, value)).unwrap_or(0))?
        }
        (true, _) => value_of(context, i.op0_register(), 0, 8).unwrap_or(0),
        (false, true) => i.near_branch_target(),
        (false, false) => word(sp)?,
    };
    let next_sp = if calls {
        let at = sp.wrapping_sub(8);
        let done = write_guest(at, &i.next_ip().to_le_bytes());
        if done < 8 {
            return Err(fault(at + done as u64));
        }
        at
    } else if indirect {
        sp
    } else {
        let more = if i.op_count() == 1 { i.immediate16() } else { 0 };
        sp.wrapping_add(8 + u64::from(more))
    };
    context.gpr[reg::RSP] = next_sp;
    context.rip = target;
    Ok(())
}

fn word(address: u64) -> Result<u64, Fault> {
    read_word(address).map_err(|readable| fault(address + readable as u64))
}

fn fault(address: u64) -> Fault {
    Fault::access(address)
}
