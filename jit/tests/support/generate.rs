//! Random instructions of a given encoding, and random states to execute them in.

use super::Case;
use super::native::{SCRATCH, SCRATCH_LEN};
use iced_x86::{
    Code, CodeSize, Decoder, DecoderOptions, Encoder, EncodingKind, Instruction, Mnemonic,
    OpCodeOperandKind, OpKind, Register, RflagsBits,
};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use refrain_vm::{Context, Feature, Processor};

/// A small generator of random numbers.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::seed_from_u64(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
    /// Often a value at some edge.
    pub fn nasty(&mut self) -> u64 {
        const EDGES: [u64; 14] = [
            0,
            1,
            2,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x7fff_ffff_ffff_ffff,
            1 << 63,
            u64::MAX,
        ];
        match self.below(4) {
            0 => self.pick(&EDGES),
            1 => self.pick(&EDGES).wrapping_add(self.below(5)).wrapping_sub(2),
            2 => 1u64.rotate_left(self.below(64) as u32),
            _ => self.next(),
        }
    }
    /// Bits of floats: special values, small integers, anything.
    fn float(&mut self) -> u64 {
        let doubles = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            f64::MIN_POSITIVE,
            3e9,
            -3e9,
            1e300,
            0.1,
        ];
        match self.below(6) {
            0 => self.pick(&doubles).to_bits(),
            1 => {
                let mut single = || u64::from((self.pick(&doubles) as f32).to_bits());
                single() << 32 | single()
            }
            2 => 0x7ff8_0000_0000_0001 | self.next() & 1 << 63,
            3 => 0x7fc0_0001_ffa0_0002,
            4 => (self.below(1000) as f64 - 500.0).to_bits(),
            _ => self.nasty(),
        }
    }
}

/// How operands in memory are addressed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// Through random registers, which the states set up.
    Registers,
    /// Absolutely, so that other instructions may change all registers.
    Absolute,
}

/// The encodings that are tried: every legacy one that a user program may execute anywhere.
pub fn codes() -> Vec<Code> {
    Code::values().filter(|&code| is_candidate(code)).collect()
}

fn is_candidate(code: Code) -> bool {
    use Mnemonic::*;
    let info = code.op_code();
    let mut i = Instruction::default();
    i.set_code(code);
    let excluded = matches!(
        code.mnemonic(),
        INVALID
            | Reservednop
            | Pushf
            | Popf
            | Cpuid
            | Rdtsc
            | Rdtscp
            | Rdrand
            | Rdseed
            | Xgetbv
            | Int3
            | Int1
            | Int
            | Into
            | Ud0
            | Ud1
            | Ud2
            | Hlt
            | Syscall
            | Sysenter
            | Rdfsbase
            | Wrfsbase
            | Rdgsbase
            | Wrgsbase
            | Rdpid
            | Rdpkru
            | Wrpkru
            | Rdpru
            | Rdpmc
            | Pushfq
            | Enter
            | Xbegin
            | Xend
            | Xabort
            | Xtest
            | Monitor
            | Mwait
            | Lfs
            | Lgs
            | Lss
            | Xsave
            | Xsave64
            | Xrstor
            | Xrstor64
            | Monitorx
            | Mwaitx
            | Clzero
            | Popfq
            | Maskmovdqu
            | Maskmovq
            | Leave
            | Ldmxcsr
            | Vldmxcsr
            | Vmaskmovdqu
            | Umonitor
            | Umwait
            | Tpause
            | Serialize
            | Smsw
            | Str
            | Sldt
            | Sgdt
            | Sidt
            | Lar
            | Lsl
            | Verr
            | Verw
            | Pause
            | Ptwrite
            | Cldemote
            | Clflush
            | Clflushopt
            | Clwb
            | Incsspd
            | Incsspq
            | Rdsspd
            | Rdsspq
    );
    info.is_instruction()
        && info.mode64()
        && matches!(info.encoding(), EncodingKind::Legacy | EncodingKind::VEX | EncodingKind::EVEX)
        && !excluded
        && !code.op_code().is_privileged()
        && i.flow_control() == iced_x86::FlowControl::Next
        && info.op_code_string().is_ascii()
        && has_features(code)
        && info.op_kinds().iter().all(|&kind| operand_is_supported(kind))
}

