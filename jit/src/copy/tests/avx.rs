//! The upper halves of the AVX registers and those of AVX-512, where guest and host code meet.

use super::{CopyEngine, Guest, engine, run};
use iced_x86::code_asm::*;
use refrain_vm::{
    Engine, EngineConfig, Exit, Feature, Mode, OrderedAccess, OrderedFastPath, Processor, Span,
    Wide,
};

/// An engine for guests with all that this machine has; `None` without AVX.
fn engine_with_avx(config: EngineConfig) -> Option<CopyEngine> {
    let processor = Processor::host();
    processor.has(Feature::Avx).then(|| engine(EngineConfig { processor, ..config }))
}

/// A value for each register's upper half.
fn high() -> [[u64; 2]; 16] {
    std::array::from_fn(|n| [1000 + n as u64, 2000 + n as u64])
}

/// The same for one register, and zeros for the others.
fn high_of(register: usize) -> [[u64; 2]; 16] {
    std::array::from_fn(|n| if n == register { [0, 1 << n] } else { [0; 2] })
}

/// Does what the C library's functions do, which host code calls: uses the registers, and leaves
/// their upper halves zero.
fn disturb() {
    // SAFETY: only called on processors with AVX; all vector registers are declared as changed.
    unsafe {
        std::arch::asm!(
            "vcmpps ymm0, ymm0, ymm0, 15", "vmovaps ymm1, ymm0", "vmovaps ymm7, ymm0",
            "vmovaps ymm8, ymm0", "vmovaps ymm15, ymm0", "vzeroupper",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
            out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
            out("xmm15") _,
        );
    }
}

#[test]
fn they_are_the_threads_own_from_exit_to_exit() {
    let Some(engine) = engine_with_avx(EngineConfig::default()) else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.vmovaps(ymm3, ymm9).unwrap();
        a.syscall().unwrap();
        a.vmovaps(xmm4, xmm4).unwrap();
        a.syscall().unwrap();
        a.vzeroupper().unwrap();
        a.syscall().unwrap();
        a.movaps(xmm5, xmm3).unwrap();
        a.syscall().unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context();
    context.set_high(high());
    let mut expected = high();

    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    expected[3] = expected[9];
    assert_eq!((context.high, context.high_in_use), (expected, 1));
    disturb();

    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    expected[4] = [0; 2];
    assert_eq!((context.high, context.high_in_use), (expected, 1));

    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(context.high, [[0; 2]; 16]);

    // What host code leaves there is nothing to the guest.
    // SAFETY: as in `disturb`; only the register that is declared is changed.
    unsafe { std::arch::asm!("vcmpps ymm5, ymm5, ymm5, 15", out("xmm5") _) };
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(context.high, [[0; 2]; 16]);
}

#[test]
fn one_that_is_not_zero_is_enough() {
    let Some(engine) = engine_with_avx(EngineConfig::default()) else { return };
    let guest = Guest::new();
    guest.assemble(|a| a.syscall().unwrap());
    for register in 0..16 {
        let mut context = guest.context();
        context.set_high(high_of(register));
        assert_eq!(run(&engine, &mut context), Exit::Syscall);
        assert_eq!((context.high, context.high_in_use), (high_of(register), 1));
    }
}

#[test]
fn a_fault_keeps_them() {
    let Some(engine) = engine_with_avx(EngineConfig::default()) else { return };
    let guest = Guest::new();
    guest.assemble(|a| a.vmovups(ymm3, ymmword_ptr(0x10_u64)).unwrap());
    let mut context = guest.context();
    context.set_high(high());
    assert!(matches!(run(&engine, &mut context), Exit::Fault(fault) if fault.address == 0x10));
    assert_eq!((context.high, context.rip), (high(), guest.code));
}

/// Has the machine use all vector registers before and after ordered instructions.
fn disturb_around_ordered(engine: &CopyEngine) {
    fn disturb_all() {
        disturb();
        if Processor::host().has(Feature::Avx512F) {
            disturb_wide();
        }
    }
    /// # Safety
    /// None is needed: it uses no argument.
    unsafe extern "sysv64" fn before(_: *mut OrderedAccess, _: u64) -> i64 {
        disturb_all();
        0
    }
    /// # Safety
    /// None is needed: it uses no argument.
    unsafe extern "sysv64" fn after(_: u64, _: u64) {
        disturb_all();
    }
    /// # Safety
    /// None is needed: it uses no argument.
    unsafe extern "sysv64" fn strings(_: *const Span, _: usize, _: u64) -> i64 {
        -1
    }
    // SAFETY: the functions only change registers that functions may change.
    unsafe { engine.ordered_fast_path(OrderedFastPath { before, after, strings }) };
}

