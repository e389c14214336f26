//! What the guest's processor says of itself: a function of its features alone, whatever the host.
//!
//! A recording must replay on another machine, so the guest may not see the host's caches or
//! topology, nor features that [`Processor`] does not name. Without AVX the identity is that of an
//! early Core i7, with AVX that of a Haswell, with AVX-512 that of a Skylake server: glibc then reads cache sizes from leaf 4, which is
//! answered below, and leaves TSX alone; libraries that go by the model find one that they know.

use crate::Context;
use crate::context::reg::{RAX, RBX, RCX, RDX};
use crate::processor::{Feature, Processor};
use crate::xsave;

/// Leaf 1 EDX; also the guest's AT_HWCAP.
pub(crate) const FEATURES_EDX: u32 = FPU
    | (1 << 4) // TSC
    | (1 << 5) // MSR
    | (1 << 8) // CX8
    | (1 << 15) // CMOV
    | (1 << 19) // CLFLUSH
    | (1 << 23) // MMX
    | (1 << 24) // FXSR
    | (1 << 25) // SSE
    | (1 << 26); // SSE2
const FPU: u32 = 1;

/// Leaf 1 ECX: SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT.
const FEATURES_ECX: u32 = 1 | (1 << 9) | (1 << 13) | (1 << 19) | (1 << 20) | (1 << 23);

/// The same with AVX: XSAVE and OSXSAVE too.
const FEATURES_ECX_AVX: u32 = FEATURES_ECX | (1 << 26) | (1 << 27);

const MAX_EXTENDED: u32 = 0x8000_0008;
const BRAND_V2: &[u8; 48] =
    b"refrain virtual x86-64-v2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const BRAND_V3: &[u8; 48] =
    b"refrain virtual x86-64-v3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const BRAND_V4: &[u8; 48] =
    b"refrain virtual x86-64-v4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const BRANDS: [&[u8; 48]; 3] = [BRAND_V2, BRAND_V3, BRAND_V4];

/// Whether this process is the guest of a recording: its processor says so.
pub fn is_recorded() -> bool {
    let words = (0x8000_0002..=0x8000_0004).flat_map(|leaf| {
        let answer = std::arch::x86_64::__cpuid(leaf);
        [answer.eax, answer.ebx, answer.ecx, answer.edx]
    });
    let brand: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    BRANDS.iter().any(|&known| brand == known)
}

/// Executes `cpuid`: eax and ecx in, eax, ebx, ecx, edx out.
pub(crate) fn cpuid(processor: Processor, context: &mut Context) {
    let leaf = context.gpr[RAX] as u32;
    let subleaf = context.gpr[RCX] as u32;
    let [a, b, c, d] = answer(processor, leaf, subleaf);
    context.gpr[RAX] = u64::from(a);
    context.gpr[RBX] = u64::from(b);
    context.gpr[RCX] = u64::from(c);
    context.gpr[RDX] = u64::from(d);
}

fn answer(processor: Processor, leaf: u32, subleaf: u32) -> [u32; 4] {
    let mut answer = fixed_answer(processor, leaf, subleaf);
    let told_here = |feature: &Feature| {
        let place = feature.place();
        place.leaf == leaf && (leaf != 7 || place.subleaf == subleaf)
    };
    for feature in processor.features().filter(told_here) {
        answer[feature.place().register] |= 1 << feature.place().bit;
    }
    answer
}

/// The answer but for the features of [`Processor`].
fn fixed_answer(processor: Processor, leaf: u32, subleaf: u32) -> [u32; 4] {
    let avx = processor.has(Feature::Avx);
    let area = xsave::size(xcr0(processor)) as u32;
    // "GenuineIntel"
    const VENDOR: [u32; 3] = [0x756e_6547, 0x6c65_746e, 0x4965_6e69];
    match leaf {
        0 => [if avx { 0xd } else { 7 }, VENDOR[0], VENDOR[1], VENDOR[2]],
        // Family 6, model 85, stepping 4; CLFLUSH line of 64 bytes.
        1 if processor.has(Feature::Avx512F) => {
            [0x0005_0654, 8 << 8, FEATURES_ECX_AVX, FEATURES_EDX]
        }
        // Family 6, model 60, stepping 3.
        1 if avx => [0x0003_06c3, 8 << 8, FEATURES_ECX_AVX, FEATURES_EDX],
        // Family 6, model 26, stepping 5.
        1 => [0x0001_06a5, 8 << 8, FEATURES_ECX, FEATURES_EDX],
        // One descriptor: "ask leaf 4".
        2 => [0x00fe_ff01, 0xf0, 0, 0],
        4 => cache(subleaf),
        // The last subleaf.
        7 if subleaf == 0 => {
            let more = processor.features().any(|feature| feature.place().subleaf == 1);
            [u32::from(more), 0, 0, 0]
        }
        // Components, the size of an area that has those in force, and of one that has all.
        0xd if avx && subleaf == 0 => [xcr0(processor) as u32, area, area, 0],
        // Size and offset of a component.
        0xd => match xsave::PARTS
            .iter()
            .find(|part| Some(part.component) == 1_u64.checked_shl(subleaf))
        {
            Some(part) if xcr0(processor) & part.component != 0 => {
                [part.bytes.len() as u32, part.bytes.start as u32, 0, 0]
            }
            _ => [0; 4],
        },
        0x8000_0000 => [MAX_EXTENDED, 0, 0, 0],
        // LAHF; SYSCALL, NX, long mode.
        0x8000_0001 => [0, 0, 1, (1 << 11) | (1 << 20) | (1 << 29)],
        0x8000_0002..=0x8000_0004 => brand(processor, (leaf - 0x8000_0002) as usize * 16),
        // L2 once more: 256 KiB, 8 ways, lines of 64 bytes.
        0x8000_0006 => [0, 0, (256 << 16) | (6 << 12) | 64, 0],
        // Invariant TSC.
        0x8000_0007 => [0, 0, 0, 1 << 8],
        0x8000_0008 => [48 | (48 << 8), 0, 0, 0],
        _ => [0; 4],
    }
}

