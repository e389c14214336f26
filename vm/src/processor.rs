//! What the guest's processor has beyond x86-64-v2.
//!
//! The guest sees a processor that is put together from the host's features: a level of the
//! x86-64 psABI, and the extensions for cryptography that programs ask for one by one. A trace
//! keeps the names of the features that its guest saw, since `cpuid` must answer the same in a
//! replay. A replay needs those that recorded code uses, and no others.

use std::fmt;

/// A feature that a guest may see; the names are those of `/proc/cpuinfo`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Feature {
    Fma,
    Movbe,
    Aes,
    Pclmulqdq,
    Avx,
    F16c,
    Bmi1,
    Avx2,
    Bmi2,
    Adx,
    Sha,
    Gfni,
    Vaes,
    Vpclmulqdq,
    Lzcnt,
    /// The machine executes it, so every guest may have it.
    Rdtscp,
    AvxVnni,
    Avx512F,
    Avx512Dq,
    Avx512Cd,
    Avx512Bw,
    Avx512Vl,
    Avx512Ifma,
    Avx512Vbmi,
    Avx512Vbmi2,
    Avx512Vnni,
    Avx512Bitalg,
    Avx512Vpopcntdq,
    Avx512Bf16,
    Avx512Fp16,
}

/// Where `cpuid` tells of a feature: the leaf, the subleaf, the register (of eax, ebx, ecx, edx) and
/// the bit.
pub(crate) struct CpuidBit {
    pub(crate) leaf: u32,
    pub(crate) subleaf: u32,
    pub(crate) register: usize,
    pub(crate) bit: u32,
}

const fn place(leaf: u32, register: usize, bit: u32) -> CpuidBit {
    CpuidBit { leaf, subleaf: 0, register, bit }
}

/// Likewise in leaf 7, subleaf 1.
const fn place_in_7_1(register: usize, bit: u32) -> CpuidBit {
    CpuidBit { leaf: 7, subleaf: 1, register, bit }
}

