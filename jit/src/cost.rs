//! What instructions cost: the processor's time for each, by class.
//!
//! The unit is a quarter of a cycle, on a core that issues four simple instructions a cycle. The
//! figures are rough throughputs of recent x86-64 cores, the same for all of them on purpose: a
//! trace's modelled time must not depend on the machine. They say that a division is a hundred
//! times an addition; they know nothing of caches, of mispredicted branches, or of what a core
//! overlaps.
//!
//! A class is what iced-x86 tells of an instruction: its flow control, the memory operands that it
//! reads and writes, its instruction set, and for few its mnemonic.

use iced_x86::{
    CpuidFeature, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
};
use refrain_vm::Count;

/// A repeated string instruction moves or compares so many bytes in a quarter of a cycle.
pub(crate) const BYTES_A_QUARTER: u64 = 8;

/// Anything simple: arithmetic, logic, moves.
const SIMPLE: i64 = 1;
/// Each operand read from memory, found in the first cache.
const LOAD: i64 = 2;
/// Each operand written to memory.
const STORE: i64 = 4;
/// A jump, taken or not.
const JUMP: i64 = 2;
/// A call, a return or a jump through a register, besides the loads and stores in it.
const TRANSFER: i64 = 4;
const MULTIPLY: i64 = 4;
const DIVIDE: i64 = 40;
const DIVIDE_64: i64 = 100;
/// A locked instruction, or one that waits for all stores.
const SERIALISED: i64 = 80;
/// Addition, multiplication and conversion of floating-point numbers.
const FLOATING: i64 = 3;
const FLOATING_DIVIDE: i64 = 20;
/// An operation of the x87 unit.
const X87: i64 = 4;
/// Sines, logarithms and the like.
const TRANSCENDENTAL: i64 = 300;
/// Beginning a repeated string instruction.
const REPEAT: i64 = 80;
/// Instructions that the recorder answers in the processor's place.
const EMULATED: i64 = 100;

/// What `count` makes of these instructions together.
pub(crate) fn weigh(count: Count, instructions: &[Instruction]) -> i64 {
    match count {
        Count::Nothing => 0,
        Count::Instructions => instructions.len() as i64,
        Count::Cycles => {
            let mut factory = InstructionInfoFactory::new();
            instructions.iter().map(|i| cost(i, &mut factory)).sum()
        }
    }
}

/// The cost of one instruction, without the bytes of a repeated one.
fn cost(i: &Instruction, factory: &mut InstructionInfoFactory) -> i64 {
    let memory = factory.info(i).used_memory();
    let (mut reads, mut writes) = (0, 0);
    for access in memory.iter().map(|operand| operand.access()) {
        use OpAccess::{CondRead, CondWrite, Read, ReadCondWrite, ReadWrite, Write};
        reads += i64::from(matches!(access, Read | CondRead | ReadWrite | ReadCondWrite));
        writes += i64::from(matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite));
    }
    operation(i) + reads * LOAD + writes * STORE
}

/// The cost of what an instruction does, its operands at hand.
fn operation(i: &Instruction) -> i64 {
    let repeated = i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix());
    let swaps_memory = i.mnemonic() == Mnemonic::Xchg && i.memory_size().size() > 0;
    if repeated {
        return REPEAT;
    }
    if i.has_lock_prefix() || swaps_memory {
        return SERIALISED;
    }
    match i.flow_control() {
        FlowControl::Next => computation(i),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => JUMP,
        _ => TRANSFER,
    }
}

