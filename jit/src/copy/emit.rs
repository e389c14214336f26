//! Writing machine code: the few instructions that instrumentation is made of.
//!
//! None of them changes the flags. Slots are fields of [`ThreadState`], addressed through GS.

use super::state::ThreadState;
use refrain_vm::Context;
use std::mem::offset_of;

/// A GS-relative field.
#[derive(Clone, Copy)]
pub(super) struct Slot(u32);

impl Slot {
    /// Its offset from the GS base.
    pub(super) fn offset(self) -> u64 {
        self.0.into()
    }
}

/// How far a short jump leads.
pub(super) const SHORT: u64 = 127;

/// The context.
const CONTEXT: Slot = Slot(offset_of!(ThreadState, context) as u32);
/// The guest's rcx.
pub(super) const RCX_SLOT: Slot = Slot(offset_of!(ThreadState, rcx) as u32);
/// Another guest register.
pub(super) const SCRATCH: Slot = Slot(offset_of!(ThreadState, scratch) as u32);
/// The guest's xmm0.
pub(super) const VECTOR: Slot = Slot(offset_of!(ThreadState, vector) as u32);
/// Target of an indirect branch.
pub(super) const TARGET: Slot = Slot(offset_of!(ThreadState, target) as u32);
/// Minus the watched stack pointer.
pub(super) const MINUS_WATCHED: Slot = Slot(offset_of!(ThreadState, minus_watched) as u32);
/// Address of an ordered access, or the value that an ordered load is to find.
pub(super) const OPERAND: Slot = Slot(offset_of!(ThreadState, operand) as u32);
/// Where a fast-path function that succeeds goes on.
pub(super) const ENTRY: Slot = Slot(offset_of!(ThreadState, entry) as u32);
/// Instructions retired.
pub(super) const RETIRED: Slot = Slot(offset_of!(ThreadState, retired) as u32);
/// Minus the instructions at which the thread leaves.
pub(super) const MINUS_LEAVE_AT: Slot = Slot(offset_of!(ThreadState, minus_leave_at) as u32);

/// Accesses made, or left before the next event.
pub(super) const COUNT: Slot = Slot(offset_of!(ThreadState, count) as u32);
/// Whether the thread is between a look and the end of its access: a byte.
pub(super) const WINDOW: Slot = Slot(offset_of!(ThreadState, window) as u32);
/// The bits of an address that are its line's index.
const LINE_MASK: Slot = Slot(offset_of!(ThreadState, line_mask) as u32);
/// The table of the lines that the thread may read, and that of those that it may write: a byte each.
pub(super) const READABLE: Slot = Slot(super::state::READABLE);
/// The table of the lines whose code the thread keeps.
pub(super) const KEPT: Slot = Slot(super::state::KEPT);
pub(super) const WRITABLE: Slot = Slot(super::state::WRITABLE);
/// The same of pairs of lines.
pub(super) const READABLE_PAIRS: Slot = Slot(super::state::READABLE_PAIRS);
pub(super) const WRITABLE_PAIRS: Slot = Slot(super::state::WRITABLE_PAIRS);

/// How many bytes are left in the log of accesses, negated.
pub(super) const LOG_ROOM: Slot = Slot(offset_of!(ThreadState, log_room) as u32);
/// The bits that the notes of an access have if it is not logged, and those that a logged one gets.
pub(super) const SEEN: Slot = Slot(offset_of!(ThreadState, seen) as u32);
pub(super) const SEEN_ADD: Slot = Slot(offset_of!(ThreadState, seen_add) as u32);
/// Minus the instruction whose named call has been logged.
pub(super) const MINUS_LOGGED: Slot = Slot(offset_of!(ThreadState, minus_logged) as u32);
/// Minus where named calls keep their return addresses.
pub(super) const MINUS_CALLED: Slot = Slot(offset_of!(ThreadState, minus_called) as u32);
pub(super) const MINUS_INNERMOST: Slot = Slot(offset_of!(ThreadState, minus_innermost) as u32);
/// The guest's rax.
const RAX_SLOT: Slot = Slot(offset_of!(ThreadState, rax) as u32);

/// Encodings of the registers that instrumentation uses.
const RAX: u8 = 0;
pub(super) const RCX: u8 = 1;
pub(super) const RDX: u8 = 2;

