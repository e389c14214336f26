//! What GS points to while a thread executes copied code, and the way in and out.

use super::desc::{Desc, MAX_BLOCK};
use super::vectors::{
    self, load_halves, load_lower, load_wide, store_halves, store_lower, store_wide, test_halves,
};
use crate::fault::ThreadArea;
use refrain_trace::Access;
use refrain_vm::layout::PAGE;
use refrain_vm::{
    Context, FILTER_ENTRIES, Filter, INDEX_MASK, LastMet, LineTable, OrderedFastPath, Pages,
    Processor, Zeroed,
};
use std::arch::naked_asm;
use std::io;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Per-thread state that copied code reaches through GS.
#[repr(C, align(64))]
pub(super) struct ThreadState {
    /// What the fault handler needs.
    pub(super) area: ThreadArea,
    /// Guest registers while host code runs.
    pub(super) context: *mut Context,
    /// The host's stack pointer while guest code runs.
    pub(super) host_rsp: u64,
    /// Where [`enter`] jumps to.
    pub(super) entry: u64,
    /// The guest's rcx while instrumentation uses that register.
    pub(super) rcx: u64,
    /// Another spilled register.
    pub(super) scratch: u64,
    /// The guest address that an indirect branch or a return goes to.
    pub(super) target: u64,
    /// Minus the stack pointer that `Mode::Opaque` watches.
    pub(super) minus_watched: u64,
    /// Why translated code was left.
    pub(super) exit: *const Desc,
    /// Address of an ordered access, FS base not included; or the value of an ordered load.
    pub(super) operand: u64,
    /// What fast-path functions are given.
    pub(super) fast_path_data: u64,
    /// What is called around ordered instructions, if anything is.
    pub(super) ordered_fast_path: Option<OrderedFastPath>,
    /// What the thread met last: the machine's, or `own_met`.
    pub(super) met: *mut LastMet,
    own_met: Zeroed<LastMet>,
    /// The lower half of the guest's first vector register while a block compares its code.
    pub(super) vector: [u64; 2],
    /// What a gate puts aside.
    pub(super) aside: [u64; 2],
    /// Zero.
    never: u8,
    /// The guest's rax and rdx, and its flags, while a gate uses them.
    pub(super) rax: u64,
    pub(super) rdx: u64,
    pub(super) flags: u64,
    /// Instructions retired.
    pub(super) retired: u64,
    /// Minus how many there are to be when the thread leaves at a place.
    pub(super) minus_leave_at: u64,
    /// What the machine shares ([`refrain_vm::Filter`]).
    pub(super) count: AtomicU64,
    pub(super) window: AtomicU64,
    /// The bits of an address that are its line's index.
    pub(super) line_mask: u64,
    /// How many bytes are left in the log of accesses, negated.
    pub(super) log_room: u64,
    /// What the notes of an access have if it is not logged, and get if it is
    /// ([`refrain_vm::SeenWords`]).
    pub(super) seen: u64,
    pub(super) seen_add: u64,
    /// Minus the instruction whose named call has been logged, and which comes next; 0: none has.
    pub(super) minus_logged: u64,
    /// Minus where the calls under way that the observer has named keep their return addresses
    /// ([`super::cpu`]'s `calls`), or 0.
    pub(super) minus_called: u64,
    pub(super) minus_innermost: u64,
    /// The host's mxcsr: the default one.
    pub(super) host_mxcsr: u32,
    /// Which vector registers are kept: one of [`vectors`]' constants.
    pub(super) vectors: u32,
    /// Stands for a fault, as the reason of an exit.
    pub(super) fault: Desc,
}

