//! What is kept, and what the finder finds in code that stays the same.

use super::{FINDER, digest};
use crate::copy::functions::Functions;
use crate::copy::functions::tests::{SLOT, fill_slot};
use iced_x86::code_asm::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use refrain_vm::{Finding, LockRole};

const MODULE: Option<&str> = Some("a build");

/// Functions side by side in this process, as guests' functions are, and their starts.
fn functions(count: usize, mut write: impl FnMut(usize, &mut CodeAssembler)) -> Vec<u64> {
    let mut code: Vec<u8> = Vec::new();
    let mut starts = Vec::new();
    for number in 0..count {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        write(number, &mut a);
        starts.push(code.len() as u64);
        let bytes = a.assemble(code.len() as u64);
        code.extend(bytes.expect("what the tests write can be encoded"));
        code.resize(code.len().next_multiple_of(16), 0xcc);
    }
    starts.push(code.len() as u64);
    code.resize(slot(SLOTS) as usize, 0xcc);
    let base = code.leak().as_ptr() as u64;
    starts.into_iter().map(|start| base + start).collect()
}

/// A function that locks, looks and branches at random.
fn write_at_random(random: &mut SplitMix64, a: &mut CodeAssembler) {
    const LENGTH: usize = 40;
    const REGISTERS: [AsmRegister64; 6] = [rax, rcx, rdx, rbx, rsi, r12];
    let mut number = |below: usize| random.next_u64() as usize % below;
    let mut labels: Vec<_> = (0..=LENGTH).map(|_| a.create_label()).collect();
    for at in 0..LENGTH {
        a.set_label(&mut labels[at]).unwrap();
        let (register, other) = (REGISTERS[number(6)], REGISTERS[number(6)]);
        let word = dword_ptr(register + [0, 4, 8, 64][number(4)]);
        // Most branches go a short way.
        let near = (at + number(9)).saturating_sub(4).min(LENGTH);
        match number(20) {
            0..4 => a.mov(eax, word).unwrap(),
            4 | 5 => a.mov(word, ecx).unwrap(),
            6 => a.cmp(word, 0).unwrap(),
            7 => a.test(eax, eax).unwrap(),
            8..11 => a.jne(labels[near]).unwrap(),
            11 => a.jmp(labels[near]).unwrap(),
            12 => a.lock().inc(word).unwrap(),
            13 => a.mov(other, register).unwrap(),
            14 => a.lea(other, ptr(labels[LENGTH])).unwrap(),
            15 => a.mov(rax, qword_ptr(rsp + 8)).unwrap(),
            16 => a.lea(other, ptr(rsp + 16)).unwrap(),
            // Some of them lead to a function.
            17 => a.call(16 * number(2048) as u64).unwrap(),
            18 => [a.pause(), a.mfence()].into_iter().for_each(|done| done.unwrap()),
            _ => a.mov(qword_ptr(register), other).unwrap(),
        }
    }
    a.set_label(&mut labels[LENGTH]).unwrap();
    a.ret().unwrap();
}

