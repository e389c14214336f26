//! Values of registers, as a context has them.

use iced_x86::Register;
use refrain_vm::Context;

/// A register's value, or that of an element of an index register.
pub(crate) fn value_of(
    context: &Context,
    register: Register,
    at: usize,
    size: usize,
) -> Option<u64> {
    if register.is_segment_register() {
        return Some(if register == Register::FS { context.fs_base } else { 0 });
    }
    if register.is_gpr() {
        let value = context.gpr[register.full_register().number()];
        return Some(if register.size() == 4 { value & 0xffff_ffff } else { value });
    }
    let word = vector_word(context, register.number(), at * size / 8)?;
    let offset = at * size;
    Some(match size {
        4 => i64::from((word >> (offset % 8 * 8)) as i32) as u64,
        _ => word,
    })
}

/// One of the eight words of a vector register.
fn vector_word(context: &Context, number: usize, at: usize) -> Option<u64> {
    let wide = context.wide.as_ref();
    match (number.checked_sub(16), at) {
        (Some(number), _) => wide?.more.get(number)?.get(at).copied(),
        (None, 0..2) => Some(context.xmm[number][at]),
        (None, 2..4) => Some(context.high[number][at - 2]),
        (None, _) => wide?.upper[number].get(at - 4).copied(),
    }
}
