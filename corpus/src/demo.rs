//! The workload of `refrain demo`: compiled at build time, embedded.

/// The compiled program: a dynamically linked x86-64 ELF file with debug
/// information that names its source `corpus/c/demo.c`.
pub static ELF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demo"));

/// The source of [`ELF`], with its answers (see [`crate::Answers::parse`]).
pub static SOURCE: &str = include_str!("../c/demo.c");

/// The path that the debug information gives to [`SOURCE`].
pub static PATH: &str = "corpus/c/demo.c";