/// Functions whose idioms are too rare for what is written at random: a lock of the library's, which
/// lies at 16 (the assembler takes 0 for another place), a function that ends in it, and a call of that
/// one beside a look; a flag in a case of an interpreter; a function that locks what
/// the next one hands to it, and a slow path behind a function's end that leads there; a call of the
/// lock by a register that was loaded from a slot, beside a look; the same of a function that jumps to
/// one that lets others go on; a store in a
/// function that waits; a look at a field that the next function locks; a byte that
/// is loaded to be tested; a guard's destructor, which the next function calls beside a lock; a loop
/// over objects that it locks; and, last, a comparison that no compiler makes of an ordinary word, in a
/// function with a frame pointer, and locks in an array, of which one is released by another address.
const RARE: [fn(&mut CodeAssembler); 37] = [
    |a| a.ret().unwrap(),
    |a| a.ret().unwrap(),
    |a| a.jmp(16).unwrap(),
    |a| {
        a.call(32).unwrap();
        a.mov(eax, dword_ptr(rdi + 8)).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let mut stopped = a.create_label();
        a.jmp(qword_ptr(rbx)).unwrap();
        a.mov(rax, qword_ptr(rsp)).unwrap();
        a.lea(rax, ptr(stopped)).unwrap();
        a.cmp(dword_ptr(rax + 0x20), 0).unwrap();
        a.jne(stopped).unwrap();
        a.mov(rax, qword_ptr(rsp + 8)).unwrap();
        a.jmp(qword_ptr(rbx + 8)).unwrap();
        a.set_label(&mut stopped).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.lock().bts(dword_ptr(rdi), 0).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.add(rdi, 8).unwrap();
        a.jmp(TAKE).unwrap();
    },
    |a| {
        let mut slow = a.create_label();
        a.cmp(dword_ptr(rdi + 8), 2).unwrap();
        a.jne(slow).unwrap();
        a.add(rdi, 12).unwrap();
        a.ret().unwrap();
        a.set_label(&mut slow).unwrap();
        a.jmp(HAND).unwrap();
    },
    |a| call_by_register(a, CALLS[0], 0),
    |a| {
        a.mov(eax, YIELD).unwrap();
        a.syscall().unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.db(&[0xff, 0x25]).unwrap();
        a.dd(&[(slot(1) - JUMP - 6) as u32]).unwrap();
    },
    |a| call_by_register(a, CALLS[1], 2),
    |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.cmp(qword_ptr(rdi + rsi * 8), 0).unwrap();
        a.jne(again).unwrap();
        a.mov(qword_ptr(rdx), 1).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.mov(eax, dword_ptr(rdi + 0x48)).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.lock().inc(dword_ptr(rdi + 0x48)).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.movzx(ecx, byte_ptr(rax + 9)).unwrap();
        a.test(cl, cl).unwrap();
        a.call(0x10_0000).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(byte_ptr(rax), 0).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.lock().bts(dword_ptr(rcx), 0).unwrap();
        a.call(GUARD).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.mov(rdx, qword_ptr(rdi + 8)).unwrap();
        a.add(rax, rdx).unwrap();
        a.mov(edx, 1).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let mut again = a.create_label();
        a.mfence().unwrap();
        a.set_label(&mut again).unwrap();
        a.cmp(eax, dword_ptr(rdi + rcx * 4)).unwrap();
        a.cmovb(eax, edx).unwrap();
        a.inc(rcx).unwrap();
        a.cmp(rcx, 3).unwrap();
        a.jne(again).unwrap();
        a.mfence().unwrap();
        a.ret().unwrap();
    },
    |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rcx, qword_ptr(rbx + 16)).unwrap();
        a.mov(rbx, rcx).unwrap();
        a.and(rbx, -8).unwrap();
        a.jne(again).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.mov(rcx, qword_ptr(rdi)).unwrap();
        a.movups(xmm0, xmmword_ptr(rdi + 8)).unwrap();
        a.cmp(qword_ptr(rdi), rcx).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.lock().cmpxchg(dword_ptr(rbx), edx).unwrap();
        a.mov(rbx, qword_ptr(rbx + 0x880)).unwrap();
        a.cmp(rbx, rdi).unwrap();
        a.jne(again).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let (mut again, mut done) = (a.create_label(), a.create_label());
        a.set_label(&mut again).unwrap();
        a.mov(rsi, qword_ptr(rcx)).unwrap();
        a.mov(rax, qword_ptr(rsi + rdi * 8)).unwrap();
        a.test(rax, rax).unwrap();
        a.je(done).unwrap();
        a.inc(rdi).unwrap();
        a.and(rdi, rdx).unwrap();
        a.jmp(again).unwrap();
        a.set_label(&mut done).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.mov(r10, qword_ptr(rdi)).unwrap();
        a.cmp(r10, -1).unwrap();
        a.call(qword_ptr(rax)).unwrap();
        a.pop(rbp).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.mov(esi, 0x40).unwrap();
        a.mov(rax, qword_ptr(rdi + rsi)).unwrap();
        // The address of the array that lies behind the code, by a `lea` that is relative to itself.
        a.db(&[0x4c, 0x8d, 0x15]).unwrap();
        a.dd(&[TABLE as u32]).unwrap();
        a.lea(rdx, qword_ptr(r10 + rax * 8)).unwrap();
        a.xchg(dword_ptr(rdx), ecx).unwrap();
        a.movsxd(rax, r13d).unwrap();
        a.lea(rax, qword_ptr(r10 + rax * 8)).unwrap();
        a.mov(dword_ptr(rax), 0).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let mut none = a.create_label();
        a.mov(rax, qword_ptr(rdi + 0x120)).unwrap();
        a.and(rax, -4).unwrap();
        a.je(none).unwrap();
        a.add(rax, rsi).unwrap();
        a.set_label(&mut none).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let mut other = a.create_label();
        a.je(other).unwrap();
        a.mov(r15d, 8).unwrap();
        a.set_label(&mut other).unwrap();
        a.mov(byte_ptr(r15 + 0x128), 0).unwrap();
        a.lock().dec(byte_ptr(rsi + 0x128)).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let mut again = a.create_label();
        a.lock().or(dword_ptr(rsp - 64), 0).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(rcx, qword_ptr(r8)).unwrap();
        a.cmp(rcx, -1).unwrap();
        a.mov(qword_ptr(r9 + 0x10), r8).unwrap();
        a.add(r8, 0x100).unwrap();
        a.cmp(r8, rdx).unwrap();
        a.jne(again).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let [mut fill, mut again, mut more] = std::array::from_fn(|_| a.create_label());
        a.set_label(&mut fill).unwrap();
        a.mov(dword_ptr(rax + rcx), 1).unwrap();
        a.add(rax, 4).unwrap();
        a.cmp(rax, 16).unwrap();
        a.jne(fill).unwrap();
        a.xor(eax, eax).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(edx, dword_ptr(rax + rbx)).unwrap();
        a.cmp(edx, 50).unwrap();
        a.jle(more).unwrap();
        a.mov(qword_ptr(r9 + 8), rbp).unwrap();
        a.set_label(&mut more).unwrap();
        a.test(edx, edx).unwrap();
        a.jne(again).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.mov(rdx, qword_ptr(rdi + 0x25a8)).unwrap();
        a.add(r12, rdx).unwrap();
        a.mov(qword_ptr(rdi + 0x25a8), r12).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.mov(rax, qword_ptr(rdi + 0x25a8)).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let [mut next, mut compare, mut more, mut again] =
            std::array::from_fn(|_| a.create_label());
        a.jmp(again).unwrap();
        a.set_label(&mut next).unwrap();
        a.add(ebx, dword_ptr(rsi + r12 * 4)).unwrap();
        a.add(r12, 1).unwrap();
        a.set_label(&mut compare).unwrap();
        a.cmp(r12, 3).unwrap();
        a.jle(next).unwrap();
        a.cmp(ebx, 50).unwrap();
        a.jle(more).unwrap();
        a.mov(qword_ptr(r9 + 8), rbp).unwrap();
        a.set_label(&mut more).unwrap();
        a.cmp(ebx, 100).unwrap();
        a.jle(again).unwrap();
        a.ret().unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(r12d, 0).unwrap();
        a.mov(ebx, 0).unwrap();
        a.jmp(compare).unwrap();
    },
    |a| {
        a.cmp(dword_ptr(rdi + 0x54), 0).unwrap();
        a.setns(bl).unwrap();
        a.call(qword_ptr(rax)).unwrap();
        a.test(eax, ebx).unwrap();
        a.setne(al).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.shl(rsi, 8).unwrap();
        a.cmp(qword_ptr(rdi + rsi + 8), 0).unwrap();
        a.je(again).unwrap();
        a.lock().inc(qword_ptr(rdi)).unwrap();
        a.ret().unwrap();
    },
    |a| {
        a.mov(rax, qword_ptr(rdi + 0x38)).unwrap();
        a.test(al, 2).unwrap();
        a.mov(eax, 1).unwrap();
        a.ret().unwrap();
    },
    |a| {
        let [mut larger, mut next, mut done] = std::array::from_fn(|_| a.create_label());
        a.jmp(next).unwrap();
        a.set_label(&mut larger).unwrap();
        a.cmp(ecx, -128).unwrap();
        a.je(done).unwrap();
        a.mov(ecx, 0xffff_0000_u32).unwrap();
        a.set_label(&mut next).unwrap();
        a.test(dword_ptr(rdx), ecx).unwrap();
        a.jne(larger).unwrap();
        a.set_label(&mut done).unwrap();
        a.ret().unwrap();
    },
];

