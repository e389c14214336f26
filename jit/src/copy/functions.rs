//! Where functions begin, and what their locked instructions are.

use super::ordered::{is_locked, may_hold_locked};
use super::translator::Map;
use crate::memory::read_guest;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a function that are looked at.
const MAX_BYTES: u64 = 64 << 10;

/// The locked instructions of a function.
pub(super) type Locked = Arc<[Instruction]>;

/// The functions of all modules.
#[derive(Default)]
pub(super) struct Functions {
    /// In ascending order, each once.
    starts: Vec<u64>,
    /// By start, what was found in the functions that were looked through.
    found: Map<u64, Locked>,
}

/// Where a function lies.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Extent {
    range: Range<u64>,
    /// The end is another function's start, and not merely where looking ends.
    ends: bool,
}

impl Functions {
    /// Adds starts of functions.
    pub(super) fn add(&mut self, starts: &[u64]) {
        self.starts.extend_from_slice(starts);
        self.starts.sort_unstable();
        self.starts.dedup();
        self.found.clear();
    }

    /// The code may have changed: what was found in it is forgotten, where it begins is not.
    pub(super) fn forget_code(&mut self) {
        self.found.clear();
    }

    /// The function around `pc`, as far as is known.
    fn around(&self, pc: u64) -> Option<Extent> {
        let next = self.starts.partition_point(|&start| start <= pc);
        let start = self.starts[next.checked_sub(1)?];
        let limit = start.saturating_add(MAX_BYTES);
        let end = self.starts.get(next).copied().filter(|&end| end <= limit);
        let range = start..end.unwrap_or(limit);
        range.contains(&pc).then_some(Extent { range, ends: end.is_some() })
    }

    /// The locked instructions of the function around `pc`; `None` if no function is known there.
    pub(super) fn locked(&mut self, pc: u64) -> Option<Locked> {
        let extent = self.around(pc)?;
        let found = self.found.entry(extent.range.start).or_insert_with(|| look_through(&extent));
        Some(Arc::clone(found))
    }
}

fn look_through(extent: &Extent) -> Locked {
    let start = extent.range.start;
    let mut code = vec![0; (extent.range.end - start) as usize];
    let readable = read_guest(start, &mut code);
    let code = &code[..readable];
    let mut found = Vec::new();
    if !may_hold_locked(code) {
        return found.into();
    }
    let mut furthest = start;
    // Bytes between instructions, such as tables, at worst hide what follows or pretend something.
    for instruction in Decoder::with_ip(64, code, start, DecoderOptions::NONE).iter() {
        if is_locked(&instruction) {
            found.push(instruction);
        }
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
            break;
        }
    }
    found.into()
}

#[cfg(test)]
mod tests {
    use super::{Extent, Functions, MAX_BYTES};

    #[test]
    fn lookup() {
        let extent = |range, ends| Some(Extent { range, ends });
        let mut functions = Functions::default();
        assert_eq!(functions.around(0x1000), None);
        functions.add(&[0x3000, 0x1000]);
        functions.add(&[0x2000, 0x1000]);
        assert_eq!(functions.around(0xfff), None);
        assert_eq!(functions.around(0x1000), extent(0x1000..0x2000, true));
        assert_eq!(functions.around(0x1fff), extent(0x1000..0x2000, true));
        assert_eq!(functions.around(0x2000), extent(0x2000..0x3000, true));
        assert_eq!(functions.around(0x4000), extent(0x3000..0x3000 + MAX_BYTES, false));
        assert_eq!(functions.around(0x3000 + MAX_BYTES), None);
        functions.add(&[u64::MAX]);
        assert_eq!(functions.around(u64::MAX), None);
    }
}
