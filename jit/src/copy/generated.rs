//! Code that the guest generates.
//!
//! A block of it begins with a comparison of the code in memory with what was translated:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       movdqu [vector], xmm0
//!       mov [scratch], rdx
//!       mov rdx, code
//!       movdqu xmm0, [rdx]        again for each sixteen bytes
//!       pcmpeqb xmm0, [bytes]
//!       pmovmskb ecx, xmm0
//!       lea ecx, [rcx - 0xffff]
//!       jrcxz same
//!       jmp changed               among the rare exits: has the block translated again
//! same: mov rdx, [scratch]
//!       movdqu xmm0, [vector]
//!       mov rcx, [rcx slot]
//!       translation of the block
//! ```
//!
//! A block of less than sixteen bytes is compared as its first eight and its last eight bytes, and one of less
//! than eight by fours, in rcx alone.
//!
//! The comparison changes no flags, even if the block overwrites them: other code that has taken the block's
//! place may read them. It holds for whatever has written the code: this thread or another,
//! the kernel, or a second mapping of the same memory. Nothing needs to be invalidated.
//!
//! With every access in order ([`refrain_vm::EngineConfig::every_access`]), reading code is an access too:
//! a thread that may not read the lines of the code by itself asks the machine
//! ([`refrain_vm::Exit::Code`]), which lets it read the code, and executes what it has read. Such
//! an access is not counted, because blocks begin elsewhere in a replay, but it is an event.
//!
//! A thread asks before it writes a line that another thread may read, and each thread looks up its own stores.
//! So in a recording, a thread compares a line once, with all blocks that have been made of it, and *keeps* the
//! line until some thread is about to write it ([`refrain_vm::Filter`]). A block of the line begins with a look
//! whether the thread keeps it:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       movzx ecx, [kept + line]  1 if the thread keeps it
//!       lea ecx, [rcx - 1]
//!       jrcxz kept
//!       jmp ask
//! kept: mov rcx, [rcx slot]       or the same for the block's next line
//!       translation of the block
//! ```
//!
//! Where a comparison finds that a block has changed, the look of the block is made to read a byte that is
//! always zero, so that it leads to the block's new translation. A block that had to ask [`OFTEN`] times, with
//! nothing changed, lies in a line of which something else is written all the time: it compares by itself, in
//! a window, if the thread may read the code.
//!
//! A replay compares code where the recording did, and nowhere else. A block at whose address the recording has an
//! event asks the machine, once no accesses are left before the next event; and the machine has the lines that the
//! recording compared there compared with all blocks that have been made of them. Every block begins with a jump,
//! which leads to the block's new translation when the code has changed.
//!
//! A block whose code has changed leads to its new translation from then on. If the code is what it
//! was again, so is the translation.

use super::desc::{Kind, MAX_BLOCK, Variant};
use super::emit::{self, RCX, RDX};
use super::faults::Fix;
use super::looked::{Keeping, Key, Looked, Way};
use super::state::NEVER;
use super::translator::{Failure, Translator};
use crate::memory::read_guest;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use refrain_vm::line_index;
use std::ops::Range;

/// Bytes that are compared at once, of a short block and of others.
const STEP: usize = 4;
const VECTOR: usize = 16;
/// Bytes of the jump to where a block's code has changed.
const JUMP: u8 = 5;
/// Bytes of a line that is looked up.
const LINE: u64 = 64;

/// How a block looks at its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// It compares.
    Plain,
    /// In a recording of every access: whether the thread keeps the code.
    Kept,
    /// The same where that has turned out to be of no use: it compares, if the thread may.
    Permitted,
    /// In a replay of one, which compares where the recording did: not at all.
    Followed,
    /// The same where an event may come.
    Asked,
}

/// So many times a block asks for code that has not changed, until it compares by itself.
const OFTEN: u32 = 256;