/// Where a table of slots lies, behind all functions.
const TABLE: i64 = 1 << 20;
const SLOTS: i64 = 3;
/// Where the functions lie that lock, hand on, and jump and call by the table.
const TAKE: u64 = 96;
const HAND: u64 = 112;
const CALLS: [i64; 2] = [144, 192];
/// Where the guard's destructor lies.
const GUARD: u64 = 272;
const JUMP: i64 = 176;
/// The number of `sched_yield`.
const YIELD: u32 = 24;

fn slot(number: i64) -> i64 {
    TABLE + 8 * number
}

/// Calls what a slot leads to, beside a look; `at` is where this code begins.
fn call_by_register(a: &mut CodeAssembler, at: i64, number: i64) {
    a.db(&[0x48, 0x8b, 0x1d]).unwrap();
    a.dd(&[(slot(number) - at - 7) as u32]).unwrap();
    a.call(rbx).unwrap();
    a.mov(eax, dword_ptr(rdi + 8)).unwrap();
    a.ret().unwrap();
}

/// The finder finds the same as when its constant was written down.
#[test]
fn the_finder_has_its_digest() {
    let mut random = SplitMix64::seed_from_u64(1);
    let starts = functions(500, |number, a| match RARE.get(number) {
        Some(write) => write(a),
        None => write_at_random(&mut random, a),
    });
    assert_eq!(starts[11] - starts[0], CALLS[1] as u64, "where the last of the rare ones lies");
    assert_eq!(starts[16] - starts[0], GUARD, "where the guard's destructor lies");
    for (number, to) in [(0, starts[1]), (1, starts[9]), (2, starts[10])] {
        fill_slot(starts[0] + slot(number) as u64 - SLOT, to);
    }
    let mut known = Functions::default();
    known.with(&starts, &[], &[], false, MODULE);
    known.hook(starts[1]);
    let mut found = Vec::new();
    for &start in &starts[..starts.len() - 1] {
        let idioms = known.idioms(start).expect("known");
        let relative = |sites: &[u64]| -> Vec<u64> { sites.iter().map(|it| it - start).collect() };
        let lists = [&idioms.polls, &idioms.sites, &idioms.checks];
        found.push(lists.map(|list| relative(list)));
    }
    assert!(found.iter().any(|[polls, ..]| !polls.is_empty()));
    assert_eq!(
        [3, 4, 7, 8, 11, 12, 13, 15, 16, 18, 19, 20, 22, 23, 24, 25, 26, 27, 28, 30, 31, 34, 35]
            .map(|rare| found[rare][1].len()),
        [1, 1, 1, 2, 2, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 2, 2, 1, 1, 1]
    );
    assert_eq!(found[29].each_ref().map(Vec::len), [1, 1, 0], "a poll beside an array");
    assert_eq!(found[32].each_ref().map(Vec::len), [1, 0, 0], "a sum that is polled");
    assert_eq!(found[33].each_ref().map(Vec::len), [0, 1, 0], "a flag that is asked for");
    assert_eq!(found[36].each_ref().map(Vec::len), [0, 0, 0], "a scan that goes through states");
    assert_eq!(found[21].each_ref().map(Vec::len), [0, 2, 1], "a reader of a seqlock");
    // Of the C library: a first look before a lock, and a store before a futex call.
    let starts = functions(2, |number, a| {
        if number == 0 {
            a.cmp(qword_ptr(rdi + 8), -1).unwrap();
            a.lock().bts(dword_ptr(rdi), 0).unwrap();
            a.cmp(qword_ptr(rdi + 8), -1).unwrap();
        } else {
            a.mov(dword_ptr(rdi), 1).unwrap();
            a.mov(eax, 202).unwrap();
            a.syscall().unwrap();
        }
        a.ret().unwrap();
    });
    let mut trusted = Functions::default();
    trusted.with(&starts, &[], &[], true, MODULE);
    for &start in &starts[..2] {
        let idioms = trusted.idioms(start).expect("known");
        assert_eq!(*idioms.sites, [start]);
        found.push([vec![], vec![0], vec![]]);
    }
    // A store of a variable that a locked instruction of another function names.
    let starts = functions(2, |number, a| {
        let opcode: &[u8] = if number == 0 { &[0xf0, 0x0f, 0xb0, 0x0d] } else { &[0x88, 0x0d] };
        a.db(opcode).unwrap();
        a.dd(&[0x1000 - 16 * number as u32 - opcode.len() as u32 - 4]).unwrap();
        a.ret().unwrap();
    });
    let mut variables = Functions::default();
    variables.with(&starts, &[], &[], false, MODULE);
    assert_eq!(*variables.idioms(starts[1]).expect("known").sites, [starts[1]]);
    found.push([vec![], vec![0], vec![]]);
    // Who waits keeps what it has seen.
    let starts = functions(1, |_, a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rax, qword_ptr(rsi)).unwrap();
        a.mov(qword_ptr(rdi), rax).unwrap();
        a.lea(rbx, ptr(rbx + 8)).unwrap();
        a.cmp(rax, rdx).unwrap();
        a.je(again).unwrap();
        a.ret().unwrap();
    });
    let mut waits = Functions::default();
    waits.with(&starts, &[], &[], false, MODULE);
    assert_eq!(*waits.idioms(starts[0]).expect("known").polls, [starts[0]]);
    found.push([vec![0], vec![], vec![]]);
    // A function that loads a word.
    let loads = functions(1, |_, a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.ret().unwrap();
    });
    let mut words = Functions::default();
    words.with(&loads, &[], &[], false, MODULE);
    assert_eq!(*words.idioms(loads[0]).expect("known").sites, [loads[0]]);
    found.push([vec![], vec![0], vec![]]);
    // A function that looks at data and at a flag behind a call that takes a lock.
    let starts = functions(2, |number, a| {
        if number == 1 {
            a.call(0).unwrap();
            a.add(rcx, qword_ptr(rdi + 8)).unwrap();
            a.cmp(byte_ptr(rdi + 16), 0).unwrap();
        }
        a.ret().unwrap();
    });
    let mut locks = Functions::default();
    locks.with(&starts, &[], &[], false, MODULE);
    locks.hook(starts[0]);
    locks.lock_role(starts[0], LockRole::Takes);
    let sites = locks.idioms(starts[1]).expect("known").sites.clone();
    assert_eq!(sites.len(), 1);
    found.push([vec![], sites.iter().map(|it| it - starts[1]).collect(), vec![]]);
    // Two operations of a field at 128 bytes, to which gcc comes by a subtraction.
    let starts = functions(2, |number, a| {
        if number == 0 {
            a.lock().inc(dword_ptr(rdi + 128)).unwrap();
        } else {
            a.sub(rdi, -128).unwrap();
            a.mov(eax, dword_ptr(rdi)).unwrap();
        }
        a.ret().unwrap();
    });
    let mut fields = Functions::default();
    fields.with(&starts, &[], &[], false, MODULE);
    let sites = fields.idioms(starts[1]).expect("known").sites.clone();
    assert_eq!(sites.len(), 1);
    found.push([vec![], sites.iter().map(|it| it - starts[1]).collect(), vec![]]);
    // A function of the C library that asks how a stream is oriented.
    let asks = functions(1, |_, a| {
        a.mov(eax, dword_ptr(rdi + 0xc0)).unwrap();
        a.test(eax, eax).unwrap();
        a.ret().unwrap();
    });
    let mut streams = Functions::default();
    streams.with(&asks, &[], &[], true, MODULE);
    let sites = streams.idioms(asks[0]).expect("known").sites.clone();
    assert_eq!(sites.len(), 1);
    found.push([vec![], sites.iter().map(|it| it - asks[0]).collect(), vec![]]);
    // A function of the C library that looks whether a key of thread-specific data is still the same.
    let ends = functions(1, |_, a| {
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.cmp(qword_ptr(rbx - 8), rax).unwrap();
        a.mov(rdx, qword_ptr(rbp)).unwrap();
        a.call(rdx).unwrap();
        a.ret().unwrap();
    });
    let mut keys = Functions::default();
    keys.with(&ends, &[], &[], true, MODULE);
    let sites = keys.idioms(ends[0]).expect("known").sites.clone();
    assert_eq!(sites.len(), 2);
    found.push([vec![], sites.iter().map(|it| it - ends[0]).collect(), vec![]]);
    // Who releases a lock, beside who takes it; who keeps what it has seen; and who searches a list.
    let starts = functions(4, |number, a| {
        let mut again = a.create_label();
        match number {
            0 => {
                a.lock().cmpxchg(dword_ptr(rdi), ecx).unwrap();
                a.call(0x1000).unwrap();
            }
            1 => a.mov(dword_ptr(rdi), 0).unwrap(),
            2 => {
                a.mov(eax, dword_ptr(rdi + 8)).unwrap();
                a.cmp(eax, dword_ptr(rsi)).unwrap();
                a.mov(dword_ptr(rsi), eax).unwrap();
            }
            _ => {
                a.lea(rdx, qword_ptr(rsp - 8)).unwrap();
                a.mov(rdi, qword_ptr(rdi)).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(qword_ptr(rdx), rdi).unwrap();
                a.mov(rdi, qword_ptr(rdi + 8)).unwrap();
                a.and(rdi, -2).unwrap();
                a.cmp(dword_ptr(rdi), esi).unwrap();
                a.jl(again).unwrap();
                a.sete(al).unwrap();
            }
        }
        a.ret().unwrap();
    });
    let mut methods = Functions::default();
    methods.with(&starts, &[], &[], false, MODULE);
    for (at, expected) in [(1, 1), (2, 1), (3, 3)] {
        found.push(sites_of(&mut methods, starts[at], expected));
    }
    // A search that is a function of its own, and called beside a lock.
    let starts = functions(2, |number, a| {
        let mut again = a.create_label();
        if number == 0 {
            a.lock().inc(dword_ptr(rcx)).unwrap();
            a.call(16).unwrap();
        } else {
            a.set_label(&mut again).unwrap();
            a.mov(qword_ptr(rdx), rsi).unwrap();
            a.mov(rsi, qword_ptr(rsi + 8)).unwrap();
            a.cmp(dword_ptr(rsi), edi).unwrap();
            a.jl(again).unwrap();
        }
        a.ret().unwrap();
    });
    let mut searches = Functions::default();
    searches.with(&starts, &[], &[], false, MODULE);
    found.push(sites_of(&mut searches, starts[1], 2));
    // A variable that one function changes and another one loads.
    let starts = functions(2, |number, a| {
        let to_variable = 4096 - 16 * number as u32;
        if number == 0 {
            a.db(&[0xf0, 0x0f, 0xb0, 0x0d]).unwrap();
            a.dd(&[to_variable - 8]).unwrap();
        } else {
            a.db(&[0x8a, 0x0d]).unwrap();
            a.dd(&[to_variable - 6]).unwrap();
        }
        a.ret().unwrap();
    });
    let mut variables = Functions::default();
    variables.with(&starts, &[], &[], false, MODULE);
    found.push(sites_of(&mut variables, starts[1], 1));
    // A look at what a table's entries point to, each of which has more than the pointer.
    let starts = functions(1, |_, a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(rsi, qword_ptr(rcx + rdx)).unwrap();
        a.cmp(dword_ptr(rsi + 32), r8d).unwrap();
        a.add(rdx, 16).unwrap();
        a.cmp(rdx, rax).unwrap();
        a.jne(again).unwrap();
        a.lock().inc(dword_ptr(rdi)).unwrap();
        a.ret().unwrap();
    });
    let mut tables = Functions::default();
    tables.with(&starts, &[], &[], false, MODULE);
    found.push(sites_of(&mut tables, starts[0], 1));
    let digest = digest(&found);
    assert_eq!(FINDER, digest, "what is found has changed: let FINDER be {digest:#018x}");
}

