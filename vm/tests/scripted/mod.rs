//! A scripted engine: guest code is a list of steps, so that the replayer runs without a translator,
//! a program or a process of its own. Its threads are as real as those of any engine.
//!
//! A step takes one byte of guest code: the instruction pointer says which one is next.

#[allow(dead_code, reason = "each test uses its own part")]
pub(crate) mod guest;
#[allow(dead_code, reason = "each test uses its own part")]
pub(crate) mod recorder;

use refrain_vm::{Context, Cpu, Engine, EngineError, Exit, Fault, Mode, OrderedKind, reg};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// What a guest does, after so many instructions that nobody sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "each test uses its own part")]
pub(crate) enum Step {
    /// Calls a function, with these arguments.
    Call { work: u64, function: u64, arguments: [u64; 2] },
    /// Returns from one.
    Return,
    /// Makes a system call.
    Syscall { work: u64, number: u64, arguments: [u64; 6] },
    /// After a system call that creates a thread: the new one goes on elsewhere.
    Fork { child: u64 },
    /// Stores a word of 32 bits.
    Store { address: u64, word: u32 },
    /// Adds one to a word of 64 bits, by a locked instruction.
    Increment { work: u64, address: u64 },
    /// Exchanges a word of 64 bits for another one, by a locked instruction.
    Exchange { work: u64, address: u64, word: u64 },
    /// The same; but when the machine has looked at the word, and before the instruction, another thread
    /// stores `first` there, by an instruction that is not ordered.
    Overtaken { address: u64, first: u64, word: u64 },
    /// In the body of a function: waits until the 32-bit word that its first argument points to is 0,
    /// and makes it 1. The result is 0.
    Take,
    /// In the body of a function: makes it 0 again. The result is 0.
    Give,
}

/// The guest's code, by address.
pub(crate) type Script = BTreeMap<u64, Step>;

/// An engine that follows a script. Threads rest before their steps for as long as `pace` says.
pub(crate) struct Scripted {
    script: Arc<Script>,
    pace: u64,
}

impl Scripted {
    /// With another `pace`, threads are of other speed to one another; with 0, nobody rests.
    pub(crate) fn new(script: Script, pace: u64) -> Scripted {
        Scripted { script: Arc::new(script), pace }
    }
}

impl Engine for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn hook(&self, pc: u64) {
        assert!(self.script.contains_key(&pc), "a hooked function has a body: {pc:#x}");
    }

    fn forget(&self, _: Range<u64>) {}

    fn attach(&self) -> Result<Box<dyn Cpu>, EngineError> {
        Ok(Box::new(Thread { script: Arc::clone(&self.script), pace: self.pace }))
    }
}

/// A thread of the guest.
struct Thread {
    script: Arc<Script>,
    pace: u64,
}

impl Thread {
    fn rest(&mut self, context: &Context) {
        if self.pace != 0 {
            // Another stack makes another thread.
            self.pace = (self.pace ^ context.gpr[reg::RSP])
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            match self.pace >> 61 {
                0 => std::thread::sleep(Duration::from_micros(200)),
                1 | 2 => std::thread::yield_now(),
                _ => {}
            }
        }
    }

    /// Executes the step at `rip`, or says what the machine must see of it first.
    fn go(&mut self, context: &mut Context, mode: Mode) -> Option<Exit> {
        let at = context.rip;
        let Some(&step) = self.script.get(&at) else { return Some(Exit::UnknownTarget) };
        match step {
            Step::Call { work, function, arguments } => {
                context.retired += work;
                context.gpr[reg::RSP] -= 8;
                store(context.gpr[reg::RSP], at + 1);
                [context.gpr[reg::RDI], context.gpr[reg::RSI]] = arguments;
                context.rip = function;
                return Some(Exit::Hook);
            }
            Step::Return => {
                let sp = context.gpr[reg::RSP];
                context.rip = load(sp);
                context.gpr[reg::RSP] += 8;
                return (mode == Mode::Opaque { sp }).then_some(Exit::Return);
            }
            Step::Syscall { work, number, arguments } => {
                context.retired += work;
                context.gpr[reg::RAX] = number;
                let registers = [reg::RDI, reg::RSI, reg::RDX, reg::R10, reg::R8, reg::R9];
                registers.iter().zip(arguments).for_each(|(&at, word)| context.gpr[at] = word);
                context.rip += 1;
                return Some(Exit::Syscall);
            }
            Step::Fork { child } if context.gpr[reg::RAX] == 0 => {
                context.rip = child;
                return None;
            }
            Step::Fork { .. } => {}
            Step::Store { address, word } => store(address, word),
            Step::Increment { work, address } | Step::Exchange { work, address, .. } => {
                context.retired += work;
                let kind = OrderedKind::ReadModifyWrite;
                return Some(Exit::Ordered { address, size: 8, kind });
            }
            Step::Overtaken { address, .. } => {
                let kind = OrderedKind::ReadModifyWrite;
                return Some(Exit::Ordered { address, size: 8, kind });
            }
            Step::Take => {
                let word = atomic(context.gpr[reg::RDI]);
                while word.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
                    std::thread::yield_now();
                }
                context.gpr[reg::RAX] = 0;
            }
            Step::Give => {
                atomic(context.gpr[reg::RDI]).store(0, SeqCst);
                context.gpr[reg::RAX] = 0;
            }
        }
        context.rip += 1;
        None
    }
}

impl Cpu for Thread {
    fn run(&mut self, context: &mut Context, mode: Mode) -> Exit {
        self.rest(context);
        loop {
            if let Some(exit) = self.go(context, mode) {
                return exit;
            }
        }
    }

    fn step(&mut self, context: &mut Context) -> Option<Fault> {
        match self.script[&context.rip] {
            Step::Increment { address, .. } => store(address, load(address) + 1),
            Step::Exchange { address, word, .. } => store(address, word),
            Step::Overtaken { address, first, word } => {
                context.gpr[reg::RAX] = first;
                store(address, word);
            }
            step => unreachable!("{step:?} is not ordered"),
        }
        context.rip += 1;
        None
    }

    fn step_load(&mut self, context: &mut Context, value: u64) -> Option<Fault> {
        context.gpr[reg::RAX] = value;
        context.rip += 1;
        None
    }

    fn step_beside(&mut self, context: &mut Context, value: u64) -> Option<u64> {
        let left = match self.script[&context.rip] {
            Step::Increment { .. } => value + 1,
            Step::Exchange { word, .. } => word,
            step => unreachable!("{step:?} is not ordered"),
        };
        context.rip += 1;
        Some(left)
    }
}

fn store<T>(address: u64, word: T) {
    // SAFETY: scripts name stacks and data that their traces map, writable, before any thread runs,
    // and nothing else lies there. Words that threads share are stored in the trace's order, or by
    // one thread before there are others.
    unsafe { (address as *mut T).write_volatile(word) };
}

fn atomic<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: as above; all threads use the word as an atomic one.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

fn load(address: u64) -> u64 {
    // SAFETY: as above.
    unsafe { (address as *const u64).read_volatile() }
}
