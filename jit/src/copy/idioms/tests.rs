//! Which instructions of small functions are watched.

use super::pauses::{Callee, pauses};
use super::{Surroundings, idioms};
use crate::copy::tests::assembled;
use iced_x86::Mnemonic;
use iced_x86::code_asm::*;

/// Mnemonics of the sites in what `write` assembles; variables lie at 0x7000 and above.
fn found(
    calls_locks: bool,
    trusted: bool,
    write: impl FnOnce(&mut CodeAssembler),
) -> Vec<Mnemonic> {
    found_in(calls_locks, trusted, false, write)
}

/// The same, in a short function that may be called beside locks.
fn found_in(
    calls_locks: bool,
    trusted: bool,
    is_called_beside_locks: bool,
    write: impl FnOnce(&mut CodeAssembler),
) -> Vec<Mnemonic> {
    let code = assembled(write);
    let is_variable = |address| address >= 0x7000;
    let locks: Vec<bool> = code.iter().map(|_| calls_locks).collect();
    let around = Surroundings {
        locks: &locks,
        held: &vec![false; code.len()],
        handed: &[],
        looks: &[],
        pauses: &pauses(&code, |_| Callee::Other),
        is_called_beside_locks,
        is_called_beside_own: is_called_beside_locks,
        is_atomic_operation: false,
        trusted,
        atomic: &[],
        is_variable: &is_variable,
        only_waits: &|call| call.near_branch_target() == 0x5000,
        writes: &|_, _| false,
    };
    let found = idioms(&code, &around);
    code.iter().filter(|i| found.sites.contains(&i.ip())).map(|i| i.mnemonic()).collect()
}

fn publish(a: &mut CodeAssembler) {
    a.lock().cmpxchg(qword_ptr(rdi), rcx).unwrap();
    let mut again = a.create_label();
    a.set_label(&mut again).unwrap();
    a.add(rax, qword_ptr(rsi)).unwrap();
    a.dec(rcx).unwrap();
    a.jne(again).unwrap();
    a.mov(rbx, qword_ptr(rdi + 8)).unwrap();
    a.mov(qword_ptr(rdi + 8), rax).unwrap();
    a.cmp(dword_ptr(0x7000), 0).unwrap();
    a.test(qword_ptr(rdi), rax).unwrap();
    a.mov(qword_ptr(rdi), rax).unwrap();
}

#[test]
fn beside_locked_instructions() {
    use Mnemonic::*;
    assert_eq!(found(false, false, publish), [Mov, Mov, Cmp, Test, Mov]);
    assert_eq!(found(false, true, publish), [Cmp, Test, Mov], "the C library");
    let accessor = |a: &mut CodeAssembler| a.mov(rax, qword_ptr(rdi)).unwrap();
    assert_eq!(found(true, false, accessor), [Mov], "its callee locks");
    assert_eq!(found(false, false, accessor), []);
    assert_eq!(found(true, true, accessor), []);
}

#[test]
fn frames_are_the_threads_own() {
    let beside = |keeps: bool, lends: i32| {
        found(false, false, |a| {
            a.push(rbp).unwrap();
            if keeps {
                a.mov(rbp, rsp).unwrap();
            }
            a.lea(rax, qword_ptr(rbp + lends)).unwrap();
            a.lock().inc(dword_ptr(rdi)).unwrap();
            a.mov(eax, dword_ptr(rbp - 16)).unwrap();
            a.pop(rbp).unwrap();
        })
    };
    assert_eq!(beside(true, -8), []);
    assert_eq!(beside(true, 16), []);
    assert_eq!(beside(true, -20), [Mnemonic::Mov], "a field of what others know");
    assert_eq!(beside(false, -8), [Mnemonic::Mov], "it may point to anything");
}