/// The sites of a function, of which there are so many, as distances from its begin; it has no other finds.
fn sites_of(functions: &mut Functions, start: u64, expected: usize) -> [Vec<u64>; 3] {
    let found = functions.idioms(start).expect("known");
    assert_eq!(found.sites.len(), expected);
    [vec![], found.sites.iter().map(|it| it - start).collect(), vec![]]
}

/// A function with one site, and one without.
fn two() -> Vec<u64> {
    functions(2, |number, a| {
        if number == 0 {
            a.lock().inc(dword_ptr(rdi)).unwrap();
            a.mov(eax, dword_ptr(rdi + 8)).unwrap();
        }
        a.ret().unwrap();
    })
}

fn recalling(findings: Vec<Finding>) -> Functions {
    let mut functions = Functions::default();
    functions.recall_from(Box::new(|| findings));
    functions.read_known();
    functions
}

/// What an earlier recording says that it has found, another site than there is, so that it shows.
fn found_before(starts: &[u64]) -> Vec<Finding> {
    let mut functions = Functions::default();
    functions.with(starts, &[], &[], false, MODULE);
    assert_eq!(functions.idioms(starts[0]).expect("known").sites.len(), 1);
    assert_eq!(functions.idioms(starts[1]).expect("known").sites.len(), 0);
    let mut findings = functions.findings().expect("all is new");
    assert_eq!(findings.len(), 2);
    findings[0].sites = [starts[0], starts[0] + 1].into();
    findings
}