const EAX: usize = 0;
const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;
const EXTENDED: u32 = 0x8000_0001;

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 30] = [
        Feature::Fma,
        Feature::Movbe,
        Feature::Aes,
        Feature::Pclmulqdq,
        Feature::Avx,
        Feature::F16c,
        Feature::Bmi1,
        Feature::Avx2,
        Feature::Bmi2,
        Feature::Adx,
        Feature::Sha,
        Feature::Gfni,
        Feature::Vaes,
        Feature::Vpclmulqdq,
        Feature::Lzcnt,
        Feature::Rdtscp,
        Feature::AvxVnni,
        Feature::Avx512F,
        Feature::Avx512Dq,
        Feature::Avx512Cd,
        Feature::Avx512Bw,
        Feature::Avx512Vl,
        Feature::Avx512Ifma,
        Feature::Avx512Vbmi,
        Feature::Avx512Vbmi2,
        Feature::Avx512Vnni,
        Feature::Avx512Bitalg,
        Feature::Avx512Vpopcntdq,
        Feature::Avx512Bf16,
        Feature::Avx512Fp16,
    ];

    /// The name that `/proc/cpuinfo` and traces have for it.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Fma => "fma",
            Feature::Movbe => "movbe",
            Feature::Aes => "aes",
            Feature::Pclmulqdq => "pclmulqdq",
            Feature::Avx => "avx",
            Feature::F16c => "f16c",
            Feature::Bmi1 => "bmi1",
            Feature::Avx2 => "avx2",
            Feature::Bmi2 => "bmi2",
            Feature::Adx => "adx",
            Feature::Sha => "sha_ni",
            Feature::Gfni => "gfni",
            Feature::Vaes => "vaes",
            Feature::Vpclmulqdq => "vpclmulqdq",
            Feature::Lzcnt => "abm",
            Feature::Rdtscp => "rdtscp",
            Feature::AvxVnni => "avx_vnni",
            Feature::Avx512F => "avx512f",
            Feature::Avx512Dq => "avx512dq",
            Feature::Avx512Cd => "avx512cd",
            Feature::Avx512Bw => "avx512bw",
            Feature::Avx512Vl => "avx512vl",
            Feature::Avx512Ifma => "avx512ifma",
            Feature::Avx512Vbmi => "avx512vbmi",
            Feature::Avx512Vbmi2 => "avx512_vbmi2",
            Feature::Avx512Vnni => "avx512_vnni",
            Feature::Avx512Bitalg => "avx512_bitalg",
            Feature::Avx512Vpopcntdq => "avx512_vpopcntdq",
            Feature::Avx512Bf16 => "avx512_bf16",
            Feature::Avx512Fp16 => "avx512_fp16",
        }
    }

    pub(crate) fn place(self) -> CpuidBit {
        match self {
            Feature::Pclmulqdq => place(1, ECX, 1),
            Feature::Fma => place(1, ECX, 12),
            Feature::Movbe => place(1, ECX, 22),
            Feature::Aes => place(1, ECX, 25),
            Feature::Avx => place(1, ECX, 28),
            Feature::F16c => place(1, ECX, 29),
            Feature::Bmi1 => place(7, EBX, 3),
            Feature::Avx2 => place(7, EBX, 5),
            Feature::Bmi2 => place(7, EBX, 8),
            Feature::Adx => place(7, EBX, 19),
            Feature::Sha => place(7, EBX, 29),
            Feature::Gfni => place(7, ECX, 8),
            Feature::Vaes => place(7, ECX, 9),
            Feature::Vpclmulqdq => place(7, ECX, 10),
            Feature::Lzcnt => place(EXTENDED, ECX, 5),
            Feature::Rdtscp => place(EXTENDED, EDX, 27),
            Feature::AvxVnni => place_in_7_1(EAX, 4),
            Feature::Avx512F => place(7, EBX, 16),
            Feature::Avx512Dq => place(7, EBX, 17),
            Feature::Avx512Cd => place(7, EBX, 28),
            Feature::Avx512Bw => place(7, EBX, 30),
            Feature::Avx512Vl => place(7, EBX, 31),
            Feature::Avx512Ifma => place(7, EBX, 21),
            Feature::Avx512Vbmi => place(7, ECX, 1),
            Feature::Avx512Vbmi2 => place(7, ECX, 6),
            Feature::Avx512Vnni => place(7, ECX, 11),
            Feature::Avx512Bitalg => place(7, ECX, 12),
            Feature::Avx512Vpopcntdq => place(7, ECX, 14),
            Feature::Avx512Bf16 => place_in_7_1(EAX, 5),
            Feature::Avx512Fp16 => place(7, EDX, 23),
        }
    }

    /// Whether this machine and its kernel have it.
    fn is_here(self) -> bool {
        match self {
            Feature::Fma => is_x86_feature_detected!("fma"),
            Feature::Movbe => is_x86_feature_detected!("movbe"),
            Feature::Aes => is_x86_feature_detected!("aes"),
            Feature::Pclmulqdq => is_x86_feature_detected!("pclmulqdq"),
            Feature::Avx => is_x86_feature_detected!("avx"),
            Feature::F16c => is_x86_feature_detected!("f16c"),
            Feature::Bmi1 => is_x86_feature_detected!("bmi1"),
            Feature::Avx2 => is_x86_feature_detected!("avx2"),
            Feature::Bmi2 => is_x86_feature_detected!("bmi2"),
            Feature::Adx => is_x86_feature_detected!("adx"),
            Feature::Sha => is_x86_feature_detected!("sha"),
            Feature::Gfni => is_x86_feature_detected!("gfni"),
            Feature::Vaes => is_x86_feature_detected!("vaes"),
            Feature::Vpclmulqdq => is_x86_feature_detected!("vpclmulqdq"),
            Feature::Lzcnt => is_x86_feature_detected!("lzcnt"),
            Feature::Rdtscp => true,
            Feature::AvxVnni => is_x86_feature_detected!("avxvnni"),
            Feature::Avx512F => is_x86_feature_detected!("avx512f"),
            Feature::Avx512Dq => is_x86_feature_detected!("avx512dq"),
            Feature::Avx512Cd => is_x86_feature_detected!("avx512cd"),
            Feature::Avx512Bw => is_x86_feature_detected!("avx512bw"),
            Feature::Avx512Vl => is_x86_feature_detected!("avx512vl"),
            Feature::Avx512Ifma => is_x86_feature_detected!("avx512ifma"),
            Feature::Avx512Vbmi => is_x86_feature_detected!("avx512vbmi"),
            Feature::Avx512Vbmi2 => is_x86_feature_detected!("avx512vbmi2"),
            Feature::Avx512Vnni => is_x86_feature_detected!("avx512vnni"),
            Feature::Avx512Bitalg => is_x86_feature_detected!("avx512bitalg"),
            Feature::Avx512Vpopcntdq => is_x86_feature_detected!("avx512vpopcntdq"),
            Feature::Avx512Bf16 => is_x86_feature_detected!("avx512bf16"),
            Feature::Avx512Fp16 => is_x86_feature_detected!("avx512fp16"),
        }
    }
}