/// As in a lock that lies behind a pointer: its release is a plain store.
#[test]
fn a_lock_behind_a_pointer() {
    let releases = |field: i32| {
        found(false, false, |a| {
            a.mov(rax, qword_ptr(rdx)).unwrap();
            a.xchg(dword_ptr(rax), ecx).unwrap();
            (0..100).for_each(|_| a.inc(rbx).unwrap());
            a.mov(rcx, qword_ptr(rdx + field)).unwrap();
            a.mov(dword_ptr(rcx), 0).unwrap();
        })
    };
    assert_eq!(releases(0), [Mnemonic::Mov; 2], "the pointer before the lock, and the release");
    assert_eq!(releases(8), [Mnemonic::Mov]);
}

/// As Rust's `store` of an atomic variable is without optimisation: it keeps its arguments by the
/// stack pointer, and has an arm for each order.
#[test]
fn an_argument_kept_by_the_stack_pointer() {
    let stores = |kept: i32| {
        found(false, false, |a| {
            a.sub(rsp, 0x18).unwrap();
            a.mov(qword_ptr(rsp), rdi).unwrap();
            a.mov(qword_ptr(rsp + 8), rsi).unwrap();
            a.mov(rax, qword_ptr(rsp + kept)).unwrap();
            a.mov(byte_ptr(rax), cl).unwrap();
            (0..100).for_each(|_| a.inc(rbx).unwrap());
            a.mov(rcx, qword_ptr(rsp)).unwrap();
            a.xchg(byte_ptr(rcx), al).unwrap();
        })
    };
    assert_eq!(stores(0), [Mnemonic::Mov]);
    assert_eq!(stores(8), []);
}

/// As in a queue: look at a slot's stamp, and again if it is not the one, and again if somebody
/// else was quicker.
#[test]
fn a_loop_may_try_again_in_two_ways() {
    let tries = |a: &mut CodeAssembler| {
        let (mut again, mut take) = (a.create_label(), a.create_label());
        a.set_label(&mut again).unwrap();
        a.mov(rcx, qword_ptr(rdx)).unwrap();
        a.cmp(rcx, rsi).unwrap();
        a.je(take).unwrap();
        a.jmp(again).unwrap();
        a.set_label(&mut take).unwrap();
        a.lock().cmpxchg(qword_ptr(rdi), rcx).unwrap();
        a.jne(again).unwrap();
    };
    assert_eq!(found(false, false, tries), [Mnemonic::Mov]);
}

#[test]
fn variables_and_constants() {
    let looks = |a: &mut CodeAssembler| {
        a.mov(eax, dword_ptr(0x7000)).unwrap();
        a.mov(ecx, dword_ptr(0x6000)).unwrap();
        a.mov(dword_ptr(0x7008), eax).unwrap();
    };
    assert_eq!(found(false, false, looks), [Mnemonic::Mov], "the variable's load");
    assert_eq!(found(false, true, looks), []);
}

/// As the cases of an interpreter: each looks at a flag, and one of them at what takes the lock.
#[test]
fn one_flag_in_several_cases() {
    let interpret = |a: &mut CodeAssembler| {
        let (mut slow, mut other) = (a.create_label(), a.create_label());
        a.mov(eax, dword_ptr(rdi + 0x64)).unwrap();
        a.test(eax, eax).unwrap();
        a.jne(slow).unwrap();
        a.jmp(rdx).unwrap();
        a.mov(ecx, dword_ptr(rsi + 0x64)).unwrap();
        a.test(ecx, ecx).unwrap();
        a.jne(other).unwrap();
        a.cmp(qword_ptr(rsi + 8), 3).unwrap();
        a.set_label(&mut other).unwrap();
        a.call(0x6000).unwrap();
        a.jmp(rdx).unwrap();
        a.set_label(&mut slow).unwrap();
        (0..200).for_each(|_| a.inc(rbx).unwrap());
        a.lock().inc(qword_ptr(r15)).unwrap();
        a.jmp(rdx).unwrap();
    };
    assert_eq!(found(false, false, interpret), [Mnemonic::Mov; 2]);
}