/// Code below has return addresses that fit an immediate.
pub(super) const REACH: u64 = 1 << 31;

/// Bytes of [`Code::put_some`].
pub(super) const SOME: usize = 16;

/// Code under construction that will lie at `base`.
#[derive(Default)]
pub(super) struct Code {
    base: u64,
    /// The code, and room behind it.
    bytes: Vec<u8>,
    len: usize,
}

impl Code {
    /// Starts anew at `base`.
    pub(super) fn reset(&mut self, base: u64) {
        self.base = base;
        self.len = 0;
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Address of the next byte.
    #[inline]
    pub(super) fn here(&self) -> u64 {
        self.base + self.len as u64
    }

    #[inline(always)]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if self.bytes.len() - self.len < bytes.len() {
            self.grow(bytes.len());
        }
        // The length of an array is still known here: it is stored, not copied.
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends the first `len` of these bytes: all are stored, since that takes no call.
    #[inline(always)]
    pub(super) fn put_some(&mut self, bytes: &[u8; SOME], len: usize) {
        if self.bytes.len() - self.len < SOME {
            self.grow(SOME);
        }
        self.bytes[self.len..][..SOME].copy_from_slice(bytes);
        self.len += len.min(SOME);
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        let len = (2 * self.bytes.len()).max(self.len + more).max(64);
        self.bytes.resize(len, 0);
    }

