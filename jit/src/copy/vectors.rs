//! How the guest's vector registers are kept while host code runs: which of them, and the assembly that stores and
//! loads them.
//!
//! Host code uses vector registers, because libraries that it calls do. So translated code has its registers saved
//! before it calls host code, and loaded afterwards. Host code begins with the upper halves of the AVX registers in
//! their initial state: other values would slow its SSE instructions down.

use refrain_vm::{Feature, Processor};

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

/// Assembly: sets the zero flag if all upper halves are zero. Those of the first two registers are
/// stored to `[$base + $at]`, and the registers used; the others stay.
macro_rules! test_halves {
    ($base:literal, $at:literal) => {
        concat!(
            store_halves!(@one $base, $at, "0", "0x00"),
            store_halves!(@one $base, $at, "1", "0x10"),
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
    ($base:literal, $at:literal) => {
        concat!(
            store_halves!(@one $base, $at, "2", "0x20"),
            store_halves!(@one $base, $at, "3", "0x30"),
            store_halves!(@one $base, $at, "4", "0x40"),
            store_halves!(@one $base, $at, "5", "0x50"),
            store_halves!(@one $base, $at, "6", "0x60"),
            store_halves!(@one $base, $at, "7", "0x70"),
            store_halves!(@one $base, $at, "8", "0x80"),
            store_halves!(@one $base, $at, "9", "0x90"),
            store_halves!(@one $base, $at, "10", "0xa0"),
            store_halves!(@one $base, $at, "11", "0xb0"),
            store_halves!(@one $base, $at, "12", "0xc0"),
            store_halves!(@one $base, $at, "13", "0xd0"),
            store_halves!(@one $base, $at, "14", "0xe0"),
            store_halves!(@one $base, $at, "15", "0xf0"),
        )
    };
    (@one $base:literal, $at:literal, $n:literal, $offset:literal) => {
        concat!("vextractf128 [", $base, " + ", $at, " + ", $offset, "], ymm", $n, ", 1\n")
    };
}

/// Assembly: loads the upper halves from `[$base + $at]`; the lower ones stay.
macro_rules! load_halves {
    ($base:literal, $at:literal) => {
        concat!(
            load_halves!(@one $base, $at, "0", "0x00"),
            load_halves!(@one $base, $at, "1", "0x10"),
            load_halves!(@one $base, $at, "2", "0x20"),
            load_halves!(@one $base, $at, "3", "0x30"),
            load_halves!(@one $base, $at, "4", "0x40"),
            load_halves!(@one $base, $at, "5", "0x50"),
            load_halves!(@one $base, $at, "6", "0x60"),
            load_halves!(@one $base, $at, "7", "0x70"),
            load_halves!(@one $base, $at, "8", "0x80"),
            load_halves!(@one $base, $at, "9", "0x90"),
            load_halves!(@one $base, $at, "10", "0xa0"),
            load_halves!(@one $base, $at, "11", "0xb0"),
            load_halves!(@one $base, $at, "12", "0xc0"),
            load_halves!(@one $base, $at, "13", "0xd0"),
            load_halves!(@one $base, $at, "14", "0xe0"),
            load_halves!(@one $base, $at, "15", "0xf0"),
        )
    };
    (@one $base:literal, $at:literal, $n:literal, $offset:literal) => {
        concat!(
            "vinsertf128 ymm", $n, ", ymm", $n, ", [", $base, " + ", $at, " + ", $offset, "], 1\n"
        )
    };
}
/// Assembly: stores the lower halves of the vector registers to `[$base + $at]`, which is aligned.
macro_rules! store_lower {
    ($base:literal, $at:literal) => {
        concat!(
            store_lower!(@one $base, $at, "0", "0x00"),
            store_lower!(@one $base, $at, "1", "0x10"),
            store_lower!(@one $base, $at, "2", "0x20"),
            store_lower!(@one $base, $at, "3", "0x30"),
            store_lower!(@one $base, $at, "4", "0x40"),
            store_lower!(@one $base, $at, "5", "0x50"),
            store_lower!(@one $base, $at, "6", "0x60"),
            store_lower!(@one $base, $at, "7", "0x70"),
            store_lower!(@one $base, $at, "8", "0x80"),
            store_lower!(@one $base, $at, "9", "0x90"),
            store_lower!(@one $base, $at, "10", "0xa0"),
            store_lower!(@one $base, $at, "11", "0xb0"),
            store_lower!(@one $base, $at, "12", "0xc0"),
            store_lower!(@one $base, $at, "13", "0xd0"),
            store_lower!(@one $base, $at, "14", "0xe0"),
            store_lower!(@one $base, $at, "15", "0xf0"),
        )
    };
    (@one $base:literal, $at:literal, $n:literal, $offset:literal) => {
        concat!("movaps [", $base, " + ", $at, " + ", $offset, "], xmm", $n, "\n")
    };
}

/// Assembly: loads the lower halves from `[$base + $at]`, which is aligned; the upper ones stay.
macro_rules! load_lower {
    ($base:literal, $at:literal) => {
        concat!(
            load_lower!(@one $base, $at, "0", "0x00"),
            load_lower!(@one $base, $at, "1", "0x10"),
            load_lower!(@one $base, $at, "2", "0x20"),
            load_lower!(@one $base, $at, "3", "0x30"),
            load_lower!(@one $base, $at, "4", "0x40"),
            load_lower!(@one $base, $at, "5", "0x50"),
            load_lower!(@one $base, $at, "6", "0x60"),
            load_lower!(@one $base, $at, "7", "0x70"),
            load_lower!(@one $base, $at, "8", "0x80"),
            load_lower!(@one $base, $at, "9", "0x90"),
            load_lower!(@one $base, $at, "10", "0xa0"),
            load_lower!(@one $base, $at, "11", "0xb0"),
            load_lower!(@one $base, $at, "12", "0xc0"),
            load_lower!(@one $base, $at, "13", "0xd0"),
            load_lower!(@one $base, $at, "14", "0xe0"),
            load_lower!(@one $base, $at, "15", "0xf0"),
        )
    };
    (@one $base:literal, $at:literal, $n:literal, $offset:literal) => {
        concat!("movaps xmm", $n, ", [", $base, " + ", $at, " + ", $offset, "]\n")
    };
}

/// Assembly: stores the registers that AVX-512 adds to AVX to the [`Wide`](refrain_vm::Wide) at `$base`.
macro_rules! store_wide {
    ($base:literal) => {
        concat!(
            store_wide!(@upper $base, "0", "0x40"),
            store_wide!(@upper $base, "1", "0x60"),
            store_wide!(@upper $base, "2", "0x80"),
            store_wide!(@upper $base, "3", "0xa0"),
            store_wide!(@upper $base, "4", "0xc0"),
            store_wide!(@upper $base, "5", "0xe0"),
            store_wide!(@upper $base, "6", "0x100"),
            store_wide!(@upper $base, "7", "0x120"),
            store_wide!(@upper $base, "8", "0x140"),
            store_wide!(@upper $base, "9", "0x160"),
            store_wide!(@upper $base, "10", "0x180"),
            store_wide!(@upper $base, "11", "0x1a0"),
            store_wide!(@upper $base, "12", "0x1c0"),
            store_wide!(@upper $base, "13", "0x1e0"),
            store_wide!(@upper $base, "14", "0x200"),
            store_wide!(@upper $base, "15", "0x220"),
            store_wide!(@more $base, "16", "0x240"),
            store_wide!(@more $base, "17", "0x280"),
            store_wide!(@more $base, "18", "0x2c0"),
            store_wide!(@more $base, "19", "0x300"),
            store_wide!(@more $base, "20", "0x340"),
            store_wide!(@more $base, "21", "0x380"),
            store_wide!(@more $base, "22", "0x3c0"),
            store_wide!(@more $base, "23", "0x400"),
            store_wide!(@more $base, "24", "0x440"),
            store_wide!(@more $base, "25", "0x480"),
            store_wide!(@more $base, "26", "0x4c0"),
            store_wide!(@more $base, "27", "0x500"),
            store_wide!(@more $base, "28", "0x540"),
            store_wide!(@more $base, "29", "0x580"),
            store_wide!(@more $base, "30", "0x5c0"),
            store_wide!(@more $base, "31", "0x600"),
            store_wide!(@mask $base, "0", "0x0"),
            store_wide!(@mask $base, "1", "0x8"),
            store_wide!(@mask $base, "2", "0x10"),
            store_wide!(@mask $base, "3", "0x18"),
            store_wide!(@mask $base, "4", "0x20"),
            store_wide!(@mask $base, "5", "0x28"),
            store_wide!(@mask $base, "6", "0x30"),
            store_wide!(@mask $base, "7", "0x38"),
        )
    };
    (@upper $base:literal, $n:literal, $at:literal) => {
        concat!("vextracti64x4 [", $base, " + ", $at, "], zmm", $n, ", 1\n")
    };
    (@more $base:literal, $n:literal, $at:literal) => {
        concat!("vmovdqu64 [", $base, " + ", $at, "], zmm", $n, "\n")
    };
    (@mask $base:literal, $n:literal, $at:literal) => {
        concat!("kmovq [", $base, " + ", $at, "], k", $n, "\n")
    };
}

/// Assembly: loads those registers from the [`Wide`](refrain_vm::Wide) at `$base`; the AVX registers stay.
macro_rules! load_wide {
    ($base:literal) => {
        concat!(
            load_wide!(@upper $base, "0", "0x40"),
            load_wide!(@upper $base, "1", "0x60"),
            load_wide!(@upper $base, "2", "0x80"),
            load_wide!(@upper $base, "3", "0xa0"),
            load_wide!(@upper $base, "4", "0xc0"),
            load_wide!(@upper $base, "5", "0xe0"),
            load_wide!(@upper $base, "6", "0x100"),
            load_wide!(@upper $base, "7", "0x120"),
            load_wide!(@upper $base, "8", "0x140"),
            load_wide!(@upper $base, "9", "0x160"),
            load_wide!(@upper $base, "10", "0x180"),
            load_wide!(@upper $base, "11", "0x1a0"),
            load_wide!(@upper $base, "12", "0x1c0"),
            load_wide!(@upper $base, "13", "0x1e0"),
            load_wide!(@upper $base, "14", "0x200"),
            load_wide!(@upper $base, "15", "0x220"),
            load_wide!(@more $base, "16", "0x240"),
            load_wide!(@more $base, "17", "0x280"),
            load_wide!(@more $base, "18", "0x2c0"),
            load_wide!(@more $base, "19", "0x300"),
            load_wide!(@more $base, "20", "0x340"),
            load_wide!(@more $base, "21", "0x380"),
            load_wide!(@more $base, "22", "0x3c0"),
            load_wide!(@more $base, "23", "0x400"),
            load_wide!(@more $base, "24", "0x440"),
            load_wide!(@more $base, "25", "0x480"),
            load_wide!(@more $base, "26", "0x4c0"),
            load_wide!(@more $base, "27", "0x500"),
            load_wide!(@more $base, "28", "0x540"),
            load_wide!(@more $base, "29", "0x580"),
            load_wide!(@more $base, "30", "0x5c0"),
            load_wide!(@more $base, "31", "0x600"),
            load_wide!(@mask $base, "0", "0x0"),
            load_wide!(@mask $base, "1", "0x8"),
            load_wide!(@mask $base, "2", "0x10"),
            load_wide!(@mask $base, "3", "0x18"),
            load_wide!(@mask $base, "4", "0x20"),
            load_wide!(@mask $base, "5", "0x28"),
            load_wide!(@mask $base, "6", "0x30"),
            load_wide!(@mask $base, "7", "0x38"),
        )
    };
    (@upper $base:literal, $n:literal, $at:literal) => {
        concat!("vinserti64x4 zmm", $n, ", zmm", $n, ", [", $base, " + ", $at, "], 1\n")
    };
    (@more $base:literal, $n:literal, $at:literal) => {
        concat!("vmovdqu64 zmm", $n, ", [", $base, " + ", $at, "]\n")
    };
    (@mask $base:literal, $n:literal, $at:literal) => {
        concat!("kmovq k", $n, ", [", $base, " + ", $at, "]\n")
    };
}

pub(super) use {
    load_halves, load_lower, load_wide, store_halves, store_lower, store_wide, test_halves,
};