/// Tables and numbers that the compiler has made; variables lie at 0x7000 and above.
#[test]
fn constant_data() {
    let looks = |table: u64| {
        found(false, false, |a| {
            a.lock().inc(qword_ptr(rdi)).unwrap();
            a.mov(rdx, qword_ptr(rax * 8 + table)).unwrap();
            a.lea(rbx, ptr(table)).unwrap();
            a.movsxd(rax, dword_ptr(rbx + rax * 4)).unwrap();
            a.cmp(rcx, qword_ptr(table)).unwrap();
        })
    };
    assert_eq!(looks(0x7000), [Mnemonic::Mov, Mnemonic::Movsxd, Mnemonic::Cmp]);
    assert_eq!(looks(0x6000), []);
}

/// The linker keeps addresses of other modules' variables where nobody changes them.
#[test]
fn variables_of_other_modules() {
    let looks = |table: u64| {
        found(false, false, |a| {
            a.mov(rbx, qword_ptr(table)).unwrap();
            a.mov(ecx, dword_ptr(rbx)).unwrap();
            a.mov(edx, dword_ptr(rbx + 8)).unwrap();
            a.mov(dword_ptr(rbx), edx).unwrap();
            a.mov(rsi, qword_ptr(rdi)).unwrap();
            a.mov(ecx, dword_ptr(rsi)).unwrap();
        })
    };
    assert_eq!(looks(0x6000), [Mnemonic::Mov; 2]);
    assert_eq!(
        looks(0x7000),
        [Mnemonic::Mov],
        "the pointer is a variable; what it points to is any"
    );
}

/// As compilers make of a loop with a `switch` that ends by looking at a flag: one of its cases
/// gets a tail of its own, which looks like an inner loop.
#[test]
fn duplicated_tails() {
    let interpret = |a: &mut CodeAssembler| {
        let (mut again, mut case) = (a.create_label(), a.create_label());
        a.set_label(&mut case).unwrap();
        a.lock().inc(qword_ptr(r15)).unwrap();
        a.mov(eax, dword_ptr(rbp)).unwrap();
        a.set_label(&mut again).unwrap();
        a.inc(r13).unwrap();
        a.test(r13, r13).unwrap();
        a.jne(case).unwrap();
        a.mov(ecx, dword_ptr(rbx)).unwrap();
        a.mov(eax, dword_ptr(rbp)).unwrap();
        a.test(eax, eax).unwrap();
        a.je(again).unwrap();
    };
    assert_eq!(found(false, false, interpret), [Mnemonic::Mov; 2], "both, and not what differs");
}

/// As gcc compiles `while (!atomic_load(&object->flag)) sum += other->field;` without
/// optimisation.
#[test]
fn code_that_is_not_optimised() {
    let waits = |a: &mut CodeAssembler| {
        let mut again = a.create_label();
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.mov(qword_ptr(rbp - 8), rdi).unwrap();
        a.mov(qword_ptr(rbp - 16), rsi).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(rax, qword_ptr(rbp - 16)).unwrap();
        a.mov(eax, dword_ptr(rax)).unwrap();
        a.add(dword_ptr(rbp - 36), eax).unwrap();
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.mov(qword_ptr(rbp - 24), rax).unwrap();
        a.mov(rax, qword_ptr(rbp - 24)).unwrap();
        a.movzx(eax, byte_ptr(rax)).unwrap();
        a.test(eax, eax).unwrap();
        a.je(again).unwrap();
    };
    assert_eq!(found(false, false, waits), [Mnemonic::Movzx]);
    assert_eq!(found(false, true, waits), []);
}

/// As compilers make of `for (;;) { if (ring->in - ring->out == 64) { yield(); continue; } ...
/// ring->in++; }`: neither a loop that only waits nor a lock.
#[test]
fn beside_a_pause() {
    let puts = |yields: bool| {
        found(false, false, |a| {
            let (mut again, mut full) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.mov(eax, dword_ptr(rdx + 4)).unwrap();
            a.mov(esi, dword_ptr(rdx)).unwrap();
            a.sub(esi, eax).unwrap();
            a.je(full).unwrap();
            a.mov(qword_ptr(rdx + rcx * 8 + 8), rbx).unwrap();
            a.inc(eax).unwrap();
            a.mov(dword_ptr(rdx + 4), eax).unwrap();
            a.jmp(again).unwrap();
            a.set_label(&mut full).unwrap();
            if yields {
                a.pause().unwrap();
            }
            a.jmp(again).unwrap();
        })
    };
    assert_eq!(puts(true), [Mnemonic::Mov; 3], "two loads and the store of what one loads");
    assert_eq!(puts(false), []);
}

