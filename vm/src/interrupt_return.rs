//! `iretq`, which the machine executes by itself: the one instruction by which a program sets all of its
//! registers at once, since it takes rip, the flags and rsp from the stack. .NET goes on so behind an exception.

use crate::Context;
use crate::context::reg::RSP;
use crate::engine::Fault;
use crate::frame::{self, CODE_SEGMENT, STACK_SEGMENT};
use crate::host::Guest;

/// Length of the instruction.
const LEN: u64 = 2;

/// Executes the instruction behind which the thread is. With a fault, it is before it again.
pub(crate) fn execute(context: &mut Context) -> Result<(), Fault> {
    let fails = |context: &mut Context, address| {
        context.rip = context.rip.wrapping_sub(LEN);
        Err(if address == 0 { Fault::protection() } else { Fault::access(address) })
    };
    let top = context.gpr[RSP];
    let Some(read) = Guest.read(top, 40) else { return fails(context, top) };
    let word =
        |n: usize| u64::from_le_bytes(read[8 * n..8 * n + 8].try_into().expect("eight bytes"));
    // Of a segment's word, the processor looks at its selector only.
    let selector = |n: usize| word(n) & 0xffff;
    if (selector(1), selector(4)) != (CODE_SEGMENT, STACK_SEGMENT) {
        return fails(context, 0);
    }
    context.rip = word(0);
    context.rflags = frame::flags_of(word(2));
    context.gpr[RSP] = word(3);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(stack: &[u64; 5]) -> (Result<(), Fault>, Context) {
        let mut context = Context::default();
        context.rip = 102;
        context.gpr[RSP] = stack.as_ptr() as u64;
        let done = execute(&mut context);
        (done, context)
    }

    #[test]
    fn registers_come_from_the_stack() {
        let more = 0xabcd_0000;
        let (done, context) = after(&[7, more | 0x33, 0x8d5 | 0x100, 9, more | 0x2b]);
        assert_eq!(done, Ok(()));
        // Nobody but the recorder may step through instructions.
        assert_eq!((context.rip, context.rflags, context.gpr[RSP]), (7, 0x8d5 | 0x202, 9));
    }

    #[test]
    fn other_segments_fault_before_the_instruction() {
        for stack in [[7, 0x23, 0, 9, 0x2b], [7, 0x33, 0, 9, 0]] {
            let (done, context) = after(&stack);
            assert_eq!(done, Err(Fault::protection()));
            assert_eq!((context.rip, context.gpr[RSP]), (100, stack.as_ptr() as u64));
        }
    }

    #[test]
    fn a_stack_that_is_not_there_faults() {
        let mut context = Context::default();
        (context.rip, context.gpr[RSP]) = (102, 8);
        assert_eq!(execute(&mut context), Err(Fault::access(8)));
        assert_eq!(context.rip, 100);
    }
}
