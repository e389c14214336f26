//! Where a function lies, and the instructions in it.

use super::by_register::name_slots;
use crate::copy::ordered::{is_locked, may_hold_locked};
use crate::copy::plain;
use crate::memory::read_guest;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use std::ops::Range;

/// Bytes of a function that are looked at.
pub(super) const MAX_BYTES: u64 = 64 << 10;

/// Where a function lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) range: Range<u64>,
    /// The end is known, and not merely where looking ends.
    pub(super) ends: bool,
}

/// So many bytes of an extent, or all that there are.
pub(super) fn first_bytes(extent: &Extent, most: u64) -> Vec<u8> {
    let mut code = vec![0; (extent.range.end - extent.range.start).min(most) as usize];
    let readable = read_guest(extent.range.start, &mut code);
    code.truncate(readable);
    code
}

/// Whether a function has locked instructions.
pub(super) fn has_locked(extent: &Extent) -> bool {
    if !extent.ends {
        return instructions(extent).iter().any(is_locked);
    }
    let code = first_bytes(extent, MAX_BYTES);
    // Most functions have no byte that could begin one, and need not be decoded to know it.
    may_hold_locked(&code) && holds_locked(&code)
}

/// Whether one of these instructions is locked. Of most, a look at their bytes tells that they are not.
fn holds_locked(code: &[u8]) -> bool {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut at = 0;
    while at < code.len() {
        if let Some(len) = plain::unlocked(&code[at..]) {
            at += len;
            continue;
        }
        decoder.set_position(at).expect("it lies in the code");
        if is_locked(&decoder.decode()) {
            return true;
        }
        at = decoder.position();
    }
    false
}

/// The instructions of a function.
pub(super) fn instructions(extent: &Extent) -> Vec<Instruction> {
    read(extent).0
}

/// The instructions of a function, and the bytes that say what they are. Of a function that nobody knows
/// where it ends, no more is read than needed: the trace keeps the pages that are, and behind a module's
/// last function lies its data.
pub(super) fn read(extent: &Extent) -> (Vec<Instruction>, Vec<u8>) {
    const FIRST: u64 = 1 << 10;
    let mut most = if extent.ends { MAX_BYTES } else { FIRST };
    loop {
        let mut code = first_bytes(extent, most);
        let (found, stops) = decode_to_end(extent, &code);
        if stops || (code.len() as u64) < most {
            if stops && let Some(last) = found.last() {
                code.truncate((last.next_ip() - extent.range.start) as usize);
            }
            return (with_slots(found), code);
        }
        most *= 4;
    }
}

/// The instructions in the bytes of an extent.
pub(super) fn decode(extent: &Extent, code: &[u8]) -> Vec<Instruction> {
    with_slots(decode_to_end(extent, code).0)
}

fn with_slots(mut code: Vec<Instruction>) -> Vec<Instruction> {
    name_slots(&mut code);
    code
}

/// The same, and whether they say themselves that the function ends there.
fn decode_to_end(extent: &Extent, code: &[u8]) -> (Vec<Instruction>, bool) {
    const AVERAGE: usize = 5;
    let start = extent.range.start;
    let mut found = Vec::with_capacity(if extent.ends { code.len() / AVERAGE } else { 0 });
    let mut furthest = start;
    // Bytes between instructions, such as tables, at worst hide what follows or pretend something.
    for instruction in Decoder::with_ip(64, code, start, DecoderOptions::NONE).iter() {
        found.push(instruction);
        if instruction.op0_kind() == OpKind::NearBranch64
            && instruction.flow_control() != FlowControl::Call
            && extent.range.contains(&instruction.near_branch_target())
        {
            furthest = furthest.max(instruction.near_branch_target());
        }
        let stops = matches!(
            instruction.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::Exception
        );
        // Nothing behind it is branched to: this must be the end that the table does not tell.
        if !extent.ends && stops && instruction.next_ip() > furthest {
            return (found, true);
        }
    }
    (found, false)
}
