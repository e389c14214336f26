//! Tests of the loops that poll.

use super::{Flow, polls};
use crate::copy::addresses::symbolic_addresses;
use crate::copy::tests::assembled;
use iced_x86::code_asm::*;
use iced_x86::{Instruction, Mnemonic};

const FOREIGN: u64 = 0x5000;

/// Mnemonics of the loads that are polled in what `write` assembles.
fn polled(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Mnemonic> {
    let code = assembled(write);
    let foreign = |call: &Instruction| call.near_branch_target() == FOREIGN;
    let found = polls(&code, &symbolic_addresses(&code), &Flow::of(&code), foreign);
    code.iter().filter(|i| found.contains(&i.ip())).map(Instruction::mnemonic).collect()
}

/// Python looks how large the largest character of a text is. Where one is larger than it thought, it looks at the
/// same characters again, and now for the next size.
#[test]
fn a_scan_that_goes_through_states() {
    let found = |asks: bool| {
        polled(|a| {
            let [mut larger, mut middle, mut next, mut done] =
                std::array::from_fn(|_| a.create_label());
            a.jmp(next).unwrap();
            a.set_label(&mut larger).unwrap();
            if asks {
                a.cmp(ecx, -128).unwrap();
                a.je(middle).unwrap();
            }
            a.mov(esi, 0xffff).unwrap();
            a.mov(ecx, 0xffff_0000_u32).unwrap();
            a.cmp(rdx, rbp).unwrap();
            a.jae(done).unwrap();
            a.set_label(&mut next).unwrap();
            a.movzx(eax, word_ptr(rdx)).unwrap();
            a.or(ax, word_ptr(rdx + 2)).unwrap();
            a.test(eax, ecx).unwrap();
            a.jne(larger).unwrap();
            a.add(rdx, 4).unwrap();
            a.cmp(rdx, rbp).unwrap();
            a.jb(next).unwrap();
            a.set_label(&mut done).unwrap();
            a.ret().unwrap();
            a.set_label(&mut middle).unwrap();
            a.mov(ecx, 0xffff_ff00_u32).unwrap();
            a.jmp(next).unwrap();
        })
    };
    assert_eq!(found(true), []);
    assert_eq!(found(false), [Mnemonic::Movzx, Mnemonic::Or], "for what another thread stores");
}

/// A loop that asks at its beginning for what it has loaded at its end has no states of its own.
#[test]
fn a_poll_that_begins_with_the_question() {
    let found = polled(|a| {
        let [mut again, mut done] = std::array::from_fn(|_| a.create_label());
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.set_label(&mut again).unwrap();
        a.cmp(eax, 1).unwrap();
        a.je(done).unwrap();
        a.pause().unwrap();
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.jmp(again).unwrap();
        a.set_label(&mut done).unwrap();
        a.ret().unwrap();
    });
    assert_eq!(found, [Mnemonic::Mov]);
}

/// Who waits adds up what each of the others has done, in arrays by their numbers.
#[test]
fn arrays_that_are_added_up() {
    let found = polled(|a| {
        let [mut again, mut next, mut done] = std::array::from_fn(|_| a.create_label());
        a.set_label(&mut again).unwrap();
        a.mov(edi, 200).unwrap();
        a.call(FOREIGN).unwrap();
        a.xor(eax, eax).unwrap();
        a.xor(ecx, ecx).unwrap();
        a.set_label(&mut next).unwrap();
        a.movsxd(rdx, eax).unwrap();
        a.add(eax, 1).unwrap();
        a.mov(rsi, qword_ptr(r15 + rdx * 8)).unwrap();
        a.add(rcx, rsi).unwrap();
        a.cmp(eax, edi).unwrap();
        a.jne(next).unwrap();
        // It computes by the instruction for addresses.
        a.lea(rbx, ptr(rbx + rcx)).unwrap();
        a.cmp(rcx, rbp).unwrap();
        a.jge(done).unwrap();
        a.jmp(again).unwrap();
        a.set_label(&mut done).unwrap();
        a.ret().unwrap();
    });
    assert_eq!(found, [Mnemonic::Mov]);
}

/// As where a thread is told to stop once the others have done enough, and the function has filled another
/// array before: both operands have the same register, which is the number of the element.
#[test]
fn arrays_that_are_added_up_beside_others() {
    let found = |filled: AsmRegister64| {
        polled(|a| {
            let [mut again, mut next, mut more, mut fill] =
                std::array::from_fn(|_| a.create_label());
            a.set_label(&mut fill).unwrap();
            a.mov(dword_ptr(rax + filled), 1).unwrap();
            a.add(rax, 4).unwrap();
            a.cmp(rax, 16).unwrap();
            a.jne(fill).unwrap();
            a.set_label(&mut again).unwrap();
            a.xor(eax, eax).unwrap();
            a.xor(ebp, ebp).unwrap();
            a.set_label(&mut next).unwrap();
            a.add(ebp, dword_ptr(rax + rbx)).unwrap();
            a.add(rax, 4).unwrap();
            a.cmp(rax, 16).unwrap();
            a.jne(next).unwrap();
            a.cmp(ebp, 50).unwrap();
            a.jle(more).unwrap();
            a.mov(dword_ptr(0x7000), 1).unwrap();
            a.set_label(&mut more).unwrap();
            a.call(FOREIGN).unwrap();
            a.cmp(ebp, 100).unwrap();
            a.jl(again).unwrap();
            a.ret().unwrap();
        })
    };
    assert_eq!(found(rcx), [Mnemonic::Add]);
    assert_eq!(found(rbx), [], "it stores what it loads");
}

/// As gcc has it with `-Og`: the inner loop comes first, and rounds of the outer one begin behind it.
#[test]
fn arrays_that_are_added_up_in_a_loop_before_its_beginning() {
    let found = |resets: bool, filled: i64| {
        polled(|a| {
            let [mut next, mut compare, mut more, mut again, mut done] =
                std::array::from_fn(|_| a.create_label());
            a.mov(rdx, filled).unwrap();
            a.mov(dword_ptr(rdx + rcx * 4), 1).unwrap();
            a.jmp(again).unwrap();
            a.set_label(&mut next).unwrap();
            a.movsxd(rcx, r12d).unwrap();
            a.mov(rdx, 0x8000_i64).unwrap();
            a.mov(edx, dword_ptr(rdx + rcx * 4)).unwrap();
            a.add(ebx, edx).unwrap();
            a.add(r12d, 1).unwrap();
            a.set_label(&mut compare).unwrap();
            a.cmp(r12d, 3).unwrap();
            a.jle(next).unwrap();
            a.cmp(ebx, 50).unwrap();
            a.jle(more).unwrap();
            a.mov(dword_ptr(0x7000), 1).unwrap();
            a.set_label(&mut more).unwrap();
            a.call(FOREIGN).unwrap();
            a.cmp(ebx, 100).unwrap();
            a.jg(done).unwrap();
            a.set_label(&mut again).unwrap();
            if resets {
                a.mov(r12d, 0).unwrap();
            }
            a.mov(ebx, 0).unwrap();
            a.jmp(compare).unwrap();
            a.set_label(&mut done).unwrap();
            a.ret().unwrap();
        })
    };
    assert_eq!(found(true, 0x9000), [Mnemonic::Mov]);
    assert_eq!(found(true, 0x8000), [], "it stores what it loads");
    assert_eq!(found(false, 0x9000), [], "it goes on in the array");
}

/// Who waits for room in a ring keeps what it has seen of the other's index.
#[test]
fn what_is_polled_may_be_kept() {
    let keeps = |between: fn(&mut CodeAssembler)| {
        polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(r14)).unwrap();
            between(a);
            a.mov(qword_ptr(r13 + 0x40), rax).unwrap();
            a.cmp(rax, rbx).unwrap();
            a.je(again).unwrap();
            a.ret().unwrap();
        })
    };
    assert_eq!(keeps(|_| ()), [Mnemonic::Mov]);
    assert_eq!(keeps(|a| a.inc(rcx).unwrap()), [Mnemonic::Mov]);
    assert_eq!(keeps(|a| a.inc(rax).unwrap()), [], "it counts");
}

