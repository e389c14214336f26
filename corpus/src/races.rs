//! Programs with data races, and the same programs without.
//!
//! On each line that races stands what it is about:
//!
//! ```text
//! annotation = "/* races on" word "*/"
//! word       = name of a global variable | "heap" | "local" | "descriptor" | "unknown"
//! ```
//!
//! Lines with the same word race with each other or with themselves, each word in every run, whatever
//! the schedule, and nothing else races. (`freed_before` has a use after `free` in their place.) The
//! variant [`Variant::Fixed`] has no race.

use crate::catalogue::pair_program;
use crate::{Language, Program, Variant};

const VARIANTS: &[Variant] = &[Variant::Plain, Variant::Fixed];

const fn racy(name: &'static str, source: &'static str) -> Program {
    Program { variants: VARIANTS, ..pair_program(name, source, Language::C) }
}

const fn openmp(name: &'static str, source: &'static str) -> Program {
    Program { flags: &["-fopenmp"], ..racy(name, source) }
}

const fn cxx(name: &'static str, source: &'static str) -> Program {
    Program { language: Language::Cxx, ..racy(name, source) }
}

const fn rust(name: &'static str, source: &'static str) -> Program {
    Program { language: Language::Rust, ..racy(name, source) }
}

/// All of them, in the order of the README's table.
pub const RACES: &[Program] = &[
    racy("counter", "races/counter.c"),
    racy("ready", "races/ready.c"),
    racy("heap", "races/heap.c"),
    racy("use_after_free", "races/use_after_free.c"),
    racy("freed_before", "races/freed_before.c"),
    racy("reuse", "races/reuse.c"),
    racy("double_checked", "races/double_checked.c"),
    racy("read_lock", "races/read_lock.c"),
    racy("two_locks", "races/two_locks.c"),
    racy("bits", "races/bits.c"),
    racy("local", "races/local.c"),
    racy("copies", "races/copies.c"),
    Program { flags: &["-O0"], ..racy("pointed", "races/pointed.c") },
    racy("semaphore", "races/semaphore.c"),
    racy("barrier", "races/barrier.c"),
    racy("rounds", "races/rounds.c"),
    racy("relaxed", "races/relaxed.c"),
    racy("slots", "races/slots.c"),
    racy("pipe", "races/pipe.c"),
    racy("other_pipe", "races/other_pipe.c"),
    racy("descriptor", "races/descriptor.c"),
    racy("unmap", "races/unmap.c"),
    racy("destroy", "races/destroy.c"),
    racy("kernel", "races/kernel.c"),
    racy("init", "races/init.c"),
    racy("signalled", "races/signalled.c"),
    openmp("omp_sum", "races/omp_sum.c"),
    openmp("omp_private", "races/omp_private.c"),
    openmp("omp_nowait", "races/omp_nowait.c"),
    openmp("omp_critical", "races/omp_critical.c"),
    openmp("omp_half_atomic", "races/omp_half_atomic.c"),
    openmp("omp_sections", "races/omp_sections.c"),
    openmp("omp_tasks", "races/omp_tasks.c"),
    openmp("omp_taskwait", "races/omp_taskwait.c"),
    openmp("omp_taskloop", "races/omp_taskloop.c"),
    openmp("omp_barrier_tasks", "races/omp_barrier_tasks.c"),
    cxx("vector", "races/vector.cpp"),
    cxx("captured", "races/captured.cpp"),
    cxx("shared_object", "races/shared_object.cpp"),
    cxx("destructor", "races/destructor.cpp"),
    cxx("text", "races/text.cpp"),
    cxx("stream", "races/stream.cpp"),
    rust("static_mut", "races/static_mut.rs"),
    rust("unsound", "races/unsound.rs"),
    rust("channel", "races/channel.rs"),
];

/// A line that races, counted from 1, and what it is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RacyLine {
    /// The line.
    pub line: u64,
    /// The word of its annotation.
    pub word: String,
}

/// The annotations of a source.
pub fn racy_lines(source: &str) -> Vec<RacyLine> {
    let annotation = |(line, text): (u64, &str)| {
        let (_, rest) = text.split_once("/* races on ")?;
        let (word, _) = rest.split_once(" */")?;
        Some(RacyLine { line, word: word.to_owned() })
    };
    (1..).zip(source.lines()).filter_map(annotation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_read_with_their_lines() {
        let source = "x;\ny++; /* races on y */\n\nfree(p); /* races on heap */ z;\n";
        let line = |line, word: &str| RacyLine { line, word: word.to_owned() };
        assert_eq!(racy_lines(source), [line(2, "y"), line(4, "heap")]);
    }
}