/// Leaf 4: L1 data and instruction (32 KiB), L2 (256 KiB), L3 (8 MiB).
fn cache(subleaf: u32) -> [u32; 4] {
    let (kind, level, ways, sets) = match subleaf {
        0 => (1, 1, 8, 64),
        1 => (2, 1, 4, 128),
        2 => (3, 2, 8, 512),
        3 => (3, 3, 16, 8192),
        _ => return [0; 4],
    };
    [kind | (level << 5) | (1 << 8), 63 | ((ways - 1) << 22), sets - 1, 0]
}

fn brand(processor: Processor, at: usize) -> [u32; 4] {
    let brand = match processor {
        _ if processor.has(Feature::Avx512F) => BRAND_V4,
        _ if processor.has(Feature::Avx) => BRAND_V3,
        _ => BRAND_V2,
    };
    std::array::from_fn(|i| {
        let word = &brand[at + 4 * i..at + 4 * i + 4];
        u32::from_le_bytes(word.try_into().expect("a slice of four bytes"))
    })
}

/// The extended state that the guest's system has switched on: `xcr0`.
pub(crate) fn xcr0(processor: Processor) -> u64 {
    let avx = if processor.has(Feature::Avx) { xsave::AVX } else { 0 };
    let avx_512 = if processor.has(Feature::Avx512F) { xsave::AVX_512 } else { 0 };
    xsave::X87 | xsave::SSE | avx | avx_512
}

/// Executes `xgetbv`.
pub(crate) fn xgetbv(processor: Processor, context: &mut Context) {
    context.gpr[RAX] = xcr0(processor);
    context.gpr[RDX] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_and_nothing_beyond() {
        let [_, _, ecx, edx] = answer(Processor::V2, 1, 0);
        for bit in [0, 9, 13, 19, 20, 23] {
            assert!(ecx >> bit & 1 == 1, "x86-64-v2 has ECX bit {bit}");
        }
        assert_eq!(ecx >> 26 & 7, 0, "no XSAVE, OSXSAVE, AVX");
        assert_eq!(edx >> 26 & 1, 1, "SSE2");
        assert_eq!(answer(Processor::V2, 7, 0), [0; 4]);
        assert_eq!(xcr0(Processor::V2), 3);
    }

    #[test]
    fn every_feature_is_told_and_no_other() {
        let all: Processor = Feature::ALL.into_iter().collect();
        assert_eq!(answer(all, 1, 0)[2] >> 26 & 7, 7, "XSAVE, OSXSAVE, AVX");
        assert_eq!((answer(all, 7, 0)[0], answer(all, 7, 2)), (1, [0; 4]));
        for feature in Feature::ALL {
            let place = feature.place();
            let bit = |processor| {
                answer(processor, place.leaf, place.subleaf)[place.register] >> place.bit & 1
            };
            let without = all.without([feature].into_iter().collect());
            assert_eq!((bit(all), bit(without)), (1, 0), "{}", feature.name());
        }
        for (processor, last) in [(Processor::guest(None, all), 2), (Ok(all), 7)] {
            let processor = processor.expect("it has all");
            let [low, size, max, high] = answer(processor, 0xd, 0);
            assert_eq!((u64::from(low), high), (xcr0(processor), 0));
            let [len, offset, ..] = answer(processor, 0xd, last);
            assert_eq!((offset + len, max), (size, size));
            assert_eq!(answer(processor, 0xd, last + 1), [0; 4]);
        }
    }
}