fn has_features(code: Code) -> bool {
    use iced_x86::CpuidFeature::*;
    let known = [
        INTEL8086,
        INTEL186,
        INTEL286,
        INTEL386,
        INTEL486,
        X64,
        CMOV,
        SSE,
        SSE2,
        SSE3,
        SSSE3,
        SSE4_1,
        SSE4_2,
        POPCNT,
        CX8,
        CMPXCHG16B,
        CLFSH,
        MULTIBYTENOP,
        PREFETCHW,
    ];
    let here = Processor::host();
    let is_here = |feature: &iced_x86::CpuidFeature| {
        let wanted = match feature {
            AVX => Feature::Avx,
            AVX2 => Feature::Avx2,
            FMA => Feature::Fma,
            F16C => Feature::F16c,
            BMI1 => Feature::Bmi1,
            BMI2 => Feature::Bmi2,
            LZCNT => Feature::Lzcnt,
            MOVBE => Feature::Movbe,
            ADX => Feature::Adx,
            AES => Feature::Aes,
            PCLMULQDQ => Feature::Pclmulqdq,
            SHA => Feature::Sha,
            GFNI => Feature::Gfni,
            VAES => Feature::Vaes,
            VPCLMULQDQ => Feature::Vpclmulqdq,
            AVX_VNNI => Feature::AvxVnni,
            AVX512F => Feature::Avx512F,
            AVX512DQ => Feature::Avx512Dq,
            AVX512CD => Feature::Avx512Cd,
            AVX512BW => Feature::Avx512Bw,
            AVX512VL => Feature::Avx512Vl,
            AVX512_IFMA => Feature::Avx512Ifma,
            AVX512_VBMI => Feature::Avx512Vbmi,
            AVX512_VBMI2 => Feature::Avx512Vbmi2,
            AVX512_VNNI => Feature::Avx512Vnni,
            AVX512_BITALG => Feature::Avx512Bitalg,
            AVX512_VPOPCNTDQ => Feature::Avx512Vpopcntdq,
            AVX512_BF16 => Feature::Avx512Bf16,
            AVX512_FP16 => Feature::Avx512Fp16,
            _ => return known.contains(feature),
        };
        here.has(wanted)
    };
    code.cpuid_features().iter().all(is_here)
}

fn operand_is_supported(kind: OpCodeOperandKind) -> bool {
    use OpCodeOperandKind::*;
    matches!(
        kind,
        mem | r8_or_mem
            | r16_or_mem
            | r32_or_mem
            | r64_or_mem
            | xmm_or_mem
            | ymm_or_mem
            | ymm_reg
            | ymm_rm
            | ymm_vvvv
            | ymm_is4
            | xmm_vvvv
            | xmm_is4
            | r32_vvvv
            | r64_vvvv
            | mem_vsib32x
            | mem_vsib32y
            | mem_vsib64x
            | mem_vsib64y
            | mem_vsib32z
            | mem_vsib64z
            | zmm_or_mem
            | zmm_reg
            | zmm_rm
            | zmm_vvvv
            | k_or_mem
            | k_reg
            | k_rm
            | k_vvvv
            | r8_reg
            | r8_opcode
            | r16_reg
            | r16_rm
            | r16_opcode
            | r32_reg
            | r32_rm
            | r32_opcode
            | r64_reg
            | r64_rm
            | r64_opcode
            | xmm_reg
            | xmm_rm
            | imm8
            | imm8_const_1
            | imm8sex16
            | imm8sex32
            | imm8sex64
            | imm16
            | imm32
            | imm32sex64
            | imm64
            | al
            | cl
            | ax
            | dx
            | eax
            | rax
            | seg_rSI
            | es_rDI
            | r32_or_mem_mpx
            | r64_or_mem_mpx
            | mem_mpx
    )
}

