//! The list of all programs.

use std::path::PathBuf;

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Plants contention with annotated answers.
    Case,
    /// Takes locks that the library does not know, or that are easily taken for unnecessary. Its
    /// answers are annotated like a case's; the census, which knows the library's alone, cannot
    /// confirm them.
    Locks,
    /// Exercises one primitive or part of the system, and checks the results.
    Exerciser,
    /// A workload for measuring.
    Kernel,
    /// Ends in an unusual way.
    Ending,
    /// Has a data race, on purpose.
    Racy,
    /// Has races, on purpose, and prints what came of them: not the same on every run.
    Litmus,
}

/// The language of the source, which picks the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Language {
    /// C11 with GNU extensions: `$CC` or `cc`.
    C,
    /// C++17: `$CXX` or `c++`.
    Cxx,
    /// Rust, a single file: `$RUSTC` or `rustc`.
    Rust,
}

/// Which of the programs in one source to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variant {
    /// The only variant of a program that plants nothing.
    Plain,
    /// With the planted contention.
    Ulcp,
    /// The same work without it (`-DFIXED=1`).
    Fixed,
}

impl Variant {
    /// The word that the annotations, file names and the README use.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Plain => "plain",
            Variant::Ulcp => "ulcp",
            Variant::Fixed => "fixed",
        }
    }
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// The exit status.
    Status(i32),
    /// The number of the signal that kills the process.
    Signal(i32),
}

/// A program of the corpus.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The unique name, which is also the stem of the source file in most cases.
    pub name: &'static str,
    /// The source, relative to `corpus/`.
    pub source: &'static str,
    /// What it is for.
    pub group: Group,
    /// What it is written in.
    pub language: Language,
    /// The variants that the source holds; never empty.
    pub variants: &'static [Variant],
    /// Compiler flags besides those that every program gets.
    pub flags: &'static [&'static str],
    /// Arguments for a run of about 0.1 s; empty where the defaults do that.
    pub args: &'static [&'static str],
    /// Arguments for a run of a few hundredths of that, for slow tools.
    pub small: &'static [&'static str],
    /// How every run ends.
    pub exit: Exit,
}

impl Program {
    /// Where the source lies.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(self.source)
    }

    /// The path that the debug information gives to the source.
    pub fn debug_path(&self) -> String {
        format!("corpus/{}", self.source)
    }
}

/// The program of this name.
pub fn find(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| program.name == name)
}

/// Cases bind all symbols at start: a lazy first call would run the dynamic
/// linker inside a critical section. The stack protector would read a word
/// there that the creating thread wrote.
const CASE_FLAGS: &[&str] = &["-fno-stack-protector", "-Wl,-z,now"];

const fn program(name: &'static str, source: &'static str, group: Group) -> Program {
    Program {
        name,
        source,
        group,
        language: Language::C,
        variants: &[Variant::Plain],
        flags: &[],
        args: &[],
        small: &[],
        exit: Exit::Status(0),
    }
}

const fn case(name: &'static str, source: &'static str, small: &'static [&'static str]) -> Program {
    Program {
        variants: &[Variant::Ulcp, Variant::Fixed],
        flags: CASE_FLAGS,
        small,
        ..program(name, source, Group::Case)
    }
}

const fn locks(
    name: &'static str,
    source: &'static str,
    small: &'static [&'static str],
) -> Program {
    Program {
        variants: &[Variant::Ulcp],
        flags: CASE_FLAGS,
        small,
        ..program(name, source, Group::Locks)
    }
}

/// One of [`crate::PAIRS`].
pub(crate) const fn pair_program(
    name: &'static str,
    source: &'static str,
    language: Language,
) -> Program {
    let variants = &[Variant::Ulcp, Variant::Fixed];
    Program { variants, language, ..program(name, source, Group::Kernel) }
}

const fn exerciser(
    name: &'static str,
    source: &'static str,
    small: &'static [&'static str],
) -> Program {
    Program { small, ..program(name, source, Group::Exerciser) }
}

