//! The Cranelift engine against the processor: the same bytes, called natively and replayed,
//! without and with every access logged; and what compilation costs.
//!
//! `cargo run --release -p refrain-jit --example cranelift_bench`

// A benchmark is where times come from.
#![allow(clippy::disallowed_methods)]

use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use refrain_jit::{CraneliftEngine, Program};
use refrain_trace::{Access, CodeBlock};
use refrain_vm::{Context, Cpu, Engine, EngineConfig, Exit, Mode, reg};
use std::time::{Duration, Instant};

const CODE: u64 = 0x2000_0000;
const DATA: u64 = 0x2010_0000;
const ROOM: usize = 4 << 20;
const STACK: u64 = CODE + ROOM as u64 - 64;
/// Where each program begins; a call of it and a `syscall` are in front.
const FUNCTION: u64 = CODE + 0x100;
const ROUNDS: usize = 5;
/// Access records per buffer.
const RECORDS: usize = 16384;

type Assembled = Result<(), iced_x86::IcedError>;
type Write = fn(&mut CodeAssembler) -> Assembled;

fn main() {
    map();
    let only = std::env::args().nth(1);
    if only.as_deref() == Some("compile") {
        return compilation();
    }
    println!(
        "{:26} {:>10} {:>10} {:>6} {:>10} {:>6}",
        "program", "native ms", "plain ms", "×", "logging ms", "×"
    );
    let programs: [(&str, Write); 7] = [
        ("fib", fib),
        ("sha-like integer loop", sha),
        ("memory loop (bytes)", bytes),
        ("move-to-front", move_to_front),
        ("copy of words", words),
        ("doubles", doubles),
        ("indirect calls", indirect),
    ];
    for (name, write) in programs {
        if only.as_ref().is_none_or(|only| name.starts_with(only.as_str())) {
            compare(name, write);
        }
    }
    if only.is_none() {
        compilation();
    }
}

fn map() {
    // SAFETY: fresh memory at addresses that Linux gives to nobody on its own.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        libc::mmap(CODE as *mut libc::c_void, ROOM, 7, flags, -1, 0)
    };
    assert_eq!(at as u64, CODE);
}