/// A random instruction with this code; `None` if this try made none that encodes.
pub fn instruction(code: Code, random: &mut Random, addressing: Addressing) -> Option<Instruction> {
    use OpCodeOperandKind::*;
    let mut i = Instruction::default();
    i.set_code(code);
    i.set_code_size(CodeSize::Code64);
    let vectors = if i.encoding() == EncodingKind::EVEX { 32 } else { 16 };
    for (n, &kind) in code.op_code().op_kinds().iter().enumerate() {
        let n = n as u32;
        let in_memory = random.below(2) == 0;
        let mut register = |i: &mut Instruction, base: Register, count: u64| {
            i.set_op_kind(n, OpKind::Register);
            i.set_op_register(n, base + random.below(count) as u32);
        };
        match kind {
            mem | mem_mpx => memory(&mut i, n, random, addressing),
            r8_or_mem | r16_or_mem | r32_or_mem | r64_or_mem | xmm_or_mem | ymm_or_mem
            | zmm_or_mem | k_or_mem | r32_or_mem_mpx | r64_or_mem_mpx
                if in_memory =>
            {
                memory(&mut i, n, random, addressing)
            }
            r8_or_mem | r8_reg | r8_opcode => register(&mut i, Register::AL, 20),
            r16_or_mem | r16_reg | r16_rm | r16_opcode => register(&mut i, Register::AX, 16),
            r32_or_mem | r32_reg | r32_rm | r32_opcode | r32_or_mem_mpx => {
                register(&mut i, Register::EAX, 16)
            }
            r64_or_mem | r64_reg | r64_rm | r64_opcode | r64_or_mem_mpx => {
                register(&mut i, Register::RAX, 16)
            }
            xmm_or_mem | xmm_reg | xmm_rm | xmm_vvvv | xmm_is4 => {
                register(&mut i, Register::XMM0, vectors)
            }
            ymm_or_mem | ymm_reg | ymm_rm | ymm_vvvv | ymm_is4 => {
                register(&mut i, Register::YMM0, vectors)
            }
            zmm_or_mem | zmm_reg | zmm_rm | zmm_vvvv => register(&mut i, Register::ZMM0, vectors),
            k_or_mem | k_reg | k_rm | k_vvvv => register(&mut i, Register::K0, 8),
            r32_vvvv => register(&mut i, Register::EAX, 16),
            r64_vvvv => register(&mut i, Register::RAX, 16),
            mem_vsib32x | mem_vsib64x => gather(&mut i, n, Register::XMM0, vectors, random),
            mem_vsib32y | mem_vsib64y => gather(&mut i, n, Register::YMM0, vectors, random),
            mem_vsib32z | mem_vsib64z => gather(&mut i, n, Register::ZMM0, vectors, random),
            al => i.set_op_register_and_kind(n, Register::AL),
            cl => i.set_op_register_and_kind(n, Register::CL),
            ax => i.set_op_register_and_kind(n, Register::AX),
            dx => i.set_op_register_and_kind(n, Register::DX),
            eax => i.set_op_register_and_kind(n, Register::EAX),
            rax => i.set_op_register_and_kind(n, Register::RAX),
            seg_rSI => i.set_op_kind(n, OpKind::MemorySegRSI),
            es_rDI => i.set_op_kind(n, OpKind::MemoryESRDI),
            imm8_const_1 => immediate(&mut i, n, OpKind::Immediate8, 1),
            imm8 => immediate(&mut i, n, OpKind::Immediate8, random.nasty()),
            imm8sex16 => immediate(&mut i, n, OpKind::Immediate8to16, random.nasty()),
            imm8sex32 => immediate(&mut i, n, OpKind::Immediate8to32, random.nasty()),
            imm8sex64 => immediate(&mut i, n, OpKind::Immediate8to64, random.nasty()),
            imm16 => immediate(&mut i, n, OpKind::Immediate16, random.nasty()),
            imm32 => immediate(&mut i, n, OpKind::Immediate32, random.nasty()),
            imm32sex64 => immediate(&mut i, n, OpKind::Immediate32to64, random.nasty()),
            imm64 => immediate(&mut i, n, OpKind::Immediate64, random.nasty()),
            _ => return Option::None,
        }
    }
    if i.encoding() == EncodingKind::EVEX {
        embed(&mut i, random, addressing);
    }
    if i.is_string_instruction() && random.below(2) == 0 {
        if random.below(2) == 0 && code.op_code().can_use_repne_prefix() {
            i.set_has_repne_prefix(true);
        } else if code.op_code().can_use_rep_prefix() {
            i.set_has_rep_prefix(true);
        }
    }
    if code.op_code().can_use_lock_prefix()
        && i.op0_kind() == OpKind::Memory
        && random.below(4) == 0
    {
        i.set_has_lock_prefix(true);
    }
    Some(i)
}

