//! Ordered instructions that are executed in line.
//!
//! Leaving translated code for each of them, for the machine to take the instruction's place in
//! the order and to have it executed alone, costs several times what the instruction does, most
//! of it while other threads wait for their places. So the machine is called instead, before and
//! after ([`OrderedLeaf`]), and the instruction stays where it is:
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
//! its memory operand, and nothing is called after it.

use super::desc::{Desc, GoOn, Kind, Operand};
use super::state::{ThreadState, halves, leave, load_halves, store_halves};
use refrain_vm::{OrderedAccess, OrderedKind, OrderedLeaf};
use std::arch::naked_asm;
use std::mem::offset_of;

/// Leave translated code.
const LEAVE: i64 = -1;

/// The gate to the machine: rcx is a [`Desc`], the guest's rcx is in its slot. Goes on where
/// [`concerned`] says, or leaves with the descriptor.
///
/// The function runs on the host's stack, so that nothing of the host's stays on the guest's.
/// Everything of the guest's that a function may change is put back.
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
        "movaps [rsp + 0x00], xmm0",
        "movaps [rsp + 0x10], xmm1",
        "movaps [rsp + 0x20], xmm2",
        "movaps [rsp + 0x30], xmm3",
        "movaps [rsp + 0x40], xmm4",
        "movaps [rsp + 0x50], xmm5",
        "movaps [rsp + 0x60], xmm6",
        "movaps [rsp + 0x70], xmm7",
        "movaps [rsp + 0x80], xmm8",
        "movaps [rsp + 0x90], xmm9",
        "movaps [rsp + 0xa0], xmm10",
        "movaps [rsp + 0xb0], xmm11",
        "movaps [rsp + 0xc0], xmm12",
        "movaps [rsp + 0xd0], xmm13",
        "movaps [rsp + 0xe0], xmm14",
        "movaps [rsp + 0xf0], xmm15",
        "mov gs:[{scratch}], rcx",
        "mov dword ptr [rsp + 0x200], 0",
        "cmp dword ptr gs:[{halves}], {always}",
        "jb 5f",
        "je 4f",
        "mov ecx, 1",
        "xgetbv",
        "test eax, {avx_in_use}",
        "jz 5f",
        "4:",
        store_halves!("rsp", "0x100"),
        "mov dword ptr [rsp + 0x200], 1",
        "5:",
        "mov rdi, gs:[{scratch}]",
        "rdgsbase rsi",
        "call {concerned}",
        "mov gs:[{entry}], rax",
        "mov rcx, rax",
        "cmp dword ptr gs:[{halves}], {none}",
        "je 6f",
        // Whatever host code has left there.
        "vzeroupper",
        "6:",
        "movaps xmm0, [rsp + 0x00]",
        "movaps xmm1, [rsp + 0x10]",
        "movaps xmm2, [rsp + 0x20]",
        "movaps xmm3, [rsp + 0x30]",
        "movaps xmm4, [rsp + 0x40]",
        "movaps xmm5, [rsp + 0x50]",
        "movaps xmm6, [rsp + 0x60]",
        "movaps xmm7, [rsp + 0x70]",
        "movaps xmm8, [rsp + 0x80]",
        "movaps xmm9, [rsp + 0x90]",
        "movaps xmm10, [rsp + 0xa0]",
        "movaps xmm11, [rsp + 0xb0]",
        "movaps xmm12, [rsp + 0xc0]",
        "movaps xmm13, [rsp + 0xd0]",
        "movaps xmm14, [rsp + 0xe0]",
        "movaps xmm15, [rsp + 0xf0]",
        "cmp dword ptr [rsp + 0x200], 0",
        "je 7f",
        load_halves!("rsp", "0x100"),
        "7:",
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
        halves = const offset_of!(ThreadState, halves),
        none = const halves::NONE,
        always = const halves::ALWAYS,
        avx_in_use = const halves::AVX_IN_USE,
        concerned = sym concerned,
        leave = sym leave,
    )
}

/// What translated code calls the machine for; returns where it goes on, or [`LEAVE`].
///
/// # Safety
/// `desc` is a descriptor of the translator's, `state` that of the calling thread, which has come
/// from translated code. Nothing in here may use thread-local storage of the host or unwind.
unsafe extern "sysv64" fn concerned(desc: *const Desc, state: *mut ThreadState) -> i64 {
    // SAFETY: the caller's; descriptors are immutable, and nobody else uses the state meanwhile.
    let (desc, state) = unsafe { (&*desc, &mut *state) };
    let Some(leaf) = state.ordered_leaf else { return LEAVE };
    match desc.kind {
        Kind::Ordered { operand, go_on: Some(go_on) } => {
            let access = OrderedAccess {
                address: state.operand,
                size: operand.size,
                kind: operand.kind,
                pc: desc.pc,
                sp: state.target,
                value: 0,
            };
            begin(leaf, state, operand, go_on, access)
        }
        Kind::Performed { resume } => {
            // SAFETY: who gave the leaf has seen to it that it may be called with this thread's
            // word; the instruction that it was asked about has been executed.
            unsafe { (leaf.after)(state.leaf_data) };
            resume.into()
        }
        _ => LEAVE,
    }
}

/// Asks the machine about an ordered instruction.
fn begin(
    leaf: OrderedLeaf,
    state: &mut ThreadState,
    operand: Operand,
    go_on: GoOn,
    mut access: OrderedAccess,
) -> i64 {
    let locked = access.kind == OrderedKind::ReadModifyWrite;
    if locked && is_milestone(state.locked + 1) {
        return LEAVE;
    }
    // SAFETY: the tables live as long as the engine, which the thread's executor keeps alive.
    let tables = unsafe { &*state.tables };
    if !tables.orders(operand, access.address) {
        return go_on.plain.into();
    }
    // SAFETY: who gave the leaf has seen to it that it may be called with this thread's word.
    if unsafe { (leaf.before)(&raw mut access, state.leaf_data) } < 0 {
        return LEAVE;
    }
    state.locked += u64::from(locked);
    state.operand = access.value;
    go_on.ordered.into()
}

/// Whether suspects are to be looked at again when a thread has executed so many locked
/// instructions: each time that they are four times as many.
pub(super) fn is_milestone(locked: u64) -> bool {
    const FIRST: u64 = 16;
    locked >= FIRST && locked.is_power_of_two() && locked.trailing_zeros().is_multiple_of(2)
}
