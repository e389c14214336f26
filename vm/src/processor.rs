//! What the guest's processor has beyond x86-64-v2.
//!
//! The guest sees a processor that is put together from the host's features: a level of the
//! x86-64 psABI, and the extensions for cryptography that programs ask for one by one. A trace
//! keeps the names of the features that its guest saw, since `cpuid` must answer the same in a
//! replay. A replay needs those that recorded code uses, and no others.

use std::fmt;

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

/// Which guests have a feature, if the host has it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// All from x86-64-v3 on, since that level asks for it.
    V3,
    /// All from x86-64-v3 on, beside what that level asks for.
    Extra,
    /// Those of x86-64-v4, since that level asks for it.
    V4,
    /// Those that have all that the host has.
    Beyond,
}

/// Which registers a feature's instructions use, beside those of SSE.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Registers {
    Nothing,
    Avx,
    Avx512,
}

/// Makes [`Feature`] from a table. A row has the feature's name in `/proc/cpuinfo`; its name in Rust's library, or
/// `always` if every machine counts as having it; where `cpuid` tells of it; its [`Group`]; its [`Registers`].
macro_rules! features {
    ($($feature:ident: $name:literal, $detected:tt, $place:expr, $group:ident, $registers:ident;)*) => {
        /// A feature that a guest may see; the names are those of `/proc/cpuinfo`.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Feature {
            $($feature,)*
        }

        impl Feature {
            /// All of them.
            pub const ALL: [Feature; [$($name),*].len()] = [$(Feature::$feature),*];

            /// The name that `/proc/cpuinfo` and traces have for it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Feature::$feature => $name,)*
                }
            }

            pub(crate) fn place(self) -> CpuidBit {
                match self {
                    $(Feature::$feature => $place,)*
                }
            }

            /// Whether this machine and its kernel have it.
            fn is_here(self) -> bool {
                match self {
                    $(Feature::$feature => features!(@is_here $detected),)*
                }
            }

            fn group(self) -> Group {
                match self {
                    $(Feature::$feature => Group::$group,)*
                }
            }

            fn registers(self) -> Registers {
                match self {
                    $(Feature::$feature => Registers::$registers,)*
                }
            }
        }
    };
    (@is_here always) => { true };
    (@is_here $detected:tt) => { is_x86_feature_detected!($detected) };
}