impl ThreadState {
    /// A state for a thread whose translated code lies in `code`.
    pub(super) fn at_home(
        code: std::ops::Range<u64>,
        ordered_fast_path: Option<OrderedFastPath>,
        processor: Processor,
        behind: Behind,
    ) -> io::Result<Home> {
        let area = ThreadArea {
            code_start: code.start,
            code_end: code.end,
            resume: leave_faulted as *const () as u64,
            ..ThreadArea::default()
        };
        let mut own_met = LastMet::new();
        Home::of(
            behind,
            ThreadState {
                area,
                context: std::ptr::null_mut(),
                host_rsp: 0,
                entry: 0,
                rcx: 0,
                scratch: 0,
                vector: [0; 2],
                target: 0,
                minus_watched: 0,
                exit: std::ptr::null(),
                operand: 0,
                fast_path_data: 0,
                ordered_fast_path,
                met: &raw mut *own_met,
                own_met,
                aside: [0; 2],
                never: 0,
                rax: 0,
                rdx: 0,
                flags: 0,
                retired: 0,
                minus_leave_at: 1,
                count: AtomicU64::new(0),
                window: AtomicU64::new(0),
                line_mask: INDEX_MASK,
                log_room: 0,
                seen: 0,
                seen_add: 0,
                minus_logged: 0,
                minus_called: 0,
                minus_innermost: 0,
                host_mxcsr: 0x1f80,
                vectors: vectors::kept(processor),
                fault: Desc::faulted(),
            },
        )
    }
}

/// Bytes of a state, in whole pages; the tables of lines lie behind it and before it, if there are any.
const STATE_BYTES: usize = size_of::<ThreadState>().next_multiple_of(PAGE as usize);
/// Where the table of the lines lies that the thread may read.
pub(super) const READABLE: u32 = STATE_BYTES as u32;
/// The same for pairs of lines.
pub(super) const READABLE_PAIRS: u32 = READABLE + FILTER_ENTRIES as u32;
/// The two for writing.
pub(super) const WRITABLE: u32 = READABLE_PAIRS + FILTER_ENTRIES as u32;
pub(super) const WRITABLE_PAIRS: u32 = WRITABLE + FILTER_ENTRIES as u32;
/// The table of the lines whose code the thread keeps, which lies before the state: its displacements are
/// negative.
pub(super) const KEPT: u32 = 0_u32.wrapping_sub(FILTER_ENTRIES as u32);
const TABLES: usize = 4;
/// A byte that is always zero.
pub(super) const NEVER: u32 = offset_of!(ThreadState, never) as u32;
/// Bytes of a record of an access.
pub(super) const RECORD: u64 = size_of::<Access>() as u64;
/// Records of one instruction at most: a value, an operand, a word of the stack, a call.
const MOST: u64 = 4;
/// Room for the records of a block.
pub(super) const MARGIN: u64 = MAX_BLOCK as u64 * MOST * RECORD;
/// Bytes of the log of accesses.
pub(super) const LOG_BYTES: u64 = 128 << 10;
/// Where it ends, but for the records of a block that was entered just before.
pub(super) const LOG_END: u32 = STATE_BYTES as u32 + LOG_BYTES as u32;
// Translated code has their places in displacements.
const _: () = assert!(WRITABLE_PAIRS <= i32::MAX as u32);

/// What lies behind a thread's state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    /// Nothing.
    Nothing,
    /// Its tables of lines.
    Tables,
    /// Its log of accesses.
    Log,
}

impl Behind {
    /// Bytes before the state.
    fn before(self) -> usize {
        if self == Behind::Tables { FILTER_ENTRIES } else { 0 }
    }

    fn bytes(self) -> usize {
        match self {
            Behind::Nothing => 0,
            Behind::Tables => TABLES * FILTER_ENTRIES,
            Behind::Log => (LOG_BYTES + MARGIN) as usize,
        }
    }
}

/// A thread's state in memory of its own.
pub(super) struct Home {
    state: NonNull<ThreadState>,
    behind: Behind,
    _pages: Pages,
}

impl Home {
    fn of(behind: Behind, state: ThreadState) -> io::Result<Home> {
        let pages = Pages::new(behind.before() + STATE_BYTES + behind.bytes())?;
        // SAFETY: the pages are enough, and nobody else's.
        let state_at = unsafe { pages.start().byte_add(behind.before()).cast::<ThreadState>() };
        // SAFETY: as above.
        unsafe { state_at.write(state) };
        Ok(Home { state: state_at, behind, _pages: pages })
    }

    /// What the machine shares.
    pub(super) fn filter(&self) -> Filter {
        let state = self.state.as_ptr();
        let entries = |offset: u32| match self.behind {
            Behind::Tables => state.cast::<AtomicU8>().wrapping_add(offset as usize).cast_const(),
            _ => std::ptr::null(),
        };
        let table = |lines, pairs| LineTable { lines: entries(lines), pairs: entries(pairs) };
        // SAFETY: the state is live; no reference is made.
        let (count, window) = unsafe { (&raw const (*state).count, &raw const (*state).window) };
        Filter {
            count,
            window: window.cast(),
            readable: table(READABLE, READABLE_PAIRS),
            writable: table(WRITABLE, WRITABLE_PAIRS),
            kept: match self.behind {
                Behind::Tables => {
                    state.cast::<AtomicU8>().wrapping_sub(FILTER_ENTRIES).cast_const()
                }
                _ => std::ptr::null(),
            },
        }
    }
}

