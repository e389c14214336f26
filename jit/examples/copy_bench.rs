//! The copy engine against the processor: the same bytes, called natively and translated.
//!
//! `cargo run --release -p refrain-jit --example copy_bench [part of a name]`

use iced_x86::code_asm::*;
use refrain_vm::{Context, EngineConfig, Exit, Mode, reg};
use std::time::Duration;

const CODE: u64 = 0x2000_0000;
const DATA: u64 = 0x2010_0000;
const ROOM: usize = 2 << 20;
const STACK: u64 = CODE + ROOM as u64 - 64;
/// Where each program begins; a call to it and a `syscall` are in front.
const FUNCTION: u64 = CODE + 0x100;
const ROUNDS: usize = 7;

type Assembled = Result<(), iced_x86::IcedError>;
type Program = fn(&mut CodeAssembler) -> Assembled;

fn main() {
    map();
    println!("{:28} {:>10} {:>10} {:>7}", "program", "native ms", "copy ms", "ratio");
    let programs: [(&str, Program); 9] = [
        ("fib", fib),
        ("fib, frame pointer", fib_framed),
        ("quicksort with callback", quicksort),
        ("calls of a leaf", leaf_calls),
        ("indirect calls, 1 target", |a| indirect(a, 1)),
        ("indirect calls, 2 targets", |a| indirect(a, 2)),
        ("indirect calls, 4 targets", |a| indirect(a, 4)),
        ("indirect calls, 8 targets", |a| indirect(a, 8)),
        ("branchy loop", branchy),
    ];
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (name, write) in programs.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        compare(name, write);
    }
    transitions();
    translation();
}

