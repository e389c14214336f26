//! First looks of the C library: whether something has been made already, before the lock under which it is made.
//!
//! The C library makes much of what it has when it is asked for it first: the conversions of a locale, its modules
//! for names of users and hosts, what it maps of a daemon's. Who asks looks without a lock whether a field of an
//! object says that it is there. If not, it takes a lock, or calls a function that takes one, and looks at the
//! field again. The second look is guarded, the first one is not.
//!
//! In other modules, the recorder watches every load beside a lock that is only compared. The C library compares
//! much ordinary data under its locks, so here only first looks are watched: the second look tells which they are. A replay lets it
//! wait for the store that made it see what it saw.

use super::Functions;
use super::called::Locks;
use super::extent::{Extent, instructions};
use crate::common::is_call;
use crate::copy::addresses::{has_frame, symbolic_addresses};
use crate::copy::idioms::{first_use, is_compared};
use crate::copy::listing::Listing;
use crate::copy::ordered::{is_candidate, is_locked};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a function that is called to make something.
const LONGEST: u64 = 16 << 10;
/// Instructions between a first look and the call of the function that looks again.
const BEFORE_CALL: u32 = 8;
/// Instructions between a lock and the second look.
const BEHIND_LOCK: u32 = 24;

/// A field of an object, by its offset and its size. Which register points to the object does not matter.
type Field = (u64, usize);

impl Functions {
    /// Indices of the first looks in a function of the C library. `code` is its instructions in order, and `locks`
    /// says which of them lock.
    pub(super) fn first_looks(
        &mut self,
        code: &Listing,
        locks: &[bool],
        inside: &Range<u64>,
        module: &Range<u64>,
    ) -> Vec<usize> {
        let looks: Vec<usize> = looks(code).collect();
        if looks.is_empty() {
            return looks;
        }
        let addresses = symbolic_addresses(code);
        let locks: Vec<bool> =
            code.iter().zip(locks).map(|(i, locks)| *locks || is_locked(i)).collect();
        let calls: Vec<bool> = code.iter().map(is_call).collect();
        let front = reached(code, vec![0], u32::MAX, &locks);
        let behind = behind(code, &locks);
        let is_again = |at: usize, again: usize| {
            let same = addresses[at].zip(addresses[again]);
            behind[again]
                && code[again].memory_size() == code[at].memory_size()
                && same.is_some_and(|(first, second)| first.is_same(second))
        };
        let mut found = Vec::new();
        for &at in &looks {
            let is_outside = front[at] && !behind[at];
            let mut leads_again = || {
                let near = reached(code, vec![at], BEFORE_CALL, &calls);
                (0..code.len()).filter(|&to| near[to]).any(|to| {
                    let function = self.leads_to(&code[to], inside, module);
                    function.is_some_and(|it| self.looks_again(it, field(&code[at]), module))
                })
            };
            if is_outside && looks.iter().any(|&again| is_again(at, again)) || leads_again() {
                found.push(at);
            }
        }
        found
    }

    /// Whether the function at `start` looks at a field right behind a lock.
    fn looks_again(&mut self, start: u64, look: Field, module: &Range<u64>) -> bool {
        self.second_looks(start, module).contains(&look)
    }

    /// The fields that a function looks at right behind a lock.
    fn second_looks(&mut self, start: u64, module: &Range<u64>) -> Arc<[Field]> {
        if let Some(known) = self.second_looks.get(&start) {
            return Arc::clone(known);
        }
        let extent = self.around(start).filter(|extent| {
            extent.range.start == start && extent.ends && extent.range.end - start <= LONGEST
        });
        let fields = extent.map(|extent| self.fields_looked_at(&extent, module));
        let fields: Arc<[Field]> = fields.unwrap_or_default().into();
        self.second_looks.insert(start, Arc::clone(&fields));
        fields
    }

    fn fields_looked_at(&mut self, extent: &Extent, module: &Range<u64>) -> Vec<Field> {
        let code = Listing::new(instructions(extent));
        let Locks { own, library, .. } = self.locks_of(&code, extent, module);
        let locks = own.iter().zip(&library).zip(0..);
        let locks: Vec<bool> =
            locks.map(|((own, library), at)| own | library || code.is_locked(at)).collect();
        let behind = behind(&code, &locks);
        looks(&code).filter(|&at| behind[at]).map(|at| field(&code[at])).collect()
    }
}

fn field(look: &Instruction) -> Field {
    (look.memory_displacement64(), look.memory_size().size())
}

