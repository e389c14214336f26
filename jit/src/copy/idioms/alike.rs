//! What looks like an operand of a locked instruction, what stands beside one, and what is equal to these.

use super::beside::{flags_of_locks, is_compared};
use super::copies::is_copied;
use super::function::Function;
use super::held::is_flag;
use super::is_word;
use super::lent::lent;
use super::own_address::compares_own_address;
use crate::copy::addresses::{Frame, SymbolicAddress, SymbolicAddresses};
use crate::copy::ordered::{Operands, is_load, is_stack_load};
use iced_x86::{Instruction, Register};
use refrain_trace::fixed::FixedSet;

/// The accesses of a function to words that look like those of locked instructions, the loads beside locks, and
/// the accesses that are equal to these but for their own addresses. Of loops that compute, only what looks like a
/// word of a locked instruction, and what is equal, counts.
pub(super) fn alike(function: &Function<'_>) -> Vec<usize> {
    let Function { code, around, addresses, .. } = function;
    let access = |at: usize| (&code[at], addresses[at]);
    let words = Words::of(function);
    let places = Places::of(function);
    let mut watched: FixedSet<(&Instruction, Option<SymbolicAddress>)> = FixedSet::default();
    let mut sites = Vec::new();
    for at in (0..code.len()).filter(|&at| function.accesses(at)) {
        if !code.is_load(at) && !code.is_store(at) {
            continue;
        }
        if words.look_like(function, at) {
            watched.insert(access(at));
            continue;
        }
        if !around.trusted && is_atomic(function, at) {
            sites.push(at);
        }
        if places.have(function, at) && (!function.computes(at) || searches(function, at)) {
            watched.insert(access(at));
        }
    }
    if around.trusted {
        // A load waits for the value that it had, which comes late or never if stores are in another order.
        let variable = |address: Option<SymbolicAddress>| address?.variable();
        let loads = watched.iter().filter(|(i, _)| is_load(i));
        let loaded: FixedSet<u64> = loads.filter_map(|&(_, address)| variable(address)).collect();
        let is_loaded = |at: usize| variable(addresses[at]).is_some_and(|it| loaded.contains(&it));
        sites.extend((0..code.len()).filter(|&at| code.is_store(at) && is_loaded(at)));
    } else if function.has_locks() || around.pauses.contains(&true) {
        let loads = lent(code, &function.loops).into_iter();
        watched.extend(loads.filter(|&at| is_stack_load(&code[at])).map(access));
    }
    if !watched.is_empty() {
        let is_watched =
            |&at: &usize| (code.is_load(at) || code.is_store(at)) && watched.contains(&access(at));
        sites.extend((0..code.len()).filter(is_watched));
    }
    sites
}

/// Words that locked instructions name, and others that are as good.
struct Words {
    locked: Operands,
    locked_addresses: SymbolicAddresses,
    /// Loads that are executed beside pauses, without a lock of the library's held.
    waited: SymbolicAddresses,
    /// Where loops poll, and what.
    polled: Vec<(u64, SymbolicAddress)>,
    /// The same, of words that the stack pointer names: by offset and size.
    polled_on_stack: Vec<(u64, (u64, usize))>,
}

impl Words {
    fn of(function: &Function<'_>) -> Words {
        let Function { code, around, addresses, .. } = function;
        let mut locked = Operands::default();
        let mut locked_addresses = SymbolicAddresses::default();
        let is_locked = (0..code.len()).filter(|&at| code.is_locked(at));
        for at in is_locked.chain(function.unfolded_words()) {
            locked.add(&code[at]);
            addresses[at].iter().for_each(|&address| locked_addresses.add(address));
        }
        around.handed.iter().for_each(|&address| locked_addresses.add_alone(address));
        let waits = |&at: &usize| function.waits[at] && !around.held[at] && code.is_candidate(at);
        let polled = || (0..code.len()).filter(|&at| function.is_polled(at));
        let on_stack = polled().filter(|&at| is_at_rsp(&code[at]));
        Words {
            waited: (0..code.len()).filter(waits).filter_map(|at| addresses[at]).collect(),
            polled: polled().filter_map(|at| Some((code[at].ip(), addresses[at]?))).collect(),
            polled_on_stack: on_stack.map(|at| (code[at].ip(), stack_word(&code[at]))).collect(),
            locked,
            locked_addresses,
        }
    }

    /// Whether the word that an access names looks like one of these.
    fn look_like(&self, function: &Function<'_>, at: usize) -> bool {
        let i = &function.code[at];
        let is_polled = |address: SymbolicAddress| {
            self.polled.iter().any(|&(at, other)| at != i.ip() && address.is_same(other))
        };
        let named = |address: SymbolicAddress| {
            self.locked_addresses.look_like(address)
                || is_polled(address)
                || function.code.is_store(at) && self.waited.look_like(address)
        };
        let on_stack = || {
            let word = stack_word(i);
            self.polled_on_stack.iter().any(|&(at, other)| at != i.ip() && word == other)
        };
        self.locked.look_like(i)
            || function.addresses[at].is_some_and(named)
            || is_at_rsp(i) && on_stack()
    }
}

fn is_at_rsp(i: &Instruction) -> bool {
    i.memory_base() == Register::RSP && i.memory_index() == Register::None
}

fn stack_word(i: &Instruction) -> (u64, usize) {
    (i.memory_displacement64(), i.memory_size().size())
}

/// Where a load counts because of what is around it.
struct Places {
    frame: Frame,
    flags_of_locks: Vec<bool>,
    /// It is part of the C library, and asks which thread it is of.
    of_threads: bool,
}

impl Places {
    fn of(function: &Function<'_>) -> Places {
        Places {
            frame: Frame::of(function.code),
            flags_of_locks: flags_of_locks(function.code, &function.locks),
            of_threads: function.around.trusted && compares_own_address(function.code),
        }
    }

    /// Whether an instruction is a load that is beside locks, or of a variable.
    fn have(&self, function: &Function<'_>, at: usize) -> bool {
        let Function { code, around, addresses, .. } = function;
        if !code.is_candidate(at) || self.frame.is_own(&code[at]) {
            return false;
        }
        let address = addresses[at];
        let is_own = address.and_then(SymbolicAddress::variable).is_some_and(around.is_variable);
        let is_elsewhere = address
            .and_then(SymbolicAddress::pointer_at)
            .is_some_and(|at| !(around.is_variable)(at));
        let is_variable = is_own || is_elsewhere;
        let beside = function.near[at] || self.flags_of_locks[at];
        match around.trusted {
            true => beside && (is_variable || self.of_threads && is_compared(code, at)),
            false if around.held[at] => (beside || is_variable) && is_flag(code, at),
            false => beside || is_variable,
        }
    }
}

/// Whether an access is one of a library of atomic operations, or one of those that compilers make without
/// optimisation.
fn is_atomic(function: &Function<'_>, at: usize) -> bool {
    let Function { code, around, addresses, .. } = function;
    let is_constant = |at: usize| addresses[at].is_some_and(SymbolicAddress::is_constant);
    let is_operation = |address: SymbolicAddress| {
        let is_kept = || address.is_kept() && (code.is_candidate(at) || code.is_store(at));
        around.is_atomic_operation && address.argument().is_some() || is_kept()
    };
    addresses[at].is_some_and(is_operation)
        || code.is_candidate(at) && is_copied(code, is_constant, at)
}

/// Whether a load of a short function that is called beside locks compares a word: its loop looks for something
/// that others change.
fn searches(function: &Function<'_>, at: usize) -> bool {
    let code = function.code;
    function.around.is_called_beside_own && is_word(&code[at]) && is_compared(code, at)
}