/// As compilers make of `while (!*word) pause(); use(*word); *word = 0;`.
#[test]
fn around_a_loop_that_polls() {
    let waits = |a: &mut CodeAssembler| {
        let (mut again, mut done) = (a.create_label(), a.create_label());
        a.lea(rax, ptr(rdx + rcx)).unwrap();
        a.cmp(qword_ptr(rcx + rdx * 1), 0).unwrap();
        a.jne(done).unwrap();
        a.set_label(&mut again).unwrap();
        a.nop().unwrap();
        a.cmp(qword_ptr(rax), 0).unwrap();
        a.je(again).unwrap();
        a.set_label(&mut done).unwrap();
        a.mov(r8, qword_ptr(rax)).unwrap();
        a.mov(r9, qword_ptr(rax + 8)).unwrap();
        a.mov(qword_ptr(rax), 0).unwrap();
    };
    assert_eq!(found(false, false, waits), [Mnemonic::Cmp, Mnemonic::Mov, Mnemonic::Mov]);
}

/// The stack and thread-local storage are the thread's own.
#[test]
fn own_memory() {
    let own = |a: &mut CodeAssembler| {
        a.mov(rax, qword_ptr(rsp + 8)).unwrap();
        a.mov(rax, qword_ptr(0x10).fs()).unwrap();
        a.lock().inc(qword_ptr(rdi)).unwrap();
    };
    assert_eq!(found(false, false, own), []);
    let named = |a: &mut CodeAssembler| {
        a.mov(rax, qword_ptr(rsp + 8)).unwrap();
        a.lock().inc(qword_ptr(rsp + 8)).unwrap();
    };
    assert_eq!(found(false, false, named), [Mnemonic::Mov]);
}

/// Looks like a locked operand: the same one, or the same field of something else.
#[test]
fn operands_that_look_alike() {
    let forms = |a: &mut CodeAssembler| {
        a.mov(rax, qword_ptr(rdi + 8)).unwrap();
        a.mov(rax, qword_ptr(rcx)).unwrap();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(rax, qword_ptr(rdi + 16)).unwrap();
        a.lock().inc(dword_ptr(rsi + 8)).unwrap();
        a.xchg(qword_ptr(rcx), rdx).unwrap();
    };
    assert_eq!(found(false, true, forms), [Mnemonic::Mov; 2]);
}

/// As in `if (!object->busy) object->state++;`, a search for a number, and one for a character.
#[test]
fn short_functions_that_are_called_beside_locks() {
    let look = |a: &mut CodeAssembler| {
        a.mov(eax, dword_ptr(rdi + 4)).unwrap();
        a.inc(eax).unwrap();
        a.mov(dword_ptr(rdi + 4), eax).unwrap();
        a.mov(dword_ptr(rdi + 8), 0).unwrap();
    };
    assert_eq!(found_in(false, false, true, look), [Mnemonic::Mov; 2]);
    assert_eq!(found_in(false, false, false, look), []);
    let search = |words: bool| {
        found_in(false, false, true, |a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.add(rdi, 8).unwrap();
            a.add(rcx, qword_ptr(rdx)).unwrap();
            if words {
                a.cmp(qword_ptr(rdi), rsi).unwrap();
            } else {
                a.cmp(byte_ptr(rdi), sil).unwrap();
            }
            a.jne(again).unwrap();
        })
    };
    assert_eq!(search(true), [Mnemonic::Cmp]);
    assert_eq!(search(false), []);
}

#[test]
fn guards_release_locks() {
    let release = |a: &mut CodeAssembler| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(dword_ptr(rax + 4), 0).unwrap();
        a.ret().unwrap();
    };
    assert_eq!(found_in(false, false, true, release), [Mnemonic::Mov; 2]);
    assert_eq!(found_in(false, false, false, release), []);
}