trait SetOperand {
    fn set_op_register_and_kind(&mut self, n: u32, register: Register);
}

impl SetOperand for Instruction {
    fn set_op_register_and_kind(&mut self, n: u32, register: Register) {
        self.set_op_kind(n, OpKind::Register);
        self.set_op_register(n, register);
    }
}

fn immediate(i: &mut Instruction, n: u32, kind: OpKind, value: u64) {
    // The second immediate of extrq and the like has a kind of its own; none is tried here.
    i.set_op_kind(n, kind);
    match kind {
        OpKind::Immediate8 => i.set_immediate8(value as u8),
        OpKind::Immediate16 => i.set_immediate16(value as u16),
        OpKind::Immediate32 => i.set_immediate32(value as u32),
        OpKind::Immediate64 => i.set_immediate64(value),
        OpKind::Immediate8to16 => i.set_immediate8to16(i16::from(value as i8)),
        OpKind::Immediate8to32 => i.set_immediate8to32(i32::from(value as i8)),
        OpKind::Immediate8to64 => i.set_immediate8to64(i64::from(value as i8)),
        _ => i.set_immediate32to64(i64::from(value as i32)),
    }
}

fn memory(i: &mut Instruction, n: u32, random: &mut Random, addressing: Addressing) {
    i.set_op_kind(n, OpKind::Memory);
    let target = SCRATCH + 1024 + 64 * random.below(16);
    i.set_memory_displ_size(8);
    i.set_memory_displacement64(target);
    if addressing == Addressing::Absolute {
        return;
    }
    match random.below(8) {
        0 => {}
        1 => i.set_memory_base(Register::RIP),
        2 => {
            i.set_memory_displacement64(0x400 + 64 * random.below(16));
            i.set_segment_prefix(Register::FS);
        }
        kind => {
            i.set_memory_base(Register::RAX + random.below(16) as u32);
            let offset = random.nasty() as i32 as i64 >> random.below(24);
            i.set_memory_displacement64(offset as u64);
            let index = Register::RAX + random.below(16) as u32;
            if kind > 4 && index != Register::RSP && index != i.memory_base() {
                i.set_memory_index(index);
                i.set_memory_index_scale(1 << random.below(4));
            }
        }
    }
}

/// A memory operand with a vector of indices, which are masked when the state is made.
fn gather(i: &mut Instruction, n: u32, first: Register, vectors: u64, random: &mut Random) {
    i.set_op_kind(n, OpKind::Memory);
    i.set_memory_displ_size(8);
    i.set_memory_displacement64(SCRATCH + 1024);
    i.set_memory_index(first + random.below(vectors) as u32);
    i.set_memory_index_scale(1 << random.below(4));
}

/// What AVX-512 has beside operands: a mask, an element for all lanes, a rounding mode.
fn embed(i: &mut Instruction, random: &mut Random, addressing: Addressing) {
    let info = i.op_code();
    let has_memory = i.op_kinds().any(|kind| kind == OpKind::Memory);
    if has_memory && info.can_broadcast() && random.below(3) == 0 {
        i.set_is_broadcast(true);
    }
    let may_have_mask =
        info.can_use_op_mask_register() && !(has_memory && addressing == Addressing::Absolute);
    if info.require_op_mask_register() || may_have_mask && random.below(2) == 0 {
        i.set_op_mask(Register::K1 + random.below(7) as u32);
        if info.can_use_zeroing_masking() && i.op0_kind() != OpKind::Memory {
            i.set_zeroing_masking(random.below(2) == 0);
        }
    }
    if has_memory || random.below(3) > 0 {
        return;
    }
    if info.can_use_rounding_control() {
        use iced_x86::RoundingControl::*;
        let mode = [RoundToNearest, RoundDown, RoundUp, RoundTowardZero];
        i.set_rounding_control(mode[random.below(4) as usize]);
    } else if info.can_suppress_all_exceptions() {
        i.set_suppress_all_exceptions(true);
    }
}

