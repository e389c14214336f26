//! Where functions begin, and which of them have locked instructions.

use super::ordered::{constant_address, is_locked, may_hold_locked};
use super::tables::Tables;
use super::translator::Map;
use crate::memory::read_guest;
use iced_x86::{Decoder, DecoderOptions, Register};
use std::ops::Range;

/// Bytes of a function that are looked at. The last one of a module has no known end.
const MAX_BYTES: u64 = 64 << 10;

/// The functions of all modules.
#[derive(Default)]
pub(super) struct Functions {
    /// In ascending order, each once.
    starts: Vec<u64>,
    /// By start, whether the function has a locked instruction.
    verdicts: Map<u64, bool>,
}

impl Functions {
    /// Adds starts of functions.
    pub(super) fn add(&mut self, starts: &[u64]) {
        self.starts.extend_from_slice(starts);
        self.starts.sort_unstable();
        self.starts.dedup();
        self.verdicts.clear();
    }

    /// The code may have changed: what is known of it is forgotten, where it begins is not.
    pub(super) fn forget_verdicts(&mut self) {
        self.verdicts.clear();
    }

    /// The function around `pc`, as far as is known.
    fn around(&self, pc: u64) -> Option<Range<u64>> {
        let next = self.starts.partition_point(|&start| start <= pc);
        let start = self.starts[next.checked_sub(1)?];
        let limit = start.saturating_add(MAX_BYTES);
        let end = self.starts.get(next).map_or(limit, |&end| end.min(limit));
        (pc < end).then_some(start..end)
    }

    /// Whether the function around `pc` is known and has a locked instruction. Words that it
    /// names by constant addresses are marked in the filter at once: its first load of them may
    /// come before anybody's first locked instruction.
    pub(super) fn has_locked(&mut self, pc: u64, filter: &Tables) -> bool {
        let Some(function) = self.around(pc) else { return false };
        *self.verdicts.entry(function.start).or_insert_with(|| look_through(function, filter))
    }
}

fn look_through(function: Range<u64>, filter: &Tables) -> bool {
    let mut code = vec![0; (function.end - function.start) as usize];
    let readable = read_guest(function.start, &mut code);
    let code = &code[..readable];
    if !may_hold_locked(code) {
        return false;
    }
    let mut found = false;
    // Bytes between instructions, such as tables, at worst hide what follows or pretend something.
    for instruction in Decoder::with_ip(64, code, function.start, DecoderOptions::NONE).iter() {
        if is_locked(&instruction) {
            found = true;
            if let Some(address) = constant_address(&instruction)
                && instruction.segment_prefix() != Register::FS
            {
                filter.mark(address, instruction.memory_size().size() as u8);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Functions, MAX_BYTES};

    #[test]
    fn lookup() {
        let mut functions = Functions::default();
        assert_eq!(functions.around(0x1000), None);
        functions.add(&[0x3000, 0x1000]);
        functions.add(&[0x2000, 0x1000]);
        assert_eq!(functions.around(0xfff), None);
        assert_eq!(functions.around(0x1000), Some(0x1000..0x2000));
        assert_eq!(functions.around(0x1fff), Some(0x1000..0x2000));
        assert_eq!(functions.around(0x2000), Some(0x2000..0x3000));
        assert_eq!(functions.around(0x4000), Some(0x3000..0x3000 + MAX_BYTES));
        assert_eq!(functions.around(0x3000 + MAX_BYTES), None);
        functions.add(&[u64::MAX]);
        assert_eq!(functions.around(u64::MAX), None);
    }
}
