//! Which plain loads and stores of a function are watched: a pure function of its code.
//!
//! An acquire load and a release store are plain `mov`s, so what is around them tells:
//!
//! - what loops wait for (`polls`, `flags`, `answers`, `asked`, `lent`), what is looked at now and then (`seen`),
//!   and what those do that they wait for (`announced`);
//! - what is beside locks, fences and calls by which a thread lets others go on (`beside`, `pauses`,
//!   `released`, `fenced`), also where a function called there is looked at as if it were inlined
//!   (`super::pieces`);
//! - what locked instructions name elsewhere: in their function, in one that hands them the address, in
//!   functions side by side (`super::functions`), in arrays (`arrays`);
//! - what the shape of data tells: lists, tables of records or of pointers, rings and counters of many
//!   threads (`walks`, `locked_links`, `marked`, `tagged`, `records`, `probes`, `padded`, `shards`);
//! - what compilers do only with atomic variables, or say of them (`twice`, `tested`, `unfolded`,
//!   `declared`), and, in code that is not optimised, what goes through copies of an address (`copies`);
//! - global variables that are loaded by addresses from the linker's tables.
//!
//! The table in docs/memory-order.md has each with its reason.
//!
//! What an operand names is known where its address is constant, and where the code has moved it
//! through registers and the stack (`addresses`). Constant data is never watched.
//!
//! Code in inner loops without calls or locked instructions, and without a loop in them that waits,
//! computes: there, only what it polls, what looks like a locked operand, and the copies of what is
//! watched elsewhere in the function (compilers duplicate the tails of loops) is watched. A word on the
//! thread's own stack counts only if a locked instruction names it the same way: what the stack pointer
//! names, and what the frame pointer names if the function does not take its address. Thread-local words
//! never count. Of a trusted module, the C library, whose locks are events of their own, only a few idioms
//! count, which the table says as well.
//!
//! A race that these miss makes a replay diverge, which names the pair; from then on its sites are
//! watched too (`refrain sites`).

mod alike;
mod announced;
mod answers;
mod arrays;
mod asked;
mod beside;
mod copies;
mod declared;
mod fenced;
mod flags;
mod function;
mod held;
mod keys;
mod left_behind;
mod lent;
mod locked_links;
mod marked;
mod oriented;
mod own_address;
mod padded;
mod pauses;
mod polls;
mod probes;
mod records;
mod released;
mod seen;
mod shards;
mod siblings;
mod tagged;
mod tested;
#[cfg(test)]
mod tests;
mod twice;
mod unfolded;
mod walks;

pub(super) use answers::writes_only_stack;
pub(super) use beside::{beside, connected, first_use, is_compared};
pub(super) use flags::questions;
pub(super) use held::held;
pub(super) use pauses::{Callee, callee, moved_number, pauses};

use super::addresses::SymbolicAddress;
use super::listing::Listing;
use alike::alike;
use announced::announced;
use answers::answers;
use arrays::arrays;
use asked::asked;
use copies::arms;
use declared::declared;
use fenced::fenced;
use flags::flags;
use function::Function;
use iced_x86::Instruction;
use keys::keys;
use locked_links::locked_links;
use marked::marked;
use oriented::oriented;
use padded::padded;
use pauses::published;
use probes::probes;
use records::records;
use released::released;
use seen::seen;
use shards::shards;
use siblings::siblings;
use std::collections::BTreeSet;
use std::ops::Range;
use tagged::tagged;
use tested::tested;
use twice::{Twice, reads_others, twice};
use walks::walks;

/// What is around a function's code.
pub(super) struct Surroundings<'a> {
    /// Of each instruction, whether it calls a function of the module that has locked instructions,
    /// or a lock of the library's.
    pub(super) locks: &'a [bool],
    /// Words that the function hands to the locked instructions of others, or to the kernel, and variables that
    /// the locked instructions of others name.
    pub(super) handed: &'a [SymbolicAddress],
    /// Of the C library, the instructions that look whether it has made something already, before the lock
    /// under which it makes it.
    pub(super) looks: &'a [usize],
    /// Of each instruction, whether it lets others go on (`pauses`).
    pub(super) pauses: &'a [bool],
    /// Which instructions are executed with a lock of the library's held.
    pub(super) held: &'a [bool],
    /// It is short, and called beside locks or pauses.
    pub(super) is_called_beside_locks: bool,
    /// It is short, and called beside locks that are not the library's, or pauses.
    pub(super) is_called_beside_own: bool,
    /// It is one of a library's atomic operations.
    pub(super) is_atomic_operation: bool,
    /// It is part of the C library.
    pub(super) trusted: bool,
    /// The code in it that comes from the definitions of atomic operations, in ascending order.
    pub(super) atomic: &'a [Range<u64>],
    /// Whether an address that is part of an instruction may be a variable's.
    pub(super) is_variable: &'a dyn Fn(u64) -> bool,
    /// Whether a call goes to another module, or to a function that only waits.
    pub(super) only_waits: &'a dyn Fn(&Instruction) -> bool,
    /// Whether what a call leads to is known to write a field at such an offset.
    pub(super) writes: &'a dyn Fn(&Instruction, u64) -> bool,
}

