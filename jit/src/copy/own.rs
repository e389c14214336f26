//! Gates for instructions that write to a word of the thread's own, in a recording.
//!
//! Such an instruction has no event ([`refrain_vm::OwnWords`]): what the machine does before and after it
//! is to look whether the word is the thread's own, to hold the word's slot meanwhile, and to count. These
//! gates do that, step by step as `refrain_vm`'s `order/record` does (`store_own`, `release`), and call the
//! machine if anything is not as it mostly is: the thread has not met the word, the word is not its own, or
//! the slot is held.

use super::desc::Desc;
use super::inline::{call_machine, gate, operand_gate};
use super::state::ThreadState;
use refrain_vm::{LastMet, Met, OwnWords};
use std::arch::naked_asm;
use std::mem::offset_of;

/// The gate before an instruction that writes `$size` bytes. `$locked` makes [`refrain_trace::own_store`]'s number
/// of the low half of the instruction's address, in ecx.
macro_rules! before {
    ($name:ident, $size:literal, $read:literal, $locked:literal) => {
        operand_gate!(
            $name,
            $size,
            [
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
                "mov rdx, gs:[{first}]",
                "je 4f",
                "mov rdx, [rdx + {counter}]",
                "mov [rdx], rax",
                "jmp 2f",
                "4:",
                "mov rcx, gs:[{met}]",
                "inc qword ptr [rcx]",
                "mov [rdx + {version}], rax",
                "add rdx, {of_size}",
                "mov [rcx + {storing}], rdx",
                "mov rcx, gs:[{scratch}]",
                // The descriptor begins with where to go on.
                "mov rcx, [rcx]",
            ],
            first = const offset_of!(ThreadState, aside),
            second = const offset_of!(ThreadState, aside) + 8,
            of_size = const LastMet::first($size),
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
        );
    };
}

/// The gate behind it, with the descriptor of an instruction that has been performed.
macro_rules! after {
    ($name:ident, $size:literal, $read:literal) => {
        gate!(
            $name,
            $size,
            [
                "mov rdx, gs:[{met}]",
                "mov rax, [rdx + {storing}]",
                "test rax, rax",
                "jz 2f",
                "mov qword ptr [rdx + {storing}], 0",
                // The thread meets what it has left there, or nothing if that is out of reach.
                "movabs rcx, {tag_size}",
                "xor rcx, [rax + {tag}]",
                "3:",
                $read,
                refrain_vm::recovers!("3b", "4f"),
                "mov [rax + {value}], rcx",
                "jmp 5f",
                "4:",
                "mov qword ptr [rax + {tag}], 0",
                "5:",
                "mov rcx, [rax + {counter}]",
                "mov rdx, [rax + {version}]",
                "mov [rcx], rdx",
                "mov rcx, gs:[{scratch}]",
                "mov ecx, [rcx + {resume}]",
            ],
            tag = const offset_of!(Met, tag),
            version = const offset_of!(Met, version),
            value = const offset_of!(Met, value),
            counter = const offset_of!(Met, counter),
            storing = const offset_of!(LastMet, storing),
            resume = const Desc::RESUME,
        );
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
