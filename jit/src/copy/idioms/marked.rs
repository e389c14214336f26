//! Links that carry a mark: lists and hash tables without locks say by a low bit of a node's link that the
//! node is being removed (Harris, "A pragmatic implementation of non-blocking linked-lists", 2001).
//!
//! Who follows such links has to take the bits off each, by a mask, before going on. A reader takes no
//! lock, and needs no locked instruction either. So a loop that follows a pointer which it has loaded and
//! masked reads what others change, and so does what loads the same field elsewhere in the function, or is only
//! compared, outside of its loops: how many buckets the table has.
//!
//! A table without locks may have such pointers as its entries, and a byte for each that tells most keys
//! apart. In a function with locked instructions, a loop that masks entries and follows them looks for
//! an entry that others may be changing.
//!
//! A node of a skip list has an array of such links, one for each level. The search for the highest level that
//! is used goes over this array in a loop that masks nothing: it only asks whether the link is less than a small
//! number, and so has nothing but a mark.

use super::beside::is_compared;
use crate::copy::loops::Loop;
use crate::copy::ordered::{is_candidate, is_locked, is_store};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;

/// Instructions of a loop that is looked at.
const LONGEST: usize = 128;
/// Instructions behind a load in which its bits are looked at.
const REACH: usize = 8;
/// The low bits that a pointer to a node does not need.
const BITS: i64 = 4;

/// Indices of the loads and stores of such links. `code` is a function's instructions in order, `loops` are its
/// loops.
pub(super) fn marked(code: &[Instruction], loops: &[Loop]) -> Vec<usize> {
    let mut entries = levels(code);
    if !code.iter().any(masks) {
        return entries.into_iter().collect();
    }
    let mut links = BTreeSet::new();
    let has_locks = code.iter().any(is_locked);
    for body in loops {
        let inside = || body.iter().flat_map(|block| block.clone()).map(|at| &code[at]);
        if inside().count() > LONGEST {
            continue;
        }
        let masked: BTreeSet<Register> =
            inside().filter(|i| masks(i)).map(|i| i.op0_register()).collect();
        let follows = |i: &Instruction| is_candidate(i) && masked.contains(&i.memory_base());
        if has_locks && inside().any(follows) {
            let elements = body.iter().flat_map(|block| block.clone()).filter(|&at| {
                let i = &code[at];
                let is_tag = i.code() == Code::Movzx_r32_rm8 && is_candidate(i);
                i.memory_index() != Register::None && (is_tag || loads(i) && is_masked(code, at))
            });
            let elements: Vec<usize> = elements.collect();
            if elements.iter().any(|&at| loads(&code[at])) {
                entries.extend(elements);
            }
        }
        for load in inside().filter(|i| loads(i)) {
            let mut carries = BTreeSet::from([load.op0_register()]);
            let moves = || inside().filter_map(moved);
            while let Some((_, to)) =
                moves().find(|(from, to)| carries.contains(from) && !carries.contains(to))
            {
                carries.insert(to);
            }
            // Whoever holds a list by itself stores to its nodes, too, such as a collector of garbage;
            // others change links by locked instructions.
            let stores = |i: &Instruction| is_store(i) && carries.contains(&i.memory_base());
            if carries.contains(&load.memory_base())
                && !carries.is_disjoint(&masked)
                && !inside().any(stores)
            {
                links.insert(field(load));
            }
        }
    }
    let is_link = |at: usize| {
        let i = &code[at];
        let accesses = loads(i) || i.code() == Code::Mov_rm64_r64 && is_store(i);
        let own = matches!(i.memory_base(), Register::RSP | Register::RBP | Register::RIP);
        accesses && !own && (links.contains(&field(i)) || loads(i) && is_masked(code, at))
    };
    if !links.is_empty() {
        entries.extend((0..code.len()).filter(|&at| is_link(at)));
        let is_in_loop = |at: usize| loops.iter().flatten().any(|block| block.contains(&at));
        let looks = (0..code.len()).filter(|&at| is_candidate(&code[at]) && is_compared(code, at));
        entries.extend(looks.filter(|&at| !is_in_loop(at)));
    }
    entries.into_iter().collect()
}

