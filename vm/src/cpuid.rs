//! The guest's processor: one fixed x86-64-v2, whatever the host is.
//!
//! A recording must replay on another machine, so the guest may not see the host's features,
//! caches or topology. The identity is that of an early Core i7: glibc then reads cache sizes
//! from leaf 4, which is answered below, and leaves TSX, AVX and the rest alone.

use crate::Context;
use crate::context::reg::{RAX, RBX, RCX, RDX};

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

const MAX_LEAF: u32 = 7;
const MAX_EXTENDED: u32 = 0x8000_0008;
const BRAND: &[u8; 48] = b"refrain virtual x86-64-v2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Executes `cpuid`: eax and ecx in, eax, ebx, ecx, edx out.
pub(crate) fn cpuid(context: &mut Context) {
    let leaf = context.gpr[RAX] as u32;
    let subleaf = context.gpr[RCX] as u32;
    let [a, b, c, d] = answer(leaf, subleaf);
    context.gpr[RAX] = u64::from(a);
    context.gpr[RBX] = u64::from(b);
    context.gpr[RCX] = u64::from(c);
    context.gpr[RDX] = u64::from(d);
}

fn answer(leaf: u32, subleaf: u32) -> [u32; 4] {
    match leaf {
        // "GenuineIntel"
        0 => [MAX_LEAF, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
        // Family 6, model 26, stepping 5; CLFLUSH line of 64 bytes.
        1 => [0x0001_06a5, 8 << 8, FEATURES_ECX, FEATURES_EDX],
        // One descriptor: "ask leaf 4".
        2 => [0x00fe_ff01, 0xf0, 0, 0],
        4 => cache(subleaf),
        0x8000_0000 => [MAX_EXTENDED, 0, 0, 0],
        // LAHF; SYSCALL, NX, long mode.
        0x8000_0001 => [0, 0, 1, (1 << 11) | (1 << 20) | (1 << 29)],
        0x8000_0002..=0x8000_0004 => brand((leaf - 0x8000_0002) as usize * 16),
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

fn brand(at: usize) -> [u32; 4] {
    std::array::from_fn(|i| {
        let word = &BRAND[at + 4 * i..at + 4 * i + 4];
        u32::from_le_bytes(word.try_into().expect("a slice of four bytes"))
    })
}

/// Executes `xgetbv`: no extended state beyond x87 and SSE.
pub(crate) fn xgetbv(context: &mut Context) {
    context.gpr[RAX] = 3;
    context.gpr[RDX] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_and_nothing_beyond() {
        let [_, _, ecx, edx] = answer(1, 0);
        for bit in [0, 9, 13, 19, 20, 23] {
            assert!(ecx >> bit & 1 == 1, "x86-64-v2 has ECX bit {bit}");
        }
        assert_eq!(ecx >> 26 & 7, 0, "no XSAVE, OSXSAVE, AVX");
        assert_eq!(edx >> 26 & 1, 1, "SSE2");
        assert_eq!(answer(7, 0), [0; 4]);
    }
}
