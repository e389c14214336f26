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
}

/// Where `cpuid` tells of a feature: the leaf, the register (of eax, ebx, ecx, edx) and the bit.
pub(crate) struct CpuidBit {
    pub(crate) leaf: u32,
    pub(crate) register: usize,
    pub(crate) bit: u32,
}

const fn place(leaf: u32, register: usize, bit: u32) -> CpuidBit {
    CpuidBit { leaf, register, bit }
}

const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;
const EXTENDED: u32 = 0x8000_0001;

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 16] = [
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
}

impl Level {
    /// The name that users give it.
    pub fn name(self) -> &'static str {
        match self {
            Level::V2 => "v2",
            Level::V3 => "v3",
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

impl Processor {
    /// An x86-64-v2.
    pub const V2: Processor = Processor(0);

    /// What this machine has.
    pub fn host() -> Processor {
        Feature::ALL.into_iter().filter(|feature| feature.is_here()).collect()
    }

    /// The guest's processor on a machine that has `host`: of this level, or of the highest that
    /// the machine has.
    ///
    /// # Errors
    /// What the machine lacks for the level.
    pub fn guest(level: Option<Level>, host: Processor) -> Result<Processor, Processor> {
        let missing = V3.into_iter().collect::<Processor>().without(host);
        match level {
            Some(Level::V2) => Ok(Processor::V2),
            Some(Level::V3) if missing != Processor::V2 => Err(missing),
            None if missing != Processor::V2 => Ok(Processor::V2),
            Some(Level::V3) | None => Ok(host),
        }
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
        match processor.has(Feature::Avx) || !processor.needs_avx() {
            true => Ok(processor),
            // No processor is so, and neither engine keeps half of the registers.
            false => Err("avx2 without avx"),
        }
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
        [Feature::Avx2, Feature::Fma, Feature::F16c].iter().any(|&feature| self.has(feature))
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
        assert!(Processor::from_names(&["avx2".to_owned()]).is_err());
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
    }
}
