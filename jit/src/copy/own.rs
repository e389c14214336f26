//! Gates for instructions that write to a word of the thread's own, in a recording.
//!
//! Such an instruction has no event ([`refrain_vm::OwnWords`]): what the machine does before and after it
//! is to look whether the word is the thread's own, to hold the word's slot meanwhile, and to count. These
//! gates do that, step by step as `refrain_vm`'s `order/record` does (`store_own`, `release`), and call the
//! machine if anything is not as it mostly is: the thread has not met the word, the word is not its own, or
//! the slot is held.

use super::desc::Desc;
use super::inline::call_machine;
use super::state::ThreadState;
use refrain_vm::{LastMet, Met, OwnWords};
use std::arch::naked_asm;
use std::mem::offset_of;

/// Saves the guest's rax, rdx and flags; rcx, a descriptor, goes to `scratch`.
macro_rules! begin {
    () => {
        concat!(
            "mov gs:[{scratch}], rcx\n",
            "mov gs:[{rax}], rax\n",
            "lahf\n",
            "seto al\n",
            "mov gs:[{flags}], rax\n",
            "mov gs:[{rdx}], rdx",
        )
    };
}

/// Puts them back.
macro_rules! end {
    () => {
        concat!(
            "mov rdx, gs:[{rdx}]\n",
            "mov rax, gs:[{flags}]\n",
            "add al, 0x7f\n",
            "sahf\n",
            "mov rax, gs:[{rax}]",
        )
    };
}

/// The gate before an instruction that writes `$size` bytes: as [`super::inline`]'s gates for loads. `$locked`
/// makes [`refrain_trace::own_store`]'s number of the low half of its address, in ecx.
macro_rules! before {
    ($name:ident, $size:literal, $read:literal, $locked:literal) => {
        /// # Safety
        /// Translated code alone comes here, by jumps: rcx is a [`Desc`], the guest's rcx is in its slot, the
        /// operand's address in the thread's `operand`.
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name() {
            naked_asm!(
                begin!(),
                // What the thread has met there, at rax.
                "mov rcx, gs:[{operand}]",
                "imul rax, rcx, {factor}",
                "shr rax, {shift}",
                "and eax, {last}",
                "imul eax, eax, {entry_size}",
                "add rax, gs:[{met}]",
                "movabs rdx, {tag_size}",
                "xor rdx, rcx",
                "cmp rdx, [rax + {tag}]",
                "jne 2f",
                "mov gs:[{first}], rax",
                // Whose word it is, at rdx.
                "mov rdx, gs:[{met}]",
                "mov rdx, [rdx + {owners}]",
                "test rdx, rdx",
                "jz 2f",
                "mov rax, rcx",
                "shr rax, {page}",
                "imul rax, [rip + {hash}]",
                "shr rax, {pages}",
                "imul eax, eax, {words}",
                "shr ecx, 3",
                "and ecx, {last_word}",
                "add eax, ecx",
                "lea rdx, [rdx + 8 * rax]",
                "mov gs:[{second}], rdx",
                "mov rax, gs:[{met}]",
                "mov eax, [rax + {own}]",
                "cmp eax, [rdx]",
                "jne 2f",
                // It may have been taken out of reach since.
                "mov rcx, gs:[{operand}]",
                "3:",
                $read,
                refrain_vm::recovers!("3b", "2f"),
                // The slot, of which the ticket is in rax.
                "mov rdx, gs:[{first}]",
                "mov rdx, [rdx + {counter}]",
                "mov rax, [rdx]",
                "test rax, rax",
                "js 2f",
                "mov rcx, rax",
                "bts rcx, {held}",
                "bts rcx, {lent}",
                "lock cmpxchg [rdx], rcx",
                "jne 2f",
                // Whoever takes the word over now waits for the slot.
                "mov rdx, gs:[{second}]",
                "mov rcx, gs:[{scratch}]",
                "mov ecx, [rcx + {pc}]",
                $locked,
                "mov [rdx + {stored}], ecx",
                "mov rcx, gs:[{met}]",
                "mov ecx, [rcx + {own}]",
                "cmp ecx, [rdx]",
                "jne 4f",
                "mov rcx, gs:[{met}]",
                "mov rdx, gs:[{first}]",
                "inc qword ptr [rcx]",
                "mov [rdx + {version}], rax",
                "add rdx, {of_size}",
                "mov [rcx + {storing}], rdx",
                "mov rcx, gs:[{scratch}]",
                // The descriptor begins with where to go on.
                "mov rcx, [rcx]",
                "mov gs:[{entry}], rcx",
                end!(),
                "mov rcx, gs:[{rcx}]",
                "jmp gs:[{entry}]",
                "4:",
                "mov rdx, gs:[{first}]",
                "mov rdx, [rdx + {counter}]",
                "mov [rdx], rax",
                "2:",
                end!(),
                "mov rcx, gs:[{scratch}]",
                "jmp {machine}",
                scratch = const offset_of!(ThreadState, scratch),
                rax = const offset_of!(ThreadState, rax),
                rdx = const offset_of!(ThreadState, rdx),
                rcx = const offset_of!(ThreadState, rcx),
                flags = const offset_of!(ThreadState, flags),
                operand = const offset_of!(ThreadState, operand),
                met = const offset_of!(ThreadState, met),
                entry = const offset_of!(ThreadState, entry),
                first = const offset_of!(ThreadState, aside),
                second = const offset_of!(ThreadState, aside) + 8,
                factor = const LastMet::FACTOR,
                shift = const LastMet::SHIFT,
                last = const LastMet::ENTRIES - 1,
                entry_size = const size_of::<Met>(),
                of_size = const LastMet::first($size),
                tag_size = const Met::tag(0, $size),
                tag = const LastMet::first($size) + offset_of!(Met, tag),
                version = const LastMet::first($size) + offset_of!(Met, version),
                counter = const LastMet::first($size) + offset_of!(Met, counter),
                owners = const offset_of!(LastMet, owners),
                own = const offset_of!(LastMet, own),
                storing = const offset_of!(LastMet, storing),
                page = const OwnWords::PAGE_SHIFT,
                hash = sym HASH,
                pages = const OwnWords::HASH_SHIFT,
                words = const OwnWords::WORDS,
                last_word = const OwnWords::WORDS - 1,
                stored = const OwnWords::STORED,
                held = const OwnWords::HELD_BIT,
                lent = const OwnWords::LENT_BIT,
                pc = const offset_of!(Desc, pc),
                machine = sym call_machine,
            )
        }
    };
}

