//! Pairs of a slow program and its fix: what the gains that the ranking predicts are held against.
//!
//! Several pairs are the same source with other arguments, since what a lock costs depends on how
//! long its sections are, on what is between them, and on how many threads want it.

use crate::catalogue::pair_program;
use crate::{Language, Program};

/// A program that exists with unnecessary contention and without it, and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Contrast {
    /// The unique name.
    pub name: &'static str,
    /// The program, with both variants.
    pub program: Program,
    /// Rounds, threads, work in each section, work between sections.
    pub args: [&'static str; 4],
    /// Whether there is unnecessary contention. Without it both variants are the same program, and
    /// no gain may be predicted.
    pub unnecessary: bool,
    /// Where the source names it, the function whose lock matters most.
    pub first: Option<&'static str>,
}

const fn pair(name: &'static str, source: &'static str, args: [&'static str; 4]) -> Contrast {
    let program = pair_program(name, source, Language::C);
    Contrast { name, program, args, unnecessary: true, first: None }
}

const fn needed(name: &'static str, source: &'static str, args: [&'static str; 4]) -> Contrast {
    Contrast { unnecessary: false, ..pair(name, source, args) }
}

const fn cxx(name: &'static str, source: &'static str, args: [&'static str; 4]) -> Contrast {
    Contrast { program: pair_program(name, source, Language::Cxx), ..pair(name, source, args) }
}

const fn rust(name: &'static str, source: &'static str, args: [&'static str; 4]) -> Contrast {
    Contrast { program: pair_program(name, source, Language::Rust), ..pair(name, source, args) }
}

const fn openmp(name: &'static str, source: &'static str, args: [&'static str; 4]) -> Contrast {
    let program = Program { flags: &["-fopenmp"], ..pair_program(name, source, Language::C) };
    Contrast { program, ..pair(name, source, args) }
}

const fn sites(name: &'static str, args: [&'static str; 4]) -> Contrast {
    Contrast { first: Some("lookup"), ..cxx(name, "pairs/three_sites.cpp", args) }
}

/// All pairs.
pub const PAIRS: &[Contrast] = &[
    pair("read-5ns", "pairs/read_read.c", ["400000", "2", "5", "75"]),
    pair("read-50ns", "pairs/read_read.c", ["400000", "2", "50", "50"]),
    pair("read-200ns", "pairs/read_read.c", ["120000", "2", "200", "200"]),
    pair("read-1us", "pairs/read_read.c", ["25000", "2", "1000", "1000"]),
    pair("read-10us", "pairs/read_read.c", ["2500", "2", "10000", "10000"]),
    pair("read-1ms", "pairs/read_read.c", ["25", "2", "1000000", "1000000"]),
    pair("read-200ns-x4", "pairs/read_read.c", ["60000", "4", "200", "200"]),
    pair("read-10us-x4", "pairs/read_read.c", ["1200", "4", "10000", "10000"]),
    pair("read-1ms-x4", "pairs/read_read.c", ["15", "4", "1000000", "500000"]),
    pair("read-10us-rare", "pairs/read_read.c", ["400", "2", "10000", "100000"]),
    pair("read-1us-rare", "pairs/read_read.c", ["4000", "2", "1000", "10000"]),
    pair("read-50ns-rare", "pairs/read_read.c", ["20000", "2", "50", "2000"]),
    pair("mostly-read-1us", "pairs/mostly_read.c", ["25000", "2", "1000", "500"]),
    pair("mostly-read-10us", "pairs/mostly_read.c", ["2500", "2", "10000", "5000"]),
    pair("rwlock-200ns", "pairs/read_rwlock.c", ["80000", "2", "200", "200"]),
    pair("rwlock-10us", "pairs/read_rwlock.c", ["2500", "2", "10000", "10000"]),
    pair("rwlock-10us-x4", "pairs/read_rwlock.c", ["1200", "4", "10000", "10000"]),
    pair("disjoint-5ns", "pairs/disjoint.c", ["300000", "2", "5", "75"]),
    pair("disjoint-50ns", "pairs/disjoint.c", ["400000", "2", "50", "100"]),
    pair("disjoint-1us-x4", "pairs/disjoint.c", ["12000", "4", "1000", "500"]),
    pair("disjoint-10us", "pairs/disjoint.c", ["4000", "2", "10000", "1000"]),
    pair("disjoint-1ms", "pairs/disjoint.c", ["30", "2", "1000000", "100000"]),
    pair("null-5ns", "pairs/null_lock.c", ["300000", "2", "5", "100"]),
    pair("null-5ns-x4", "pairs/null_lock.c", ["150000", "4", "5", "150"]),
    pair("null-50ns", "pairs/null_lock.c", ["300000", "2", "50", "200"]),
    pair("null-1us", "pairs/null_lock.c", ["20000", "2", "1000", "1000"]),
    pair("null-10us-x4", "pairs/null_lock.c", ["1200", "4", "10000", "20000"]),
    pair("nested-200ns", "pairs/nested.c", ["60000", "2", "200", "400"]),
    pair("nested-10us", "pairs/nested.c", ["2000", "2", "10000", "10000"]),
    pair("two-locks-1us", "pairs/two_sites.c", ["20000", "2", "1000", "1000"]),
    pair("two-locks-200ns-x4", "pairs/two_sites.c", ["40000", "4", "200", "400"]),
    pair("spin-200ns", "pairs/spin.c", ["120000", "2", "200", "200"]),
    pair("spin-1us", "pairs/spin.c", ["25000", "2", "1000", "1000"]),
    sites("three-sites-1us", ["20000", "2", "1000", "1000"]),
    sites("three-sites-10us", ["2000", "2", "10000", "10000"]),
    pair("striped-200ns", "pairs/striped_map.c", ["60000", "2", "200", "200"]),
    pair("striped-10us-x4", "pairs/striped_map.c", ["1200", "4", "10000", "5000"]),
    pair("pool-1us", "pairs/pool.c", ["20000", "2", "1000", "1000"]),
    pair("pool-10us-x4", "pairs/pool.c", ["1200", "4", "10000", "10000"]),
    pair("trylock-1us", "pairs/trylock.c", ["20000", "2", "1000", "1000"]),
    pair("trylock-10us", "pairs/trylock.c", ["2500", "2", "10000", "10000"]),
    cxx("shared-mutex-1us", "pairs/shared_mutex.cpp", ["20000", "2", "1000", "1000"]),
    cxx("shared-mutex-10us-x4", "pairs/shared_mutex.cpp", ["1200", "4", "10000", "10000"]),
    pair("own-spin-200ns", "pairs/own_spin.c", ["100000", "2", "200", "400"]),
    pair("own-spin-10us", "pairs/own_spin.c", ["2500", "2", "10000", "10000"]),
    pair("counters-50ns", "pairs/counters.c", ["40000", "2", "50", "100"]),
    pair("counters-1us-x4", "pairs/counters.c", ["4000", "4", "1000", "2000"]),
    pair("accounts-1us", "pairs/accounts.c", ["20000", "2", "1000", "500"]),
    pair("accounts-10us-x4", "pairs/accounts.c", ["1200", "4", "10000", "10000"]),
    pair("phases-1us", "pairs/phases.c", ["1000", "2", "1000", "1000"]),
    pair("phases-50us-x4", "pairs/phases.c", ["16", "4", "50000", "25000"]),
    pair("mcs-1us", "pairs/mcs.c", ["20000", "2", "1000", "1000"]),
    pair("ticket-word-1us", "pairs/ticket_word.c", ["20000", "2", "1000", "1000"]),
    pair("totals-1us", "pairs/totals.c", ["20000", "2", "1000", "1000"]),
    pair("totals-10us-x4", "pairs/totals.c", ["1200", "4", "10000", "10000"]),
    pair("own-bits-1us", "pairs/own_bits.c", ["20000", "2", "1000", "1000"]),
    pair("same-value-1us", "pairs/same_value.c", ["20000", "2", "1000", "1000"]),
    pair("parked-10us-x4", "pairs/parked.c", ["1200", "4", "10000", "10000"]),
    openmp("critical-1us", "pairs/critical.c", ["20000", "2", "1000", "1000"]),
    openmp("critical-10us", "pairs/critical.c", ["2500", "2", "10000", "10000"]),
    rust("slots-1us", "pairs/slots.rs", ["40000", "2", "500", "500"]),
    rust("slots-10us-x4", "pairs/slots.rs", ["2000", "4", "5000", "5000"]),
    needed("needed-200ns", "pairs/needed.c", ["80000", "2", "200", "200"]),
    needed("needed-1us", "pairs/needed.c", ["20000", "2", "1000", "2000"]),
    needed("needed-10us-x4", "pairs/needed.c", ["1200", "4", "10000", "10000"]),
    needed("alone-50ns", "pairs/alone.c", ["200000", "2", "50", "50"]),
    needed("queue-1us", "pairs/queue.c", ["20000", "2", "1000", "1000"]),
];
