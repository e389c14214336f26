//! Tests of the copy engine: guest code is assembled at low addresses and run to a `syscall`.

mod avx;
mod branches;
mod events;
mod every;
mod faults;
mod generated;
mod inline;
mod interrupts;
mod loads;
mod oracle;
mod own;
mod threads;

use super::listing::Listing;
use super::{CopyEngine, NAME};
use iced_x86::code_asm::CodeAssembler;
use iced_x86::{Decoder, Instruction};
use refrain_vm::{
    Context, Engine, EngineConfig, Exit, Mode, ModuleCode, ModuleFunctions, RecordingEngine, reg,
};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a test's code, and of its data and stack.
const ROOM: u64 = 1 << 20;
/// Code memory of an engine under test.
const CODE: u64 = 8 << 20;

/// What `write` assembles, at 0x1000, as a function.
pub(super) fn assembled(write: impl FnOnce(&mut CodeAssembler)) -> Listing {
    Listing::new(instructions(write))
}

/// The instructions of what `write` assembles, at 0x1000.
pub(super) fn instructions(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Instruction> {
    let mut a = CodeAssembler::new(64).expect("64 is a bitness");
    write(&mut a);
    let bytes = a.assemble(0x1000).expect("what the tests write can be encoded");
    Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect()
}

/// Tells the engine of a module with functions that begin there.
fn with_functions(engine: &CopyEngine, starts: &[u64], constant: &[Range<u64>]) {
    let starts = starts.to_vec();
    let code = starts[0]..starts[0] + ROOM;
    let module = ModuleCode { code, constant, ..ModuleCode::default() };
    let read = || ModuleFunctions { starts, ..ModuleFunctions::default() };
    engine.functions(&module, Box::new(read));
}

/// Guest memory of one test: code at `code`, data at `data`, a stack that ends at `stack`.
struct Guest {
    code: u64,
    data: u64,
    stack: u64,
}

impl Guest {
    /// Guest memory at an address that no other test has, with code below 2 GiB.
    fn new() -> Guest {
        static NEXT: AtomicU64 = AtomicU64::new(0x1000_0000);
        Guest::at(NEXT.fetch_add(3 * ROOM, Ordering::Relaxed))
    }

    /// Guest memory at `start`.
    fn at(start: u64) -> Guest {
        // SAFETY: maps fresh memory where nothing is mapped.
        let at = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                2 * ROOM as usize,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(at as u64, start, "{}", std::io::Error::last_os_error());
        Guest { code: start, data: start + ROOM, stack: start + 2 * ROOM - 4096 }
    }

    /// Puts the assembled code at `address`.
    fn assemble_at(&self, address: u64, write: impl FnOnce(&mut CodeAssembler)) -> u64 {
        let mut assembler = CodeAssembler::new(64).unwrap();
        write(&mut assembler);
        let code = assembler.assemble(address).unwrap();
        self.put(address, &code);
        address + code.len() as u64
    }

    /// Puts the assembled code at the start.
    fn assemble(&self, write: impl FnOnce(&mut CodeAssembler)) -> u64 {
        self.assemble_at(self.code, write)
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        assert!(address >= self.code && address + bytes.len() as u64 <= self.code + 2 * ROOM);
        // SAFETY: inside this guest's own writable memory, to which there are no references.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
        }
    }

    fn read(&self, address: u64) -> u64 {
        assert!(address >= self.code && address + 8 <= self.code + 2 * ROOM);
        // SAFETY: inside this guest's own readable memory.
        unsafe { (address as *const u64).read_unaligned() }
    }

    /// A context at the start of the code.
    fn context(&self) -> Context {
        self.context_at(self.code)
    }

    /// A context at `pc`.
    fn context_at(&self, pc: u64) -> Context {
        let mut context = Context::default();
        context.rip = pc;
        context.gpr[reg::RSP] = self.stack;
        context
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // SAFETY: the guest's own mapping; its threads are gone.
        unsafe { libc::munmap(self.code as *mut libc::c_void, 2 * ROOM as usize) };
    }
}

/// Registers and flags that would show any disturbance; rbp points to the data.
fn context_of(guest: &Guest) -> Context {
    let mut context = guest.context();
    for index in (0..16).filter(|&index| index != reg::RSP) {
        context.gpr[index] = 0x0101_0101_0101_0101 * index as u64;
        context.xmm[index] = [index as u64, 1];
    }
    context.gpr[reg::RBP] = guest.data;
    // Every status flag, and the direction.
    context.rflags = 0xcd5;
    context
}

fn engine(config: EngineConfig) -> CopyEngine {
    CopyEngine::new(config, CODE).unwrap()
}

/// An engine whose returns go by the tables with comparisons.
fn engine_without_return_table() -> CopyEngine {
    let engine = engine(EngineConfig::default());
    engine.shared.lock().returns = None;
    engine
}

/// Runs to the next exit in observed mode.
fn run(engine: &CopyEngine, context: &mut Context) -> Exit {
    engine.attach().unwrap().run(context, Mode::Observed)
}

/// Runs the assembled code to its `syscall`.
fn run_code(write: impl FnOnce(&mut CodeAssembler)) -> (Guest, Context) {
    let guest = Guest::new();
    guest.assemble(|a| {
        write(a);
        a.syscall().unwrap();
    });
    let mut context = guest.context();
    let stack: Vec<u8> = vec![0; 4096];
    let mut other = context.clone();
    assert_eq!(run(&engine_without_return_table(), &mut other), Exit::Syscall);
    guest.put(guest.stack - 2048, &stack);
    assert_eq!(run(&engine(EngineConfig::default()), &mut context), Exit::Syscall);
    assert_eq!((other.gpr, other.rip, other.rflags), (context.gpr, context.rip, context.rflags));
    (guest, context)
}

#[test]
fn some_observers_are_refused() {
    let config = EngineConfig { count: refrain_vm::Count::Cycles, ..EngineConfig::default() };
    let error = super::copy(config);
    assert!(error.err().unwrap().to_string().contains(NAME));
}

/// An address relative to EIP is that of the guest's code, cut to 32 bits.
#[test]
fn eip_relative() {
    let (guest, context) = run_code(|a| {
        a.db(&[0x67, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0]).unwrap(); // lea rax, [eip+0x10]
        a.db(&[0x67, 0x48, 0x8d, 0x0d, 0, 0, 0, 0x80]).unwrap(); // lea rcx, [eip-0x80000000]
    });
    assert_eq!(context.gpr[reg::RAX], u64::from((guest.code + 8) as u32 + 0x10));
    assert_eq!(context.gpr[reg::RCX], u64::from(((guest.code + 16) as u32).wrapping_add(1 << 31)));
}

#[test]
fn runs_to_a_system_call() {
    use iced_x86::code_asm::*;
    let (guest, context) = run_code(|a| {
        a.mov(rax, 0x1234_5678_9abc_u64).unwrap();
        a.mov(rcx, rax).unwrap();
        a.not(rcx).unwrap();
    });
    assert_eq!(context.gpr[reg::RAX], 0x1234_5678_9abc);
    assert_eq!(context.gpr[reg::RCX], !0x1234_5678_9abc);
    assert_eq!(context.rip, guest.code + 18);
}