/// Indices of the instructions that load a pointer or a number out of an object, and only compare it with a
/// constant.
fn looks(code: &[Instruction]) -> impl Iterator<Item = usize> + '_ {
    let frame = if has_frame(code) { Register::RBP } else { Register::RSP };
    (0..code.len()).filter(move |&at| {
        let load = &code[at];
        let base = load.memory_base();
        let of_object = ![Register::None, Register::RIP, Register::RSP, frame].contains(&base);
        of_object
            && is_candidate(load)
            && matches!(load.memory_size().size(), 4 | 8)
            && is_compared(code, at)
            && first_use(code, at)
                .map_or(Some(load), |next| code.get(next))
                .is_some_and(is_with_constant)
    })
}

/// Whether an instruction compares with a constant. (To test a register with itself is to compare it with zero.)
fn is_with_constant(comparison: &Instruction) -> bool {
    let is_itself = comparison.op0_kind() == OpKind::Register
        && comparison.op1_kind() == OpKind::Register
        && comparison.op0_register() == comparison.op1_register();
    is_itself || comparison.mnemonic() == Mnemonic::Cmp && comparison.try_immediate(1).is_ok()
}

/// Of each instruction, whether it comes a few instructions behind one of the `locks`.
fn behind(code: &Listing, locks: &[bool]) -> Vec<bool> {
    let locked = (0..code.len()).filter(|&at| locks[at] && !code.ends_here(at));
    let front = locked.map(|at| at + 1).collect();
    reached(code, front, BEHIND_LOCK, &vec![false; code.len()])
}

/// Of each instruction, whether the code comes to it from one of `front` in at most so many steps, without going on
/// behind one of `ends`.
fn reached(code: &Listing, mut front: Vec<usize>, steps: u32, ends: &[bool]) -> Vec<bool> {
    let mut reached = vec![false; code.len()];
    for _ in 0..steps {
        let mut next = Vec::new();
        for at in front {
            if at < code.len() && !std::mem::replace(&mut reached[at], true) && !ends[at] {
                next.extend(code.target(at).into_iter().chain(code.next(at)));
            }
        }
        if next.is_empty() {
            break;
        }
        front = next;
    }
    reached
}

#[cfg(test)]
mod tests {
    use crate::copy::functions::Functions;
    use crate::copy::functions::tests::write_functions;
    use iced_x86::code_asm::*;

    /// A function that takes a lock, a word of the library's own, looks whether a field is set, and sets it.
    fn make(a: &mut CodeAssembler) {
        a.mov(rbx, rdi).unwrap();
        a.lock().bts(dword_ptr(rsi), 0).unwrap();
        a.cmp(qword_ptr(rbx + 8), 0).unwrap();
        a.mov(qword_ptr(rbx + 8), rax).unwrap();
        a.mov(dword_ptr(rsi), 0).unwrap();
    }

    /// How many of what a function of the C library looks at count as first looks, beside [`make`].
    fn found(function: fn(&mut CodeAssembler)) -> usize {
        let (_, starts) = write_functions(&[make, function]);
        let mut functions = Functions::default();
        functions.with(&starts, &[], &[], true, None);
        functions.idioms(starts[1]).expect("known").sites.len()
    }

    /// Calls [`make`], which lies 32 bytes before the function, if what was compared is equal.
    fn to_make(a: &mut CodeAssembler) {
        let mut there = a.create_label();
        a.jne(there).unwrap();
        a.call(-32_i64 as u64).unwrap();
        a.set_label(&mut there).unwrap();
        a.mov(rax, qword_ptr(rbx)).unwrap();
    }

    #[test]
    fn a_function_that_looks_again_under_its_lock() {
        assert_eq!(
            found(|a| {
                a.mov(rax, qword_ptr(rbp + 8)).unwrap();
                a.test(rax, rax).unwrap();
                to_make(a);
            }),
            1
        );
        assert_eq!(
            found(|a| {
                a.cmp(qword_ptr(rdi + 16), 0).unwrap();
                to_make(a);
            }),
            0,
            "another field"
        );
        assert_eq!(
            found(|a| {
                a.cmp(dword_ptr(rdi + 8), 0).unwrap();
                to_make(a);
            }),
            0,
            "of another size"
        );
        assert_eq!(
            found(|a| {
                a.cmp(qword_ptr(rdi + 8), rcx).unwrap();
                to_make(a);
            }),
            0,
            "it is compared with something that changes"
        );
    }

    #[test]
    fn a_look_before_the_function_s_own_lock() {
        fn look(a: &mut CodeAssembler, again: i32) {
            a.cmp(qword_ptr(rdi + 8), -1).unwrap();
            a.lock().bts(dword_ptr(rdi), 0).unwrap();
            a.mov(rax, qword_ptr(rdi + again)).unwrap();
            a.test(rax, rax).unwrap();
        }
        assert_eq!(found(|a| look(a, 8)), 1, "the first one, not the second one");
        assert_eq!(found(|a| look(a, 16)), 0, "another field");
    }
}
