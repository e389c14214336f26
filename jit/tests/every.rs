//! Every access: both engines count the same ones.

mod programs;

use iced_x86::code_asm::*;
use programs::*;
use refrain_trace::Access;
use refrain_vm::{Context, Cpu, EngineConfig, Exit, LastMet, Mode, OrderedKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// More than the programs access.
const LOG: usize = 1 << 15;

/// Where a thread has left translated code that counts accesses, and how many were left.
type Places = Vec<(Exit, u64, i64)>;

/// Runs a program whose accesses are counted down, `left` of them before the first event and none
/// before those that follow, to its system call.
fn count_down(cpu: &mut dyn Cpu, counter: &AtomicU64, left: u64) -> (Places, Context) {
    log_down(cpu, counter, left, &mut [])
}

/// The same of an engine that logs, here.
fn log_down(
    cpu: &mut dyn Cpu,
    counter: &AtomicU64,
    left: u64,
    log: &mut [Access],
) -> (Places, Context) {
    counter.store(left, Ordering::Relaxed);
    let mut context = start();
    let room = log.as_mut_ptr_range();
    (context.access_cursor, context.access_limit) = (room.start as u64, room.end as u64);
    let mut places = Places::new();
    loop {
        let exit = cpu.run(&mut context, Mode::Observed);
        let left = counter.load(Ordering::Relaxed) as i64;
        match exit {
            Exit::Syscall => {
                places.push((exit, context.rip, left));
                return (places, context);
            }
            Exit::Ordered { kind: OrderedKind::Target, .. } => counter.store(1, Ordering::Relaxed),
            Exit::Ordered { .. } | Exit::Spans => {
                if exit == Exit::Spans && left > 0 {
                    counter.store(left as u64 - 1, Ordering::Relaxed);
                }
                assert_eq!(cpu.step(&mut context), None);
            }
            other => panic!("{other:?} at {:#x}", context.rip),
        }
        places.push((exit, context.rip, left));
    }
}

/// By address, how a byte is accessed.
type Bytes = BTreeMap<u64, u16>;

/// How each byte is accessed that a log tells of.
fn bytes(log: &[Access]) -> Bytes {
    let mut bytes = Bytes::new();
    for access in log {
        for at in access.address..access.address + u64::from(access.size) {
            *bytes.entry(at).or_default() |= access.kind;
        }
    }
    bytes
}

/// What has an event, and how many accesses come before it, is the same to both engines; so is what they
/// log.
#[test]
fn both_engines_count_the_same_accesses() {
    if !is_x86_feature_detected!("bmi2") {
        eprintln!("SKIPPED: this processor has no BMI2");
        return;
    }
    let _memory = memory();
    program(|a| {
        let (mut again, mut function, mut on) =
            (a.create_label(), a.create_label(), a.create_label());
        a.lea(rax, ptr(function))?;
        a.mov(qword_ptr(rbx + 8), rax)?;
        a.mov(ecx, 3)?;
        a.set_label(&mut again)?;
        a.add(dword_ptr(rbx), ecx)?;
        a.movups(xmm1, xmmword_ptr(rbx + 60))?;
        a.lock().xadd(qword_ptr(rbx + 24), rcx)?;
        a.mov(rcx, qword_ptr(rbx + 24))?;
        a.push(rcx)?;
        a.call(qword_ptr(rbx + 8))?;
        a.pop(rcx)?;
        a.push(qword_ptr(rbx + 16))?;
        a.pop(qword_ptr(rsp - 16))?;
        a.cmp(byte_ptr(rbx + rcx), 0)?;
        a.mov(ecx, dword_ptr(rbx))?;
        a.cmp(ecx, 9)?;
        a.jb(again)?;
        a.mov(ecx, 2500)?;
        a.lea(rsi, qword_ptr(rbx))?;
        a.lea(rdi, qword_ptr(rbx + 0x2000))?;
        a.rep().movsd()?;
        a.bts(qword_ptr(rbx + 64), rcx)?;
        a.jmp(on)?;
        a.set_label(&mut function)?;
        a.not(qword_ptr(rbx + 32))?;
        a.ret()?;
        a.set_label(&mut on)?;
        a.test(qword_ptr(rbx), rbx)?;
        a.syscall()
    });
    let before = all_data();
    let (_, _, blocks) = record(start());
    let pcs: BTreeSet<u64> = (CODE..CODE + 0x100).collect();
    for sites in [BTreeSet::new(), pcs] {
        let (all, sites) = (!sites.is_empty(), Arc::new(sites));
        let config = EngineConfig {
            order_atomics: true,
            every_access: true,
            watched: Some(sites),
            ..EngineConfig::default()
        };
        let copies = refrain_jit::copy(config.clone()).expect("the copy engine works here");
        copies.several_threads();
        let mut met = LastMet::new();
        // With sites, a thread leaves when no more accesses come before the next event.
        let counts = if all { 0..55 } else { 1000..1001 };
        for left in counts {
            data(DATA, &before);
            let mut cpu = copies.attach().expect("attaches");
            let filter = cpu.filter().expect("it counts");
            // SAFETY: the executor is there.
            let counter = unsafe { &*filter.count };
            let (places, expected) = count_down(&mut *cpu, counter, left);
            let after = all_data();
            data(DATA, &before);
            let mut cpu = programs::cpu(&config, &blocks, &[]);
            // SAFETY: it is there until the executor is dropped.
            unsafe { cpu.set_last_met(&raw mut *met) };
            let (actual, context) = count_down(&mut *cpu, &met.unrecorded, left);
            assert_eq!(actual, places, "{left} accesses before the event");
            assert_same(&expected, &context);
            assert!(all_data() == after, "{left}");
            assert!(places.len() > 4, "strings and bits are executed by themselves");

            let config = EngineConfig { accesses: true, ..config.clone() };
            let mut logs = [vec![Access::default(); LOG], vec![Access::default(); LOG]];
            let [compiled, copied] = &mut logs;
            data(DATA, &before);
            let mut cpu = programs::cpu(&config, &blocks, &[]);
            // SAFETY: as above.
            unsafe { cpu.set_last_met(&raw mut *met) };
            assert_eq!(log_down(&mut *cpu, &met.unrecorded, left, compiled).0, places);
            let copies = refrain_jit::copy(config).expect("the copy engine works here");
            copies.several_threads();
            data(DATA, &before);
            let mut cpu = copies.attach().expect("attaches");
            let filter = cpu.filter().expect("it counts");
            // SAFETY: the executor is there.
            let counter = unsafe { &*filter.count };
            assert_eq!(log_down(&mut *cpu, counter, left, copied).0, places);
            let (copied, compiled) = (bytes(copied), bytes(compiled));
            let only = |these: &Bytes, those: &Bytes| -> Vec<_> {
                let differ = these.iter().filter(|&(at, kind)| those.get(at) != Some(kind));
                differ.take(8).map(|(at, kind)| (at - DATA, *kind)).collect()
            };
            let differences = (only(&copied, &compiled), only(&compiled, &copied));
            assert_eq!(differences, Default::default(), "{left} accesses before the event");
        }
    }
}

/// A handover may come late, and behind it an access with an event: no thread goes past that one.
#[test]
fn an_access_with_an_event_waits_for_a_late_handover() {
    let _memory = memory();
    let mut site = 0;
    program(|a| {
        a.mov(rax, qword_ptr(rbx))?;
        a.mov(rcx, qword_ptr(rbx + 8))?;
        a.mov(rdx, qword_ptr(rbx + 64))?;
        a.syscall()
    });
    let (_, _, blocks) = record(start());
    for block in &blocks {
        let decoder = iced_x86::Decoder::with_ip(64, &block.code, block.pc, 0);
        site = decoder.into_iter().nth(2).map_or(site, |third| third.ip());
    }
    let config = EngineConfig {
        order_atomics: true,
        every_access: true,
        watched: Some(Arc::new([site].into())),
        ..EngineConfig::default()
    };
    let mut met = LastMet::new();
    let mut cpu = cpu(&config, &blocks, &[]);
    // SAFETY: it is there until the executor is dropped.
    unsafe { cpu.set_last_met(&raw mut *met) };
    met.unrecorded.store(1, Ordering::Relaxed);
    let mut context = start();
    let exit = cpu.run(&mut context, Mode::Observed);
    assert_eq!(exit, Exit::Ordered { address: DATA + 64, size: 8, kind: OrderedKind::Read });
    assert_eq!((context.rip, met.unrecorded.load(Ordering::Relaxed) as i64), (site, -1));
}
