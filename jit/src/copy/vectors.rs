//! How the guest's vector registers are kept while host code runs: which of them, and the assembly that stores and
//! loads them.
//!
//! Host code uses vector registers, because libraries that it calls do. So translated code has its registers saved
//! before it calls host code, and loaded afterwards. Host code begins with the upper halves of the AVX registers in
//! their initial state: other values would slow its SSE instructions down.

use refrain_vm::{Feature, Processor, Wide};
use std::mem::offset_of;

/// The guest has no AVX; the upper halves are left alone.
pub(super) const NONE: u32 = 0;
/// The upper halves of the AVX registers are saved and loaded if they are not zero. Mostly they are: compilers and
/// the C library leave them in their initial state (`vzeroupper`) where functions return. To look takes a quarter
/// of the time that it takes to ask the processor (`xgetbv` with ecx = 1, 13 ns on an AMD EPYC).
pub(super) const AVX: u32 = 1;
/// The same. The registers that AVX-512 adds are always saved and loaded.
pub(super) const AVX_512: u32 = 2;

/// Which of these a guest with this processor needs, on this machine.
pub(super) fn kept(guest: Processor) -> u32 {
    match guest.and(Processor::host()) {
        processor if processor.has(Feature::Avx512F) => AVX_512,
        processor if processor.has(Feature::Avx) => AVX,
        _ => NONE,
    }
}

/// Assembly: what `$one` says of each of sixteen registers. `$one` is given the number of the register, that of the
/// register sixteen further, and the other arguments.
macro_rules! sixteen {
    ($one:ident $(, $argument:literal)*) => {
        concat!(
            $one!(@one "0", "16" $(, $argument)*),
            $one!(@one "1", "17" $(, $argument)*),
            $crate::copy::vectors::sixteen!(@behind_two $one $(, $argument)*),
        )
    };
    (@behind_two $one:ident $(, $argument:literal)*) => {
        concat!(
            $one!(@one "2", "18" $(, $argument)*),
            $one!(@one "3", "19" $(, $argument)*),
            $one!(@one "4", "20" $(, $argument)*),
            $one!(@one "5", "21" $(, $argument)*),
            $one!(@one "6", "22" $(, $argument)*),
            $one!(@one "7", "23" $(, $argument)*),
            $one!(@one "8", "24" $(, $argument)*),
            $one!(@one "9", "25" $(, $argument)*),
            $one!(@one "10", "26" $(, $argument)*),
            $one!(@one "11", "27" $(, $argument)*),
            $one!(@one "12", "28" $(, $argument)*),
            $one!(@one "13", "29" $(, $argument)*),
            $one!(@one "14", "30" $(, $argument)*),
            $one!(@one "15", "31" $(, $argument)*),
        )
    };
}

/// Assembly: sets the zero flag if all upper halves are zero. Those of the first two registers are
/// stored to `[$base + $at]`, and the registers used; the others stay.
macro_rules! test_halves {
    ($base:literal, $at:literal) => {
        concat!(
            store_halves!(@one "0", "16", $base, $at),
            store_halves!(@one "1", "17", $base, $at),
            "vorps ymm0, ymm0, ymm2\n",
            "vorps ymm1, ymm1, ymm3\n",
            "vorps ymm0, ymm0, ymm4\n",
            "vorps ymm1, ymm1, ymm5\n",
            "vorps ymm0, ymm0, ymm6\n",
            "vorps ymm1, ymm1, ymm7\n",
            "vorps ymm0, ymm0, ymm8\n",
            "vorps ymm1, ymm1, ymm9\n",
            "vorps ymm0, ymm0, ymm10\n",
            "vorps ymm1, ymm1, ymm11\n",
            "vorps ymm0, ymm0, ymm12\n",
            "vorps ymm1, ymm1, ymm13\n",
            "vorps ymm0, ymm0, ymm14\n",
            "vorps ymm1, ymm1, ymm15\n",
            "vorps ymm0, ymm0, ymm1\n",
            "vextractf128 xmm0, ymm0, 1\n",
            "vptest xmm0, xmm0",
        )
    };
}

/// Assembly: after [`test_halves`], stores the other upper halves to `[$base + $at]`.
macro_rules! store_halves {
    ($base:literal, $at:literal) => { $crate::copy::vectors::sixteen!(@behind_two store_halves, $base, $at) };
    (@one $n:literal, $further:literal, $base:literal, $at:literal) => {
        concat!("vextractf128 [", $base, " + ", $at, " + 16*", $n, "], ymm", $n, ", 1\n")
    };
}