/// How many bytes the block of at most so many instructions at the start of `code` may have.
fn extent(pc: u64, code: &[u8], most: usize) -> usize {
    let mut decoder = Decoder::with_ip(64, code, pc, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut len = 0;
    for _ in 0..most {
        if !decoder.can_decode() {
            break;
        }
        decoder.decode_out(&mut instruction);
        len = decoder.position();
        if instruction.is_invalid() || instruction.flow_control() != FlowControl::Next {
            break;
        }
    }
    len.clamp(STEP.min(code.len()), code.len())
}

impl Translator {
    /// Emits the look whether the code of the block at `pc` is still `code`, as far as it is the
    /// block's.
    pub(super) fn look_at_code(&mut self, pc: u64, code: &[u8], variant: Variant) {
        let body = self.hot.here();
        let most = if variant.steps() { 1 } else { MAX_BLOCK };
        let len = extent(pc, code, most);
        // Where less can be read from here on, the bytes before are looked at too.
        let (mut start, mut last) = (pc, [0; STEP]);
        let code = if len < STEP {
            start -= (STEP - len) as u64;
            let readable = read_guest(start, &mut last);
            &last[..readable]
        } else {
            &code[..len]
        };
        if code.len() < STEP {
            // Nothing is there any more: the translation is of what faults.
            return;
        }
        let look = self.look(pc, variant);
        match look {
            Look::Kept => return self.look_whether_kept(pc, (start, code), variant),
            Look::Followed | Look::Asked => {
                return self.follow_recording(pc, (start, code), look == Look::Asked, variant);
            }
            Look::Plain | Look::Permitted => {}
        }
        self.faults.begin(body, pc);
        self.hot.spill(emit::RCX_SLOT, RCX);
        if look == Look::Permitted {
            self.may_read_code(pc, start..start + code.len() as u64, variant);
        }
        let by_vector = code.len() >= VECTOR / 2;
        let fix = if by_vector { Fix::RcxRdxAndVector } else { Fix::RcxAndRdx };
        if by_vector {
            self.hot.spill_vector();
        }
        self.hot.spill(emit::SCRATCH, RDX);
        self.faults.mark(self.hot.here(), pc, 0, fix);
        self.hot.load_constant(RDX, start);
        if by_vector {
            self.compare_by_vector(code);
        } else {
            self.compare(code);
        }
        self.hot.reload(RDX, emit::SCRATCH);
        if by_vector {
            self.hot.reload_vector();
        }
        if look == Look::Permitted {
            self.hot.set_byte(emit::WINDOW, 0);
        }
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.faults.end(self.hot.here(), 0);
        if look != Look::Plain {
            let (code, behind) = (code.to_vec(), self.hot.here());
            let looked = Looked { code, start, behind, way: Way::Compares };
            self.looked.blocks.insert((pc, variant), looked);
        }
        self.changed_exit(pc, body, variant, fix);
    }

    /// Emits the jump by which the block at `pc`, which has these bytes, can be made to lead to its new translation,
    /// and the way out where an event may come.
    fn follow_recording(
        &mut self,
        pc: u64,
        (start, code): (u64, &[u8]),
        asks: bool,
        variant: Variant,
    ) {
        let body = self.hot.here();
        self.faults.begin(body, pc);
        self.hot.align_field(1);
        self.hot.put(&[0xe9]);
        let jump = self.hot.here();
        self.hot.rel32(jump + 4);
        if asks {
            self.faults.mark(self.hot.here(), pc, 0, Fix::Rcx);
            self.hot.spill(emit::RCX_SLOT, RCX);
            self.ask_when_none_are_left(pc, code.len(), variant);
            self.hot.reload(RCX, emit::RCX_SLOT);
        }
        self.faults.end(self.hot.here(), 0);
        for line in lines(start, start + code.len() as u64) {
            self.looked.keeping.entry(line).or_default().push((pc, variant));
        }
        let way = Way::Follows { jump, changed: self.cold.here() };
        let (code, behind) = (code.to_vec(), self.hot.here());
        self.looked.blocks.insert((pc, variant), Looked { code, start, behind, way });
        self.changed_exit(pc, body, variant, Fix::None);
    }

    /// Emits the comparison of the code at rdx with these bytes. Where they differ it goes on with what is emitted
    /// next among the rare exits.
    fn compare(&mut self, code: &[u8]) {
        let changed = self.cold.here();
        // The last comparison overlaps the one before, if it must.
        let end = code.len() - STEP;
        for offset in (0..end).step_by(STEP).chain([end]) {
            let bytes = code[offset..offset + STEP].try_into().expect("as many as a step has");
            self.hot.difference_at_rdx(offset as u32, u32::from_le_bytes(bytes));
            self.hot.skip_if_rcx_zero(JUMP);
            self.hot.jmp(changed);
        }
    }

    /// The same of at least eight bytes, in xmm0.
    fn compare_by_vector(&mut self, code: &[u8]) {
        const HALF: usize = VECTOR / 2;
        let is_whole = code.len() >= VECTOR;
        let last = code.len() - if is_whole { VECTOR } else { HALF };
        let offsets: Vec<usize> = match is_whole {
            true => (0..last).step_by(VECTOR).chain([last]).collect(),
            false => vec![last],
        };
        let constant = |&offset: &usize| {
            let mut bytes = [0; VECTOR];
            if is_whole {
                bytes.copy_from_slice(&code[offset..offset + VECTOR]);
            } else {
                bytes[..HALF].copy_from_slice(&code[..HALF]);
                bytes[HALF..].copy_from_slice(&code[offset..]);
            }
            self.cold.constant(bytes)
        };
        let constants: Vec<u64> = offsets.iter().map(constant).collect();
        let changed = self.cold.here();
        for (offset, constant) in offsets.into_iter().zip(constants) {
            match is_whole {
                true => self.hot.load_vector_at_rdx(offset as u32),
                false => self.hot.load_halves_at_rdx(offset as u32),
            }
            self.hot.difference_of_vector(constant);
            self.hot.skip_if_rcx_zero(JUMP);
            self.hot.jmp(changed);
        }
    }

    /// Emits the look whether the thread keeps the code of the block at `pc`, which has these bytes.
    fn look_whether_kept(&mut self, pc: u64, (start, code): (u64, &[u8]), variant: Variant) {
        /// Bytes before the first displacement, and from that to the one of the jump.
        const BEFORE: u64 = 14;
        const APART: u64 = 10;
        let body = self.hot.here();
        let end = start + code.len() as u64;
        let ask = self.ask_for_code(pc, (end - pc) as usize, variant);
        self.faults.begin(body, pc);
        self.hot.align_fields(BEFORE, APART % 8);
        let entry = self.hot.here() + BEFORE;
        self.faults.mark(self.hot.here(), pc, 0, Fix::Rcx);
        self.save_rcx();
        for line in lines(start, end) {
            self.looked.keeping.entry(line).or_default().push((pc, variant));
            self.hot.look_up_line(emit::KEPT, line);
            self.hot.skip_if_rcx_zero(JUMP);
            self.hot.jmp(ask);
        }
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.faults.end(self.hot.here(), 0);
        let changed = self.cold.here();
        let way = Way::Keeps(Keeping { entry, jump: entry + APART, changed, asked: 0 });
        let (code, behind) = (code.to_vec(), self.hot.here());
        self.looked.blocks.insert((pc, variant), Looked { code, start, behind, way });
        self.changed_exit(pc, body, variant, Fix::Rcx);
    }

    /// Whether the guest generates the code at an address.
    pub(super) fn is_generated(&self, pc: u64) -> bool {
        // Most guests generate none, and this is asked of every block.
        !self.generated.is_empty() && self.generated.contains(&pc)
    }

    /// How the block at an address looks at its code, if that is generated.
    pub(super) fn look(&self, pc: u64, variant: Variant) -> Look {
        let every = self.config.order_atomics && self.several && self.config.every_access;
        match &self.config.watched {
            _ if !every || !variant.observed() => Look::Plain,
            None if self.looked.comparing.contains(&pc) => Look::Permitted,
            None => Look::Kept,
            Some(sites) if sites.contains(&pc) && self.is_generated(pc) => Look::Asked,
            Some(_) => Look::Followed,
        }
    }

    /// Emits the opening of the window, and the way out if the thread may not read the code. rcx is
    /// in its slot.
    fn may_read_code(&mut self, pc: u64, code: Range<u64>, variant: Variant) {
        let ask = self.ask_for_code(pc, (code.end - pc) as usize, variant);
        self.hot.set_byte(emit::WINDOW, 1);
        for line in lines(code.start, code.end) {
            self.hot.look_up_line(emit::READABLE, line);
            self.hot.skip_if_rcx_zero(JUMP);
            self.hot.jmp(ask);
        }
    }

    /// Emits the way out of a replay where the next event may be of reading this code. rcx is in its
    /// slot.
    fn ask_when_none_are_left(&mut self, pc: u64, len: usize, variant: Variant) {
        let ask = self.ask_for_code(pc, len, variant);
        self.hot.reload(RCX, emit::COUNT);
        let more = self.hot.forward_unless_rcx_zero();
        self.hot.jmp(ask);
        self.hot.arrive8(more);
    }

    /// Emits, among the rare exits, the one that asks the machine for the code at `pc`.
    fn ask_for_code(&mut self, pc: u64, len: usize, variant: Variant) -> u64 {
        let ask = self.cold.here();
        self.leave_cold(Kind::Code { len: len as u16, variant }, pc);
        ask
    }

    /// Where the translation of the block at `pc`, as its code is now, goes on behind its look. The
    /// block has been asked for.
    pub(super) fn behind_the_look(&self, pc: u64, variant: Variant) -> Option<u64> {
        self.looked.blocks.get(&(pc, variant)).map(|looked| looked.behind)
    }

    /// Forgets the translations of blocks whose code has changed, in the lines of so many bytes from `pc` on, where
    /// a thread has come to. In a recording, the thread is about to keep these lines.
    pub(super) fn look_again(
        &mut self,
        pc: u64,
        len: u64,
        variant: Variant,
    ) -> Result<(), Failure> {
        let key = (pc, variant);
        let start = self.looked.blocks.get(&key).map_or(pc, |looked| looked.start);
        if len > 0 {
            for line in lines(start, pc + len) {
                self.look_at_line(line);
            }
        }
        let Some(body) = self.bodies.get(pc, variant) else { return Ok(()) };
        let is_over = match self.looked.blocks.get_mut(&key) {
            None => true,
            Some(looked) if looked.way == Way::Compares => !is_current(looked),
            Some(Looked { way: Way::Keeps(keeping), .. }) => {
                keeping.asked += 1;
                let is_often = keeping.asked == OFTEN;
                if is_often {
                    self.looked.comparing.insert(pc);
                    self.outdate(key);
                }
                is_often
            }
            Some(_) => false,
        };
        if is_over { self.changed(pc, variant, body, None) } else { Ok(()) }
    }

    /// How many bytes of code a thread has compared that has found, by itself, that the block at `pc` has changed:
    /// in a recording of every access, whose replay compares where the recording did.
    pub(super) fn compared_by_itself(&self, pc: u64, variant: Variant) -> Option<u64> {
        let looked = self.looked.blocks.get(&(pc, variant))?;
        let is_told = self.looked.comparing.contains(&pc) && looked.way == Way::Compares;
        is_told.then_some(looked.start + looked.code.len() as u64 - pc)
    }

    /// Compares a line with the blocks that have been made of it.
    fn look_at_line(&mut self, line: usize) {
        let Some(mut keys) = self.looked.keeping.remove(&line) else { return };
        keys.retain(|key| {
            let is_there = |looked: &Looked| looked.way != Way::Compares;
            let looked = self.looked.blocks.get(key).filter(|looked| is_there(looked));
            let stays = looked.is_some_and(is_current);
            if looked.is_some() && !stays {
                self.outdate(*key);
            }
            stays
        });
        keys.sort_unstable();
        keys.dedup();
        self.looked.keeping.insert(line, keys);
    }

    /// A block has changed: whoever comes to it goes to its new translation.
    fn outdate(&mut self, key: Key) {
        match self.looked.blocks.remove(&key).map(|looked| looked.way) {
            // No thread keeps the line whose code is not what it was, so each look of this block leads to `jump`.
            Some(Way::Keeps(Keeping { entry, jump, changed, .. })) => {
                self.patch(jump, changed);
                self.make_displacement(entry, NEVER);
            }
            Some(Way::Follows { jump, changed }) => self.patch(jump, changed),
            Some(Way::Compares) | None => {}
        }
    }

    /// Emits the way out of a block whose code has changed: a jump to its translation, once there
    /// is one. `spilled` says which registers are in their slots.
    fn changed_exit(&mut self, pc: u64, body: u64, variant: Variant, spilled: Fix) {
        if spilled == Fix::RcxRdxAndVector {
            self.cold.reload_vector();
        }
        if matches!(spilled, Fix::RcxRdxAndVector | Fix::RcxAndRdx) {
            self.cold.reload(RDX, emit::SCRATCH);
        }
        if spilled != Fix::None {
            self.cold.reload(RCX, emit::RCX_SLOT);
        }
        self.cold.align_field(1);
        self.cold.put(&[0xe9]);
        let field = self.cold.here();
        let exit = field + 4;
        self.cold.rel32(exit);
        self.cold.spill(emit::RCX_SLOT, RCX);
        let kind = Kind::Changed { body: body as u32, field: field as u32, variant };
        self.leave_cold(kind, pc);
        self.links.push((field as u32, exit as u32));
    }

    /// The code of the block at `pc` is not what was translated to `body`. Lets the jump with this
    /// field lead to what it is now, and the tables too.
    pub(super) fn changed(
        &mut self,
        pc: u64,
        variant: Variant,
        body: u64,
        field: Option<u64>,
    ) -> Result<(), Failure> {
        // Another thread may have come here before.
        if self.bodies.get(pc, variant) == Some(body) {
            self.bodies.remove(pc, variant);
            let jumped = self.jump_entries.remove(pc, variant).is_some();
            let returned = self.return_entries.remove(pc, variant).is_some();
            self.body(pc, variant)?;
            if jumped {
                self.enter_jump(pc, variant)?;
            }
            if returned {
                self.enter_return(pc, variant)?;
            }
        }
        let now = self.body(pc, variant)?;
        if let Some(field) = field {
            self.link(field, now);
        }
        Ok(())
    }
}

/// Whether the code in memory is what a block was made of.
fn is_current(looked: &Looked) -> bool {
    let mut now = vec![0; looked.code.len()];
    let readable = read_guest(looked.start, &mut now);
    now[..readable] == looked.code[..]
}

/// The indices of the lines of these bytes.
fn lines(start: u64, end: u64) -> impl Iterator<Item = usize> {
    let lines = start & !(LINE - 1)..end;
    lines.step_by(LINE as usize).map(line_index)
}
