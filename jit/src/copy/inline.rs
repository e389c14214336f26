//! Ordered instructions that are executed in line.
//!
//! Leaving translated code for each of them, for the machine to take the instruction's place in
//! the order and to have it executed alone, costs several times what the instruction does, most
//! of it while other threads wait for their places. So the machine is called instead, before and
//! after ([`OrderedFastPath`]), and the instruction stays where it is:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       lea rcx, [operand]
//!       mov [operand slot], rcx
//!       mov rcx, descriptor
//!       jmp gate                  goes on at the next line, or leaves
//!       the instruction
//!       mov [rcx slot], rcx
//!       mov rcx, descriptor
//!       jmp gate
//! ```
//!
//! A load that the machine has a value for is executed with the thread's operand slot in place of
//! its memory operand, and nothing is called after it. Most loads need not even the machine: they
//! go through a gate that looks into what the thread met last ([`LastMet`]). In a recording a load
//! passes that finds its value there, at the version that its word's slot has after reading, and
//! that no loop has polled at this word just before, or any value if the thread is alone; in a replay,
//! one that comes before the next event.

use super::desc::{Desc, Kind, Strings};
use super::state::{ThreadState, leave};
use super::vectors::{
    self, load_halves, load_lower, load_wide, store_halves, store_lower, store_wide, test_halves,
};
use refrain_vm::layout::PAGE;
use refrain_vm::{Context, LastMet, Met, OrderedAccess, Span};
use std::arch::naked_asm;
use std::mem::offset_of;

/// Leave translated code.
const LEAVE: i64 = -1;

/// The gate to the machine: rcx is a [`Desc`], the guest's rcx is in its slot. Goes on where
/// [`concerned`] says, or leaves with the descriptor.
///
/// The function runs on the host's stack, so that nothing of the host's stays on the guest's.
/// Everything of the guest's that a function may change is put back.
///
/// # Safety
/// Translated code alone comes here, by jumps, in the state that is described above.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn call_machine() {
    naked_asm!(
        "mov gs:[{target}], rsp",
        "mov rsp, gs:[{host_rsp}]",
        // With nine words the stack is aligned.
        "pushfq",
        "cld",
        "push rax",
        "push rdx",
        "push rsi",
        "push rdi",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        // The lower halves of the vector registers, the upper ones, and whether those are in use.
        "sub rsp, 0x210",
        store_lower!("rsp", "0"),
        "mov gs:[{scratch}], rcx",
        "mov dword ptr [rsp + 0x200], 0",
        "cmp dword ptr gs:[{vectors}], {none}",
        "je 5f",
        // The context has room for more: until the thread leaves translated code, what is there is old.
        "cmp dword ptr gs:[{vectors}], {avx_512}",
        "jne 8f",
        "mov rax, gs:[{context}]",
        "mov rax, [rax + {wide}]",
        "test rax, rax",
        "jz 8f",
        store_wide!("rax"),
        "8:",
        test_halves!("rsp", "0x100"),
        "jz 4f",
        store_halves!("rsp", "0x100"),
        "mov dword ptr [rsp + 0x200], 1",
        "4:",
        "vzeroupper",
        "5:",
        "mov rdi, gs:[{scratch}]",
        "rdgsbase rsi",
        "call {concerned}",
        "mov gs:[{entry}], rax",
        "mov rcx, rax",
        "cmp dword ptr gs:[{vectors}], {none}",
        "je 6f",
        // Whatever host code has left there.
        "vzeroupper",
        "6:",
        load_lower!("rsp", "0"),
        "cmp dword ptr [rsp + 0x200], 0",
        "je 7f",
        load_halves!("rsp", "0x100"),
        "7:",
        "cmp dword ptr gs:[{vectors}], {avx_512}",
        "jne 9f",
        "mov rax, gs:[{context}]",
        "mov rax, [rax + {wide}]",
        "test rax, rax",
        "jz 9f",
        load_wide!("rax"),
        "9:",
        "lea rsp, [rsp + 0x210]",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        // The flags as in `enter`; nothing below changes them.
        "mov rax, [rsp + 0x10]",
        "bt eax, 10",
        "jnc 2f",
        "std",
        "2:",
        "bt eax, 11",
        "setc dl",
        "add dl, 0x7f",
        "mov ah, al",
        "sahf",
        "pop rdx",
        "pop rax",
        "mov rsp, gs:[{target}]",
        // rcx is -1 to leave, and some address otherwise.
        "lea rcx, [rcx + 1]",
        "jrcxz 3f",
        "mov rcx, gs:[{rcx}]",
        "jmp gs:[{entry}]",
        "3:",
        "mov rcx, gs:[{scratch}]",
        "jmp {leave}",
        target = const offset_of!(ThreadState, target),
        host_rsp = const offset_of!(ThreadState, host_rsp),
        scratch = const offset_of!(ThreadState, scratch),
        entry = const offset_of!(ThreadState, entry),
        rcx = const offset_of!(ThreadState, rcx),
        vectors = const offset_of!(ThreadState, vectors),
        none = const vectors::NONE,
        avx_512 = const vectors::AVX_512,
        context = const offset_of!(ThreadState, context),
        wide = const offset_of!(Context, wide),
        concerned = sym concerned,
        leave = sym leave,
    )
}

