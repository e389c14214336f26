//! What operands of assembled code are found to name.

use super::{SymbolicAddress, SymbolicAddresses, symbolic_addresses};
use crate::copy::tests::assembled;
use iced_x86::Register;
use iced_x86::code_asm::*;

/// The operands of what `write` assembles, branches and the like left out.
fn operands(write: impl FnOnce(&mut CodeAssembler)) -> Vec<SymbolicAddress> {
    let code = assembled(write);
    symbolic_addresses(&code).into_iter().flatten().collect()
}

fn frame(a: &mut CodeAssembler) {
    a.push(rbp).unwrap();
    a.mov(rbp, rsp).unwrap();
}

#[test]
fn addresses_of_variables() {
    let found = operands(|a| {
        a.lea(rbx, ptr(0x7000)).unwrap();
        a.mov(rcx, rbx).unwrap();
        a.call(0x5000).unwrap();
        a.mov(eax, dword_ptr(rbx + 8)).unwrap();
        a.mov(eax, dword_ptr(rcx)).unwrap();
        a.mov(edi, 0x7010).unwrap();
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.mov(eax, dword_ptr(rdi + rax * 4)).unwrap();
    });
    let variables: Vec<_> = found.into_iter().map(SymbolicAddress::variable).collect();
    assert_eq!(variables, [Some(0x7000), Some(0x7008), None, Some(0x7010), None]);
}

/// As code looks into the table of a `switch`, at an address of its own or loaded with others.
#[test]
fn elements_of_arrays() {
    let found = operands(|a| {
        a.mov(rdx, qword_ptr(rax * 8 + 0x7000)).unwrap();
        a.lea(rbx, ptr(0x7100)).unwrap();
        a.movsxd(rax, dword_ptr(rbx + rax * 4)).unwrap();
        a.mov(eax, dword_ptr(rax + rbx * 1 + 8)).unwrap();
        a.mov(eax, dword_ptr(rax + rbx * 2)).unwrap();
        a.mov(eax, dword_ptr(rdi + rax * 4)).unwrap();
    });
    let arrays: Vec<_> = found.into_iter().map(SymbolicAddress::variable_or_array).collect();
    let [table, own] = [Some(0x7000), Some(0x7100)];
    assert_eq!(arrays, [table, own, own, Some(0x7108), None, None]);
}

/// As a search of a skip list begins with the highest level.
#[test]
fn numbers_are_no_arrays() {
    let found = operands(|a| {
        a.mov(esi, 0x40).unwrap();
        a.mov(rax, qword_ptr(rdi + rsi)).unwrap();
        a.mov(rsi, -8i64 as u64).unwrap();
        a.mov(rax, qword_ptr(rdi + rsi)).unwrap();
        a.mov(esi, 0x7000).unwrap();
        a.mov(rax, qword_ptr(rdi + rsi)).unwrap();
    });
    let arrays: Vec<_> = found.into_iter().map(SymbolicAddress::variable_or_array).collect();
    assert_eq!(arrays, [None, None, Some(0x7000)]);
}

/// Accounts that have a lock each: two of them are locked by their numbers, which go through other
/// registers before the locks are released.
#[test]
fn other_elements_are_alike() {
    let found = operands(|a| {
        a.lea(r10, ptr(0x7000)).unwrap();
        a.lea(rdx, qword_ptr(r10 + rax * 8)).unwrap();
        a.xchg(dword_ptr(rdx), ecx).unwrap();
        a.movsxd(rax, r13d).unwrap();
        a.lea(rax, qword_ptr(r10 + rax * 8)).unwrap();
        a.mov(dword_ptr(rax), 0).unwrap();
        a.mov(dword_ptr(rax + 4), 0).unwrap();
        a.mov(dword_ptr(rdi + rax * 8), 0).unwrap();
    });
    let mut locked = SymbolicAddresses::default();
    locked.add(found[2]);
    let alike: Vec<_> = found[4..].iter().map(|&it| locked.look_like(it)).collect();
    assert_eq!(alike, [true, false, false], "not another field, nor another array");
}

/// As gcc and clang compile `atomic_load(&variable)` and `atomic_load(&argument->field)`
/// without optimisation, next to an ordinary `*argument`.
#[test]
fn slots_of_the_compilers() {
    let found = operands(|a| {
        frame(a);
        a.mov(qword_ptr(rbp - 8), rdi).unwrap();
        a.lea(rax, ptr(0x7000)).unwrap();
        a.mov(qword_ptr(rbp - 16), rax).unwrap();
        a.mov(rax, qword_ptr(rbp - 16)).unwrap();
        a.mov(eax, dword_ptr(rax)).unwrap();
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.add(rax, 8).unwrap();
        a.mov(qword_ptr(rbp - 24), rax).unwrap();
        a.mov(rax, qword_ptr(rbp - 24)).unwrap();
        a.mov(eax, dword_ptr(rax)).unwrap();
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.mov(eax, dword_ptr(rax)).unwrap();
    });
    let [lea, variable, field, plain] = found[..] else { panic!("{found:?}") };
    assert_eq!((variable.variable(), lea.variable()), (Some(0x7000), Some(0x7000)));
    assert_eq!([variable, field, plain].map(SymbolicAddress::is_kept), [true, true, false]);
}

