//! What is found in the bytes of a module's code around a function: near calls, and the variables and fields
//! that locked instructions name.
//!
//! A call is found by its bytes: an opcode, and a distance to where a function begins; a locked instruction by
//! its prefix, or by the opcode of `xchg`. Other bytes hardly ever look like that, and then a function more or
//! less is looked at, or a variable is taken for a lock.

use super::ordered::{LOCK, is_locked, may_begin_locked};
use crate::accesses::constant_address;
use crate::common::LONGEST_INSTRUCTION;
use crate::memory::read_guest;
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use memchr::memchr_iter;
use refrain_trace::fixed::FixedMap;
use refrain_vm::ReadCode;
use refrain_vm::layout::LIBRARIES;
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of code that are searched at once.
const PIECE: u64 = 64 << 10;
/// Pieces before and behind a function's own that are searched for it.
const NEIGHBOURS: u64 = 8;
/// The opcode of a near call.
const CALL: u8 = 0xe8;
/// Bytes of a near call.
const LENGTH: usize = 5;

/// Modules whose files are kept open: the recorder has room for a few hundred descriptors.
const MOST_FILES: usize = 96;

/// The code that was searched.
#[derive(Default)]
pub(super) struct Pieces {
    /// By where a piece begins: where its calls lead, and where they are, in ascending order.
    calls: FixedMap<u64, Box<[(u64, u64)]>>,
    /// By where a piece begins: what its locked instructions name.
    locked: FixedMap<u64, Locked>,
    /// How to read the code of modules.
    files: Vec<(Range<u64>, ReadCode)>,
}

struct Locked {
    /// Addresses of variables, in ascending order.
    variables: Box<[u64]>,
    /// Fields, in ascending order.
    fields: Box<[Field]>,
}

/// A field of something large: its offset, and its size.
pub(super) type Field = (u64, usize);

impl Pieces {
    /// Forgets what was found: code or what is known of it has changed.
    pub(super) fn forget(&mut self) {
        self.calls.clear();
        self.locked.clear();
    }

    /// There is one more module, whose code may be in a file.
    pub(super) fn add(&mut self, module: Range<u64>, code: Option<ReadCode>) {
        self.files.retain(|(other, _)| other.end <= module.start || module.end <= other.start);
        if let Some(code) = code.filter(|_| self.files.len() < MOST_FILES) {
            self.files.push((module, code));
        }
    }

    /// Whether all of a module's code may be searched: from its file, or if there is little of it. To search it in
    /// the guest's memory touches its pages, which the trace keeps then, whether the program uses them or not.
    pub(super) fn may_search(&self, module: &Range<u64>) -> bool {
        is_small(module) || self.file_of(module.start).is_some()
    }

    fn file_of(&self, at: u64) -> Option<&ReadCode> {
        self.files.iter().find(|(module, _)| module.contains(&at)).map(|(_, code)| code)
    }

    /// The bytes of the piece at `base`, and as many behind it as the last instruction may have.
    fn bytes(&self, base: u64) -> Vec<u8> {
        let mut bytes = vec![0; PIECE as usize + LONGEST_INSTRUCTION - 1];
        let read = match self.file_of(base) {
            Some(code) => code(base, &mut bytes),
            None => read_guest(base, &mut bytes),
        };
        bytes.truncate(read);
        bytes
    }

    /// Where the function at `start` is called in its module, the nearest calls first. `starts` is where functions
    /// begin, in ascending order.
    pub(super) fn callers_of(
        &mut self,
        start: u64,
        module: &Range<u64>,
        starts: &[u64],
    ) -> Vec<u64> {
        let mut found = Vec::new();
        for piece in around(start, module) {
            let calls = self.calls_in(piece, module, starts);
            let from = calls.partition_point(|&(target, _)| target < start);
            let here = calls[from..].iter().take_while(|&&(target, _)| target == start);
            found.extend(here.map(|&(_, at)| at).filter(|at| module.contains(at)));
        }
        found.sort_unstable_by_key(|at| at.abs_diff(start));
        found
    }

    /// Whether a locked instruction of the module names the variable, around the code at `at`.
    pub(super) fn is_locked_around(&mut self, variable: u64, at: u64, module: &Range<u64>) -> bool {
        around(at, module)
            .any(|piece| self.locked_in(piece).variables.binary_search(&variable).is_ok())
    }

    /// Whether a locked instruction of the module names a field like this one, around the code at `at`.
    pub(super) fn is_locked_field_around(
        &mut self,
        field: Field,
        at: u64,
        module: &Range<u64>,
    ) -> bool {
        around(at, module).any(|piece| self.locked_in(piece).fields.binary_search(&field).is_ok())
    }