#[test]
fn what_was_found_is_not_looked_for() {
    let starts = two();
    let mut functions = recalling(found_before(&starts));
    functions.with(&starts, &[], &[], false, MODULE);
    assert_eq!(functions.idioms(starts[0]).expect("known").sites.len(), 2);
    assert_eq!(functions.findings(), None, "nothing is new");
    functions.forget_code();
    assert_eq!(functions.idioms(starts[0]).expect("known").sites.len(), 2);
}

/// Of a module's last function, nobody knows where it ends.
#[test]
fn what_was_found_in_a_last_function_is_not_looked_for() {
    let starts = two();
    let last = || {
        let mut functions = Functions::default();
        functions.with(&starts[..1], &[], &[], false, MODULE);
        functions
    };
    let mut before = last();
    assert_eq!(before.idioms(starts[0]).expect("known").sites.len(), 1);
    let mut findings = before.findings().expect("all is new");
    let ret = findings[0].start + findings[0].len - 1;
    assert_eq!(crate::memory::read_word(ret).map(|it| it as u8), Ok(0xc3), "no more than its code");
    findings[0].sites = [starts[0], starts[0] + 1].into();
    let mut after = recalling(findings);
    after.with(&starts[..1], &[], &[], false, MODULE);
    assert_eq!(after.idioms(starts[0]).expect("known").sites.len(), 2);
    assert_eq!(after.findings(), None, "nothing is new");
}