#[test]
fn loops_that_wait_are_found() {
    let spin = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.pause().unwrap();
        a.mov(eax, dword_ptr(rdi + 8)).unwrap();
        a.test(eax, eax).unwrap();
        a.je(again).unwrap();
        a.ret().unwrap();
    });
    assert_eq!(spin, [Mnemonic::Mov]);
    let counting = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.inc(rcx).unwrap();
        a.cmp(byte_ptr(rbx), 0).unwrap();
        a.je(again).unwrap();
    });
    assert_eq!(counting, [Mnemonic::Cmp]);
    let yielding = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.call(FOREIGN).unwrap();
        a.mov(rax, qword_ptr(rbx)).unwrap();
        a.cmp(rax, rbp).unwrap();
        a.jne(again).unwrap();
    });
    assert_eq!(yielding, [Mnemonic::Mov]);
    let on_stack = |waits: fn(&mut CodeAssembler)| {
        polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            waits(a);
            a.cmp(byte_ptr(rsp + 16), 0).unwrap();
            a.je(again).unwrap();
        })
    };
    let sleeps = on_stack(|a| {
        a.mov(edi, 50).unwrap();
        a.call(FOREIGN).unwrap();
    });
    assert_eq!(sleeps, [Mnemonic::Cmp]);
    assert_eq!(on_stack(|a| a.pause().unwrap()), [Mnemonic::Cmp], "a lock's queue");
    assert_eq!(on_stack(|_| ()), []);
    let backing_off = polled(|a| {
        let (mut again, mut spin) = (a.create_label(), a.create_label());
        a.set_label(&mut again).unwrap();
        a.inc(ebp).unwrap();
        a.cmp(ebp, 100).unwrap();
        a.jb(spin).unwrap();
        a.call(FOREIGN).unwrap();
        a.set_label(&mut spin).unwrap();
        a.mov(rax, qword_ptr(rbx)).unwrap();
        a.cmp(rax, r12).unwrap();
        a.jne(again).unwrap();
    });
    assert_eq!(backing_off, [Mnemonic::Mov]);
}