/// Loads of links in arrays, if the function looks at the marks of some and whether others are no more than a
/// mark.
fn levels(code: &[Instruction]) -> BTreeSet<usize> {
    let is_level = |i: &Instruction| {
        loads(i) && i.memory_index_scale() == 8 && i.memory_index() != Register::None
    };
    let looks = code.iter().enumerate().filter(|(_, i)| is_level(i));
    let looks: Vec<(usize, Look)> =
        looks.filter_map(|(at, _)| Some((at, looked_at(code, at)?))).collect();
    let has = |wanted: Look| looks.iter().any(|&(_, look)| look == wanted);
    match has(Look::Bits) && has(Look::Empty) {
        true => looks.iter().map(|&(at, _)| at).collect(),
        false => BTreeSet::new(),
    }
}

/// Which field of a node a link is; nodes on several levels have an array of them.
fn field(i: &Instruction) -> (u64, bool) {
    (i.memory_displacement64(), i.memory_index() != Register::None)
}

/// What is asked of a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Its low bits are taken off or looked at.
    Bits,
    /// Whether it is no node: all but the mark is zero.
    Empty,
}

/// Whether what the instruction at `at` loads has low bits taken off or looked at soon.
pub(super) fn is_masked(code: &[Instruction], at: usize) -> bool {
    looked_at(code, at).is_some()
}

/// What is asked soon of what the instruction at `at` loads.
fn looked_at(code: &[Instruction], at: usize) -> Option<Look> {
    let mut carries = BTreeSet::from([code[at].op0_register().full_register()]);
    for i in code[at + 1..].iter().take(REACH) {
        if !i.op_kinds().any(|kind| kind == OpKind::Register) {
            continue;
        }
        let to = i.op0_register().full_register();
        let takes_bits =
            masks(i) || i.mnemonic() == Mnemonic::And && i.try_immediate(1).is_ok_and(|it| it < 16);
        let look = match i.mnemonic() {
            _ if takes_bits => Some(Look::Bits),
            Mnemonic::Test => i.try_immediate(1).is_ok_and(|it| it < 16).then_some(Look::Bits),
            Mnemonic::Cmp => {
                let is_mark = |it| matches!(it, 2 | 4 | 8 | 16);
                i.try_immediate(1).is_ok_and(is_mark).then_some(Look::Empty)
            }
            _ => None,
        };
        if look.is_some() && i.op0_kind() == OpKind::Register && carries.contains(&to) {
            return look;
        }
        let moves = i.mnemonic() == Mnemonic::Mov
            && i.op0_kind() == OpKind::Register
            && i.op1_kind() == OpKind::Register;
        if moves && carries.contains(&i.op1_register().full_register()) {
            carries.insert(to);
        }
    }
    None
}

/// Whether an instruction takes low bits off what a register holds.
pub(super) fn masks(i: &Instruction) -> bool {
    matches!(i.code(), Code::And_rm64_imm8)
        && i.op0_kind() == OpKind::Register
        && (1..=BITS).any(|bits| i.immediate(1) as i64 == -1 << bits)
}

/// Whether it loads a pointer that another one points to.
pub(super) fn loads(i: &Instruction) -> bool {
    i.code() == Code::Mov_r64_rm64 && i.op1_kind() == OpKind::Memory && is_candidate(i)
}