#[test]
fn the_machine_may_use_them_around_ordered_instructions() {
    let config = EngineConfig { order_atomics: true, ..EngineConfig::default() };
    let Some(engine) = engine_with_avx(config) else { return };
    disturb_around_ordered(&engine);
    for values in (0..16).map(high_of).chain([high(), [[0; 2]; 16]]) {
        let guest = Guest::new();
        guest.assemble(|a| {
            a.mov(rax, guest.data).unwrap();
            a.lock().inc(qword_ptr(rax)).unwrap();
            a.vmovaps(ymm2, ymm6).unwrap();
            a.syscall().unwrap();
        });
        let mut context = guest.context();
        context.set_high(values);
        context.xmm[11] = [5, 6];
        assert_eq!(run(&engine, &mut context), Exit::Syscall);
        let mut expected = values;
        expected[2] = expected[6];
        assert_eq!((context.high, context.xmm[11]), (expected, [5, 6]));
        assert_eq!(guest.read(guest.data), 1);
    }
}

/// The same of AVX-512; `None` without it.
fn engine_with_avx_512(config: EngineConfig) -> Option<CopyEngine> {
    engine_with_avx(config).filter(|_| Processor::host().has(Feature::Avx512F))
}

/// A value for each register of AVX-512.
fn wide() -> Wide {
    Wide {
        masks: std::array::from_fn(|n| 100 + n as u64),
        upper: std::array::from_fn(|n| [3000 + n as u64, 1, 2, 4000 + n as u64]),
        more: std::array::from_fn(|n| [5000 + n as u64, 1, 2, 3, 4, 5, 6, 6000 + n as u64]),
    }
}

/// Does what the C library's functions do on a processor with AVX-512.
fn disturb_wide() {
    // SAFETY: only called on processors with AVX-512; all registers are declared as changed.
    unsafe {
        std::arch::asm!(
            "kxnorq k0, k0, k0", "kxnorq k1, k1, k1", "kxnorq k7, k7, k7",
            "vpternlogd zmm0, zmm0, zmm0, 255", "vpternlogd zmm15, zmm15, zmm15, 255",
            "vpternlogd zmm16, zmm16, zmm16, 255", "vpternlogd zmm31, zmm31, zmm31, 255",
            "vzeroupper",
            out("k1") _, out("k7") _, out("zmm0") _, out("zmm15") _, out("zmm16") _, out("zmm31") _,
        );
    }
}

#[test]
fn those_of_avx_512_are_the_threads_own_from_exit_to_exit() {
    let Some(engine) = engine_with_avx_512(EngineConfig::default()) else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.vmovdqu64(zmm3, zmm31).unwrap();
        a.kmovq(k0, k7).unwrap();
        a.syscall().unwrap();
        a.vmovaps(xmm4, xmm4).unwrap();
        a.syscall().unwrap();
        a.vzeroupper().unwrap();
        a.syscall().unwrap();
        a.vmovdqu64(zmm1, zmmword_ptr(0x40_u64)).unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context();
    context.set_high(high());
    context.wide = Some(Box::new(wide()));
    let mut expected = wide();

    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    let moved = expected.more[15];
    expected.upper[3].copy_from_slice(&moved[4..]);
    expected.masks[0] = expected.masks[7];
    assert_eq!((context.xmm[3], context.high[3]), ([moved[0], moved[1]], [moved[2], moved[3]]));
    assert_eq!(context.wide.as_deref(), Some(&expected));
    disturb_wide();

    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    expected.upper[4] = [0; 4];
    assert_eq!(context.wide.as_deref(), Some(&expected));

    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    expected.upper = [[0; 4]; 16];
    assert_eq!(context.high, [[0; 2]; 16]);
    assert_eq!(context.wide.as_deref(), Some(&expected));

    assert!(matches!(cpu.run(&mut context, Mode::Observed), Exit::Fault(_)));
    assert_eq!(context.wide.as_deref(), Some(&expected));
}

#[test]
fn the_machine_may_use_those_of_avx_512_around_ordered_instructions() {
    let config = EngineConfig { order_atomics: true, ..EngineConfig::default() };
    let Some(engine) = engine_with_avx_512(config) else { return };
    disturb_around_ordered(&engine);
    let guest = Guest::new();
    guest.assemble(|a| {
        a.mov(rax, guest.data).unwrap();
        a.lock().inc(qword_ptr(rax)).unwrap();
        a.syscall().unwrap();
    });
    let mut context = guest.context();
    context.set_high(high());
    context.wide = Some(Box::new(wide()));
    assert_eq!(run(&engine, &mut context), Exit::Syscall);
    assert_eq!((context.high, guest.read(guest.data)), (high(), 1));
    assert_eq!(context.wide.as_deref(), Some(&wide()));
}

#[test]
fn a_guest_without_avx_executes_none_of_it() {
    let guest = Guest::new();
    guest.assemble(|a| a.vmovaps(ymm3, ymm9).unwrap());
    let mut context = guest.context();
    let exit = run(&engine(EngineConfig::default()), &mut context);
    assert_eq!((exit, context.rip), (Exit::Unsupported("vmovaps"), guest.code));
}