/// A pointer of the source's, which walks, is written at two places.
#[test]
fn slots_of_the_source() {
    let found = operands(|a| {
        let mut again = a.create_label();
        frame(a);
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.mov(qword_ptr(rbp - 16), rax).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(rax, qword_ptr(rbp - 16)).unwrap();
        a.mov(ecx, dword_ptr(rax)).unwrap();
        a.add(rax, 4).unwrap();
        a.mov(qword_ptr(rbp - 16), rax).unwrap();
        a.jmp(again).unwrap();
    });
    assert_eq!(found.into_iter().map(SymbolicAddress::is_kept).collect::<Vec<_>>(), [false]);
}

/// The address of an element, which goes through a slot that nothing else names.
#[test]
fn addresses_that_are_handed_on() {
    let kept = |again: bool| {
        let found = operands(|a| {
            a.push(rbp).unwrap();
            a.mov(rbp, rsp).unwrap();
            a.mov(qword_ptr(rbp - 0x18), rdi).unwrap();
            a.mov(rax, qword_ptr(rbp - 0x18)).unwrap();
            a.add(rax, rdx).unwrap();
            a.mov(qword_ptr(rbp - 0x20), rax).unwrap();
            a.mov(rax, qword_ptr(rbp - 0x20)).unwrap();
            a.mov(eax, dword_ptr(rax)).unwrap();
            if again {
                a.mov(rax, qword_ptr(rbp - 0x20)).unwrap();
            }
        });
        found.into_iter().any(SymbolicAddress::is_kept)
    };
    assert!(kept(false));
    assert!(!kept(true), "a variable of the program's");
}

/// As gcc inlines `table[i].load(memory_order_acquire)` and `entry->word.store(value, memory_order_release)`
/// without optimisation: it computes the order after it has stored the address.
#[test]
fn addresses_beside_an_order_of_memory() {
    let kept = |order: u32, value: bool, again: bool| {
        let found = operands(|a| {
            frame(a);
            a.mov(qword_ptr(rbp - 0x18), rdi).unwrap();
            a.mov(rax, qword_ptr(rbp - 0x18)).unwrap();
            a.add(rax, rdx).unwrap();
            a.mov(qword_ptr(rbp - 0x20), rax).unwrap();
            if value {
                a.mov(dword_ptr(rbp - 0x24), esi).unwrap();
            }
            a.mov(dword_ptr(rbp - 0x28), order).unwrap();
            a.mov(eax, dword_ptr(rbp - 0x28)).unwrap();
            a.mov(esi, 0xffff).unwrap();
            a.mov(edi, eax).unwrap();
            a.call(0x5000).unwrap();
            a.mov(rax, qword_ptr(rbp - 0x20)).unwrap();
            a.mov(eax, dword_ptr(rax)).unwrap();
            if again {
                a.mov(rax, qword_ptr(rbp - 0x20)).unwrap();
            }
        });
        found.into_iter().any(SymbolicAddress::is_kept)
    };
    assert!(kept(2, false, false) && kept(5, true, false));
    assert!(!kept(6, false, false), "there is no such order");
    assert!(!kept(2, false, true), "a variable of the program's");
}

/// Compilers subtract -128, which is shorter than to add 128.
#[test]
fn fields_at_128_bytes() {
    let found = operands(|a| {
        frame(a);
        a.mov(qword_ptr(rbp - 8), rdi).unwrap();
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.sub(rax, -128).unwrap();
        a.mov(qword_ptr(rbp - 16), rax).unwrap();
        a.call(0x5000).unwrap();
        a.mov(rax, qword_ptr(rbp - 16)).unwrap();
        a.mov(eax, dword_ptr(rax)).unwrap();
        a.mov(rcx, qword_ptr(rbp - 8)).unwrap();
        a.mov(eax, dword_ptr(rcx + 128)).unwrap();
    });
    let [through_slot, field] = found[..] else { panic!("{found:?}") };
    assert!(through_slot.is_kept() && through_slot.is_same(field), "{found:?}");
}

