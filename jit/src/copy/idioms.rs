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

mod announced;
mod answers;
mod arrays;
mod asked;
mod beside;
mod copies;
mod declared;
mod fenced;
mod flags;
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

use super::addresses::{Frame, SymbolicAddress, SymbolicAddresses, symbolic_addresses};
use super::listing::Listing;
use super::loops::{Flow, Loop, is_within};
use super::ordered::{Operands, is_load, is_locked, is_stack_load, is_store};
use crate::common::is_call;
use announced::announced;
use answers::answers;
use arrays::arrays;
use asked::asked;
use beside::flags_of_locks;
use copies::{arms, is_copied};
use declared::declared;
use fenced::fenced;
use flags::flags;
use held::is_flag;
use iced_x86::{Instruction, Mnemonic, Register};
use keys::keys;
use lent::lent;
use locked_links::locked_links;
use marked::marked;
use oriented::oriented;
use own_address::compares_own_address;
use padded::padded;
use pauses::published;
use polls::polls;
use probes::probes;
use records::records;
use refrain_trace::fixed::FixedSet;
use released::released;
use seen::seen;
use shards::shards;
use siblings::siblings;
use std::ops::Range;
use tagged::tagged;
use tested::tested;
use twice::{reads_others, twice};
use unfolded::unfolded;
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