impl Home {
    /// Whether accesses are logged.
    pub(super) fn logs(&self) -> bool {
        self.behind == Behind::Log
    }

    /// What was logged while the room went from one number of bytes to another, both negative but
    /// for the records of the last block.
    pub(super) fn logged(&self, from: u64, to: u64) -> &[Access] {
        assert!(self.logs(), "there is a log");
        let offset = |room: u64| u64::from(LOG_END).wrapping_add(room) as usize;
        let (start, end) = (offset(from), offset(to));
        assert!(STATE_BYTES <= start && start <= end && end <= STATE_BYTES + self.behind.bytes());
        let at = self.state.as_ptr().wrapping_byte_add(start).cast_const().cast::<Access>();
        // SAFETY: it lies in the pages, as was just checked, and is aligned, because the state's
        // bytes and all rooms are multiples of a record's. Only this thread's translated code writes
        // there, which does not run meanwhile. All bytes are records, or zeros still, which are.
        unsafe { std::slice::from_raw_parts(at, (end - start) / size_of::<Access>()) }
    }
}

impl Deref for Home {
    type Target = ThreadState;

    fn deref(&self) -> &ThreadState {
        // SAFETY: written in `of`, and there until it is dropped.
        unsafe { self.state.as_ref() }
    }
}

impl DerefMut for Home {
    fn deref_mut(&mut self) -> &mut ThreadState {
        // SAFETY: as above; the home is borrowed.
        unsafe { self.state.as_mut() }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // SAFETY: written in `of`, and nothing refers to it any more.
        unsafe { self.state.drop_in_place() };
    }
}

/// Loads the guest's registers from `(*state).context`, jumps to `(*state).entry`, and returns
/// when guest code leaves through [`leave`] or [`leave_faulted`].
///
/// # Safety
/// GS must point to `state`, whose context is valid, whose entry is translated code, and whose
/// area knows the host's FS base; the context's FS base must be canonical.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn enter(state: *mut ThreadState) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi + {host_rsp}], rsp",
        "mov dword ptr [rdi + {in_guest}], 1",
        "mov rcx, [rdi + {context}]",
        "mov rax, [rcx + {fs_base}]",
        "wrfsbase rax",
        "ldmxcsr [rcx + {guest_mxcsr}]",
        "cmp dword ptr [rdi + {vectors}], {none}",
        "je 4f",
        // Whatever host code has left there.
        "vzeroupper",
        "4:",
        load_lower!("rcx", "{xmm}"),
        "cmp dword ptr [rdi + {vectors}], {none}",
        "je 5f",
        "cmp qword ptr [rcx + {high_in_use}], 0",
        "je 5f",
        load_halves!("rcx", "{high}"),
        "5:",
        "cmp dword ptr [rdi + {vectors}], {avx_512}",
        "jne 6f",
        "mov rax, [rcx + {wide}]",
        "test rax, rax",
        "jz 6f",
        load_wide!("rax"),
        "6:",
        // Flags: DF, then OF by an addition, the others by sahf. popf would be slow.
        "mov rax, [rcx + {rflags}]",
        "bt eax, 10",
        "jnc 3f",
        "std",
        "3:",
        "bt eax, 11",
        "setc dl",
        "add dl, 0x7f",
        "mov ah, al",
        "sahf",
        "mov rax, [rcx + {gpr} + 0x00]",
        "mov rdx, [rcx + {gpr} + 0x10]",
        "mov rbx, [rcx + {gpr} + 0x18]",
        "mov rsp, [rcx + {gpr} + 0x20]",
        "mov rbp, [rcx + {gpr} + 0x28]",
        "mov rsi, [rcx + {gpr} + 0x30]",
        "mov rdi, [rcx + {gpr} + 0x38]",
        "mov r8, [rcx + {gpr} + 0x40]",
        "mov r9, [rcx + {gpr} + 0x48]",
        "mov r10, [rcx + {gpr} + 0x50]",
        "mov r11, [rcx + {gpr} + 0x58]",
        "mov r12, [rcx + {gpr} + 0x60]",
        "mov r13, [rcx + {gpr} + 0x68]",
        "mov r14, [rcx + {gpr} + 0x70]",
        "mov r15, [rcx + {gpr} + 0x78]",
        "mov rcx, [rcx + {gpr} + 0x08]",
        "jmp gs:[{entry}]",
        host_rsp = const offset_of!(ThreadState, host_rsp),
        in_guest = const offset_of!(ThreadState, area.in_guest),
        context = const offset_of!(ThreadState, context),
        entry = const offset_of!(ThreadState, entry),
        vectors = const offset_of!(ThreadState, vectors),
        none = const vectors::NONE,
        avx_512 = const vectors::AVX_512,
        wide = const offset_of!(Context, wide),
        high = const offset_of!(Context, high),
        high_in_use = const offset_of!(Context, high_in_use),
        fs_base = const offset_of!(Context, fs_base),
        guest_mxcsr = const offset_of!(Context, mxcsr),
        xmm = const offset_of!(Context, xmm),
        rflags = const offset_of!(Context, rflags),
        gpr = const offset_of!(Context, gpr),
    )
}