/// A number that another thread sets, and one that the loop halves until it is small.
#[test]
fn floating_point_numbers() {
    let sets = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.movsd_2(xmm0, qword_ptr(rdi)).unwrap();
        a.comisd(xmm1, xmm0).unwrap();
        a.ja(again).unwrap();
    });
    assert_eq!(sets, [Mnemonic::Movsd]);
    let halves = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mulsd(xmm0, xmm1).unwrap();
        a.comisd(xmm0, qword_ptr(rdi)).unwrap();
        a.ja(again).unwrap();
    });
    assert_eq!(halves, []);
}

/// As a server waits for its helpers: it adds up what they have still to do, over and over.
#[test]
fn loops_around_loops() {
    let sum = |again_and_again: bool| {
        polled(|a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.set_label(&mut outer).unwrap();
            a.lea(rdx, qword_ptr(rdi)).unwrap();
            a.mov(eax, 1).unwrap();
            a.xor(ecx, ecx).unwrap();
            a.set_label(&mut inner).unwrap();
            a.inc(eax).unwrap();
            a.add(rdx, 64).unwrap();
            a.mov(rsi, qword_ptr(rdx)).unwrap();
            a.add(rcx, rsi).unwrap();
            a.cmp(eax, dword_ptr(rbx)).unwrap();
            a.jb(inner).unwrap();
            a.test(rcx, rcx).unwrap();
            if again_and_again {
                a.jne(outer).unwrap();
            }
            a.ret().unwrap();
        })
    };
    assert_eq!(sum(true), [Mnemonic::Mov, Mnemonic::Cmp]);
    assert_eq!(sum(false), []);
}

/// As compilers make of `for (i = 0; i < 16; i++) if (*flag != old) return true; else relax(i);`
/// with the flag's address and the old value in memory, and the end of the function inside.
#[test]
fn loops_with_ways_out_inside() {
    let spin = polled(|a| {
        let (mut again, mut inner) = (a.create_label(), a.create_label());
        let (mut found, mut relax) = (a.create_label(), a.create_label());
        a.set_label(&mut again).unwrap();
        a.mov(rax, qword_ptr(rbp + 16)).unwrap();
        a.mov(eax, dword_ptr(rax)).unwrap();
        a.cmp(dword_ptr(rbp), eax).unwrap();
        a.jne(found).unwrap();
        a.set_label(&mut inner).unwrap();
        a.cmp(ebx, 11).unwrap();
        a.jg(relax).unwrap();
        a.pause().unwrap();
        a.add(ebx, 1).unwrap();
        a.mov(rax, qword_ptr(rbp + 16)).unwrap();
        a.movzx(eax, word_ptr(rax)).unwrap();
        a.cmp(dword_ptr(rbp), eax).unwrap();
        a.je(inner).unwrap();
        a.set_label(&mut found).unwrap();
        a.mov(dword_ptr(rdi), 1).unwrap();
        a.pop(rbx).unwrap();
        a.pop(rbp).unwrap();
        a.ret().unwrap();
        a.set_label(&mut relax).unwrap();
        a.call(FOREIGN).unwrap();
        a.add(ebx, 1).unwrap();
        a.cmp(ebx, 16).unwrap();
        a.jne(again).unwrap();
    });
    use Mnemonic::{Cmp, Mov, Movzx};
    assert_eq!(spin, [Mov, Mov, Cmp, Mov, Movzx, Cmp]);
}