/// Maps the programs' code, data and stack.
fn map() {
    // SAFETY: fresh memory at addresses that Linux gives to nobody on its own.
    let at = unsafe {
        libc::mmap(
            CODE as *mut libc::c_void,
            ROOM,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert_eq!(at as u64, CODE);
}

fn put(address: u64, bytes: &[u8]) {
    // SAFETY: all addresses that are used lie in the mapping of `map`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

fn engine() -> std::sync::Arc<dyn refrain_vm::Engine> {
    refrain_jit::copy(EngineConfig::default()).expect("FSGSBASE and code memory are there")
}

fn compare(name: &str, write: Program) {
    let mut a = CodeAssembler::new(64).expect("64 is a bitness");
    write(&mut a).expect("the program is valid");
    put(FUNCTION, &a.assemble(FUNCTION).expect("the program can be encoded"));
    let mut a = CodeAssembler::new(64).expect("64 is a bitness");
    a.call(FUNCTION).and_then(|()| a.syscall()).expect("valid");
    put(CODE, &a.assemble(CODE).expect("the prologue can be encoded"));

    let engine = engine();
    let mut cpu = engine.attach().expect("the thread can be attached");
    let mut translated = || {
        let mut context = Context::default();
        context.rip = CODE;
        context.gpr[reg::RSP] = STACK;
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        context.gpr[reg::RAX]
    };
    // SAFETY: the program follows the C calling convention and takes no arguments.
    let native: extern "C" fn() -> u64 = unsafe { std::mem::transmute(FUNCTION) };
    assert_eq!(native(), translated(), "{name}");
    let (mut natives, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        natives.push(time(&mut || native()));
        copies.push(time(&mut translated));
    }
    let (native, copy) = (median(natives), median(copies));
    println!("{name:28} {:10.2} {:10.2} {:6.2}x", native * 1e3, copy * 1e3, copy / native);
}

fn time(run: &mut dyn FnMut() -> u64) -> Duration {
    let start = cpu_time();
    std::hint::black_box(run());
    cpu_time() - start
}

/// CPU time of this thread, which other load disturbs less than the clock on the wall.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn fib(a: &mut CodeAssembler) -> Assembled {
    let (mut start, mut base) = (a.create_label(), a.create_label());
    a.mov(edi, 32)?;
    a.set_label(&mut start)?;
    a.cmp(edi, 1)?;
    a.jle(base)?;
    a.push(rbx)?;
    a.push(rdi)?;
    a.dec(edi)?;
    a.call(start)?;
    a.mov(rbx, rax)?;
    a.pop(rdi)?;
    a.sub(edi, 2)?;
    a.call(start)?;
    a.add(rax, rbx)?;
    a.pop(rbx)?;
    a.ret()?;
    a.set_label(&mut base)?;
    a.mov(eax, edi)?;
    a.ret()
}

/// As an unoptimized compiler writes it.
fn fib_framed(a: &mut CodeAssembler) -> Assembled {
    let (mut start, mut base, mut end) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(edi, 30)?;
    a.set_label(&mut start)?;
    a.push(rbp)?;
    a.mov(rbp, rsp)?;
    a.push(rbx)?;
    a.sub(rsp, 24)?;
    a.mov(dword_ptr(rbp - 20), edi)?;
    a.cmp(dword_ptr(rbp - 20), 1)?;
    a.jle(base)?;
    a.mov(eax, dword_ptr(rbp - 20))?;
    a.sub(eax, 1)?;
    a.mov(edi, eax)?;
    a.call(start)?;
    a.mov(rbx, rax)?;
    a.mov(eax, dword_ptr(rbp - 20))?;
    a.sub(eax, 2)?;
    a.mov(edi, eax)?;
    a.call(start)?;
    a.add(rax, rbx)?;
    a.jmp(end)?;
    a.set_label(&mut base)?;
    a.mov(eax, dword_ptr(rbp - 20))?;
    a.cdqe()?;
    a.set_label(&mut end)?;
    a.add(rsp, 24)?;
    a.pop(rbx)?;
    a.pop(rbp)?;
    a.ret()
}

/// Hoare's quicksort of pseudo-random words, comparing through a function pointer.
fn quicksort(a: &mut CodeAssembler) -> Assembled {
    const COUNT: i32 = 60_000;
    let (mut fill, mut sort, mut done) = (a.create_label(), a.create_label(), a.create_label());
    let (mut up, mut down, mut crossed) = (a.create_label(), a.create_label(), a.create_label());
    let (mut compare, mut outer) = (a.create_label(), a.create_label());
    a.push(rbx)?;
    a.push(rbp)?;
    a.push(r12)?;
    a.push(r13)?;
    a.push(r14)?;
    a.mov(rdi, DATA)?;
    a.mov(ecx, COUNT)?;
    a.mov(rax, 88172645463325252_u64)?;
    a.set_label(&mut fill)?;
    a.imul_3(rax, rax, 0x5851_f42d)?;
    a.add(rax, 12345)?;
    a.mov(rdx, rax)?;
    a.shr(rdx, 20)?;
    a.mov(dword_ptr(rdi), edx)?;
    a.add(rdi, 4)?;
    a.dec(ecx)?;
    a.jnz(fill)?;
    a.lea(r14, qword_ptr(compare))?;
    a.lea(rsi, qword_ptr(rdi - 4))?;
    a.mov(rdi, DATA)?;
    a.call(sort)?;
    a.mov(eax, dword_ptr(DATA + 4 * 1000))?;
    a.pop(r14)?;
    a.pop(r13)?;
    a.pop(r12)?;
    a.pop(rbp)?;
    a.pop(rbx)?;
    a.ret()?;

    a.set_label(&mut sort)?;
    a.cmp(rdi, rsi)?;
    a.jae(done)?;
    a.push(rdi)?;
    a.push(rsi)?;
    a.lea(rbx, qword_ptr(rdi - 4))?;
    a.lea(rbp, qword_ptr(rsi + 4))?;
    a.lea(rax, qword_ptr(rdi + rsi))?;
    a.shr(rax, 3)?;
    a.mov(r12d, dword_ptr(rax * 4))?;
    a.jmp(up)?;
    a.set_label(&mut outer)?;
    a.mov(eax, dword_ptr(rbx))?;
    a.xchg(eax, edx)?;
    a.mov(eax, dword_ptr(rbp))?;
    a.mov(dword_ptr(rbx), eax)?;
    a.mov(dword_ptr(rbp), edx)?;
    a.set_label(&mut up)?;
    a.add(rbx, 4)?;
    a.mov(edi, dword_ptr(rbx))?;
    a.mov(esi, r12d)?;
    a.call(r14)?;
    a.test(eax, eax)?;
    a.js(up)?;
    a.nop()?;
    a.set_label(&mut down)?;
    a.sub(rbp, 4)?;
    a.mov(edi, r12d)?;
    a.mov(esi, dword_ptr(rbp))?;
    a.call(r14)?;
    a.test(eax, eax)?;
    a.js(down)?;
    a.cmp(rbx, rbp)?;
    a.jb(outer)?;
    a.set_label(&mut crossed)?;
    a.mov(rsi, qword_ptr(rsp))?;
    a.mov(rdi, qword_ptr(rsp + 8))?;
    a.push(rbp)?;
    a.mov(rsi, rbp)?;
    a.call(sort)?;
    a.pop(rdi)?;
    a.add(rdi, 4)?;
    a.pop(rsi)?;
    a.push(rdi)?;
    a.call(sort)?;
    a.pop(rdi)?;
    a.pop(rdi)?;
    a.set_label(&mut done)?;
    a.ret()?;

    a.set_label(&mut compare)?;
    a.xor(eax, eax)?;
    a.cmp(edi, esi)?;
    a.seta(al)?;
    a.sbb(eax, 0)?;
    a.ret()
}

fn leaf_calls(a: &mut CodeAssembler) -> Assembled {
    let (mut again, mut leaf, mut end) = (a.create_label(), a.create_label(), a.create_label());
    a.xor(eax, eax)?;
    a.mov(edx, 10_000_000)?;
    a.set_label(&mut again)?;
    a.call(leaf)?;
    a.dec(edx)?;
    a.jnz(again)?;
    a.jmp(end)?;
    a.set_label(&mut leaf)?;
    a.lea(rax, qword_ptr(rax + rdx))?;
    a.imul_3(rax, rax, 77)?;
    a.set_label(&mut end)?;
    a.ret()
}

fn indirect(a: &mut CodeAssembler, targets: u32) -> Assembled {
    let mut labels: Vec<_> = (0..targets).map(|_| a.create_label()).collect();
    let (mut again, mut end) = (a.create_label(), a.create_label());
    for (index, label) in labels.iter().enumerate() {
        a.lea(rcx, qword_ptr(*label))?;
        a.mov(qword_ptr(DATA + 8 * index as u64), rcx)?;
    }
    a.mov(edx, 5_000_000)?;
    a.set_label(&mut again)?;
    a.mov(ecx, edx)?;
    a.and(ecx, targets as i32 - 1)?;
    a.call(qword_ptr(rcx * 8 + DATA as i32))?;
    a.dec(edx)?;
    a.jnz(again)?;
    a.jmp(end)?;
    for (index, label) in labels.iter_mut().enumerate() {
        a.set_label(label)?;
        a.add(rax, index as i32)?;
        a.imul_3(rax, rax, 77)?;
        a.ret()?;
    }
    a.set_label(&mut end)?;
    a.xor(eax, eax)?;
    a.ret()
}

/// A loop with unpredictable branches and some memory.
fn branchy(a: &mut CodeAssembler) -> Assembled {
    let (mut again, mut odd, mut next) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(eax, 12345)?;
    a.mov(edx, 10_000_000)?;
    a.xor(esi, esi)?;
    a.set_label(&mut again)?;
    a.imul_3(eax, eax, 1103515245)?;
    a.add(eax, 12345)?;
    a.test(eax, 0x10000)?;
    a.jnz(odd)?;
    a.add(dword_ptr(DATA), eax)?;
    a.jmp(next)?;
    a.set_label(&mut odd)?;
    a.xor(esi, eax)?;
    a.set_label(&mut next)?;
    a.dec(edx)?;
    a.jnz(again)?;
    a.mov(eax, esi)?;
    a.ret()
}

/// What it costs to leave translated code and to come back.
fn transitions() {
    const COUNT: u32 = 1_000_000;
    let mut a = CodeAssembler::new(64).expect("64 is a bitness");
    let mut again = a.create_label();
    a.set_label(&mut again).expect("valid");
    a.syscall().and_then(|()| a.jmp(again)).expect("valid");
    put(CODE, &a.assemble(CODE).expect("valid"));
    // lock inc qword ptr [rsp]
    put(FUNCTION, &[0xf0, 0x48, 0xff, 0x04, 0x24, 0x0f, 0x05]);
    let engine = engine();
    let mut cpu = engine.attach().expect("the thread can be attached");
    let mut context = Context::default();
    context.gpr[reg::RSP] = STACK;
    for (name, step) in [("system call exit", false), ("single step", true)] {
        context.rip = CODE;
        let start = cpu_time();
        for _ in 0..COUNT {
            if step {
                context.rip = FUNCTION;
                cpu.step(&mut context);
            } else {
                cpu.run(&mut context, Mode::Observed);
            }
        }
        println!(
            "{name:28} {:6.1} ns",
            (cpu_time() - start).as_secs_f64() * 1e9 / f64::from(COUNT)
        );
    }
}

/// How long translation takes.
fn translation() {
    const BLOCKS: usize = 20_000;
    const INSTRUCTIONS: usize = 7;
    // mov rax, [rsp]; add rax, rcx; lea rdx, [rax+8]; mov [rsp-8], rdx; inc rax; test; jz next
    let block: &[u8] = &[
        0x48, 0x8b, 0x04, 0x24, 0x48, 0x01, 0xc8, 0x48, 0x8d, 0x50, 0x08, 0x48, 0x89, 0x54, 0x24,
        0xf8, 0x48, 0xff, 0xc0, 0x48, 0x85, 0xc0, 0x74, 0x00,
    ];
    let mut code = block.repeat(BLOCKS);
    code.extend_from_slice(&[0x0f, 0x05]);
    put(CODE, &code);
    for order_atomics in [false, true] {
        let config =
            EngineConfig { order_atomics, keep_blocks: order_atomics, ..EngineConfig::default() };
        let engine = refrain_jit::copy(config).expect("FSGSBASE and code memory are there");
        let mut cpu = engine.attach().expect("the thread can be attached");
        let mut context = Context::default();
        context.rip = CODE;
        context.gpr[reg::RSP] = STACK;
        let start = cpu_time();
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        let each = (cpu_time() - start).as_secs_f64() * 1e6 / (BLOCKS * INSTRUCTIONS) as f64;
        println!("translation (ordering {order_atomics:5})  {each:6.2} us/instruction");
    }
}
