//! Instructions that are executed by themselves with their operands elsewhere than where they say.

use crate::accesses::{Part, bit_offset, bit_register, spans_of, string_spans};
use crate::lanes;
use crate::transfer;
use iced_x86::{Instruction, OpKind, Register};
use refrain_vm::{Context, Fault, Span, reg};

/// The operands in memory of an instruction, and at most so many bytes of them, or one element, if it is
/// repeated. None if [`step`] cannot execute it: it has none, or one that is not in its encoding.
pub(crate) fn operands(i: &Instruction, context: &Context, most: u64) -> Vec<Span> {
    if i.is_string_instruction() {
        let (spans, _) = elements(i, context, most);
        return if pointers(i).count() == spans.len() { spans } else { Vec::new() };
    }
    let named = i.op_kinds().filter(|&kind| kind == OpKind::Memory).count();
    if named != 1 {
        return Vec::new();
    }
    if let Some(lanes) = lanes::of(i) {
        // What the mask leaves out is copied, too.
        return lanes::whole(i, lanes, context).into_iter().collect();
    }
    let (spans, _) = spans_of(i, context);
    if spans.len() == 1 { spans } else { Vec::new() }
}

/// The part of a repeated instruction that is executed, of which there are so many bytes at most.
pub(crate) fn part(i: &Instruction, context: &Context, most: u64) -> Option<Part> {
    i.is_string_instruction().then(|| elements(i, context, most).1).flatten()
}

/// What a string instruction accesses, and which part of it that is. Where one operand overlaps the other,
/// an element may be read that was written before: there is one element, then.
fn elements(i: &Instruction, context: &Context, most: u64) -> (Vec<Span>, Option<Part>) {
    let all = string_spans(i, context, most);
    let end = |span: Span| span.start.saturating_add(span.len);
    match all.0[..] {
        [a, b] if a.start < end(b) && b.start < end(a) => string_spans(i, context, 1),
        _ => all,
    }
}

/// Executes the instruction at `rip` with these operands, of which there are `most` bytes, at `places`.
/// `execute` executes it as it is, or with its operand where it is told.
pub(crate) fn step(
    context: &mut Context,
    i: &Instruction,
    (most, places): (u64, &[u64]),
    mut execute: impl FnMut(&mut Context, Option<u64>) -> Option<Fault>,
) -> Option<Fault> {
    if i.is_string_instruction() {
        let (spans, part) = elements(i, context, most);
        let distances =
            places.iter().zip(&spans).map(|(place, span)| place.wrapping_sub(span.start));
        let moved: Vec<(usize, u64)> = pointers(i).zip(distances).collect();
        let pc = context.rip;
        for &(register, distance) in &moved {
            context.gpr[register] = context.gpr[register].wrapping_add(distance);
        }
        part.iter().for_each(|part| part.begin(context));
        let fault = execute(context, None);
        for &(register, distance) in &moved {
            context.gpr[register] = context.gpr[register].wrapping_sub(distance);
        }
        if part.is_some_and(|part| part.end(context)) && fault.is_none() {
            context.rip = pc;
        }
        return fault;
    }
    let &[place] = places else {
        return Some(Fault::illegal(context.rip));
    };
    if let Some(done) = transfer::step_moved(i, context, Some(place)) {
        return done.err();
    }
    let ahead = bit_register(i).map_or(0, |register| {
        bit_offset(i.op1_register().size() as u8, context.gpr[usize::from(register)])
    });
    execute(context, Some(place.wrapping_sub(ahead)))
}

/// The same instruction with `[register]` for its memory operand.
pub(crate) fn operand_at(instruction: &Instruction, register: Register) -> Instruction {
    let mut moved = *instruction;
    moved.set_segment_prefix(Register::None);
    moved.set_memory_base(register);
    moved.set_memory_index(Register::None);
    moved.set_memory_displacement64(0);
    moved.set_memory_displ_size(0);
    moved
}

/// The registers that point to the operands of a string instruction, in their order.
fn pointers(i: &Instruction) -> impl Iterator<Item = usize> {
    i.op_kinds().filter_map(|kind| match kind {
        OpKind::MemoryESRDI => Some(reg::RDI),
        OpKind::MemorySegRSI => Some(reg::RSI),
        _ => None,
    })
}
