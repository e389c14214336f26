//! Random straight-line programs: translated against executed as they are.
//!
//! Both runs enter and leave guest code in the same way; natively the guest's own bytes are
//! entered and jump to an exit at their end.

use super::{Guest, engine};
use crate::copy::cpu::CopyCpu;
use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, Encoder, Instruction, InstructionInfoFactory, OpAccess,
    Register,
};
use proptest::prelude::*;
use refrain_trace::CodeBlock;
use refrain_vm::{
    Context, Count, Cpu, Engine, EngineConfig, Exit, Feature, Mode, Processor, Wide, reg,
};
use std::sync::Arc;

/// Bytes of memory that programs read and write.
const MEMORY: u64 = 256;

/// Runs the same bytes natively: `syscall` at their end is replaced by a jump to an exit that
/// the engine made for a guest `syscall`.
fn native(guest: &Guest, end: u64, context: &mut Context) {
    let engine = engine(EngineConfig { processor: Processor::host(), ..EngineConfig::default() });
    guest.assemble_at(end, |a| a.syscall().unwrap());
    let mut cpu = CopyCpu::new(Arc::clone(&engine.shared)).unwrap();
    // Makes the engine translate the `syscall` alone.
    let mut at_end = context.clone();
    at_end.rip = end;
    assert_eq!(cpu.run(&mut at_end, Mode::Observed), Exit::Syscall);
    let observed = crate::copy::desc::Variant::Observed;
    let exit = engine.shared.lock().bodies.get(end, observed).expect("was translated");
    guest.assemble_at(end, |a| {
        // jmp through memory behind it: the exit may be too far for a displacement.
        a.db(&[0xff, 0x25, 0, 0, 0, 0]).unwrap();
        a.dq(&[exit]).unwrap();
    });
    cpu.enter_untranslated(context, guest.code);
    context.rip = end + 2;
    guest.assemble_at(end, |a| a.syscall().unwrap());
}

/// Whether this machine has what the instruction needs.
fn is_here(instruction: &Instruction) -> bool {
    let block = CodeBlock { code: code_of(instruction), ..CodeBlock::default() };
    let needed = crate::needs(&[block]);
    let covers =
        |&feature: &CpuidFeature| BASELINE.contains(&feature) || crate::features::covers(feature);
    needed.without(Processor::host()) == Processor::V2
        && instruction.cpuid_features().iter().all(covers)
}

/// The instruction's encoding.
fn code_of(instruction: &Instruction) -> Vec<u8> {
    let mut encoder = Encoder::new(64);
    encoder.encode(instruction, instruction.ip()).map_or(Vec::new(), |_| encoder.take_buffer())
}

/// What every x86-64-v2 processor has.
const BASELINE: &[CpuidFeature] = &[
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL286,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CMOV,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::POPCNT,
    CpuidFeature::MULTIBYTENOP,
];

/// Instructions that a random program may hold: deterministic, without branches, touching memory
/// only through rbx and rbp with small offsets, and keeping rsp, rbx and rbp.
fn usable(instruction: &Instruction) -> bool {
    use iced_x86::{FlowControl, Mnemonic};
    if instruction.is_invalid()
        || instruction.flow_control() != FlowControl::Next
        || instruction.is_privileged()
        || crate::copy::classify::classify(instruction, Processor::host())
            != crate::copy::classify::Action::Copy
        || instruction.is_stack_instruction()
        || instruction.segment_prefix() != Register::None
        || !is_here(instruction)
    {
        return false;
    }
    if matches!(
        instruction.mnemonic(),
        Mnemonic::Reservednop
            | Mnemonic::Div
            | Mnemonic::Idiv
            | Mnemonic::Std
            | Mnemonic::Ldmxcsr
            | Mnemonic::Vldmxcsr
            | Mnemonic::Wait
    ) || instruction.rflags_undefined() != 0
    {
        return false;
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let keeps = info.used_registers().iter().all(|used| {
        let full = used.register().full_register();
        let written = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
        let is_known = full.is_gpr() || full.is_vector_register() || full.is_k();
        is_known
            && full != Register::RSP
            && !(written && matches!(full, Register::RBX | Register::RBP))
    });
    let near = info.used_memory().iter().all(|memory| {
        matches!(memory.base(), Register::RBX | Register::RBP)
            && memory.index() == Register::None
            && memory.displacement() < MEMORY - 64
            && memory.displacement() % memory.memory_size().size().max(32) as u64 == 0
    });
    keeps && near
}

/// Makes every other run of twelve bytes begin as instructions of AVX-512 do.
fn with_evex(bytes: &mut [u8]) {
    for run in bytes.chunks_exact_mut(12).step_by(2) {
        run[0] = 0x62;
        run[1] = run[1] & 0xf0 | [1, 2, 3, 5, 6][usize::from(run[1] % 5)];
        run[2] |= 4;
    }
}

/// A program made of the usable instructions of random bytes.
fn program(bytes: &[u8]) -> Vec<u8> {
    let mut code = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let mut decoder = Decoder::new(64, &bytes[at..], DecoderOptions::NONE);
        let instruction = decoder.decode();
        if usable(&instruction) {
            code.extend_from_slice(&bytes[at..at + instruction.len()]);
            at += instruction.len();
        } else {
            at += 1;
        }
    }
    code
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn straight_line_code(
        mut bytes in prop::collection::vec(any::<u8>(), 2000),
        wide in any::<[[u64; 8]; 25]>(),
        registers in any::<[u64; 16]>(),
        xmm in any::<[[u64; 2]; 16]>(),
        high in any::<[[u64; 2]; 16]>(),
        has_high in any::<bool>(),
        flags in any::<u16>(),
        memory in prop::collection::vec(any::<u8>(), MEMORY as usize),
        count in prop_oneof![Just(Count::Nothing), Just(Count::Instructions)],
    ) {
        with_evex(&mut bytes);
        let code = program(&bytes);
        let guest = Guest::new();
        guest.put(guest.code, &code);
        let end = guest.code + code.len() as u64;
        let mut before = guest.context();
        for (index, value) in registers.into_iter().enumerate() {
            before.gpr[index] = match index {
                reg::RSP => guest.stack,
                reg::RBX | reg::RBP => guest.data,
                _ => value,
            };
        }
        before.xmm = xmm;
        let avx = Processor::host().has(Feature::Avx);
        before.set_high(if avx && has_high { high } else { [[0; 2]; 16] });
        if Processor::host().has(Feature::Avx512F) {
            before.wide = Some(Box::new(Wide {
                masks: wide[0],
                upper: std::array::from_fn(|n| std::array::from_fn(|at| wide[1 + n / 2][n % 2 * 4 + at])),
                more: std::array::from_fn(|n| wide[9 + n]),
            }));
        }
        before.rflags = u64::from(flags) & 0x8d5 | 0x202;
        let mut results = Vec::new();
        for translated in [false, true] {
            guest.put(guest.data, &memory);
            let mut context = before.clone();
            if translated {
                guest.assemble_at(end, |a| a.syscall().unwrap());
                let config =
                    EngineConfig { count, processor: Processor::host(), ..EngineConfig::default() };
                let engine = engine(config);
                let mut cpu = engine.attach().unwrap();
                prop_assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
            } else {
                native(&guest, end, &mut context);
            }
            let words: Vec<_> = (0..MEMORY).step_by(8).map(|at| guest.read(guest.data + at)).collect();
            results.push((context.rip, context.gpr, context.rflags, context.xmm, context.high, context.wide, context.mxcsr, words));
        }
        prop_assert_eq!(&results[0], &results[1]);
    }
}
