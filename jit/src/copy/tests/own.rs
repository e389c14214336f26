//! Writes to words of the thread's own, which need no call of the machine.

use super::inline::{Machine, executor};
use super::{CopyEngine, Guest, context_of, engine};
use iced_x86::code_asm::*;
use refrain_trace::own_store;
use refrain_vm::layout::PAGE;
use refrain_vm::{
    Engine, EngineConfig, Exit, LastMet, Mode, OwnWords, RecordingEngine, Zeroed, reg,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a state of the thread's own words is, and of another's.
const OWN: u64 = 0x15;
const FOREIGN: u64 = 0x19;
const TICKET: u64 = 5;

/// An instruction that writes to a word, and what is known of the word.
struct Write {
    guest: Guest,
    operand: (u64, u8),
    locked: bool,
    met: Zeroed<LastMet>,
    counter: Box<u64>,
    owners: Vec<u64>,
    machine: Box<Machine>,
}

impl Write {
    /// The word is the thread's, who has met it.
    fn new(size: u8, locked: bool) -> Write {
        let guest = Guest::new();
        guest.put(guest.data, &0x1122_3344_5566_7788_u64.to_le_bytes());
        guest.assemble(|a| {
            match (size, locked) {
                (1, false) => a.mov(byte_ptr(rbp), cl).unwrap(),
                (2, false) => a.mov(word_ptr(rbp), cx).unwrap(),
                (4, false) => a.mov(dword_ptr(rbp), ecx).unwrap(),
                (_, false) => a.mov(qword_ptr(rbp), rcx).unwrap(),
                (1, true) => a.lock().adc(byte_ptr(rbp), cl).unwrap(),
                (2, true) => a.lock().xadd(word_ptr(rbp), cx).unwrap(),
                (4, true) => a.lock().cmpxchg(dword_ptr(rbp), ecx).unwrap(),
                (_, true) => a.xchg(qword_ptr(rbp), rcx).unwrap(),
            }
            a.syscall().unwrap();
        });
        let operand = (guest.data, size);
        let mut owners = vec![0; OwnWords::ENTRIES];
        owners[OwnWords::place(guest.data)] = OWN;
        let (counter, machine) = (Box::new(TICKET), Machine::new());
        let mut met = LastMet::new();
        met.meet(operand, 1, &raw const *counter as u64, TICKET - 1);
        met.own.store(OWN, Ordering::Relaxed);
        met.owners.store(owners.as_ptr() as u64, Ordering::Relaxed);
        Write { guest, operand, locked, met, counter, owners, machine }
    }

    fn engine(&self) -> CopyEngine {
        let engine = engine(EngineConfig { order_atomics: true, ..EngineConfig::default() });
        engine.watch(&[self.guest.code]);
        engine
    }

    /// Executes it; whether the machine was called, before and after it.
    fn run(&mut self) -> bool {
        self.guest.put(self.guest.data, &0x1122_3344_5566_7788_u64.to_le_bytes());
        let native = engine(EngineConfig::default());
        let mut expected = context_of(&self.guest);
        assert_eq!(native.attach().unwrap().run(&mut expected, Mode::Observed), Exit::Syscall);
        let left = self.guest.read(self.guest.data);
        self.guest.put(self.guest.data, &0x1122_3344_5566_7788_u64.to_le_bytes());
        let engine = self.engine();
        let mut cpu = executor(&engine, &mut self.machine);
        // SAFETY: it outlives the executor, and nobody else uses it meanwhile.
        unsafe { cpu.set_last_met(&raw mut *self.met) };
        let mut context = context_of(&self.guest);
        (self.machine.count, self.machine.told) = (0, 0);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!((context.gpr, context.xmm), (expected.gpr, expected.xmm), "{:?}", self.operand);
        assert_eq!(context.rflags & 0xcd5, expected.rflags & 0xcd5, "{:?}", self.operand);
        assert_eq!(self.guest.read(self.guest.data), left);
        assert_eq!(self.met.storing.load(Ordering::Relaxed), 0);
        assert_eq!(self.machine.count as u64, self.machine.told);
        self.machine.count > 0
    }

    /// The value that the thread has met last, at which version.
    fn met(&self) -> (u64, u64) {
        let (address, size) = self.operand;
        self.met.at(address, size).map(|met| (met.value, met.version)).unwrap()
    }

    fn unrecorded(&self) -> u64 {
        self.met.unrecorded.load(Ordering::Relaxed)
    }
}

fn all() -> impl Iterator<Item = Write> {
    let sizes = [1, 2, 4, 8].into_iter();
    sizes.flat_map(|size| [false, true].map(|locked| Write::new(size, locked)))
}

#[test]
fn a_write_to_an_own_word_is_counted() {
    for mut write in all() {
        assert!(!write.run());
        let (address, size) = write.operand;
        let value = write.guest.read(address) & u64::MAX >> (64 - 8 * size);
        assert_eq!((write.met(), write.unrecorded()), ((value, TICKET), 1));
        assert_eq!(*write.counter, TICKET, "the slot is given back");
        let entry = write.owners[OwnWords::place(address)];
        let stored = own_store::encode(write.guest.code, write.locked);
        assert_eq!(entry, OWN | u64::from(stored) << 32);
        assert!(!write.run());
        assert_eq!(write.unrecorded(), 2);
    }
}

#[test]
fn the_machine_is_called_wherever_anything_is_unusual() {
    type Change = fn(&mut Write);
    let changes: [Change; 5] = [
        |write| write.owners[OwnWords::place(write.operand.0)] = FOREIGN,
        |write| write.owners[OwnWords::place(write.operand.0)] = 0,
        |write| write.met.owners.store(0, Ordering::Relaxed),
        |write| *write.counter |= 1 << OwnWords::HELD_BIT,
        |write| {
            let met = std::mem::replace(&mut write.met, LastMet::new());
            let keep = |to: &AtomicU64, from: &AtomicU64| {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed)
            };
            keep(&write.met.own, &met.own);
            keep(&write.met.owners, &met.owners);
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for mut write in all() {
            change(&mut write);
            let counter = *write.counter;
            assert!(write.run(), "change {number}");
            assert_eq!((*write.counter, write.unrecorded()), (counter, 0), "change {number}");
        }
    }
}

/// The machine finds out where the instruction was.
#[test]
fn a_write_that_faults_still_has_the_slot() {
    for mut write in all() {
        let engine = write.engine();
        let mut cpu = executor(&engine, &mut write.machine);
        // SAFETY: as above.
        unsafe { cpu.set_last_met(&raw mut *write.met) };
        let mut context = context_of(&write.guest);
        let operand = (write.guest.data + PAGE, write.operand.1);
        // SAFETY: a page of this guest's own memory, to which there are no references.
        let done = unsafe {
            libc::mprotect(operand.0 as *mut libc::c_void, PAGE as usize, libc::PROT_READ)
        };
        assert_eq!(done, 0);
        context.gpr[reg::RBP] = operand.0;
        write.owners[OwnWords::place(operand.0)] = OWN;
        write.met.meet(operand, 1, &raw const *write.counter as u64, TICKET);
        assert!(matches!(cpu.run(&mut context, Mode::Observed), Exit::Fault(_)));
        assert_eq!(write.machine.count, 0);
        let met = write.met.at(operand.0, operand.1).map(std::ptr::from_ref);
        assert_eq!(met.map(|met| met as u64), Some(write.met.storing.load(Ordering::Relaxed)));
        assert_eq!(*write.counter, TICKET | 3 << OwnWords::LENT_BIT);
    }
}