/// As gcc compiles `atomic_store_explicit(&object->flag, 0, memory_order_release);` without
/// optimisation, and `object->flag = 0;`.
#[test]
fn stores_in_code_that_is_not_optimised() {
    let sets = |through_slot: bool| {
        found(false, false, |a| {
            a.push(rbp).unwrap();
            a.mov(rbp, rsp).unwrap();
            a.mov(qword_ptr(rbp - 24), rdi).unwrap();
            a.mov(rax, qword_ptr(rbp - 24)).unwrap();
            if through_slot {
                a.add(rax, 4).unwrap();
                a.mov(qword_ptr(rbp - 8), rax).unwrap();
                a.mov(rax, qword_ptr(rbp - 8)).unwrap();
                a.mov(dword_ptr(rax), 0).unwrap();
            } else {
                a.mov(dword_ptr(rax + 4), 0).unwrap();
            }
        })
    };
    assert_eq!(sets(true), [Mnemonic::Mov]);
    assert_eq!(sets(false), []);
}

/// As in a queue of threads that wait, each for a word on its own stack: `if (!self.next) while
/// (!self.next) sched_yield();`.
#[test]
fn words_on_the_stack_that_a_loop_polls() {
    let waits = |other: i32| {
        found(false, false, |a| {
            let (mut again, mut done) = (a.create_label(), a.create_label());
            a.mov(qword_ptr(rsp), 0).unwrap();
            a.mov(rax, qword_ptr(rsp + other)).unwrap();
            a.test(rax, rax).unwrap();
            a.jne(done).unwrap();
            a.set_label(&mut again).unwrap();
            a.call(0x5000).unwrap();
            a.cmp(qword_ptr(rsp), 0).unwrap();
            a.je(again).unwrap();
            a.set_label(&mut done).unwrap();
            a.ret().unwrap();
        })
    };
    assert_eq!(waits(0), [Mnemonic::Mov; 2], "what is written before, and the first look");
    assert_eq!(waits(8), [Mnemonic::Mov]);
}

/// As in Lamport's bakery: a loop over the numbers of others, each of which is waited for by a loop.
#[test]
fn loops_around_loops_that_poll() {
    let waits = |polls: bool| {
        found(false, false, |a| {
            let (mut next, mut again) = (a.create_label(), a.create_label());
            a.mfence().unwrap();
            a.set_label(&mut next).unwrap();
            a.cmp(dword_ptr(rax + rdx * 4 + 8), 0).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(ecx, dword_ptr(rdi + rdx * 4)).unwrap();
            a.test(ecx, ecx).unwrap();
            if polls {
                a.jne(again).unwrap();
            }
            a.inc(rdx).unwrap();
            a.cmp(rdx, 3).unwrap();
            a.jne(next).unwrap();
        })
    };
    assert_eq!(waits(true), [Mnemonic::Cmp], "beside the fence, and what is polled anyway");
    assert_eq!(waits(false), [], "it computes");
}

#[test]
fn the_c_librarys_detached_threads() {
    let detach = |a: &mut CodeAssembler, mark| {
        a.lock().cmpxchg(qword_ptr(rdi + 0x620), mark).unwrap();
        a.test(byte_ptr(rdi + 0x308), 0x10).unwrap();
    };
    let with = |mark| found(false, true, |a| detach(a, mark));
    assert_eq!((with(rdi), with(rsi)), (vec![Mnemonic::Test], vec![]));
}

/// In the C library, a variable that is loaded beside a lock is watched where the function stores it, too.
#[test]
fn variables_of_a_trusted_module_are_stored_in_order() {
    let stored = |loaded: u64| {
        found(true, true, |a| {
            a.mov(eax, dword_ptr(loaded)).unwrap();
            a.mov(dword_ptr(0x7100), ecx).unwrap();
            a.ret().unwrap();
        })
    };
    assert_eq!(stored(0x7100).len(), 2);
    assert_eq!(stored(0x7200).len(), 1, "another variable");
}