/// As compilers look at a word once before the loop that polls it.
#[test]
fn sums() {
    let found = operands(|a| {
        a.mov(rdx, r12).unwrap();
        a.cmp(qword_ptr(rdx + rcx * 1), 0).unwrap();
        a.lea(rax, ptr(rcx + rdx)).unwrap();
        a.cmp(qword_ptr(rax), 0).unwrap();
        a.cmp(qword_ptr(rdx + rcx * 2), 0).unwrap();
        a.mov(rsi, rcx).unwrap();
        a.add(rsi, rdx).unwrap();
        a.cmp(qword_ptr(rsi), 0).unwrap();
        a.inc(rcx).unwrap();
        a.cmp(qword_ptr(rdx + rcx * 1), 0).unwrap();
    });
    let [first, _, polled, other, added, last] = &found[..] else { panic!("{found:?}") };
    assert!(first.is_same(*polled) && added.is_same(*polled), "{found:?}");
    let others = [other, last];
    let polled = SymbolicAddresses::from_iter([*polled]);
    assert!(!others.iter().any(|other| polled.look_like(**other)), "{found:?}");
}

/// As a slow path behind the function's end, where the pointer has been given back, or moved on.
#[test]
fn slow_paths_behind_the_end() {
    let found = operands(|a| {
        let (mut slow, mut slower) = (a.create_label(), a.create_label());
        a.push(rbx).unwrap();
        a.mov(rbx, rdi).unwrap();
        a.test(rsi, rsi).unwrap();
        a.je(slow).unwrap();
        a.add(rdi, 8).unwrap();
        a.cmp(rsi, 2).unwrap();
        a.je(slow).unwrap();
        a.jb(slower).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
        a.int3().unwrap();
        a.set_label(&mut slow).unwrap();
        a.mov(eax, dword_ptr(rbx + 4)).unwrap();
        a.mov(eax, dword_ptr(rdi + 4)).unwrap();
        a.pop(rbx).unwrap();
        a.set_label(&mut slower).unwrap();
        a.mov(eax, dword_ptr(rdi)).unwrap();
    });
    let arguments: Vec<_> = found.into_iter().map(SymbolicAddress::argument).collect();
    let expected = [Some((Register::RDI, 4)), Some((Register::RDI, 4)), Some((Register::RDI, 0))];
    assert_eq!(arguments, expected, "the last one is also behind what is before it");
}

/// The end of a loop that is entered in its middle: what is there is reached by branches back alone.
#[test]
fn ends_of_loops_before_their_rest() {
    let found = operands(|a| {
        let [mut end, mut next, mut out] = std::array::from_fn(|_| a.create_label());
        a.jmp(next).unwrap();
        a.set_label(&mut end).unwrap();
        a.mov(byte_ptr(r12), 0).unwrap();
        a.mov(r13, qword_ptr(rsp + 8)).unwrap();
        a.set_label(&mut next).unwrap();
        a.lea(r12, ptr(r13 + 0x10)).unwrap();
        a.lock().cmpxchg(byte_ptr(r13 + 0x10), cl).unwrap();
        a.dec(rbx).unwrap();
        a.je(out).unwrap();
        a.jmp(end).unwrap();
        a.set_label(&mut out).unwrap();
        a.ret().unwrap();
    });
    let [released, _, locked] = &found[..] else { panic!("{found:?}") };
    assert!(released.is_same(*locked));
}

#[test]
fn numbers_of_other_ways_are_no_addresses() {
    let found = operands(|a| {
        let mut other = a.create_label();
        a.test(rdi, rdi).unwrap();
        a.je(other).unwrap();
        a.mov(r15, -0x48i64 as u64).unwrap();
        a.set_label(&mut other).unwrap();
        a.mov(byte_ptr(r15 + 0x128), 0).unwrap();
        a.lock().cmpxchg(byte_ptr(rsi + 0x128), cl).unwrap();
    });
    let [released, locked] = &found[..] else { panic!("{found:?}") };
    assert_eq!(released.variable(), None);
    assert!(SymbolicAddresses::from_iter([*locked]).look_like(*released), "a field of something");
}

#[test]
fn fields_that_look_alike() {
    let found = operands(|a| {
        a.lea(rax, ptr(rdi + 8)).unwrap();
        a.lock().inc(qword_ptr(rax)).unwrap();
        a.mov(rcx, qword_ptr(rdi + 8)).unwrap();
        a.mov(rcx, qword_ptr(rsi + 8)).unwrap();
        a.mov(rcx, qword_ptr(rsi)).unwrap();
        a.mov(rcx, qword_ptr(0x8)).unwrap();
    });
    let [_, locked, others @ ..] = &found[..] else { panic!("{found:?}") };
    let locked = SymbolicAddresses::from_iter([*locked]);
    let alike: Vec<_> = others.iter().map(|other| locked.look_like(*other)).collect();
    assert_eq!(alike, [true, true, false, false]);
}