/// Of an instruction that moves a register to another one: these.
pub(super) fn moved(i: &Instruction) -> Option<(Register, Register)> {
    let is_move = matches!(i.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        && i.op0_kind() == OpKind::Register
        && i.op1_kind() == OpKind::Register;
    is_move.then(|| (i.op1_register(), i.op0_register()))
}

#[cfg(test)]
mod tests {
    use super::marked;
    use crate::copy::loops::loops;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    /// As a table without locks is searched.
    fn found(mask: i32) -> Vec<usize> {
        found_in(mask, |_| ())
    }

    fn found_in(mask: i32, more: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(|a| {
            let (mut again, mut out) = (a.create_label(), a.create_label());
            a.mov(rbx, qword_ptr(rax + 16)).unwrap();
            a.set_label(&mut again).unwrap();
            a.cmp(qword_ptr(rbx + 8), rsi).unwrap();
            a.je(out).unwrap();
            a.mov(rcx, qword_ptr(rbx + 16)).unwrap();
            more(a);
            a.mov(rbx, rcx).unwrap();
            a.and(rbx, mask).unwrap();
            a.jne(again).unwrap();
            a.set_label(&mut out).unwrap();
            a.ret().unwrap();
        });
        marked(&code, &loops(&code))
    }

    #[test]
    fn links_with_bits() {
        assert_eq!(found(-8), [0, 3]);
        assert_eq!(found(-2), [0, 3]);
        assert_eq!(found(0x70), [], "bits of a number");
        let counts = |a: &mut CodeAssembler| a.mov(qword_ptr(rbx + 24), rsi).unwrap();
        assert_eq!(found_in(-8, counts), [], "a collector of garbage");
    }

    /// As a skip list's search begins: at the highest level that has a node.
    #[test]
    fn levels_without_nodes() {
        let found = |no_node: i32, scale: i32| {
            let code = assembled(|a| {
                let (mut again, mut out) = (a.create_label(), a.create_label());
                a.set_label(&mut again).unwrap();
                a.cmp(rbp, 1).unwrap();
                a.je(out).unwrap();
                a.mov(rax, qword_ptr(rbx + rbp * scale - 16)).unwrap();
                a.dec(rbp).unwrap();
                a.cmp(rax, no_node).unwrap();
                a.jb(again).unwrap();
                a.mov(rbx, qword_ptr(r13 + rbp * scale - 8)).unwrap();
                a.mov(eax, ebx).unwrap();
                a.and(eax, 7).unwrap();
                a.call(0x5000).unwrap();
                a.set_label(&mut out).unwrap();
                a.ret().unwrap();
            });
            marked(&code, &loops(&code))
        };
        assert_eq!(found(8, 8), [2, 6]);
        assert_eq!(found(9, 8), [], "a number");
        assert_eq!(found(8, 1), [], "no array of links");
    }

    /// As the table's size is looked at before.
    #[test]
    fn sizes() {
        let found = |mask: i32| {
            let code = assembled(|a| {
                let (mut again, mut out) = (a.create_label(), a.create_label());
                a.mov(rsi, qword_ptr(r9 + 0x80)).unwrap();
                a.test(rsi, rsi).unwrap();
                a.je(out).unwrap();
                a.add(rsi, qword_ptr(r9 + 0x88)).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(rbx, qword_ptr(rbx)).unwrap();
                a.and(rbx, mask).unwrap();
                a.cmp(qword_ptr(rbx + 8), rsi).unwrap();
                a.jne(again).unwrap();
                a.set_label(&mut out).unwrap();
                a.ret().unwrap();
            });
            marked(&code, &loops(&code))
        };
        assert_eq!(found(-8), [0, 4]);
        assert_eq!(found(0x70), []);
    }

    /// As a table is searched whose entries are pointers with marks.
    #[test]
    fn entries_with_bits() {
        let found = |locks: bool| {
            let code = assembled(|a| {
                let (mut again, mut out) = (a.create_label(), a.create_label());
                a.set_label(&mut again).unwrap();
                a.movzx(ecx, byte_ptr(rsi + r14 + 0x88)).unwrap();
                a.cmp(cl, 0x80).unwrap();
                a.je(out).unwrap();
                a.inc(r14).unwrap();
                a.cmp(cl, bpl).unwrap();
                a.jne(again).unwrap();
                a.mov(rcx, qword_ptr(rsi + rbx * 8 + 0x89)).unwrap();
                a.and(rcx, -8).unwrap();
                a.cmp(qword_ptr(rcx), r15).unwrap();
                a.jne(again).unwrap();
                if locks {
                    a.lock().cmpxchg(qword_ptr(rdx), r8).unwrap();
                }
                a.set_label(&mut out).unwrap();
                a.ret().unwrap();
            });
            marked(&code, &loops(&code))
        };
        assert_eq!(found(true), [0, 6]);
        assert_eq!(found(false), []);
    }

    /// As a skip list is searched, from level to level.
    #[test]
    fn links_on_levels() {
        let code = assembled(|a| {
            let (mut again, mut out) = (a.create_label(), a.create_label());
            a.mov(r9, qword_ptr(r15 + rbp * 8 - 8)).unwrap();
            a.mov(eax, r9d).unwrap();
            a.and(eax, 7).unwrap();
            a.cmp(eax, 1).unwrap();
            a.je(out).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(rsi, r9).unwrap();
            a.and(rsi, -8).unwrap();
            a.je(out).unwrap();
            a.mov(rax, qword_ptr(rsi + rbx * 8 + 16)).unwrap();
            a.cmp(qword_ptr(rsi), r14).unwrap();
            a.mov(r9, rax).unwrap();
            a.ja(again).unwrap();
            a.set_label(&mut out).unwrap();
            a.mov(rax, qword_ptr(r8 + 16)).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(marked(&code, &loops(&code)), [0, 8]);
    }
}