/// Encodes at `pc` and decodes again, as an engine would.
pub fn encoded(i: &Instruction, pc: u64) -> Option<(Instruction, Vec<u8>)> {
    let mut encoder = Encoder::new(64);
    encoder.encode(i, pc).ok()?;
    let bytes = encoder.take_buffer();
    let decoded = Decoder::with_ip(64, &bytes, pc, DecoderOptions::NONE).decode();
    (!decoded.is_invalid() && decoded.code() == i.code() && decoded.len() == bytes.len())
        .then_some((decoded, bytes))
}

/// A case of one random instruction of this code at `pc`, with `states` random states.
pub fn case(code: Code, pc: u64, states: usize, random: &mut Random) -> Option<Case> {
    let i = instruction(code, random, Addressing::Registers)?;
    let (i, bytes) = encoded(&i, pc)?;
    if !can_be_placed(&i) {
        return None;
    }
    let states = (0..states).map(|_| state(&[i], random)).collect();
    Some(Case { defined: defined(&i), instructions: vec![i], code: bytes, states })
}

/// Status flags (and DF) that an instruction leaves defined, as an RFLAGS mask.
pub fn defined(i: &Instruction) -> u64 {
    let undefined = undefined(i);
    let pairs = [
        (RflagsBits::CF, 0),
        (RflagsBits::PF, 2),
        (RflagsBits::AF, 4),
        (RflagsBits::ZF, 6),
        (RflagsBits::SF, 7),
        (RflagsBits::OF, 11),
    ];
    pairs.iter().fold(
        0x400,
        |mask, &(bit, shift)| if undefined & bit == 0 { mask | 1 << shift } else { mask },
    )
}

pub fn undefined(i: &Instruction) -> u32 {
    use Mnemonic::*;
    let mut undefined = i.rflags_undefined();
    match i.mnemonic() {
        // Counts beyond the width leave the carry undefined; iced does not look at the width.
        Shl | Sal | Shr | Sar | Shld | Shrd if i.op0_register().size() < 4 => {
            undefined |= RflagsBits::CF | RflagsBits::OF | RflagsBits::AF
        }
        Shl | Sal | Shr | Sar | Shld | Shrd | Rol | Ror | Rcl | Rcr => {
            undefined |= RflagsBits::OF | RflagsBits::AF
        }
        _ => {}
    }
    if matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr)
        && i.op1_kind() == OpKind::Immediate8
        && i.immediate8() == 1
    {
        undefined &= !RflagsBits::OF;
    }
    undefined
}

/// A random state in which the instructions' memory operands lie in the scratch page.
pub fn state(instructions: &[Instruction], random: &mut Random) -> (Context, Vec<u8>) {
    let mut context = Context::default();
    let floats = random.below(2) == 0;
    for register in &mut context.gpr {
        *register = random.nasty();
    }
    for half in context.xmm.iter_mut().chain(&mut context.high).flatten() {
        *half = if floats { random.float() } else { random.nasty() };
    }
    context.high_in_use = 1;
    if !Processor::host().has(Feature::Avx) {
        context.set_high([[0; 2]; 16]);
    }
    if Processor::host().has(Feature::Avx512F) {
        let wide = context.wide.insert(Box::default());
        for word in wide.upper.as_flattened_mut().iter_mut().chain(wide.more.as_flattened_mut()) {
            *word = if floats { random.float() } else { random.nasty() };
        }
        wide.masks = std::array::from_fn(|_| random.nasty());
    }
    context.rflags = 0x202 | random.next() & 0x8d5;
    context.fs_base = SCRATCH + 0x400;
    if random.below(4) == 0 {
        context.mxcsr = 0x1f80 | (random.below(4) as u32) << 13;
    }
    for i in instructions {
        place(i, &mut context, random);
    }
    let mut memory = vec![0; SCRATCH_LEN];
    for word in memory.chunks_mut(8) {
        let value = if floats { random.float() } else { random.nasty() };
        word.copy_from_slice(&value.to_le_bytes());
    }
    (context, memory)
}