    fn calls_in(&mut self, piece: u64, module: &Range<u64>, starts: &[u64]) -> &[(u64, u64)] {
        if !self.calls.contains_key(&piece) {
            let bytes = self.bytes(piece);
            let is_function = |at| module.contains(&at) && starts.binary_search(&at).is_ok();
            self.calls.insert(piece, calls(piece, &bytes, is_function));
        }
        &self.calls[&piece]
    }

    fn locked_in(&mut self, piece: u64) -> &Locked {
        if !self.locked.contains_key(&piece) {
            let bytes = self.bytes(piece);
            self.locked.insert(piece, locked_operands(piece, &bytes));
        }
        &self.locked[&piece]
    }
}

/// Whether a module has little code.
pub(super) fn is_small(module: &Range<u64>) -> bool {
    let largest = if LIBRARIES.contains(&module.start) { 256 << 10 } else { 1 << 20 };
    module.end - module.start <= largest
}

/// The addresses of the pieces that are searched for the code at `at`: its own piece and the neighbours.
fn around(at: u64, module: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    let own = at.saturating_sub(module.start) / PIECE;
    let last = module.end.saturating_sub(module.start + 1) / PIECE;
    let start = module.start;
    let numbers = own.saturating_sub(NEIGHBOURS)..=(own + NEIGHBOURS).min(last);
    numbers.map(move |number| start + number * PIECE)
}

/// The field of something large that an instruction names. Offsets that take more than a byte tell fields apart:
/// few things have so many.
pub(super) fn field_of(instruction: &Instruction) -> Option<Field> {
    const OFFSETS: Range<u64> = 0x80..0x4000;
    let i = instruction;
    let base = i.memory_base().full_register();
    let is_field = base.is_gpr64() && base != Register::RSP && i.memory_index() == Register::None;
    let offset = i.memory_displacement64();
    (is_field && OFFSETS.contains(&offset)).then(|| (offset, i.memory_size().size()))
}

/// The calls that begin in the piece at `base`. The last one may end behind the piece.
fn calls(base: u64, bytes: &[u8], is_function: impl Fn(u64) -> bool) -> Box<[(u64, u64)]> {
    let opcodes = memchr_iter(CALL, &bytes[..bytes.len().min(PIECE as usize)]);
    let calls = opcodes.filter_map(|offset| {
        let distance = bytes.get(offset + 1..offset + LENGTH)?.try_into().ok()?;
        let at = base + offset as u64;
        let behind = at.wrapping_add(LENGTH as u64);
        let target = behind.wrapping_add_signed(i32::from_le_bytes(distance).into());
        is_function(target).then_some((target, at))
    });
    let mut found: Vec<(u64, u64)> = calls.collect();
    found.sort_unstable();
    found.into()
}

/// What the locked instructions that begin in the piece at `base` name.
fn locked_operands(base: u64, bytes: &[u8]) -> Locked {
    let beginnings = &bytes[..bytes.len().min(PIECE as usize)];
    let (mut variables, mut fields) = (BTreeSet::new(), BTreeSet::new());
    for offset in may_begin_locked(beginnings) {
        let code = &bytes[offset..bytes.len().min(offset + LONGEST_INSTRUCTION)];
        if !may_name_word(code) {
            continue;
        }
        let at = base + offset as u64;
        let instruction = Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode();
        if is_locked(&instruction) {
            variables.extend(constant_address(&instruction));
            fields.extend(field_of(&instruction));
        }
    }
    Locked { variables: variables.into_iter().collect(), fields: fields.into_iter().collect() }
}

/// Whether these bytes may be a locked instruction that names a variable or a field far from its object's begin:
/// most bytes that look like the begin of one are not, and decoding takes longer than this look.
fn may_name_word(code: &[u8]) -> bool {
    const LONG_OPCODE: u8 = 0x0f;
    /// What tells the addressing, and an address that is relative to the instruction's own, or may be a number alone.
    const ADDRESSING: u8 = 0b11_000_111;
    const ADDRESS: [u8; 2] = [0b00_000_101, 0b00_000_100];
    /// An offset of four bytes.
    const FAR: u8 = 0b10;
    let mut rest = code;
    if let [LOCK, behind @ ..] = rest {
        let prefixes = behind.iter().take_while(|&&byte| is_prefix(byte));
        rest = &behind[prefixes.count()..];
    }
    let mod_rm = match rest {
        [LONG_OPCODE, _, mod_rm, ..] | [_, mod_rm, ..] => *mod_rm,
        _ => return false,
    };
    ADDRESS.contains(&(mod_rm & ADDRESSING)) || mod_rm >> 6 == FAR
}