fn put(address: u64, bytes: &[u8]) {
    // SAFETY: all addresses that are used lie in the mapping of `map`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

fn start() -> Context {
    let mut context = Context::default();
    context.rip = CODE;
    context.gpr[reg::RSP] = STACK;
    context
}

fn median(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[ROUNDS / 2].as_secs_f64() * 1e3
}

fn compare(name: &str, write: Write) {
    let mut a = CodeAssembler::new(64).expect("64 is a bitness");
    write(&mut a).expect("the program is valid");
    put(FUNCTION, &a.assemble(FUNCTION).expect("the program can be encoded"));
    let mut a = CodeAssembler::new(64).expect("64 is a bitness");
    a.call(FUNCTION).and_then(|()| a.syscall()).expect("valid");
    put(CODE, &a.assemble(CODE).expect("the prologue can be encoded"));

    // SAFETY: the program follows the C calling convention and takes no arguments.
    let native = unsafe { std::mem::transmute::<u64, extern "sysv64" fn() -> u64>(FUNCTION) };
    let expected = native();
    let native = median(|| {
        native();
    });
    let copy = refrain_jit::copy(EngineConfig { keep_blocks: true, ..EngineConfig::default() })
        .expect("the copy engine works here");
    assert_eq!(copy.attach().expect("attaches").run(&mut start(), Mode::Observed), Exit::Syscall);
    let blocks = copy.take_blocks();

    let [plain, logging] = [false, true].map(|accesses| {
        let config = EngineConfig { accesses, ..EngineConfig::default() };
        let engine =
            CraneliftEngine::new(&config, Program { blocks: &blocks, ..Program::default() })
                .expect("the engine works here");
        let mut cpu = engine.attach().expect("attaches");
        let mut log = vec![Access::default(); RECORDS];
        median(|| assert_eq!(replay(&mut *cpu, &mut log), expected, "{name}"))
    });
    println!(
        "{name:26} {native:10.1} {plain:10.1} {:6.2} {logging:10.1} {:6.2}",
        plain / native,
        logging / native
    );
}

fn replay(cpu: &mut dyn Cpu, log: &mut [Access]) -> u64 {
    let mut context = start();
    loop {
        context.access_cursor = log.as_mut_ptr() as u64;
        context.access_limit = context.access_cursor + size_of_val(log) as u64;
        match cpu.run(&mut context, Mode::Observed) {
            Exit::AccessesFull => {}
            Exit::Syscall => return context.gpr[reg::RAX],
            other => panic!("{other:?} at {:#x}", context.rip),
        }
    }
}

fn fib(a: &mut CodeAssembler) -> Assembled {
    let (mut f, mut done) = (a.create_label(), a.create_label());
    a.mov(edi, 35)?;
    a.set_label(&mut f)?;
    a.mov(eax, edi)?;
    a.cmp(edi, 2)?;
    a.jl(done)?;
    a.push(rdi)?;
    a.push(rbx)?;
    a.dec(edi)?;
    a.call(f)?;
    a.mov(ebx, eax)?;
    a.mov(edi, dword_ptr(rsp + 8))?;
    a.sub(edi, 2)?;
    a.call(f)?;
    a.add(eax, ebx)?;
    a.pop(rbx)?;
    a.pop(rdi)?;
    a.set_label(&mut done)?;
    a.ret()
}

/// The kind of work that a round of SHA-256 does: rotates, adds and xors of eight words.
fn sha(a: &mut CodeAssembler) -> Assembled {
    let mut again = a.create_label();
    let words = [eax, edx, esi, edi, r8d, r9d, r10d, r11d];
    a.push(rbx)?;
    for (n, word) in words.into_iter().enumerate() {
        a.mov(word, 0x6a09_e667u32.rotate_left(n as u32))?;
    }
    a.mov(ecx, 3_000_000)?;
    a.set_label(&mut again)?;
    for n in 0..8 {
        let at = |k: usize| words[(k + 8 - n) % 8];
        let (x, e, f, g, h) = (at(0), at(4), at(5), at(6), at(7));
        a.mov(ebx, e)?;
        a.ror(ebx, 6)?;
        a.add(h, ebx)?;
        a.ror(ebx, 5)?;
        a.xor(h, ebx)?;
        a.mov(ebx, f)?;
        a.xor(ebx, g)?;
        a.and(ebx, e)?;
        a.xor(ebx, g)?;
        a.lea(h, ptr(wide(h) + wide(ebx) + 0x428a_2f98))?;
        a.add(at(3), h)?;
        a.mov(ebx, x)?;
        a.ror(ebx, 2)?;
        a.add(h, ebx)?;
    }
    a.dec(ecx)?;
    a.jnz(again)?;
    a.pop(rbx)?;
    a.ret()
}

fn wide(register: AsmRegister32) -> AsmRegister64 {
    let narrow = [eax, ecx, edx, ebx, esi, edi, r8d, r9d, r10d, r11d];
    let wide = [rax, rcx, rdx, rbx, rsi, rdi, r8, r9, r10, r11];
    let at = narrow.iter().position(|&r| r == register).expect("one of those that are used");
    wide[at]
}

/// A histogram with branches on the bytes.
fn bytes(a: &mut CodeAssembler) -> Assembled {
    let (mut again, mut even, mut round) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(r8d, 200)?;
    a.mov(r9d, 0x1357_9bdf)?;
    a.set_label(&mut round)?;
    a.xor(ecx, ecx)?;
    a.set_label(&mut again)?;
    a.imul_3(r9d, r9d, 1_103_515_245)?;
    a.add(r9d, 12345)?;
    a.mov(edx, r9d)?;
    a.shr(edx, 24)?;
    a.mov(byte_ptr(rcx + DATA as i32), dl)?;
    a.movzx(esi, byte_ptr(rcx + (DATA as i32 - 1)))?;
    a.inc(dword_ptr(rsi * 4 + (DATA as i32 + 0x20000)))?;
    a.test(dl, 1)?;
    a.jz(even)?;
    a.add(rax, rsi)?;
    a.set_label(&mut even)?;
    a.inc(ecx)?;
    a.cmp(ecx, 65536)?;
    a.jb(again)?;
    a.dec(r8d)?;
    a.jnz(round)?;
    a.movzx(eax, al)?;
    a.xor(eax, eax)?;
    a.ret()
}

/// The inner loop of bzip2's compressor: finds a byte in a list and moves it to the front.
fn move_to_front(a: &mut CodeAssembler) -> Assembled {
    let (mut round, mut find, mut found, mut init) =
        (a.create_label(), a.create_label(), a.create_label(), a.create_label());
    a.push(rbx)?;
    a.xor(ecx, ecx)?;
    a.set_label(&mut init)?;
    a.mov(byte_ptr(rcx + DATA as i32), cl)?;
    a.inc(ecx)?;
    a.cmp(ecx, 256)?;
    a.jb(init)?;
    a.mov(r8d, 400_000)?;
    a.mov(r9d, 1)?;
    a.xor(eax, eax)?;
    a.set_label(&mut round)?;
    a.imul_3(r9d, r9d, 1_103_515_245)?;
    a.add(r9d, 12345)?;
    a.mov(edx, r9d)?;
    a.shr(edx, 26)?;
    a.mov(rdi, DATA)?;
    a.movzx(ebx, byte_ptr(rdi))?;
    a.set_label(&mut find)?;
    a.cmp(bl, dl)?;
    a.je(found)?;
    a.inc(rdi)?;
    a.movzx(esi, byte_ptr(rdi))?;
    a.mov(byte_ptr(rdi), bl)?;
    a.mov(ebx, esi)?;
    a.jmp(find)?;
    a.set_label(&mut found)?;
    a.mov(byte_ptr(DATA), dl)?;
    a.sub(rdi, DATA as i32)?;
    a.add(rax, rdi)?;
    a.dec(r8d)?;
    a.jnz(round)?;
    a.pop(rbx)?;
    a.ret()
}

fn words(a: &mut CodeAssembler) -> Assembled {
    let (mut again, mut round) = (a.create_label(), a.create_label());
    a.mov(r8d, 2000)?;
    a.set_label(&mut round)?;
    a.xor(ecx, ecx)?;
    a.set_label(&mut again)?;
    a.mov(rdx, qword_ptr(rcx * 8 + DATA as i32))?;
    a.add(rdx, r8)?;
    a.mov(qword_ptr(rcx * 8 + (DATA as i32 + 0x10000)), rdx)?;
    a.inc(ecx)?;
    a.cmp(ecx, 4096)?;
    a.jb(again)?;
    a.dec(r8d)?;
    a.jnz(round)?;
    a.xor(eax, eax)?;
    a.ret()
}

fn doubles(a: &mut CodeAssembler) -> Assembled {
    let mut again = a.create_label();
    a.mov(ecx, 10_000_000)?;
    a.mov(eax, 3)?;
    a.cvtsi2sd(xmm0, eax)?;
    a.sqrtsd(xmm1, xmm0)?;
    a.pxor(xmm2, xmm2)?;
    a.set_label(&mut again)?;
    a.movapd(xmm3, xmm1)?;
    a.mulsd(xmm3, xmm0)?;
    a.addsd(xmm2, xmm3)?;
    a.movsd_2(qword_ptr(DATA), xmm2)?;
    a.subsd(xmm1, xmm3)?;
    a.addsd(xmm1, qword_ptr(DATA))?;
    a.dec(ecx)?;
    a.jnz(again)?;
    a.movq(rax, xmm2)?;
    a.ret()
}

fn indirect(a: &mut CodeAssembler) -> Assembled {
    let (mut again, mut f, mut g) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(ecx, 20_000_000)?;
    a.xor(eax, eax)?;
    a.lea(rsi, ptr(f))?;
    a.lea(rdi, ptr(g))?;
    a.set_label(&mut again)?;
    a.call(rsi)?;
    a.xchg(rsi, rdi)?;
    a.dec(ecx)?;
    a.jnz(again)?;
    a.ret()?;
    a.set_label(&mut f)?;
    a.add(rax, 1)?;
    a.ret()?;
    a.set_label(&mut g)?;
    a.add(rax, 2)?;
    a.ret()
}

/// Compiles the code of this very program, as if all of it had been recorded.
fn compilation() {
    let text = text();
    let mut blocks = Vec::new();
    let mut decoder = Decoder::with_ip(64, &text, CODE, DecoderOptions::NONE);
    let (mut from, mut instructions) = (0, 0);
    while decoder.can_decode() && instructions < 100_000 {
        let i = decoder.decode();
        instructions += 1;
        if i.flow_control() != FlowControl::Next || decoder.position() - from > 200 {
            blocks.push(CodeBlock {
                pc: CODE + from as u64,
                code: text[from..decoder.position()].to_vec(),
                loads: Vec::new(),
            });
            from = decoder.position();
        }
    }
    for threads in [1, 2] {
        for accesses in [false, true] {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .expect("threads can be started");
            let config = EngineConfig { accesses, ..EngineConfig::default() };
            let start = Instant::now();
            let engine = pool.install(|| {
                CraneliftEngine::new(&config, Program { blocks: &blocks, ..Program::default() })
            });
            let took = start.elapsed();
            drop(engine.expect("compiles"));
            println!(
                "compiling {instructions} instructions in {} blocks on {threads} threads, accesses {accesses}: {:.0} ms, {:.2} µs per instruction",
                blocks.len(),
                took.as_secs_f64() * 1e3,
                took.as_secs_f64() * 1e6 / f64::from(instructions)
            );
        }
    }
}

/// The bytes of this program's code, from the middle of it.
fn text() -> Vec<u8> {
    let here = compilation as *const () as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').expect("a range and more");
        let (from, to) = range.split_once('-').expect("two addresses");
        let [from, to] = [from, to].map(|x| u64::from_str_radix(x, 16).expect("hexadecimal"));
        if (from..to).contains(&here) && rest.starts_with("r-x") {
            let len = ((to - from) as usize).min(1 << 20);
            // SAFETY: a readable mapping of this program's own code.
            return unsafe {
                std::slice::from_raw_parts((from + (to - from) / 4) as *const u8, len * 3 / 4)
            }
            .to_vec();
        }
    }
    panic!("this code is mapped somewhere")
}