/// The idioms in a function. `code` is its instructions in order.
pub(super) fn idioms(code: &Listing, around: &Surroundings<'_>) -> Idioms {
    let addresses = symbolic_addresses(code);
    let operands = || code.iter().zip(&addresses);
    // Nobody writes constant data: tables of `switch` statements, numbers.
    let may_be_written = |address: Option<SymbolicAddress>| {
        let at = address.and_then(SymbolicAddress::variable_or_array);
        at.is_none_or(around.is_variable)
    };
    let accesses: Vec<bool> =
        (0..code.len()).map(|at| code.has_memory(at) && may_be_written(addresses[at])).collect();
    let (mut locked, mut locked_addresses) = (Operands::default(), SymbolicAddresses::default());
    for at in (0..code.len()).filter(|&at| code.is_locked(at)) {
        locked.add(&code[at]);
        addresses[at].iter().for_each(|&address| locked_addresses.add(address));
    }
    let unfolded = if around.trusted { Vec::new() } else { unfolded(code) };
    let mut unfolded_words = unfolded.clone();
    unfolded_words.retain(|&at| is_word(&code[at]));
    for &at in &unfolded_words {
        locked.add(&code[at]);
        addresses[at].iter().for_each(|&address| locked_addresses.add(address));
    }
    around.handed.iter().for_each(|&address| locked_addresses.add_alone(address));
    let flow = Flow::of(code);
    let polls = polls(code, &addresses, &flow, around.only_waits);
    let polled: Vec<(u64, SymbolicAddress)> = operands()
        .filter(|(i, _)| polls.binary_search(&i.ip()).is_ok())
        .filter_map(|(i, address)| Some((i.ip(), (*address)?)))
        .collect();
    let locks: Vec<bool> =
        around.locks.iter().zip(0..).map(|(&locks, at)| locks || code.is_locked(at)).collect();
    let mut near = beside(code, &locks);
    let own: Vec<bool> =
        around.pauses.iter().zip(0..).map(|(&it, at)| it || code.is_locked(at)).collect();
    let waits = match around.trusted {
        true => vec![false; code.len()],
        false if around.is_called_beside_own => vec![true; code.len()],
        false if own == locks => near.clone(),
        false => beside(code, &own),
    };
    if around.is_called_beside_locks {
        near.fill(true);
    }
    let waited: SymbolicAddresses = (0..code.len())
        .filter(|&at| waits[at] && !around.held[at] && code.is_candidate(at))
        .filter_map(|at| addresses[at])
        .collect();
    near.iter_mut().zip(&waits).for_each(|(near, waits)| *near |= waits);
    let mut is_unfolded = vec![false; code.len()];
    unfolded_words.iter().for_each(|&at| is_unfolded[at] = true);
    near.iter_mut().zip(beside(code, &is_unfolded)).for_each(|(near, beside)| *near |= beside);
    let has_locks = locks.contains(&true);
    let flags_of_locks = flags_of_locks(code, &locks);
    let alike = |i: &Instruction, address: Option<SymbolicAddress>| {
        locked.look_like(i)
            || address.is_some_and(|address| {
                locked_addresses.look_like(address)
                    || polled.iter().any(|&(at, other)| at != i.ip() && address.is_same(other))
                    || waited.look_like(address) && is_store(i)
            })
    };
    let frame = Frame::of(code);
    let of_threads = around.trusted && compares_own_address(code);
    let is_site = |at: usize| {
        if !code.is_candidate(at) || frame.is_own(&code[at]) {
            return false;
        }
        let address = addresses[at];
        let is_own = address.and_then(SymbolicAddress::variable).is_some_and(around.is_variable);
        let is_elsewhere = address
            .and_then(SymbolicAddress::pointer_at)
            .is_some_and(|at| !(around.is_variable)(at));
        let is_variable = is_own || is_elsewhere;
        let beside = near[at] || flags_of_locks[at];
        match around.trusted {
            true => beside && (is_variable || of_threads && is_compared(code, at)),
            false if around.held[at] => (beside || is_variable) && is_flag(code, at),
            false => beside || is_variable,
        }
    };
    let is_access = |at: usize| code.is_load(at) || code.is_store(at);
    let is_atomic = |at: usize, address: SymbolicAddress| {
        let is_operation = around.is_atomic_operation && address.argument().is_some();
        is_operation || address.is_kept() && (code.is_candidate(at) || code.is_store(at))
    };
    let is_constant = |at: usize| addresses[at].is_some_and(SymbolicAddress::is_constant);
    // Instructions are equal if they are alike but for their addresses.
    let mut watched: FixedSet<(&Instruction, Option<SymbolicAddress>)> = FixedSet::default();
    let mut sites = Vec::new();
    let mut is_any_site = false;
    let loops = flow.loops();
    let stack = |i: &Instruction| (i.memory_displacement64(), i.memory_size());
    let is_at_rsp =
        |i: &Instruction| i.memory_base() == Register::RSP && i.memory_index() == Register::None;
    let polled_on_stack: Vec<_> = code
        .iter()
        .filter(|i| is_at_rsp(i) && polls.binary_search(&i.ip()).is_ok())
        .map(|i| (i.ip(), stack(i)))
        .collect();
    let alike = |i: &Instruction, address: Option<SymbolicAddress>| {
        let is_polled = |&(at, word)| at != i.ip() && word == stack(i);
        alike(i, address) || is_at_rsp(i) && polled_on_stack.iter().any(is_polled)
    };
    for at in (0..code.len()).filter(|&at| accesses[at] && is_access(at)) {
        let (i, address) = (&code[at], addresses[at]);
        if alike(i, address) {
            watched.insert((i, address));
        } else if !around.trusted
            && (address.is_some_and(|address| is_atomic(at, address))
                || code.is_candidate(at) && is_copied(code, is_constant, at))
        {
            sites.push(i.ip());
        } else {
            is_any_site = is_any_site || is_site(at);
        }
    }
    if is_any_site {
        let elsewhere =
            operands().zip(computations(code, &loops, &polls, &unfolded_words)).enumerate();
        let elsewhere = elsewhere.filter(|(at, ((i, address), computes))| {
            let searches = || around.is_called_beside_own && is_word(i) && is_compared(code, *at);
            let is_site = accesses[*at] && is_site(*at) && !alike(i, **address);
            (!computes || searches()) && is_site
        });
        watched.extend(elsewhere.map(|(_, ((i, address), _))| (i, *address)));
    }
    if around.trusted {
        // A load waits for the value that it had, which comes late or never if stores are in another order.
        let variable = |address: Option<SymbolicAddress>| address?.variable();
        let loads = watched.iter().filter(|(i, _)| is_load(i));
        let loaded: FixedSet<u64> = loads.filter_map(|&(_, address)| variable(address)).collect();
        let stores = operands().zip(&accesses).filter(|((i, address), accesses)| {
            let is_loaded = || variable(**address).is_some_and(|it| loaded.contains(&it));
            **accesses && is_store(i) && is_loaded()
        });
        sites.extend(stores.map(|((i, _), _)| i.ip()));
        sites.extend(around.looks.iter().map(|&at| code[at].ip()));
        sites.extend(oriented(code).map(|at| code[at].ip()));
        sites.extend(keys(code).into_iter().map(|at| code[at].ip()));
    }
    if has_locks {
        sites.extend(locked_links(code, &loops).into_iter().map(|at| code[at].ip()));
    }
    if !around.trusted {
        sites.extend(arms(code).into_iter().map(|at| code[at].ip()));
    }
    if !around.trusted {
        let flags = flags(code, &loops, around.writes).into_iter().map(|at| code[at].ip());
        sites.extend(flags.filter(|at| polls.binary_search(at).is_err()));
        sites.extend(published(code).into_iter().map(|at| code[at].ip()));
        let stores = announced(code, (&flow, &loops), &polls, around.pauses);
        sites.extend(stores.into_iter().map(|at| code[at].ip()));
        sites.extend(unfolded.iter().map(|&at| code[at].ip()));
        let rings = padded(code, &addresses);
        sites.extend(rings.into_iter().map(|at| code[at].ip()));
        sites.extend(answers(code).into_iter().map(|at| code[at].ip()));
        sites.extend(asked(code, &addresses).into_iter().map(|at| code[at].ip()));
        sites.extend(arrays(code).into_iter().map(|at| code[at].ip()));
        sites.extend(seen(code).into_iter().filter(|&at| accesses[at]).map(|at| code[at].ip()));
        let tested = tested(code);
        if !tested.is_empty() {
            let computes = computations(code, &loops, &polls, &unfolded_words);
            let flags = tested.into_iter().filter(|&at| accesses[at] && !computes[at]);
            sites.extend(flags.map(|at| code[at].ip()));
        }
        sites.extend(
            records(code, &waits, around.pauses, &loops).into_iter().map(|at| code[at].ip()),
        );
        sites.extend(probes(code, &loops).into_iter().map(|at| code[at].ip()));
        sites.extend(shards(code, &loops).into_iter().map(|at| code[at].ip()));
        let stores = siblings(code, &addresses).into_iter().filter(|&at| accesses[at]);
        sites.extend(stores.map(|at| code[at].ip()));
        let links = fenced(code, &loops).into_iter().chain(marked(code, &loops));
        sites.extend(links.filter(|&at| accesses[at]).map(|at| code[at].ip()));
        sites.extend(tagged(code).into_iter().filter(|&at| accesses[at]).map(|at| code[at].ip()));
        let walks = walks(code, &locks, around.is_called_beside_own, &loops);
        sites.extend(walks.into_iter().map(|at| code[at].ip()));
    }
    if !around.atomic.is_empty() {
        let declared = declared(code, around.atomic).map(|at| code[at].ip());
        sites.extend(declared.filter(|at| polls.binary_search(at).is_err()));
    }
    if around.is_called_beside_own {
        sites.extend(released(code, &addresses).filter(|&at| accesses[at]).map(|at| code[at].ip()));
    }
    if !around.trusted && (has_locks || around.pauses.contains(&true)) {
        let loads = lent(code, &loops).into_iter().filter(|&at| is_stack_load(&code[at]));
        watched.extend(loads.map(|at| (&code[at], addresses[at])));
    }
    if !watched.is_empty() {
        let is_watched =
            |&at: &usize| is_access(at) && watched.contains(&(&code[at], addresses[at]));
        sites.extend((0..code.len()).filter(is_watched).map(|at| code[at].ip()));
    }
    let mut checks = Vec::new();
    if !around.trusted {
        let twice = twice(code, &addresses);
        sites.extend(twice.stores.iter().map(|&at| code[at].ip()));
        for (first, again) in twice.loads {
            let [first_at, again_at] = [first, again].map(|at| code[at].ip());
            let is_watched = |i: &Instruction| {
                sites.contains(&i.ip()) || polls.binary_search(&i.ip()).is_ok() || is_locked(i)
            };
            if code[first + 1..again].iter().any(|i| reads_others(i) && !is_watched(i)) {
                checks.push(again_at);
            }
            sites.extend([first_at, again_at]);
        }
    }
    checks.sort_unstable();
    checks.dedup();
    sites.sort_unstable();
    sites.dedup();
    Idioms { polls, sites: sites.into(), checks: checks.into() }
}

