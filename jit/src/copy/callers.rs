//! Which calls lead to a function: all near calls in its module, as far as they are not too far away.
//!
//! A call is found by its bytes: an opcode, and a distance to where a function begins. Other bytes
//! hardly ever look like that, and then a function more or less is looked at.

use crate::memory::read_guest;
use refrain_trace::fixed::FixedMap;
use std::ops::Range;

/// Bytes of code that are searched at once.
const PIECE: u64 = 64 << 10;
/// Pieces before and behind a function's own that may have calls of it.
const NEIGHBOURS: u64 = 8;
/// The opcode of a near call.
const CALL: u8 = 0xe8;
/// Bytes of a near call.
const LENGTH: usize = 5;

/// The calls in the code that was searched.
#[derive(Default)]
pub(super) struct Callers {
    /// By where a piece begins, its calls: where they lead and where they are, in ascending order.
    pieces: FixedMap<u64, Box<[(u64, u64)]>>,
}

impl Callers {
    /// Forgets all calls: code or what is known of it has changed.
    pub(super) fn forget(&mut self) {
        self.pieces.clear();
    }

    /// Where the function at `start` is called in its module, the nearest calls first. `starts` is where functions begin, in
    /// ascending order.
    pub(super) fn of(&mut self, start: u64, module: &Range<u64>, starts: &[u64]) -> Vec<u64> {
        let own = start.saturating_sub(module.start) / PIECE;
        let last = module.end.saturating_sub(module.start + 1) / PIECE;
        let mut found = Vec::new();
        for number in own.saturating_sub(NEIGHBOURS)..=(own + NEIGHBOURS).min(last) {
            let piece = module.start + number * PIECE;
            let calls = self.pieces.entry(piece).or_insert_with(|| search(piece, module, starts));
            let from = calls.partition_point(|&(target, _)| target < start);
            let here = calls[from..].iter().take_while(|&&(target, _)| target == start);
            found.extend(here.map(|&(_, at)| at).filter(|at| module.contains(at)));
        }
        found.sort_unstable_by_key(|at| at.abs_diff(start));
        found
    }
}

/// The calls that begin in the piece of memory at `base`.
fn search(base: u64, module: &Range<u64>, starts: &[u64]) -> Box<[(u64, u64)]> {
    let mut bytes = vec![0; PIECE as usize + LENGTH - 1];
    let readable = read_guest(base, &mut bytes);
    let mut found: Vec<(u64, u64)> = bytes[..readable]
        .windows(LENGTH)
        .enumerate()
        .filter(|(_, window)| window[0] == CALL)
        .filter_map(|(offset, window)| {
            let distance = i32::from_le_bytes([window[1], window[2], window[3], window[4]]);
            let at = base + offset as u64;
            let target = at.wrapping_add(LENGTH as u64).wrapping_add_signed(distance.into());
            let begins = module.contains(&target) && starts.binary_search(&target).is_ok();
            begins.then_some((target, at))
        })
        .collect();
    found.sort_unstable();
    found.into()
}

#[cfg(test)]
mod tests {
    use super::{Callers, LENGTH, PIECE};

    /// Code of two pieces, which is part of this process, as a guest's is.
    #[test]
    fn calls_are_found_in_both_directions_and_across_pieces() {
        let code: &mut [u8] = vec![0x90; 2 * PIECE as usize].leak();
        let base = code.as_ptr() as u64;
        let border = base + PIECE;
        let function = border + 0x100;
        let mut call = |at: u64, target: u64| {
            let distance = target.wrapping_sub(at + LENGTH as u64) as u32;
            let offset = (at - base) as usize;
            code[offset] = 0xe8;
            code[offset + 1..offset + LENGTH].copy_from_slice(&distance.to_le_bytes());
        };
        // The first call begins in one piece and ends in the next one.
        let calls = [border - 2, border + 0x10, border + 0x200];
        calls.iter().for_each(|&at| call(at, function));
        call(border + 0x300, function + 1);
        let module = base..base + 2 * PIECE;
        let starts = [base, function];
        let mut callers = Callers::default();
        let of_function = callers.of(function, &module, &starts);
        assert_eq!(of_function, [calls[1], calls[2], calls[0]], "the nearest first");
        assert_eq!(callers.of(base, &module, &starts), []);
        assert_eq!(callers.of(function, &(border..module.end), &starts), calls[1..]);
    }
}