/// Where exits of translated code jump to, with the guest's rcx in its slot and the address of
/// the exit's [`Desc`] in rcx. Stores the guest's registers and returns from [`enter`].
///
/// # Safety
/// Translated code alone comes here, by jumps, in the state that is described above.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn leave() {
    naked_asm!(
        "mov gs:[{exit}], rcx",
        "mov rcx, gs:[{context}]",
        "mov [rcx + {gpr} + 0x00], rax",
        "mov rax, gs:[{rcx}]",
        "mov [rcx + {gpr} + 0x08], rax",
        "jmp {save}",
        exit = const offset_of!(ThreadState, exit),
        context = const offset_of!(ThreadState, context),
        rcx = const offset_of!(ThreadState, rcx),
        gpr = const offset_of!(Context, gpr),
        save = sym save,
    )
}

/// The gate to fast-path functions: rcx is the function, the guest's rcx is in its slot, `entry` is
/// where to go on if it succeeds, and `scratch` holds the [`Desc`] of the exit if it declines.
///
/// The function runs on the host's stack, so that nothing of the host's stays on the guest's. All
/// integer registers but rax are put back, and the vector registers up to their low 16 bytes: a program may
/// keep what a call leaves in them. (V8 saves all registers on the stack, and its collector searches that for
/// pointers.) The flags are left as the function leaves them.
///
/// # Safety
/// Translated code alone comes here, by jumps, in the state that is described above.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn call_fast_path() {
    naked_asm!(
        "mov gs:[{target}], rsp",
        "mov rsp, gs:[{host_rsp}]",
        // With nine words the stack is aligned.
        "push rax",
        "push rdi",
        "push rsi",
        "push rdx",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "push rcx",
        "sub rsp, 0x100",
        store_lower!("rsp", "0"),
        "mov rsi, gs:[{target}]",
        "mov rdx, gs:[{fast_path_data}]",
        "call rcx",
        load_lower!("rsp", "0"),
        "add rsp, 0x100",
        "pop rcx",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "js 2f",
        "mov rsp, gs:[{target}]",
        "mov rcx, gs:[{rcx}]",
        "jmp gs:[{entry}]",
        "2:",
        "pop rax",
        "mov rsp, gs:[{target}]",
        "mov rcx, gs:[{scratch}]",
        "jmp {leave}",
        target = const offset_of!(ThreadState, target),
        host_rsp = const offset_of!(ThreadState, host_rsp),
        fast_path_data = const offset_of!(ThreadState, fast_path_data),
        entry = const offset_of!(ThreadState, entry),
        scratch = const offset_of!(ThreadState, scratch),
        rcx = const offset_of!(ThreadState, rcx),
        leave = sym leave,
    )
}