/// Atomic variables look otherwise in code that is not optimised.
const fn unoptimised(
    name: &'static str,
    source: &'static str,
    small: &'static [&'static str],
) -> Program {
    Program { flags: &["-O0"], ..exerciser(name, source, small) }
}

const fn kernel(
    name: &'static str,
    source: &'static str,
    small: &'static [&'static str],
) -> Program {
    Program { small, ..program(name, source, Group::Kernel) }
}

/// Every program, in the order of the README's table.
pub static PROGRAMS: &[Program] = &[
    case("demo", "c/demo.c", &["1500"]),
    case("fig03", "c/fig03.c", &["400"]),
    case("fig04", "c/fig04.c", &["20"]),
    case("fig17", "c/fig17.c", &["30"]),
    case("fig18", "c/fig18.c", &["30"]),
    case("case01", "c/case01.c", &["50"]),
    case("case02", "c/case02.c", &["150"]),
    case("case03", "c/case03.c", &["200"]),
    case("case04", "c/case04.c", &["200"]),
    case("case05", "c/case05.c", &["300"]),
    case("case06", "c/case06.c", &["200"]),
    case("case07", "c/case07.c", &["400"]),
    case("case08", "c/case08.c", &["150"]),
    case("case09", "c/case09.c", &["50"]),
    case("case10", "c/case10.c", &["200"]),
    case("benign", "c/benign.c", &["200"]),
    locks("queue", "c/queue.c", &["150"]),
    locks("two_atomics", "c/two_atomics.c", &["300"]),
    locks("own_locks", "c/own_locks.c", &["100"]),
    Program { flags: &["-fopenmp"], ..locks("openmp", "c/openmp.c", &["100"]) },
    Program {
        language: Language::Rust,
        flags: &[],
        ..locks("own_locks_rs", "rs/own_locks.rs", &["100"])
    },
    exerciser("ex_mutex", "c/ex_mutex.c", &["500"]),
    exerciser("ex_rwlock", "c/ex_rwlock.c", &["1000"]),
    exerciser("ex_spin", "c/ex_spin.c", &["5000"]),
    exerciser("ex_cond", "c/ex_cond.c", &["500"]),
    exerciser("ex_barrier", "c/ex_barrier.c", &["200"]),
    exerciser("ex_phases", "c/ex_phases.c", &["200"]),
    exerciser("ex_sem", "c/ex_sem.c", &["200"]),
    exerciser("ex_stderr", "c/ex_stderr.c", &["500"]),
    exerciser("ex_once", "c/ex_once.c", &["100"]),
    exerciser("ex_threads", "c/ex_threads.c", &["15"]),
    exerciser("ex_detach", "c/ex_detach.c", &["300"]),
    exerciser("ex_spawn", "c/ex_spawn.c", &["15"]),
    Program { flags: &["-mcx16"], ..exerciser("ex_atomics", "c/ex_atomics.c", &["2000"]) },
    exerciser("ex_polls", "c/ex_polls.c", &["300"]),
    exerciser("ex_stamps", "c/ex_stamps.c", &["300"]),
    Program {
        flags: &["-fno-asynchronous-unwind-tables"],
        ..exerciser("ex_polls_no_unwind", "c/ex_polls.c", &["300"])
    },
    Program {
        flags: &["-fno-asynchronous-unwind-tables", "-s"],
        ..exerciser("ex_polls_stripped", "c/ex_polls.c", &["300"])
    },
    exerciser("ex_versions", "c/ex_versions.c", &["20000"]),
    unoptimised("ex_polls_O0", "c/ex_polls.c", &["300"]),
    unoptimised("ex_stamps_O0", "c/ex_stamps.c", &["300"]),
    exerciser("ex_helpers", "c/ex_helpers.c", &["300"]),
    unoptimised("ex_helpers_O0", "c/ex_helpers.c", &["300"]),
    exerciser("ex_request", "c/ex_request.c", &["2000"]),
    exerciser("ex_clock", "c/ex_clock.c", &["20000"]),
    unoptimised("ex_clock_O0", "c/ex_clock.c", &["20000"]),
    exerciser("ex_alone", "c/ex_alone.c", &["300000"]),
    exerciser("ex_own", "c/ex_own.c", &["1000"]),
    exerciser("ex_ring", "c/ex_ring.c", &["40"]),
    unoptimised("ex_ring_O0", "c/ex_ring.c", &["40"]),
    exerciser("ex_plain", "c/ex_plain.c", &["3000"]),
    exerciser("ex_futex", "c/ex_futex.c", &["3000"]),
    exerciser("ex_malloc", "c/ex_malloc.c", &["800"]),
    exerciser("ex_tls", "c/ex_tls.c", &["50000"]),
    exerciser("ex_pipe", "c/ex_pipe.c", &["800"]),
    exerciser("ex_file", "c/ex_file.c", &["4"]),
    Program { exit: Exit::Signal(12), ..exerciser("ex_signal", "c/ex_signal.c", &["20"]) },
    exerciser("ex_alarm", "c/ex_alarm.c", &["10"]),
    exerciser("ex_late", "c/ex_late.c", &["20"]),
    Program { small: &["30000"], ..program("ex_jumps", "c/ex_jumps.c", Group::Racy) },
    exerciser("ex_avx", "c/ex_avx.c", &["100"]),
    exerciser("ex_jit", "c/ex_jit.c", &["40"]),
    Program { small: &["20000"], ..program("ex_patch", "c/ex_patch.c", Group::Litmus) },
    exerciser("ex_exit", "c/ex_exit.c", &["1000"]),
    exerciser("ex_process", "c/ex_process.c", &["2"]),
    exerciser("ex_cpu", "c/ex_cpu.c", &["20000"]),
    Program { language: Language::Cxx, ..exerciser("mixed_cpp", "cpp/mixed.cpp", &["1000"]) },
    Program { language: Language::Cxx, ..exerciser("ex_lists", "cpp/ex_lists.cpp", &["200"]) },
    Program { language: Language::Cxx, ..unoptimised("ex_asked_O0", "cpp/ex_asked.cpp", &["200"]) },
    Program { language: Language::Cxx, ..exerciser("ex_members", "cpp/ex_members.cpp", &["300"]) },
    Program {
        language: Language::Cxx,
        ..unoptimised("ex_members_O0", "cpp/ex_members.cpp", &["300"])
    },
    Program { language: Language::Rust, ..exerciser("mixed_rs", "rs/mixed.rs", &["1000"]) },
    kernel("locks", "c/locks.c", &["20000"]),
    kernel("events", "c/events.c", &["100000"]),
    kernel("fib", "c/fib.c", &["25"]),
    kernel("qsort", "c/qsort.c", &["20000"]),
    kernel("sha256", "c/sha256.c", &["1"]),
    kernel("matmul", "c/matmul.c", &["96"]),
    Program { flags: &["-lm"], ..kernel("nbody", "c/nbody.c", &["5000"]) },
    kernel("anneal", "c/anneal.c", &["20000"]),
    kernel("grid", "c/grid.c", &["5000"]),
    kernel("tree", "c/tree.c", &["1000"]),
    kernel("blocks", "c/blocks.c", &["20000"]),
    kernel("tasks", "c/tasks.c", &["2000"]),
    Program { language: Language::Cxx, ..kernel("counts", "cpp/counts.cpp", &["5000"]) },
    Program { exit: Exit::Status(7), ..program("exit7", "c/exit7.c", Group::Ending) },
    Program { exit: Exit::Signal(11), ..program("segv", "c/segv.c", Group::Ending) },
    Program { exit: Exit::Signal(6), ..program("abrt", "c/abrt.c", Group::Ending) },
    Program { small: &["20000"], ..program("race", "c/race.c", Group::Racy) },
    Program {
        args: &["all", "2000"],
        small: &["all", "100"],
        ..program("litmus", "c/litmus.c", Group::Litmus)
    },
];