/// A level of processors that users pick a guest's by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// x86-64-v2: no AVX.
    V2,
    /// x86-64-v3: AVX2, FMA, BMI; and what this machine has of the extensions for cryptography.
    V3,
    /// x86-64-v4: the same, and the common part of AVX-512.
    V4,
    /// All that this machine has of what a guest may have.
    Host,
}

impl Level {
    /// The name that users give it.
    pub fn name(self) -> &'static str {
        match self {
            Level::V2 => "v2",
            Level::V3 => "v3",
            Level::V4 => "v4",
            Level::Host => "host",
        }
    }
}

/// The features of a processor beyond x86-64-v2.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Processor(u32);

/// What makes a processor an x86-64-v3.
const V3: [Feature; 8] = [
    Feature::Avx,
    Feature::Avx2,
    Feature::Bmi1,
    Feature::Bmi2,
    Feature::F16c,
    Feature::Fma,
    Feature::Lzcnt,
    Feature::Movbe,
];

/// What makes such a processor an x86-64-v4.
const V4: [Feature; 5] =
    [Feature::Avx512F, Feature::Avx512Dq, Feature::Avx512Cd, Feature::Avx512Bw, Feature::Avx512Vl];

/// What neither level has.
const BEYOND: [Feature; 9] = [
    Feature::AvxVnni,
    Feature::Avx512Ifma,
    Feature::Avx512Vbmi,
    Feature::Avx512Vbmi2,
    Feature::Avx512Vnni,
    Feature::Avx512Bitalg,
    Feature::Avx512Vpopcntdq,
    Feature::Avx512Bf16,
    Feature::Avx512Fp16,
];

impl Processor {
    /// An x86-64-v2.
    pub const V2: Processor = Processor(0);

    /// What this machine has.
    pub fn host() -> Processor {
        Feature::ALL.into_iter().filter(|feature| feature.is_here()).collect()
    }

    /// The guest's processor on a machine that has `host`: of this level, or of the highest that
    /// the machine has, up to v3.
    ///
    /// # Errors
    /// What the machine lacks for the level.
    pub fn guest(level: Option<Level>, host: Processor) -> Result<Processor, Processor> {
        let of = |features: &[Feature]| features.iter().copied().collect::<Processor>();
        let (v4, beyond) = (of(&V4), of(&BEYOND));
        let v3 = host.without(v4).without(beyond);
        let needed = match level {
            None | Some(Level::V2 | Level::Host) => Processor::V2,
            Some(Level::V3) => of(&V3),
            Some(Level::V4) => of(&V3).with(v4),
        };
        let missing = needed.without(host);
        if missing != Processor::V2 {
            return Err(missing);
        }
        let has_v3 = of(&V3).without(host) == Processor::V2;
        Ok(match level {
            Some(Level::V2) => Processor::V2,
            None | Some(Level::Host) if !has_v3 => Processor::V2,
            None | Some(Level::V3) => v3,
            Some(Level::V4) => v3.with(v4),
            Some(Level::Host) => host,
        })
    }