/// Where the fault handler sends a thread: all registers are as they were at the faulting
/// instruction, and the slots too.
///
/// # Safety
/// The fault handler alone sends threads here, out of translated code.
#[unsafe(naked)]
unsafe extern "sysv64" fn leave_faulted() {
    naked_asm!(
        // `entry` is free while guest code runs.
        "mov gs:[{entry}], rcx",
        "mov rcx, gs:[{context}]",
        "mov [rcx + {gpr} + 0x00], rax",
        "mov rax, gs:[{entry}]",
        "mov [rcx + {gpr} + 0x08], rax",
        "rdgsbase rax",
        "lea rax, [rax + {fault}]",
        "mov gs:[{exit}], rax",
        "jmp {save}",
        entry = const offset_of!(ThreadState, entry),
        context = const offset_of!(ThreadState, context),
        exit = const offset_of!(ThreadState, exit),
        fault = const offset_of!(ThreadState, fault),
        gpr = const offset_of!(Context, gpr),
        save = sym save,
    )
}

/// The flag that makes accesses fault that are not aligned.
const ALIGNMENT_CHECK: u32 = 1 << 18;

/// The common end of leaving: rcx is the context, rax and rcx are saved, flags are the guest's.
///
/// # Safety
/// The two ways out jump here, in the state that is described above.
#[unsafe(naked)]
unsafe extern "sysv64" fn save() {
    naked_asm!(
        "mov [rcx + {gpr} + 0x10], rdx",
        "mov [rcx + {gpr} + 0x18], rbx",
        "mov [rcx + {gpr} + 0x20], rsp",
        "mov [rcx + {gpr} + 0x28], rbp",
        "mov [rcx + {gpr} + 0x30], rsi",
        "mov [rcx + {gpr} + 0x38], rdi",
        "mov [rcx + {gpr} + 0x40], r8",
        "mov [rcx + {gpr} + 0x48], r9",
        "mov [rcx + {gpr} + 0x50], r10",
        "mov [rcx + {gpr} + 0x58], r11",
        "mov [rcx + {gpr} + 0x60], r12",
        "mov [rcx + {gpr} + 0x68], r13",
        "mov [rcx + {gpr} + 0x70], r14",
        "mov [rcx + {gpr} + 0x78], r15",
        "mov rsp, gs:[{host_rsp}]",
        "mov dword ptr gs:[{in_guest}], 0",
        "pushfq",
        "pop rax",
        "mov [rcx + {rflags}], rax",
        "cld",
        // Host code may not run with alignment checks, which programs switch on to see whether
        // they can.
        "test eax, {alignment_check}",
        "jz 6f",
        "push 2",
        "popfq",
        "6:",
        store_lower!("rcx", "{xmm}"),
        "stmxcsr [rcx + {mxcsr}]",
        "ldmxcsr gs:[{host_mxcsr}]",
        "cmp dword ptr gs:[{vectors}], {none}",
        "je 5f",
        "cmp dword ptr gs:[{vectors}], {avx_512}",
        "jne 8f",
        "mov rax, [rcx + {wide}]",
        "test rax, rax",
        "jz 8f",
        store_wide!("rax"),
        "8:",
        test_halves!("rcx", "{high}"),
        "jnz 3f",
        // What the context has is zero too, unless it says otherwise.
        "cmp qword ptr [rcx + {high_in_use}], 0",
        "je 7f",
        "mov qword ptr [rcx + {high_in_use}], 0",
        "jmp 4f",
        "3:",
        "mov qword ptr [rcx + {high_in_use}], 1",
        "4:",
        store_halves!("rcx", "{high}"),
        "7:",
        "vzeroupper",
        "5:",
        "mov rax, gs:[{host_fs}]",
        "wrfsbase rax",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        host_rsp = const offset_of!(ThreadState, host_rsp),
        host_fs = const offset_of!(ThreadState, area.host_fs),
        in_guest = const offset_of!(ThreadState, area.in_guest),
        host_mxcsr = const offset_of!(ThreadState, host_mxcsr),
        vectors = const offset_of!(ThreadState, vectors),
        alignment_check = const ALIGNMENT_CHECK,
        none = const vectors::NONE,
        avx_512 = const vectors::AVX_512,
        wide = const offset_of!(Context, wide),
        high = const offset_of!(Context, high),
        high_in_use = const offset_of!(Context, high_in_use),
        mxcsr = const offset_of!(Context, mxcsr),
        xmm = const offset_of!(Context, xmm),
        rflags = const offset_of!(Context, rflags),
        gpr = const offset_of!(Context, gpr),
    )
}