features! {
    Fma: "fma", "fma", place(1, ECX, 12), V3, Avx;
    Movbe: "movbe", "movbe", place(1, ECX, 22), V3, Nothing;
    Aes: "aes", "aes", place(1, ECX, 25), Extra, Nothing;
    Pclmulqdq: "pclmulqdq", "pclmulqdq", place(1, ECX, 1), Extra, Nothing;
    Avx: "avx", "avx", place(1, ECX, 28), V3, Nothing;
    F16c: "f16c", "f16c", place(1, ECX, 29), V3, Avx;
    Bmi1: "bmi1", "bmi1", place(7, EBX, 3), V3, Nothing;
    Avx2: "avx2", "avx2", place(7, EBX, 5), V3, Avx;
    Bmi2: "bmi2", "bmi2", place(7, EBX, 8), V3, Nothing;
    Adx: "adx", "adx", place(7, EBX, 19), Extra, Nothing;
    Sha: "sha_ni", "sha", place(7, EBX, 29), Extra, Nothing;
    Gfni: "gfni", "gfni", place(7, ECX, 8), Extra, Nothing;
    Vaes: "vaes", "vaes", place(7, ECX, 9), Extra, Nothing;
    Vpclmulqdq: "vpclmulqdq", "vpclmulqdq", place(7, ECX, 10), Extra, Nothing;
    Lzcnt: "abm", "lzcnt", place(EXTENDED, ECX, 5), V3, Nothing;
    // The machine executes it, so every guest may have it.
    Rdtscp: "rdtscp", always, place(EXTENDED, EDX, 27), Extra, Nothing;
    AvxVnni: "avx_vnni", "avxvnni", place_in_7_1(EAX, 4), Beyond, Avx;
    Avx512F: "avx512f", "avx512f", place(7, EBX, 16), V4, Avx512;
    Avx512Dq: "avx512dq", "avx512dq", place(7, EBX, 17), V4, Avx512;
    Avx512Cd: "avx512cd", "avx512cd", place(7, EBX, 28), V4, Avx512;
    Avx512Bw: "avx512bw", "avx512bw", place(7, EBX, 30), V4, Avx512;
    Avx512Vl: "avx512vl", "avx512vl", place(7, EBX, 31), V4, Avx512;
    Avx512Ifma: "avx512ifma", "avx512ifma", place(7, EBX, 21), Beyond, Avx512;
    Avx512Vbmi: "avx512vbmi", "avx512vbmi", place(7, ECX, 1), Beyond, Avx512;
    Avx512Vbmi2: "avx512_vbmi2", "avx512vbmi2", place(7, ECX, 6), Beyond, Avx512;
    Avx512Vnni: "avx512_vnni", "avx512vnni", place(7, ECX, 11), Beyond, Avx512;
    Avx512Bitalg: "avx512_bitalg", "avx512bitalg", place(7, ECX, 12), Beyond, Avx512;
    Avx512Vpopcntdq: "avx512_vpopcntdq", "avx512vpopcntdq", place(7, ECX, 14), Beyond, Avx512;
    Avx512Bf16: "avx512_bf16", "avx512bf16", place_in_7_1(EAX, 5), Beyond, Avx512;
    Avx512Fp16: "avx512_fp16", "avx512fp16", place(7, EDX, 23), Beyond, Avx512;
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
        let [v3, extra, v4] = [Group::V3, Group::Extra, Group::V4].map(Processor::of);
        let needed = match level {
            None | Some(Level::V2 | Level::Host) => Processor::V2,
            Some(Level::V3) => v3,
            Some(Level::V4) => v3.with(v4),
        };
        let missing = needed.without(host);
        if missing != Processor::V2 {
            return Err(missing);
        }
        let has_v3 = v3.without(host) == Processor::V2;
        Ok(match level {
            Some(Level::V2) => Processor::V2,
            None | Some(Level::Host) if !has_v3 => Processor::V2,
            None | Some(Level::V3) => host.and(v3.with(extra)),
            Some(Level::V4) => host.and(v3.with(extra).with(v4)),
            Some(Level::Host) => host,
        })
    }

    /// The features of a group.
    fn of(group: Group) -> Processor {
        Feature::ALL.into_iter().filter(|feature| feature.group() == group).collect()
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
        // Every processor has these beside the others, and neither engine keeps half of the registers.
        let uses = |registers| processor.features().any(|it| it.registers() == registers);
        let has_avx = processor.has(Feature::Avx);
        if uses(Registers::Avx) && !has_avx {
            return Err("avx2 without avx");
        }
        if uses(Registers::Avx512) && !(has_avx && processor.has(Feature::Avx512F)) {
            return Err("a part of avx512f");
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
        for processor in [all, Processor::V2, Processor::of(Group::V3)] {
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
        let v3 = Processor::of(Group::V3);
        let aes: Processor = [Feature::Aes].into_iter().collect();
        let lesser = v3.without([Feature::Bmi2].into_iter().collect());
        assert_eq!(Processor::guest(None, v3), Ok(v3));
        assert_eq!(Processor::guest(Some(Level::V2), v3), Ok(Processor::V2));
        assert_eq!(Processor::guest(None, lesser), Ok(Processor::V2));
        let missing = Processor::guest(Some(Level::V3), lesser).expect_err("there is no BMI2");
        assert_eq!(missing.to_string(), "bmi2");
        assert_eq!(Processor::guest(None, aes), Ok(Processor::V2));

        let all: Processor = Feature::ALL.into_iter().collect();
        let v4 = Processor::of(Group::V4);
        let default = Processor::guest(None, all).expect("nothing is asked for");
        assert!(default.has(Feature::Vaes) && !default.has(Feature::Avx512F));
        assert_eq!(Processor::guest(Some(Level::V3), all), Ok(default));
        assert_eq!(Processor::guest(Some(Level::V4), all), Ok(default.with(v4)));
        assert_eq!(Processor::guest(Some(Level::Host), all), Ok(all));
        assert_eq!(Processor::guest(Some(Level::V4), v3), Err(v4));
        assert_eq!(Processor::guest(Some(Level::Host), lesser), Ok(Processor::V2));
    }
}