/// Whether a byte may stand between a lock prefix and its opcode.
fn is_prefix(byte: u8) -> bool {
    match byte {
        0x40..=0x4f | LOCK | 0xf2 | 0xf3 => true,
        segment_or_size => matches!(segment_or_size, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::ordered::XCHG;
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    /// Code of two pieces, which is part of this process, as a guest's is.
    fn two_pieces() -> (&'static mut [u8], u64) {
        let code: &mut [u8] = vec![0x90; 2 * PIECE as usize].leak();
        let base = code.as_ptr() as u64;
        (code, base)
    }

    /// A module's code is read from its file, if there is one, and there may be any amount of it then.
    #[test]
    fn code_is_read_from_files() {
        const MODULE: std::ops::Range<u64> = 0x10_0000..0x1000_0000;
        let mut pieces = Pieces::default();
        assert!(!pieces.may_search(&MODULE));
        let code = |address, buffer: &mut [u8]| {
            assert_eq!(address % PIECE, 0);
            // `lock inc dword ptr [rip]`, at the begin of each piece, and no more
            buffer[..7].copy_from_slice(&[0xf0, 0xff, 0x05, 0, 0, 0, 0]);
            7
        };
        pieces.add(MODULE, Some(Box::new(code)));
        assert!(pieces.may_search(&MODULE));
        let mut is_locked = |variable| pieces.is_locked_around(variable, 0x80_0000, &MODULE);
        assert!(is_locked(0x80_0000 + 7) && is_locked(0x80_0000 + PIECE + 7));
        assert!(!is_locked(0x80_0000 + 8), "the byte behind it");
        assert!(!is_locked(0x10_0000 + 7), "far away");
        pieces.add(0x10_0000..0x20_0000, None);
        assert!(!pieces.may_search(&MODULE), "another module is there now");
    }

    #[test]
    fn calls_are_found_in_both_directions_and_across_pieces() {
        let (code, base) = two_pieces();
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
        let mut pieces = Pieces::default();
        let of_function = pieces.callers_of(function, &module, &starts);
        assert_eq!(of_function, [calls[1], calls[2], calls[0]], "the nearest first");
        assert_eq!(pieces.callers_of(base, &module, &starts), []);
        assert_eq!(pieces.callers_of(function, &(border..module.end), &starts), calls[1..]);
    }

    #[test]
    fn variables_of_locked_instructions_are_found_across_pieces() {
        let (code, base) = two_pieces();
        let border = base + PIECE;
        let variables = base + 2 * PIECE;
        // An opcode, and the distance of a variable from the instruction's end.
        let mut write = |at: u64, opcode: &[u8], variable: u64, rest: &[u8]| {
            let end = at + (opcode.len() + 4 + rest.len()) as u64;
            let distance = variable.wrapping_sub(end) as u32;
            let bytes = [opcode, &distance.to_le_bytes(), rest].concat();
            code[(at - base) as usize..][..bytes.len()].copy_from_slice(&bytes);
        };
        // lock cmpxchg byte ptr, dl; mov dword ptr, 1; xchg qword ptr, r9; lock add dword ptr, 1.
        write(base + 0x10, &[0xf0, 0x0f, 0xb0, 0x15], variables + 4, &[]);
        write(base + 0x40, &[0xc7, 0x05], variables + 8, &1_u32.to_le_bytes());
        write(border - 2, &[0x4c, 0x87, 0x0d], variables + 16, &[]);
        write(border + 0x40, &[0xf0, 0x83, 0x05], variables + 24, &[1]);
        let mut pieces = Pieces::default();
        let module = base..variables;
        let mut is_locked = |offset| pieces.is_locked_around(variables + offset, border, &module);
        assert_eq!([0, 4, 8, 16, 24].map(&mut is_locked), [false, true, false, true, true]);
    }

    /// What is not decoded names neither a variable nor a field, whatever the bytes are.
    #[test]
    fn what_is_not_decoded_names_nothing() {
        let mut random = SplitMix64::seed_from_u64(7);
        let mut named = 0;
        for _ in 0..1_000_000 {
            let mut code = [0; LONGEST_INSTRUCTION];
            random.fill_bytes(&mut code);
            code[0] = [LOCK, LOCK, XCHG[0], XCHG[1]][usize::from(code[0]) % 4];
            // An opcode of two bytes, or the prefix for wide registers.
            code[1] = [0x0f, 0x48, code[1], code[1]][usize::from(code[2]) % 4];
            let instruction = Decoder::with_ip(64, &code, 0x1000, DecoderOptions::NONE).decode();
            let names =
                constant_address(&instruction).is_some() || field_of(&instruction).is_some();
            if is_locked(&instruction) && names {
                named += 1;
                assert!(may_name_word(&code), "{code:02x?}: {instruction:?}");
            }
        }
        assert!(named > 1000, "{named}");
    }
}