/// A gate for an operand of `$size` bytes. Translated code jumps to it with a [`Desc`] in rcx and the guest's rcx
/// in its slot. `$line`s leave in rcx where translated code goes on; where one jumps to `2f`, the gate calls
/// the machine instead. They may change rax, rdx and the flags, which are saved as in `enter`.
macro_rules! gate {
    ($name:ident, $size:literal, [$($line:expr),* $(,)?], $($operand:tt)*) => {
        /// A gate.
        ///
        /// # Safety
        /// Translated code alone comes here, by jumps, in the state that the macro describes.
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name() {
            naked_asm!(
                "mov gs:[{scratch}], rcx",
                "mov gs:[{rax}], rax",
                "lahf",
                "seto al",
                "mov gs:[{flags}], rax",
                "mov gs:[{rdx}], rdx",
                $($line,)*
                "mov gs:[{entry}], rcx",
                "mov rdx, gs:[{rdx}]",
                "mov rax, gs:[{flags}]",
                "add al, 0x7f",
                "sahf",
                "mov rax, gs:[{rax}]",
                "mov rcx, gs:[{rcx}]",
                "jmp gs:[{entry}]",
                "2:",
                "mov rdx, gs:[{rdx}]",
                "mov rax, gs:[{flags}]",
                "add al, 0x7f",
                "sahf",
                "mov rax, gs:[{rax}]",
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
                machine = sym call_machine,
                $($operand)*
            )
        }
    };
}
pub(super) use gate;

/// A gate whose operand's address is in the thread's `operand`. Before `$line`s, rcx is that address, and rax is
/// where the thread keeps what it has met there, if the comparison that was made last says equal.
macro_rules! operand_gate {
    ($name:ident, $size:literal, [$($line:expr),* $(,)?], $($operand:tt)*) => {
        gate!(
            $name,
            $size,
            [
                "mov rcx, gs:[{operand}]",
                "imul rax, rcx, {factor}",
                // One shift yields the entry's number times the size of an entry.
                "shr rax, {shift}",
                "and eax, {offsets}",
                "add rax, gs:[{met}]",
                "movabs rdx, {tag_size}",
                "xor rdx, rcx",
                "cmp rdx, [rax + {tag}]",
                $($line,)*
            ],
            operand = const offset_of!(ThreadState, operand),
            factor = const LastMet::FACTOR,
            shift = const LastMet::SHIFT - size_of::<Met>().ilog2(),
            offsets = const (LastMet::ENTRIES - 1) * size_of::<Met>(),
            tag = const LastMet::first($size) + offset_of!(Met, tag),
            version = const LastMet::first($size) + offset_of!(Met, version),
            counter = const LastMet::first($size) + offset_of!(Met, counter),
            $($operand)*
        );
    };
}
pub(super) use operand_gate;