    /// Overwrites four bytes at `address`.
    pub(super) fn set32(&mut self, address: u64, value: u32) {
        let at = (address - self.base) as usize;
        self.bytes[..self.len][at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Overwrites eight bytes at `address`.
    pub(super) fn set64(&mut self, address: u64, value: u64) {
        let at = (address - self.base) as usize;
        self.bytes[..self.len][at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Overwrites the byte at `address`.
    pub(super) fn set8(&mut self, address: u64, value: u8) {
        self.bytes[..self.len][(address - self.base) as usize] = value;
    }

    /// Appends a displacement that ends an instruction and leads to `target`.
    #[inline]
    pub(super) fn rel32(&mut self, target: u64) {
        let value = target.wrapping_sub(self.here() + 4) as u32;
        self.put(&value.to_le_bytes());
    }

    #[inline]
    pub(super) fn jmp(&mut self, target: u64) {
        let [a, b, c, d] = displacement(self.here() + 1, target).to_le_bytes();
        self.put(&[0xe9, a, b, c, d]);
    }

    pub(super) fn call(&mut self, target: u64) {
        self.put(&[0xe8]);
        self.rel32(target);
    }

    pub(super) fn ret(&mut self) {
        self.put(&[0xc3]);
    }

    /// Pads with a no-op so that a 32-bit field `skip` bytes from here is patchable.
    #[inline]
    pub(super) fn align_field(&mut self, skip: u64) {
        self.align_fields(skip, 0);
    }

    /// The same for two fields, of which the second lies so many bytes, but no more than four, further on in
    /// a word than the first.
    pub(super) fn align_fields(&mut self, skip: u64, further: u64) {
        /// No-ops by their lengths.
        const PADS: [u64; 8] = [
            0,
            0x90,
            0x9066,
            0x00_1f0f,
            0x0040_1f0f,
            0x00_0044_1f0f,
            0x0000_441f_0f66,
            0x00_0000_0080_1f0f,
        ];
        let at = (self.here() + skip) & 7;
        let pad = if at + further > 4 { 8 - at } else { 0 } as usize;
        self.put_some(&u128::from(PADS[pad]).to_le_bytes(), pad);
    }

    /// `mov gs:[slot], register`
    #[inline]
    pub(super) fn spill(&mut self, slot: Slot, register: u8) {
        self.slot_move(0x89, slot, register);
    }

    /// `mov register, gs:[slot]`
    #[inline]
    pub(super) fn reload(&mut self, register: u8, slot: Slot) {
        self.slot_move(0x8b, slot, register);
    }

    #[inline]
    fn slot_move(&mut self, opcode: u8, slot: Slot, register: u8) {
        let rex = 0x48 | (register >> 3) << 2;
        let [a, b, c, d] = slot.0.to_le_bytes();
        self.put(&[0x65, rex, opcode, 0x04 | (register & 7) << 3, 0x25, a, b, c, d]);
    }

    /// `mov register, value`, in its shortest form
    #[inline]
    pub(super) fn load_constant(&mut self, register: u8, value: u64) {
        let (high, opcode) = (register >> 3, 0xb8 | register & 7);
        // REX, or nothing; the opcode; four bytes, or eight.
        let wide = u32::try_from(value).is_err();
        let rex = if wide { 0x48 } else { 0x40 } | high;
        let code = u128::from(value) << 8 | u128::from(opcode);
        match (wide, high) {
            (false, 0) => self.put_some(&code.to_le_bytes(), 5),
            _ => self
                .put_some(&(code << 8 | u128::from(rex)).to_le_bytes(), if wide { 10 } else { 6 }),
        }
    }

    /// `mov register, value`, ten bytes long
    pub(super) fn load_wide(&mut self, register: u8, value: u64) {
        self.put(&[0x48 | register >> 3, 0xb8 | register & 7]);
        self.put(&value.to_le_bytes());
    }

    /// `mov rcx, register`
    pub(super) fn copy_to_rcx(&mut self, register: u8) {
        self.put(&[0x48 | (register >> 3) << 2, 0x89, 0xc1 | (register & 7) << 3]);
    }

    /// `mov qword ptr [rsp + offset], value`, in two halves if it does not fit
    pub(super) fn store_on_stack(&mut self, offset: i8, value: u64) {
        if let Ok(value) = i32::try_from(value) {
            self.put(&[0x48, 0xc7, 0x44, 0x24, offset as u8]);
            self.put(&value.to_le_bytes());
        } else {
            for (offset, half) in [(offset, value as u32), (offset + 4, (value >> 32) as u32)] {
                self.put(&[0xc7, 0x44, 0x24, offset as u8]);
                self.put(&half.to_le_bytes());
            }
        }
    }

    /// `mov rcx, [operand]`, with the memory operand of an indirect jump or call; false if the
    /// instruction is none that is known here. The encoder's tables take longer to make than many a
    /// program to translate.
    pub(super) fn load_operand_of_branch(&mut self, branch: &[u8]) -> bool {
        const FS: u8 = 0x64;
        const NARROW_ADDRESS: u8 = 0x67;
        // Other prefixes mean nothing here, or for the branch alone (`notrack`, `bnd`).
        let is_prefix =
            |byte: &&u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3);
        let prefixes = branch.iter().take_while(is_prefix).count();
        let (prefixes, opcode) = branch.split_at(prefixes);
        let (rex, opcode) = match opcode {
            [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
            rest => (0, rest),
        };
        let [0xff, modrm, rest @ ..] = opcode else { return false };
        for prefix in prefixes.iter().filter(|prefix| [FS, NARROW_ADDRESS].contains(prefix)) {
            self.put(&[*prefix]);
        }
        self.put(&[0x48 | rex & 3, 0x8b, modrm & 0xc7 | RCX << 3]);
        self.put(rest);
        true
    }

    /// `mov rcx, [rsp]`
    pub(super) fn load_return_address(&mut self) {
        self.put(&[0x48, 0x8b, 0x0c, 0x24]);
    }

    /// `mov [rsp + offset], rcx`
    pub(super) fn store_rcx_on_stack(&mut self, offset: i8) {
        self.put(&[0x48, 0x89, 0x4c, 0x24, offset as u8]);
    }

    /// `lea rsp, [rsp + bytes]`
    pub(super) fn pop_bytes(&mut self, bytes: i32) {
        self.put(&[0x48, 0x8d, 0xa4, 0x24]);
        self.put(&bytes.to_le_bytes());
    }

    /// `lea rcx, [rcx + value]`
    pub(super) fn add_to_rcx(&mut self, value: i32) {
        self.put(&[0x48, 0x8d, 0x89]);
        self.put(&value.to_le_bytes());
    }

    /// `lea rdx, [rdx + value]`
    pub(super) fn add_to_rdx(&mut self, value: i8) {
        self.put(&[0x48, 0x8d, 0x52, value as u8]);
    }

    /// `lea rcx, [rcx + rsp]`
    pub(super) fn add_rsp_to_rcx(&mut self) {
        self.put(&[0x48, 0x8d, 0x0c, 0x0c]);
    }

    /// `lea rcx, [rcx + rdx]`
    pub(super) fn add_rdx_to_rcx(&mut self) {
        self.put(&[0x48, 0x8d, 0x0c, 0x11]);
    }

    /// `movzx ecx, cx`
    pub(super) fn low_half_of_ecx(&mut self) {
        self.put(&[0x0f, 0xb7, 0xc9]);
    }

    /// `crc32 ecx, ch`: see [`super::tables::jump_index`]
    pub(super) fn hash_rcx(&mut self) {
        self.put(&[0xf2, 0x0f, 0x38, 0xf0, 0xcd]);
        self.low_half_of_ecx();
    }

    /// `mov rcx, [rcx*8 + table]`
    pub(super) fn load_from_table(&mut self, table: u32) {
        self.put(&[0x48, 0x8b, 0x0c, 0xcd]);
        self.put(&table.to_le_bytes());
    }

    /// `mov ecx, [rcx*4 + table]`
    pub(super) fn load_from_dense_table(&mut self, table: u32) {
        self.put(&[0x8b, 0x0c, 0x8d]);
        self.put(&table.to_le_bytes());
    }

    /// `jmp [rcx*8 + table]`
    pub(super) fn jump_through_table(&mut self, table: u32) {
        self.put(&[0xff, 0x24, 0xcd]);
        self.put(&table.to_le_bytes());
    }

    /// `mov ecx, [rdx + offset]` and `lea ecx, [rcx - value]`: rcx is 0 if that is what is there.
    pub(super) fn difference_at_rdx(&mut self, offset: u32, value: u32) {
        self.put(&[0x8b, 0x8a]);
        self.put(&offset.to_le_bytes());
        self.put(&[0x8d, 0x89]);
        self.put(&value.wrapping_neg().to_le_bytes());
    }

    /// `movdqu gs:[vector], xmm0`, which changes nothing but the slot.
    pub(super) fn spill_vector(&mut self) {
        self.put(&[0x65, 0xf3, 0x0f, 0x7f, 0x04, 0x25]);
        self.put(&VECTOR.0.to_le_bytes());
    }

    /// `movdqu xmm0, gs:[vector]`, which leaves the register's upper half as it is.
    pub(super) fn reload_vector(&mut self) {
        self.put(&[0x65, 0xf3, 0x0f, 0x6f, 0x04, 0x25]);
        self.put(&VECTOR.0.to_le_bytes());
    }

    /// `movdqu xmm0, [rdx + offset]`
    pub(super) fn load_vector_at_rdx(&mut self, offset: u32) {
        self.put(&[0xf3, 0x0f, 0x6f, 0x82]);
        self.put(&offset.to_le_bytes());
    }

    /// `movq xmm0, [rdx]; movhps xmm0, [rdx + offset]`
    pub(super) fn load_halves_at_rdx(&mut self, offset: u32) {
        self.put(&[0xf3, 0x0f, 0x7e, 0x02]);
        self.put(&[0x0f, 0x16, 0x82]);
        self.put(&offset.to_le_bytes());
    }

    /// `pcmpeqb xmm0, [constant]; pmovmskb ecx, xmm0; lea ecx, [rcx - 0xffff]`: zero if all of xmm0 is what lies at
    /// an address that is a multiple of 16, below 2 GiB.
    pub(super) fn difference_of_vector(&mut self, constant: u64) {
        let constant = u32::try_from(constant).expect("translated code lies below 2 GiB");
        self.put(&[0x66, 0x0f, 0x74, 0x04, 0x25]);
        self.put(&constant.to_le_bytes());
        self.put(&[0x66, 0x0f, 0xd7, 0xc8, 0x8d, 0x89]);
        self.put(&0xffff_u32.wrapping_neg().to_le_bytes());
    }

    /// Puts bytes at an address that is a multiple of their number, and says where.
    pub(super) fn constant(&mut self, bytes: [u8; 16]) -> u64 {
        while !self.here().is_multiple_of(bytes.len() as u64) {
            self.put(&[0xcc]);
        }
        let here = self.here();
        self.put(&bytes);
        here
    }

    /// `pext rcx, rcx, gs:[line mask]`
    pub(super) fn line_of_rcx(&mut self) {
        self.extract_bits(LINE_MASK);
    }

    /// `movzx ecx, byte ptr gs:[rcx + table]`
    pub(super) fn read_entry(&mut self, table: Slot) {
        self.put(&[0x65, 0x0f, 0xb6, 0x89]);
        self.put(&table.0.to_le_bytes());
    }

    /// The same, and `lea ecx, [rcx - 1]`
    pub(super) fn look_up(&mut self, table: Slot) {
        self.read_entry(table);
        self.put(&[0x8d, 0x49, 0xff]);
    }

    /// `movzx ecx, byte ptr gs:[table + line]` and `lea ecx, [rcx - 1]`
    pub(super) fn look_up_line(&mut self, table: Slot, line: usize) {
        self.put(&[0x65, 0x0f, 0xb6, 0x0c, 0x25]);
        self.put(&(table.0 + line as u32).to_le_bytes());
        self.put(&[0x8d, 0x49, 0xff]);
    }

    /// `movsx ecx, byte ptr gs:[slot + 7]`: 0 unless what is there is negative, or very large
    pub(super) fn load_sign(&mut self, slot: Slot) {
        self.put(&[0x65, 0x0f, 0xbe, 0x0c, 0x25]);
        self.put(&(slot.0 + 7).to_le_bytes());
    }

    /// `mov rcx, gs:[context]` and `mov rcx, [rcx + FS base]`
    pub(super) fn load_fs_base(&mut self) {
        self.reload(RCX, CONTEXT);
        self.put(&[0x48, 0x8b, 0x89]);
        self.put(&(offset_of!(Context, fs_base) as u32).to_le_bytes());
    }

    /// `mov byte ptr gs:[slot], value`
    pub(super) fn set_byte(&mut self, slot: Slot, value: u8) {
        self.put(&[0x65, 0xc6, 0x04, 0x25]);
        self.put(&slot.0.to_le_bytes());
        self.put(&[value]);
    }

    /// `rdfsbase rdx`
    pub(super) fn read_fs_base_to_rdx(&mut self) {
        self.put(&[0xf3, 0x48, 0x0f, 0xae, 0xc2]);
    }

    /// `movsx rcx, byte ptr gs:[slot]`
    pub(super) fn load_signed_byte(&mut self, slot: Slot) {
        self.put(&[0x65, 0x48, 0x0f, 0xbe, 0x0c, 0x25]);
        self.put(&slot.0.to_le_bytes());
    }

    /// `mov rdx, rcx`
    pub(super) fn copy_rcx_to_rdx(&mut self) {
        self.put(&[0x48, 0x89, 0xca]);
    }

    /// `lea rdx, [rdx + rcx]`
    pub(super) fn add_rcx_to_rdx(&mut self) {
        self.put(&[0x48, 0x8d, 0x14, 0x0a]);
    }

    /// `mov rdx, rbp`
    pub(super) fn copy_rbp_to_rdx(&mut self) {
        self.put(&[0x48, 0x89, 0xea]);
    }

    /// `lea rdx, [rsp + offset]`
    pub(super) fn stack_address(&mut self, offset: i8) {
        self.put(&[0x48, 0x8d, 0x54, 0x24, offset as u8]);
    }

    /// `rdfsbase rcx`
    pub(super) fn read_fs_base_to_rcx(&mut self) {
        self.put(&[0xf3, 0x48, 0x0f, 0xae, 0xc1]);
    }

    /// `movzx ecx, ch`
    pub(super) fn second_byte_of_rcx(&mut self) {
        self.put(&[0x0f, 0xb6, 0xcd]);
    }

    /// Loads so many bytes at rdx + rcx into rcx, which gets no others.
    pub(super) fn load_at_rdx_plus_rcx(&mut self, bytes: u8) {
        self.put(match bytes {
            1 => &[0x0f, 0xb6, 0x0c, 0x11],
            2 => &[0x0f, 0xb7, 0x0c, 0x11],
            4 => &[0x8b, 0x0c, 0x11],
            _ => &[0x48, 0x8b, 0x0c, 0x11],
        });
    }

    /// `pext rcx, rcx, gs:[slot]`
    pub(super) fn extract_bits(&mut self, slot: Slot) {
        self.put(&[0x65, 0xc4, 0xe2, 0xf2, 0xf5, 0x0c, 0x25]);
        self.put(&slot.0.to_le_bytes());
    }

    /// `or [rcx + offset], rdx`, of so many bytes; changes the flags.
    pub(super) fn or_at_rcx(&mut self, offset: u8, bytes: u8) {
        self.put(match bytes {
            1 => &[0x08],
            2 => &[0x66, 0x09],
            4 => &[0x09],
            _ => &[0x48, 0x09],
        });
        self.put(&[0x51, offset]);
    }

    /// Puts the status flags into rax, which goes into its slot.
    pub(super) fn save_flags(&mut self) {
        self.spill(RAX_SLOT, RAX);
        // lahf; seto al
        self.put(&[0x9f, 0x0f, 0x90, 0xc0]);
    }

    /// Undoes [`Self::save_flags`].
    pub(super) fn restore_flags(&mut self) {
        // add al, 0x7f, which overflows if OF was set; sahf
        self.put(&[0x04, 0x7f, 0x9e]);
        self.reload(RAX, RAX_SLOT);
    }

    /// `mov gs:[rcx + end of the log], rdx`
    pub(super) fn log_rdx(&mut self) {
        self.put(&[0x65, 0x48, 0x89, 0x91]);
        self.put(&super::state::LOG_END.to_le_bytes());
    }

    /// `mov dword ptr gs:[rcx + end of the log + offset], value`
    pub(super) fn log_constant(&mut self, offset: u32, value: u32) {
        self.put(&[0x65, 0xc7, 0x81]);
        self.put(&(super::state::LOG_END + offset).to_le_bytes());
        self.put(&value.to_le_bytes());
    }

    /// A short jump to where [`Self::arrive8`] says.
    pub(super) fn forward(&mut self) -> u64 {
        self.put(&[0xeb, 0]);
        self.here() - 1
    }

    /// The same, if rcx is 0.
    pub(super) fn forward_if_rcx_zero(&mut self) -> u64 {
        self.put(&[0xe3, 0]);
        self.here() - 1
    }

    /// The same, unless rcx is 0.
    pub(super) fn forward_unless_rcx_zero(&mut self) -> u64 {
        self.skip_if_rcx_zero(2);
        self.forward()
    }

    /// Lets a short jump lead here.
    pub(super) fn arrive8(&mut self, field: u64) {
        let distance = i8::try_from(self.here() - field - 1);
        self.set8(field, distance.expect("the code of one access is shorter") as u8);
    }

    /// `jrcxz` over the next `bytes` bytes
    pub(super) fn skip_if_rcx_zero(&mut self, bytes: u8) {
        self.put(&[0xe3, bytes]);
    }
}

/// The displacement for a field at `field` that ends an instruction and leads to `target`.
pub(super) fn displacement(field: u64, target: u64) -> u32 {
    target.wrapping_sub(field + 4) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

    /// Whatever the operand is, the load has the same one.
    #[test]
    fn operands_of_branches_are_loaded() {
        let branches: [&[u8]; 9] = [
            &[0xff, 0x10],
            &[0xff, 0x20],
            &[0xff, 0x50, 0x18],
            &[0x41, 0xff, 0x54, 0x24, 0x08],
            &[0x42, 0xff, 0x24, 0xe5, 0x10, 0x20, 0x30, 0x00],
            &[0x43, 0xff, 0xa4, 0xcd, 0x78, 0x56, 0x34, 0x12],
            &[0x3e, 0xff, 0x24, 0xc2],
            &[0x64, 0xff, 0x14, 0x25, 0x10, 0, 0, 0],
            &[0xf2, 0x67, 0x41, 0xff, 0x50, 0xf8],
        ];
        let decode =
            |bytes: &[u8]| Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        for bytes in branches {
            let mut code = Code::default();
            assert!(code.load_operand_of_branch(bytes), "{bytes:x?}");
            let (branch, load) = (decode(bytes), decode(code.bytes()));
            assert_eq!((load.mnemonic(), load.op0_register()), (Mnemonic::Mov, Register::RCX));
            let operand = |i: &iced_x86::Instruction| {
                let prefix = Some(i.segment_prefix()).filter(|&segment| segment == Register::FS);
                let address = (i.memory_base(), i.memory_index(), i.memory_index_scale());
                (prefix, address, i.memory_displacement64())
            };
            assert_eq!(operand(&branch), operand(&load), "{bytes:x?}");
            assert_eq!(load.len(), code.bytes().len());
        }
        assert!(!Code::default().load_operand_of_branch(&[]));
        assert!(!Code::default().load_operand_of_branch(&[0xe8, 0, 0, 0, 0]));
    }
}
