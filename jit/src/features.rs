//! What of the processor an instruction needs.

use iced_x86::{CpuidFeature, Decoder, DecoderOptions, EncodingKind, Instruction};
use refrain_trace::CodeBlock;
use refrain_vm::{Feature, Processor};

/// Whether a guest with this processor may execute the instruction.
///
/// Of instructions in legacy encodings all are let through: those of later extensions mean
/// something else on older processors, or fault there, and a program that goes by `cpuid` executes
/// none that its processor lacks.
pub(crate) fn may_execute(processor: Processor, instruction: &Instruction) -> bool {
    match instruction.encoding() {
        EncodingKind::Legacy => true,
        EncodingKind::VEX | EncodingKind::EVEX => instruction
            .cpuid_features()
            .iter()
            .all(|&needed| feature(needed).is_some_and(|feature| processor.has(feature))),
        _ => false,
    }
}

/// The features beyond x86-64-v2 that a recorded program's code needs. Instructions that no
/// [`Feature`] covers need none: engines refuse them where they stand.
pub fn needs(blocks: &[CodeBlock]) -> Processor {
    let mut needed = Vec::new();
    for block in blocks {
        let mut decoder = Decoder::with_ip(64, &block.code, block.pc, DecoderOptions::NONE);
        let features = decoder.iter().flat_map(|instruction| instruction.cpuid_features());
        needed.extend(features.filter_map(|&needed| feature(needed)));
    }
    needed.into_iter().collect()
}

/// Whether a feature of the instruction set is one that guests may have beyond x86-64-v2.
#[cfg(test)]
pub(crate) fn covers(of: CpuidFeature) -> bool {
    feature(of).is_some()
}

/// The feature of the guest's processor that stands behind one of the instruction set.
fn feature(of: CpuidFeature) -> Option<Feature> {
    Some(match of {
        CpuidFeature::FMA => Feature::Fma,
        CpuidFeature::MOVBE => Feature::Movbe,
        CpuidFeature::AES => Feature::Aes,
        CpuidFeature::PCLMULQDQ => Feature::Pclmulqdq,
        CpuidFeature::AVX => Feature::Avx,
        CpuidFeature::F16C => Feature::F16c,
        CpuidFeature::BMI1 => Feature::Bmi1,
        CpuidFeature::AVX2 => Feature::Avx2,
        CpuidFeature::BMI2 => Feature::Bmi2,
        CpuidFeature::ADX => Feature::Adx,
        CpuidFeature::SHA => Feature::Sha,
        CpuidFeature::GFNI => Feature::Gfni,
        CpuidFeature::VAES => Feature::Vaes,
        CpuidFeature::VPCLMULQDQ => Feature::Vpclmulqdq,
        CpuidFeature::LZCNT => Feature::Lzcnt,
        CpuidFeature::AVX_VNNI => Feature::AvxVnni,
        CpuidFeature::AVX512F => Feature::Avx512F,
        CpuidFeature::AVX512DQ => Feature::Avx512Dq,
        CpuidFeature::AVX512CD => Feature::Avx512Cd,
        CpuidFeature::AVX512BW => Feature::Avx512Bw,
        CpuidFeature::AVX512VL => Feature::Avx512Vl,
        CpuidFeature::AVX512_IFMA => Feature::Avx512Ifma,
        CpuidFeature::AVX512_VBMI => Feature::Avx512Vbmi,
        CpuidFeature::AVX512_VBMI2 => Feature::Avx512Vbmi2,
        CpuidFeature::AVX512_VNNI => Feature::Avx512Vnni,
        CpuidFeature::AVX512_BITALG => Feature::Avx512Bitalg,
        CpuidFeature::AVX512_VPOPCNTDQ => Feature::Avx512Vpopcntdq,
        CpuidFeature::AVX512_BF16 => Feature::Avx512Bf16,
        CpuidFeature::AVX512_FP16 => Feature::Avx512Fp16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::code_asm::*;

    #[test]
    fn code_needs_what_its_instructions_are_of() {
        let mut a = CodeAssembler::new(64).unwrap();
        a.add(eax, 1).unwrap();
        a.vpaddd(ymm0, ymm1, ymm2).unwrap();
        a.vaddps(ymm0, ymm1, ymm2).unwrap();
        a.sha256rnds2(xmm1, xmm2).unwrap();
        a.lzcnt(eax, ecx).unwrap();
        let code = a.assemble(0x1000).unwrap();
        let block = CodeBlock { pc: 0x1000, code, loads: Vec::new() };
        let expected: Processor =
            [Feature::Avx, Feature::Avx2, Feature::Sha, Feature::Lzcnt].into_iter().collect();
        assert_eq!(needs(&[block]), expected);
        assert_eq!(needs(&[]), Processor::V2);
    }

    #[test]
    fn a_guest_executes_what_its_processor_has() {
        let decode = |bytes: &[u8]| Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        let add_ymm = decode(&[0xc5, 0xf5, 0xfe, 0xc2]);
        let avx: Processor = [Feature::Avx].into_iter().collect();
        let avx2: Processor = [Feature::Avx, Feature::Avx2].into_iter().collect();
        assert!(may_execute(avx2, &add_ymm) && !may_execute(avx, &add_ymm));
        let mask_move = decode(&[0xc5, 0xf8, 0x90, 0xc1]);
        assert!(!may_execute(avx2, &mask_move), "kmovw is of AVX-512");
        let avx_512 = avx2.with([Feature::Avx512F].into_iter().collect());
        assert!(may_execute(avx_512, &mask_move));
        let narrow = decode(&[0x62, 0xf1, 0x75, 0x08, 0xfe, 0xc2]);
        assert!(!may_execute(avx_512, &narrow), "vpaddd on xmm registers is of AVX512VL");
        assert!(may_execute(Processor::V2, &decode(&[0x90])));
    }
}