#[test]
fn what_does_not_fit_is_looked_for() {
    let starts = two();
    let findings = found_before(&starts);
    let sites = |functions: &mut Functions| functions.idioms(starts[0]).expect("known").sites.len();
    let with = |change: &dyn Fn(&mut Finding)| {
        let mut findings = findings.clone();
        change(&mut findings[0]);
        let mut functions = recalling(findings);
        functions.with(&starts, &[], &[], false, MODULE);
        functions
    };
    assert_eq!(sites(&mut with(&|_| ())), 2);
    assert_eq!(sites(&mut with(&|finding| finding.code += 1)), 1, "other code");
    assert_eq!(sites(&mut with(&|finding| finding.len -= 1)), 1, "less code");
    assert_eq!(sites(&mut with(&|finding| finding.sites[1] = starts[1])), 1, "outside");
    assert_eq!(sites(&mut with(&|finding| finding.sites.reverse())), 1, "in no order");
    let mut hooked = with(&|_| ());
    hooked.hook(starts[1]);
    assert_eq!(sites(&mut hooked), 1, "another lock");
    let mut changed = with(&|_| ());
    changed.changed(&(starts[1]..starts[1] + 1));
    assert_eq!(sites(&mut changed), 1, "changed code");
    let mut beside = with(&|_| ());
    beside.with(&[0x1000], &[], &[], false, Some("another build"));
    assert_eq!(sites(&mut beside), 1, "another module");
    beside.with(&[0x2000], &[], &[], false, None);
    beside.forget_code();
    assert_eq!(beside.findings().map(|it| it.len()), Some(3));
    beside.idioms(starts[1]).expect("known");
    assert_eq!(beside.findings().map(|it| it.len()), Some(3), "what may be any code");
}