/// The gate behind it.
macro_rules! after {
    ($name:ident, $size:literal, $read:literal) => {
        /// # Safety
        /// Translated code alone comes here, by jumps: rcx is a [`Desc`] of an instruction that has been
        /// performed, the guest's rcx is in its slot.
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name() {
            naked_asm!(
                begin!(),
                "mov rdx, gs:[{met}]",
                "mov rax, [rdx + {storing}]",
                "test rax, rax",
                "jz 2f",
                "mov qword ptr [rdx + {storing}], 0",
                // The thread meets what it has left there.
                "movabs rcx, {tag_size}",
                "xor rcx, [rax + {tag}]",
                "3:",
                $read,
                refrain_vm::recovers!("3b", "4f"),
                "mov [rax + {value}], rcx",
                "5:",
                "mov rcx, [rax + {counter}]",
                "mov rdx, [rax + {version}]",
                "mov [rcx], rdx",
                "mov rcx, gs:[{scratch}]",
                "mov ecx, [rcx + {resume}]",
                "mov gs:[{entry}], rcx",
                end!(),
                "mov rcx, gs:[{rcx}]",
                "jmp gs:[{entry}]",
                "4:",
                "mov qword ptr [rax + {tag}], 0",
                "jmp 5b",
                "2:",
                end!(),
                "mov rcx, gs:[{scratch}]",
                "jmp {machine}",
                scratch = const offset_of!(ThreadState, scratch),
                rax = const offset_of!(ThreadState, rax),
                rdx = const offset_of!(ThreadState, rdx),
                rcx = const offset_of!(ThreadState, rcx),
                flags = const offset_of!(ThreadState, flags),
                met = const offset_of!(ThreadState, met),
                entry = const offset_of!(ThreadState, entry),
                tag_size = const Met::tag(0, $size),
                tag = const offset_of!(Met, tag),
                version = const offset_of!(Met, version),
                value = const offset_of!(Met, value),
                counter = const offset_of!(Met, counter),
                storing = const offset_of!(LastMet, storing),
                resume = const Desc::RESUME,
                machine = sym call_machine,
            )
        }
    };
}

/// What numbers of pages are multiplied with.
static HASH: u64 = OwnWords::HASH;

macro_rules! of_size {
    ($size:literal, $read:literal, $stored:ident, $updated:ident, $done:ident) => {
        before!($stored, $size, $read, "btr ecx, 31");
        before!($updated, $size, $read, "bts ecx, 31");
        after!($done, $size, $read);
    };
}

of_size!(1, "movzx ecx, byte ptr [rcx]", stored_1, updated_1, done_1);
of_size!(2, "movzx ecx, word ptr [rcx]", stored_2, updated_2, done_2);
of_size!(4, "mov ecx, [rcx]", stored_4, updated_4, done_4);
of_size!(8, "mov rcx, [rcx]", stored_8, updated_8, done_8);

/// The gates before stores and before locked instructions, and behind either, by the logarithm of the
/// operand's size.
pub(super) fn gates() -> [[*const (); 4]; 3] {
    [
        [stored_1, stored_2, stored_4, stored_8].map(|gate| gate as *const ()),
        [updated_1, updated_2, updated_4, updated_8].map(|gate| gate as *const ()),
        [done_1, done_2, done_4, done_8].map(|gate| gate as *const ()),
    ]
}