/// Whether registers can be found with which the memory operand lies in the scratch page: not if
/// one of them must also be a bit offset or a stack pointer that lies there or near.
fn can_be_placed(i: &Instruction) -> bool {
    let uses = |register: Register| {
        [i.memory_base(), i.memory_index()]
            .iter()
            .any(|r| r.full_register() == register.full_register())
    };
    match i.mnemonic() {
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
            if i.op1_kind() == OpKind::Register =>
        {
            !uses(i.op1_register())
        }
        Mnemonic::Push | Mnemonic::Pop => !uses(Register::RSP),
        // What a mask leaves out is looked up on the stack, which must be there.
        _ if goes_by_lanes(i) && i.memory_base() == Register::RSP => {
            (i.memory_displacement64() as i64).abs() <= 512
        }
        _ => true,
    }
}

/// Whether an instruction's accesses depend on vectors: indices, or a mask.
pub fn goes_by_lanes(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic());
    let prefixes = ["Vgather", "Vpgather", "Vscatter", "Vpscatter", "Vmaskmov", "Vpmaskmov"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
        || i.has_op_mask() && i.op_kinds().any(|kind| kind == OpKind::Memory)
}

/// Sets registers so that an instruction's memory operands lie in the scratch page.
fn place(i: &Instruction, context: &mut Context, random: &mut Random) {
    if goes_by_lanes(i) && i.memory_base() != Register::RSP {
        // What a mask leaves out is looked up on the stack.
        context.gpr[4] = SCRATCH + 512;
    }
    if i.memory_index().is_vector_register() {
        // Small indices, some negative.
        let index = i.memory_index().number();
        let name = format!("{:?}", i.mnemonic());
        let narrow = ["gatherdd", "gatherdq", "gatherdp", "scatterdd", "scatterdq", "scatterdp"]
            .iter()
            .any(|part| name.contains(part));
        let Context { xmm, high, wide, .. } = context;
        let (upper, more) = match wide {
            Some(wide) => (&mut wide.upper[..], &mut wide.more[..]),
            None => (&mut [][..], &mut [][..]),
        };
        let words = match index {
            0..16 => {
                let upper = upper.get_mut(index).into_iter().flatten();
                xmm[index].iter_mut().chain(&mut high[index]).chain(upper).collect::<Vec<_>>()
            }
            _ => more[index - 16].iter_mut().collect(),
        };
        for word in words {
            let mut small = || random.below(128) as i64 - 64;
            *word = match narrow {
                true => u64::from(small() as u32) << 32 | u64::from(small() as u32),
                false => small() as u64,
            };
        }
        return;
    }
    let target = SCRATCH + 1024 + 64 * random.below(16);
    if i.is_string_instruction() {
        context.gpr[6] = target + random.below(16);
        context.gpr[7] = SCRATCH + 1024 + random.below(1024);
        if i.has_rep_prefix() || i.has_repne_prefix() {
            context.gpr[1] = random.below(40);
        }
        if random.below(4) == 0 {
            context.rflags |= 0x400;
        }
    }
    let by_bit =
        matches!(i.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc)
            && i.op0_kind() == OpKind::Memory
            && i.op1_kind() == OpKind::Register;
    if by_bit {
        let register = i.op1_register().full_register().number();
        context.gpr[register] = random.below(2000).wrapping_sub(1000);
    }
    let names_stack = matches!(i.mnemonic(), Mnemonic::Push | Mnemonic::Pop);
    if names_stack {
        context.gpr[4] = target;
    }
    let base = i.memory_base();
    if !base.is_gpr() {
        return;
    }
    if i.memory_index().is_gpr() && !by_bit {
        let index = &mut context.gpr[i.memory_index().full_register().number()];
        *index = if names_stack && i.memory_index() == Register::RSP {
            *index
        } else if goes_by_lanes(i) && base == Register::RSP {
            random.below(32)
        } else {
            random.nasty()
        };
    }
    let index = if i.memory_index().is_gpr() {
        context.gpr[i.memory_index().full_register().number()]
            .wrapping_mul(u64::from(i.memory_index_scale()))
    } else {
        0
    };
    if !(names_stack && base == Register::RSP) {
        context.gpr[base.full_register().number()] =
            target.wrapping_sub(index).wrapping_sub(i.memory_displacement64());
    }
}