/// A gate for loads: `$check` reads the operand into rcx, and translated code goes on with that value in the
/// thread's `operand`.
macro_rules! load_gate {
    ($name:ident, $size:literal, $($check:expr),*) => {
        operand_gate!(
            $name,
            $size,
            [
                $($check,)*
                "mov gs:[{operand}], rcx",
                "mov rcx, gs:[{scratch}]",
                // The descriptor begins with where to go on.
                "mov rcx, [rcx]",
            ],
            value = const LastMet::first($size) + offset_of!(Met, value),
            polled = const offset_of!(LastMet, polled),
            alone = const offset_of!(LastMet, alone),
            window = const offset_of!(LastMet, window),
        );
    };
}

/// Reads the operand, and goes on if the thread has met that value, at the version that its slot has now.
/// The value first: no version that comes later can be in it. (It may be out of reach: the thread has met
/// other memory there.)
macro_rules! recorded_value {
    ($read:literal) => {
        concat!(
            "3:\n",
            $read,
            "\n",
            refrain_vm::recovers!("3b", "2f"),
            "\n",
            "cmp rcx, [rax + {value}]\n",
            "jne 2f\n",
            "mov rdx, [rax + {counter}]\n",
            "mov rdx, [rdx]\n",
            "cmp rdx, [rax + {version}]\n",
            "jne 2f"
        )
    };
}

/// A load that finds its value at its version has no event. Neither has one of a thread that is alone and
/// has met the word: it is counted in the thread's window, and keeps what it finds for the next one.
macro_rules! recorded_load {
    ($name:ident, $size:literal, $read:literal) => {
        load_gate!(
            $name,
            $size,
            "jne 2f",
            "mov rdx, gs:[{met}]",
            "cmp qword ptr [rdx + {alone}], 0",
            "jne 4f",
            recorded_value!($read),
            "mov rax, gs:[{met}]",
            "inc qword ptr [rax]",
            "jmp 7f",
            "4:",
            "mov qword ptr [rdx + {window}], 1",
            "cmp qword ptr [rdx + {alone}], 0",
            "je 6f",
            "5:",
            $read,
            refrain_vm::recovers!("5b", "6f"),
            "mov [rax + {value}], rcx",
            "inc qword ptr [rdx]",
            "mov qword ptr [rdx + {window}], 0",
            "jmp 7f",
            "6:",
            "mov qword ptr [rdx + {window}], 0",
            "jmp 2f",
            "7:",
            "/* {polled} */"
        );
    };
}

/// A load that a loop polls: the machine is told of a second look at the same word.
macro_rules! recorded_poll {
    ($name:ident, $size:literal, $read:literal) => {
        load_gate!(
            $name,
            $size,
            "jne 2f",
            recorded_value!($read),
            "mov rax, gs:[{met}]",
            "mov rdx, gs:[{operand}]",
            "cmp rdx, [rax + {polled}]",
            "je 2f",
            "mov [rax + {polled}], rdx",
            "inc qword ptr [rax]",
            "/* {alone} {window} */"
        );
    };
}

/// A load before the next event reads what its thread met last, or, if the thread is alone and has changed
/// the word since, what is in memory ([`LastMet::replay_alone`]).
macro_rules! replayed_load {
    ($name:ident, $size:literal, $read:literal) => {
        load_gate!(
            $name,
            $size,
            "jne 2f",
            "mov rdx, gs:[{met}]",
            "cmp qword ptr [rdx], 0",
            "je 2f",
            "cmp qword ptr [rdx + {alone}], 0",
            "je 4f",
            "3:",
            $read,
            refrain_vm::recovers!("3b", "2f"),
            "cmp rcx, [rax + {version}]",
            "je 4f",
            "mov [rax + {version}], rcx",
            "mov [rax + {value}], rcx",
            "4:",
            "dec qword ptr [rdx]",
            "mov rcx, [rax + {value}]",
            // Unused here.
            "/* {counter} {polled} {window} */"
        );
    };
}

recorded_load!(recorded_1, 1, "movzx ecx, byte ptr [rcx]");
recorded_load!(recorded_2, 2, "movzx ecx, word ptr [rcx]");
recorded_load!(recorded_4, 4, "mov ecx, [rcx]");
recorded_load!(recorded_8, 8, "mov rcx, [rcx]");
recorded_poll!(polled_1, 1, "movzx ecx, byte ptr [rcx]");
recorded_poll!(polled_2, 2, "movzx ecx, word ptr [rcx]");
recorded_poll!(polled_4, 4, "mov ecx, [rcx]");
recorded_poll!(polled_8, 8, "mov rcx, [rcx]");
replayed_load!(replayed_1, 1, "movzx ecx, byte ptr [rcx]");
replayed_load!(replayed_2, 2, "movzx ecx, word ptr [rcx]");
replayed_load!(replayed_4, 4, "mov ecx, [rcx]");
replayed_load!(replayed_8, 8, "mov rcx, [rcx]");