/// Assembly: loads the upper halves from `[$base + $at]`; the lower ones stay.
macro_rules! load_halves {
    ($base:literal, $at:literal) => {
        $crate::copy::vectors::sixteen!(load_halves, $base, $at)
    };
    (@one $n:literal, $further:literal, $base:literal, $at:literal) => {
        concat!(
            "vinsertf128 ymm",
            $n,
            ", ymm",
            $n,
            ", [",
            $base,
            " + ",
            $at,
            " + 16*",
            $n,
            "], 1\n"
        )
    };
}

/// Assembly: stores the lower halves of the vector registers to `[$base + $at]`, which is aligned.
macro_rules! store_lower {
    ($base:literal, $at:literal) => {
        $crate::copy::vectors::sixteen!(store_lower, $base, $at)
    };
    (@one $n:literal, $further:literal, $base:literal, $at:literal) => {
        concat!("movaps [", $base, " + ", $at, " + 16*", $n, "], xmm", $n, "\n")
    };
}

/// Assembly: loads the lower halves from `[$base + $at]`, which is aligned; the upper ones stay.
macro_rules! load_lower {
    ($base:literal, $at:literal) => {
        $crate::copy::vectors::sixteen!(load_lower, $base, $at)
    };
    (@one $n:literal, $further:literal, $base:literal, $at:literal) => {
        concat!("movaps xmm", $n, ", [", $base, " + ", $at, " + 16*", $n, "]\n")
    };
}

/// Assembly: stores the registers that AVX-512 adds to AVX to the [`Wide`] at `$base`.
macro_rules! store_wide {
    ($base:literal) => {
        concat!(
            $crate::copy::vectors::sixteen!(store_wide, $base),
            "kmovq [",
            $base,
            " + 0x00], k0\n",
            "kmovq [",
            $base,
            " + 0x08], k1\n",
            "kmovq [",
            $base,
            " + 0x10], k2\n",
            "kmovq [",
            $base,
            " + 0x18], k3\n",
            "kmovq [",
            $base,
            " + 0x20], k4\n",
            "kmovq [",
            $base,
            " + 0x28], k5\n",
            "kmovq [",
            $base,
            " + 0x30], k6\n",
            "kmovq [",
            $base,
            " + 0x38], k7\n",
        )
    };
    (@one $n:literal, $further:literal, $base:literal) => {
        concat!(
            "vextracti64x4 [",
            $base,
            " + 0x40 + 32*",
            $n,
            "], zmm",
            $n,
            ", 1\n",
            "vmovdqu64 [",
            $base,
            " + 0x240 + 64*",
            $n,
            "], zmm",
            $further,
            "\n",
        )
    };
}

/// Assembly: loads those registers from the [`Wide`] at `$base`; the AVX registers stay.
macro_rules! load_wide {
    ($base:literal) => {
        concat!(
            $crate::copy::vectors::sixteen!(load_wide, $base),
            "kmovq k0, [",
            $base,
            " + 0x00]\n",
            "kmovq k1, [",
            $base,
            " + 0x08]\n",
            "kmovq k2, [",
            $base,
            " + 0x10]\n",
            "kmovq k3, [",
            $base,
            " + 0x18]\n",
            "kmovq k4, [",
            $base,
            " + 0x20]\n",
            "kmovq k5, [",
            $base,
            " + 0x28]\n",
            "kmovq k6, [",
            $base,
            " + 0x30]\n",
            "kmovq k7, [",
            $base,
            " + 0x38]\n",
        )
    };
    (@one $n:literal, $further:literal, $base:literal) => {
        concat!(
            "vinserti64x4 zmm",
            $n,
            ", zmm",
            $n,
            ", [",
            $base,
            " + 0x40 + 32*",
            $n,
            "], 1\n",
            "vmovdqu64 zmm",
            $further,
            ", [",
            $base,
            " + 0x240 + 64*",
            $n,
            "]\n",
        )
    };
}

// Where the assembly has them.
const _: () = {
    assert!(offset_of!(Wide, masks) == 0);
    assert!(offset_of!(Wide, upper) == 0x40);
    assert!(offset_of!(Wide, more) == 0x240);
};

pub(super) use {
    load_halves, load_lower, load_wide, sixteen, store_halves, store_lower, store_wide, test_halves,
};