    /// A processor with the features of these names.
    ///
    /// # Errors
    /// A name that is no feature's.
    pub fn from_names(names: &[String]) -> Result<Processor, &str> {
        let mut processor = Processor::V2;
        for name in names {
            let known = Feature::ALL.into_iter().find(|feature| feature.name() == name);
            processor.0 |= 1 << known.ok_or(name.as_str())? as u8;
        }
        // No processor lacks these, and neither engine keeps half of the registers.
        if processor.needs_avx() && !processor.has(Feature::Avx) {
            return Err("avx2 without avx");
        }
        let is_whole = processor.has(Feature::Avx) && processor.has(Feature::Avx512F);
        if processor.has_any(&V4) || processor.has_any(&BEYOND[1..]) {
            return if is_whole { Ok(processor) } else { Err("a part of avx512f") };
        }
        Ok(processor)
    }

    /// The features' names.
    pub fn names(self) -> Vec<String> {
        self.features().map(|feature| feature.name().to_owned()).collect()
    }

    /// Whether it has a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.0 >> feature as u8 & 1 != 0
    }

    /// Its features but for those of `other`.
    #[must_use]
    pub fn without(self, other: Processor) -> Processor {
        Processor(self.0 & !other.0)
    }

    /// The features that either has.
    #[must_use]
    pub fn with(self, other: Processor) -> Processor {
        Processor(self.0 | other.0)
    }

    /// The features that both have.
    #[must_use]
    pub fn and(self, other: Processor) -> Processor {
        Processor(self.0 & other.0)
    }

    /// Its features, in the order of [`Feature::ALL`].
    pub fn features(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |&feature| self.has(feature))
    }

    /// Whether it has a feature that makes no sense without AVX.
    fn needs_avx(self) -> bool {
        self.has_any(&[Feature::Avx2, Feature::Fma, Feature::F16c, Feature::AvxVnni])
    }

    fn has_any(self, features: &[Feature]) -> bool {
        features.iter().any(|&feature| self.has(feature))
    }
}

impl FromIterator<Feature> for Processor {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Processor {
        Processor(features.into_iter().fold(0, |bits, feature| bits | 1 << feature as u8))
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(", "))
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Processor({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_same_processor() {
        let all: Processor = Feature::ALL.into_iter().collect();
        for processor in [all, Processor::V2, V3.into_iter().collect()] {
            assert_eq!(Processor::from_names(&processor.names()), Ok(processor));
        }
        assert_eq!(Processor::from_names(&["3dnow".to_owned()]), Err("3dnow"));
        for half in [&["avx2"][..], &["avx", "avx512bw"], &["avx512f"]] {
            let names: Vec<String> = half.iter().map(|&name| name.to_owned()).collect();
            assert!(Processor::from_names(&names).is_err(), "{half:?}");
        }
    }

    #[test]
    fn a_level_is_the_hosts_at_most() {
        let v3: Processor = V3.into_iter().collect();
        let aes: Processor = [Feature::Aes].into_iter().collect();
        let lesser = v3.without([Feature::Bmi2].into_iter().collect());
        assert_eq!(Processor::guest(None, v3), Ok(v3));
        assert_eq!(Processor::guest(Some(Level::V2), v3), Ok(Processor::V2));
        assert_eq!(Processor::guest(None, lesser), Ok(Processor::V2));
        let missing = Processor::guest(Some(Level::V3), lesser).expect_err("there is no BMI2");
        assert_eq!(missing.to_string(), "bmi2");
        assert_eq!(Processor::guest(None, aes), Ok(Processor::V2));

        let all: Processor = Feature::ALL.into_iter().collect();
        let v4: Processor = V4.into_iter().collect();
        let default = Processor::guest(None, all).expect("nothing is asked for");
        assert!(default.has(Feature::Vaes) && !default.has(Feature::Avx512F));
        assert_eq!(Processor::guest(Some(Level::V3), all), Ok(default));
        assert_eq!(Processor::guest(Some(Level::V4), all), Ok(default.with(v4)));
        assert_eq!(Processor::guest(Some(Level::Host), all), Ok(all));
        assert_eq!(Processor::guest(Some(Level::V4), v3), Err(v4));
        assert_eq!(Processor::guest(Some(Level::Host), lesser), Ok(Processor::V2));
    }
}