fn computation(i: &Instruction) -> i64 {
    use Mnemonic::*;
    let wide = |narrow: i64, wide: i64| {
        let size = match i.op_count() {
            0 => 0,
            _ if i.op0_register().is_gpr() => i.op0_register().size(),
            _ => i.memory_size().size(),
        };
        if size == 8 { wide } else { narrow }
    };
    match i.mnemonic() {
        Div | Idiv => wide(DIVIDE, DIVIDE_64),
        Mul | Imul | Mulx | Pmuludq | Pmulld => MULTIPLY,
        Cpuid | Rdtsc | Rdtscp | Rdrand | Rdseed | Xgetbv | Xsave | Xsave64 | Xrstor | Xrstor64 => {
            EMULATED
        }
        Mfence | Lfence | Sfence => SERIALISED,
        Fsin | Fcos | Fsincos | Fptan | Fpatan | F2xm1 | Fyl2x | Fyl2xp1 | Fprem | Fprem1 => {
            TRANSCENDENTAL
        }
        Divss | Divsd | Divps | Divpd | Sqrtss | Sqrtsd | Sqrtps | Sqrtpd | Fdiv | Fdivr
        | Fdivp | Fdivrp | Fidiv | Fidivr | Fsqrt | Vdivss | Vdivsd | Vdivps | Vdivpd | Vsqrtss
        | Vsqrtsd | Vsqrtps | Vsqrtpd => FLOATING_DIVIDE,
        _ if i.cpuid_features().contains(&CpuidFeature::FPU) => X87,
        _ if computes_floats(i) => FLOATING,
        _ => SIMPLE,
    }
}

/// Whether a vector instruction adds, multiplies, compares or converts floating-point numbers:
/// those that touch the state of the floating-point unit's exceptions.
fn computes_floats(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Addss
            | Addsd
            | Addps
            | Addpd
            | Subss
            | Subsd
            | Subps
            | Subpd
            | Mulss
            | Mulsd
            | Mulps
            | Mulpd
            | Minss
            | Minsd
            | Maxss
            | Maxsd
            | Ucomiss
            | Ucomisd
            | Comiss
            | Comisd
            | Cmpss
            | Cmpsd
            | Cmpps
            | Cmppd
            | Cvtsi2ss
            | Cvtsi2sd
            | Cvttss2si
            | Cvttsd2si
            | Cvtss2sd
            | Cvtsd2ss
            | Cvtdq2ps
            | Cvtdq2pd
            | Cvttps2dq
            | Cvttpd2dq
            | Vaddss
            | Vaddsd
            | Vaddps
            | Vaddpd
            | Vsubss
            | Vsubsd
            | Vsubps
            | Vsubpd
            | Vmulss
            | Vmulsd
            | Vmulps
            | Vmulpd
            | Vucomisd
            | Vucomiss
            | Vcvtsi2sd
            | Vcvttsd2si
            | Vfmadd132sd
            | Vfmadd213sd
            | Vfmadd231sd
            | Vfmadd132pd
            | Vfmadd213pd
            | Vfmadd231pd
            | Vfmadd132ps
            | Vfmadd213ps
            | Vfmadd231ps
            | Vfmadd132ss
            | Vfmadd213ss
            | Vfmadd231ss
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    fn of(assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> i64 {
        let mut assembler = CodeAssembler::new(64).unwrap();
        assemble(&mut assembler).unwrap();
        weigh(Count::Cycles, assembler.instructions())
    }

    #[test]
    fn memory_costs_beside_the_operation() {
        assert_eq!(of(|a| a.add(rax, rbx)), 1);
        assert_eq!(of(|a| a.add(rax, qword_ptr(rbx))), 3);
        assert_eq!(of(|a| a.add(qword_ptr(rbx), rax)), 7);
        assert_eq!(of(|a| a.lea(rax, ptr(rbx + 8))), 1);
        assert_eq!(of(|a| a.push(rax)), 5);
        assert_eq!(of(|a| a.ret()), 6);
    }

    #[test]
    fn classes_differ() {
        assert_eq!(of(|a| a.div(rcx)), 100);
        assert_eq!(of(|a| a.div(ecx)), 40);
        assert_eq!(of(|a| a.lock().inc(dword_ptr(rbx))), 86);
        assert_eq!(of(|a| a.xchg(qword_ptr(rbx), rax)), 86);
        assert_eq!(of(|a| a.xchg(rbx, rax)), 1);
        assert_eq!(of(|a| a.addsd(xmm0, xmm1)), 3);
        assert_eq!(of(|a| a.divsd(xmm0, xmm1)), 20);
        assert_eq!(of(|a| a.pxor(xmm0, xmm1)), 1);
        assert_eq!(of(|a| a.fsin()), 300);
        assert_eq!(weigh(Count::Nothing, &[Instruction::default()]), 0);
        assert_eq!(weigh(Count::Instructions, &[Instruction::default()]), 1);
    }
}