#[test]
fn loops_that_work_are_not() {
    let scan = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.inc(rdi).unwrap();
        a.cmp(byte_ptr(rdi), 0).unwrap();
        a.jne(again).unwrap();
    });
    assert_eq!(scan, []);
    let list = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rax, qword_ptr(rax)).unwrap();
        a.test(rax, rax).unwrap();
        a.jne(again).unwrap();
    });
    assert_eq!(list, []);
    let fill = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rax, qword_ptr(rbx)).unwrap();
        a.mov(qword_ptr(rdi + rcx * 8), rax).unwrap();
        a.dec(rcx).unwrap();
        a.jne(again).unwrap();
    });
    assert_eq!(fill, []);
    let drain = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rdi, rbx).unwrap();
        a.call(0x4000).unwrap();
        a.cmp(qword_ptr(rbx + 8), 0).unwrap();
        a.jne(again).unwrap();
    });
    assert_eq!(drain, []);
    let progress = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.call(FOREIGN).unwrap();
        a.inc(rbp).unwrap();
        a.cmp(rbp, qword_ptr(rbx)).unwrap();
        a.jb(again).unwrap();
    });
    assert_eq!(progress, []);
    let iteration = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.call(FOREIGN).unwrap();
        a.mov(rax, qword_ptr(rbx + 8)).unwrap();
        a.add(rbp, 16).unwrap();
        a.cmp(rax, rbp).unwrap();
        a.jne(again).unwrap();
    });
    assert_eq!(iteration, []);
    let matching = polled(|a| {
        let (mut again, mut found) = (a.create_label(), a.create_label());
        a.set_label(&mut again).unwrap();
        a.inc(r13).unwrap();
        a.cmp(r13, 4).unwrap();
        a.je(found).unwrap();
        a.mov(rdx, r12).unwrap();
        a.sub(rdx, r13).unwrap();
        a.mov(eax, edx).unwrap();
        a.cmp(word_ptr(r12), ax).unwrap();
        a.jne(again).unwrap();
        a.set_label(&mut found).unwrap();
        a.ret().unwrap();
    });
    assert_eq!(matching, []);
    // What is compared on several occasions ends in one place, which lies before.
    let unequal = polled(|a| {
        let (mut decide, mut go_on) = (a.create_label(), a.create_label());
        a.cmp(al, cl).unwrap();
        a.je(go_on).unwrap();
        a.set_label(&mut decide).unwrap();
        a.setb(al).unwrap();
        a.ret().unwrap();
        a.set_label(&mut go_on).unwrap();
        a.movzx(ecx, byte_ptr(rdi + rdx)).unwrap();
        a.cmp(al, cl).unwrap();
        a.jne(decide).unwrap();
    });
    assert_eq!(unequal, []);
    let walking = polled(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.add(rax, qword_ptr(rdi + rcx * 8)).unwrap();
        a.inc(rcx).unwrap();
        a.cmp(dword_ptr(rbx), 0).unwrap();
        a.je(again).unwrap();
    });
    assert_eq!(walking, []);
}

/// As compilers make of `for (;;) { if (out != ring->in) { *to++ = ...; ring->out = ++out; } }`: in
/// the rounds without work, the loop waits.
#[test]
fn rounds_without_work() {
    let reads = |stores: i32, counts: bool| {
        polled(|a| {
            let (mut again, mut work) = (a.create_label(), a.create_label());
            a.set_label(&mut work).unwrap();
            a.mov(qword_ptr(rdi), rcx).unwrap();
            a.inc(rcx).unwrap();
            a.mov(qword_ptr(rbx + stores), rcx).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(byte_ptr(rsp + 8), 0).unwrap();
            if counts {
                a.inc(rdx).unwrap();
                a.mov(qword_ptr(rsp + 16), rdx).unwrap();
            }
            a.cmp(qword_ptr(rbx + 8), rcx).unwrap();
            a.jne(work).unwrap();
            a.test(eax, eax).unwrap();
            a.je(again).unwrap();
            a.jmp(work).unwrap();
        })
    };
    assert_eq!(reads(16, false), [Mnemonic::Cmp]);
    assert_eq!(reads(8, false), [], "its own word");
    assert_eq!(reads(16, true), [], "each round writes something");
}