/// Whether what an instruction accesses may be a pointer or a number, and is no character.
fn is_word(instruction: &Instruction) -> bool {
    matches!(instruction.memory_size().size(), 4 | 8)
}

/// Of each instruction, whether it is in an inner loop without calls or locked instructions, and without
/// a loop in it that waits, and in no loop with a word of `unfolded`. `polls` are the addresses of what
/// loops poll.
fn computations(
    code: &[Instruction],
    loops: &[Loop],
    polls: &[u64],
    unfolded: &[usize],
) -> Vec<bool> {
    let mut computes = vec![false; code.len()];
    let polled = |block: &Range<usize>| {
        code[block.clone()].iter().any(|i| polls.binary_search(&i.ip()).is_ok())
    };
    let waiting: Vec<&Loop> = loops.iter().filter(|body| body.iter().any(polled)).collect();
    for body in loops.iter().rev() {
        // Inner loops come last, and have the last word.
        let plain = |i: &Instruction| {
            !is_locked(i)
                && !is_call(i)
                && !matches!(i.mnemonic(), Mnemonic::Pause | Mnemonic::Mfence)
        };
        let has_waiting =
            || waiting.iter().any(|inner| inner.len() < body.len() && is_within(inner, body));
        let computing =
            body.iter().all(|block| code[block.clone()].iter().all(plain)) && !has_waiting();
        for block in body {
            computes[block.clone()].fill(computing);
        }
    }
    let shares =
        |body: &&Loop| body.iter().any(|block| unfolded.iter().any(|at| block.contains(at)));
    for block in loops.iter().filter(shares).flatten() {
        computes[block.clone()].fill(false);
    }
    computes
}