/// What is watched in a function: addresses of instructions, in ascending order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Idioms {
    /// Loads that loops poll.
    pub(super) polls: Box<[u64]>,
    /// Other loads, and stores.
    pub(super) sites: Box<[u64]>,
    /// Loads by which a function checks whether what it loaded before them is whole (`twice`).
    pub(super) checks: Box<[u64]>,
}

/// Whether an idiom counts in a function.
type Counts = fn(&Function<'_>) -> bool;
/// Adds the instructions of a function that are an idiom.
type Find = fn(&Function<'_>, &mut Vec<usize>);

const ALL: Counts = |_| true;
/// The C library.
const TRUSTED: Counts = |it| it.around.trusted;
/// All code but the C library.
const OTHERS: Counts = |it| !it.around.trusted;
/// Functions that lock.
const LOCKS: Counts = |it| it.has_locks();
/// Short functions that are called beside locks.
const CALLED: Counts = |it| it.around.is_called_beside_own;

/// The idioms, but for polls, and for loads that must find what an earlier load found.
const IDIOMS: [(Counts, Find); 26] = [
    (ALL, |it, found| found.extend(alike(it))),
    (ALL, |it, found| {
        found.extend(declared(it.code, it.around.atomic).filter(|&at| !it.is_polled(at)))
    }),
    (TRUSTED, |it, found| found.extend(it.around.looks)),
    (TRUSTED, |it, found| found.extend(oriented(it.code))),
    (TRUSTED, |it, found| found.extend(keys(it.code))),
    (LOCKS, |it, found| found.extend(locked_links(it.code, &it.loops))),
    (CALLED, |it, found| found.extend(released(it.code, &it.addresses))),
    (OTHERS, |it, found| {
        found.extend(announced(it.code, (&it.flow, &it.loops), &it.polls, it.around.pauses))
    }),
    (OTHERS, |it, found| found.extend(answers(it.code))),
    (OTHERS, |it, found| found.extend(arms(it.code))),
    (OTHERS, |it, found| found.extend(arrays(it.code))),
    (OTHERS, |it, found| found.extend(asked(it.code, &it.addresses))),
    (OTHERS, |it, found| found.extend(fenced(it.code, &it.loops))),
    (OTHERS, |it, found| {
        let flags = flags(it.code, &it.loops, it.around.writes);
        found.extend(flags.into_iter().filter(|&at| !it.is_polled(at)))
    }),
    (OTHERS, |it, found| found.extend(marked(it.code, &it.loops))),
    (OTHERS, |it, found| found.extend(padded(it.code, &it.addresses))),
    (OTHERS, |it, found| found.extend(probes(it.code, &it.loops))),
    (OTHERS, |it, found| found.extend(published(it.code))),
    (OTHERS, |it, found| found.extend(records(it.code, &it.waits, it.around.pauses, &it.loops))),
    (OTHERS, |it, found| found.extend(seen(it.code))),
    (OTHERS, |it, found| found.extend(shards(it.code, &it.loops))),
    (OTHERS, |it, found| found.extend(siblings(it.code, &it.addresses))),
    (OTHERS, |it, found| found.extend(tagged(it.code))),
    (OTHERS, |it, found| found.extend(tested(it.code).into_iter().filter(|&at| !it.computes(at)))),
    (OTHERS, |it, found| found.extend(&it.unfolded)),
    (OTHERS, |it, found| {
        found.extend(walks(it.code, &it.locks, it.around.is_called_beside_own, &it.loops))
    }),
];

/// The idioms in a function. `code` is its instructions in order.
pub(super) fn idioms(code: &Listing, around: &Surroundings<'_>) -> Idioms {
    let function = Function::new(code, around);
    let mut found = Vec::new();
    for (_, find) in IDIOMS.iter().filter(|(counts, _)| counts(&function)) {
        find(&function, &mut found);
    }
    let is_watched = |&at: &usize| function.accesses(at);
    let mut sites: BTreeSet<usize> = found.into_iter().filter(is_watched).collect();
    let mut checks = BTreeSet::new();
    if !around.trusted {
        let Twice { loads, stores } = twice(code, &function.addresses);
        sites.extend(stores.into_iter().filter(is_watched));
        for (first, again) in loads.into_iter().filter(|(first, _)| function.accesses(*first)) {
            let is_event =
                |at: usize| sites.contains(&at) || function.is_polled(at) || code.is_locked(at);
            if (first + 1..again).any(|at| reads_others(&code[at]) && !is_event(at)) {
                checks.insert(again);
            }
            sites.extend([first, again]);
        }
    }
    let addresses = |found: BTreeSet<usize>| found.into_iter().map(|at| code[at].ip()).collect();
    Idioms { sites: addresses(sites), checks: addresses(checks), polls: function.polls }
}

/// Whether what an instruction accesses may be a pointer or a number, and is no character.
fn is_word(instruction: &Instruction) -> bool {
    matches!(instruction.memory_size().size(), 4 | 8)
}