/// The gates of a recording, by the logarithm of the load's size.
pub(super) fn recorded_loads() -> [*const (); 4] {
    [recorded_1, recorded_2, recorded_4, recorded_8].map(|gate| gate as *const ())
}

/// Those for loads that loops poll.
pub(super) fn recorded_polls() -> [*const (); 4] {
    [polled_1, polled_2, polled_4, polled_8].map(|gate| gate as *const ())
}

/// The gates of a replay.
pub(super) fn replayed_loads() -> [*const (); 4] {
    [replayed_1, replayed_2, replayed_4, replayed_8].map(|gate| gate as *const ())
}

/// What translated code calls the machine for; returns where it goes on, or [`LEAVE`].
///
/// # Safety
/// `desc` is a descriptor of the translator's, `state` that of the calling thread, which has come
/// from translated code. Nothing in here may use thread-local storage of the host or unwind.
unsafe extern "sysv64" fn concerned(desc: *const Desc, state: *mut ThreadState) -> i64 {
    // SAFETY: the caller's; descriptors are immutable, and nobody else uses the state meanwhile.
    let (desc, state) = unsafe { (&*desc, &mut *state) };
    let Some(fast_path) = state.ordered_fast_path else { return LEAVE };
    match desc.kind {
        Kind::Ordered(operand) => {
            let mut access = OrderedAccess {
                address: state.operand,
                size: operand.size,
                kind: operand.kind,
                pc: desc.pc,
                sp: state.target,
                value: 0,
                tells: operand.found.is_some(),
            };
            // SAFETY: who gave the functions has seen to it that it may be called with this thread's
            // word.
            if unsafe { (fast_path.before)(&raw mut access, state.fast_path_data) } < 0 {
                return LEAVE;
            }
            state.operand = access.value;
            desc.go_on as i64
        }
        Kind::Strings(strings) => {
            let Some((spans, count)) = spans_of_strings(strings, state) else { return LEAVE };
            // SAFETY: as above.
            match unsafe { (fast_path.strings)(spans.as_ptr(), count, state.fast_path_data) } {
                ..0 => LEAVE,
                _ => desc.go_on as i64,
            }
        }
        Kind::Performed { resume } => {
            // SAFETY: as above; the instruction that `before` was asked about has been executed.
            unsafe { (fast_path.after)(state.operand, state.fast_path_data) };
            resume.into()
        }
        _ => LEAVE,
    }
}

/// What a string instruction is about to access whose thread has come through [`call_machine`]: so many spans.
/// `None` if it is executed in parts.
fn spans_of_strings(strings: Strings, state: &ThreadState) -> Option<([Span; 2], usize)> {
    const DF: u64 = 1 << 10;
    /// The words that the gate has pushed, by their numbers.
    const FLAGS: usize = 1;
    const RSI: usize = 4;
    const RDI: usize = 5;
    // SAFETY: the gate has pushed these words below this place on the host's stack, and is still to pop them.
    let pushed = |word: usize| unsafe { (state.host_rsp as *const u64).sub(word).read() };
    let Strings { size, reads, writes, repeats } = strings;
    let (size, elements) = (u64::from(size), if repeats { state.rcx } else { 1 });
    if elements > PAGE / size {
        return None;
    }
    let len = elements * size;
    let backwards = pushed(FLAGS) & DF != 0;
    let span = |first: u64, write: bool| {
        let start = if backwards { first.wrapping_add(size).wrapping_sub(len) } else { first };
        Span { start, len, write }
    };
    let (from, to) = (span(pushed(RSI), false), span(pushed(RDI), true));
    Some(match (reads, writes) {
        (true, true) => ([from, to], 2),
        (true, false) => ([from, from], 1),
        (false, _) => ([to, to], 1),
    })
}
