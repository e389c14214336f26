//! Which plain loads and stores of a function are watched: a pure function of its code.
//!
//! An acquire load and a release store are plain `mov`s, so what is around them tells:
//!
//! - a load that a loop polls (`polls`);
//! - loads beside locks (`beside`): beside locked instructions, and calls of functions of the module
//!   that have some, or of the library's locks: the check before the slow path, the stamp of a slot
//!   in a queue; and further away, where a way leads to a lock or from there, loads that are only
//!   compared, and of the same fields elsewhere: the flag by which threads that wait ask the holder for
//!   the lock;
//! - loads beside a fence or a place where the thread lets others go on (`pauses`), and stores that
//!   look like them or like loads beside locked instructions: a thread that waits for room in a ring
//!   also stores how far it has come itself; and the first store behind a fence;
//! - stores by which a function that waits in its turn announces what others wait for (`announced`);
//! - the same in short functions that are called beside locks, as if they were inlined there; what they
//!   compare, also where they search for it; and all of such a function, as of an atomic operation,
//!   if it touches nothing but what its argument points to, and the locks are the program's own;
//! - flags that a loop looks at in each round, whatever else it does (`flags`);
//! - the store by which a guard's destructor, called beside the program's own locks, releases one (`released`);
//! - what a short function answers a question by (`answers`): loops that wait ask virtual functions and
//!   predicates;
//! - loops that follow pointers on the way to a lock (`walks`), or go over the records of all threads
//!   beside one (`records`);
//! - fields in cache lines of their own, of which a short function moves one on and looks at another
//!   (`padded`);
//! - counters in cache lines of their own that a loop adds up (`shards`);
//! - what a loop between two fences loads (`fenced`), and links of lists that carry a mark (`marked`);
//! - bytes that are loaded only to be tested (`tested`);
//! - what the debug information names as an atomic operation (`declared`);
//! - words that a function loads twice to compare what it has loaded, or stores twice (`twice`);
//! - loads that compilers would have folded into their use, were the word an ordinary one (`unfolded`), and
//!   what is beside them;
//! - loads of global variables, other modules' too, whose addresses the linker has put into a table:
//!   flags and states of one-time initialization, a server's clock;
//! - loads and stores whose operand looks like that of a locked instruction of their function, or
//!   is the word that it hands to a function with a locked instruction on that word, directly or through
//!   one function between them (a lock that is taken by a call, and released by a store; a state that the
//!   slow path of a one-time initialization gets), or what a loop of it polls, on its own stack, too: the look before the first round, the answer
//!   after the last;
//! - loads and stores of a library's atomic operations: functions side by side that access only
//!   what their argument points to, or the same field of it, with a locked instruction in one of them;
//! - words on its stack for which a thread waits (`lent`), in functions with locks;
//! - in code that is not optimised, loads and stores through a copy of an address that only they use,
//!   and loads of what is stored at once through another pointer or is loaded alike in several cases
//!   (`copies`).
//!
//! What an operand names is known where its address is constant, and where the code has moved it
//! through registers and the stack (`addresses`). Constant data is never watched.
//!
//! Code in inner loops without calls or locked instructions, and without a loop in them that waits,
//! computes: there, only what it polls,
//! what looks like a locked operand, and the copies of what is watched elsewhere in the function
//! (compilers duplicate the tails of loops) is watched. Words on the thread's own stack count if a
//! locked instruction names them the same way, thread-local ones never. Of a trusted module, the C
//! library, whose locks are events of their own, only the first and the last idiom count, and, beside
//! locks, global variables and what functions that know detached threads compare (`own_address`).
//!
//! A race that these miss makes a replay diverge, which names the pair; from then on its sites are
//! watched too (`refrain sites`).

use super::addresses::{SymbolicAddress, SymbolicAddresses, has_memory, symbolic_addresses};
use super::announced::announced;
use super::answers::answers;
use super::beside::{beside, flags_of_locks, is_compared};
use super::copies::{arms, is_copied};
use super::declared::declared;
use super::fenced::fenced;
use super::flags::flags;
use super::lent::lent;
use super::loops::{Flow, Loop, is_within};
use super::marked::marked;
use super::ordered::{Operands, is_candidate, is_load, is_locked, is_stack_load, is_store};
use super::own_address::compares_own_address;
use super::padded::padded;
use super::pauses::published;
use super::polls::polls;
use super::records::records;
use super::released::released;
use super::shards::shards;
use super::tested::tested;
use super::twice::{reads_others, twice};
use super::unfolded::unfolded;
use super::walks::walks;
use crate::common::is_call;
use iced_x86::{Instruction, Mnemonic, Register};
use refrain_trace::fixed::FixedSet;
use std::ops::Range;

/// What is around a function's code.
pub(super) struct Surroundings<'a> {
    /// Of each instruction, whether it calls a function of the module that has locked instructions,
    /// or a lock of the library's.
    pub(super) locks: &'a [bool],
    /// Words that it hands to other functions of the module, whose locked instructions name them.
    pub(super) handed: &'a [SymbolicAddress],
    /// Of each instruction, whether it lets others go on (`pauses`).
    pub(super) pauses: &'a [bool],
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
pub(super) fn idioms(code: &[Instruction], around: &Surroundings<'_>) -> Idioms {
    let addresses = symbolic_addresses(code);
    let operands = || code.iter().zip(&addresses);
    // Nobody writes constant data: tables of `switch` statements, numbers.
    let may_be_written = |address: Option<SymbolicAddress>| {
        let at = address.and_then(SymbolicAddress::variable_or_array);
        at.is_none_or(around.is_variable)
    };
    let accesses: Vec<bool> =
        operands().map(|(i, &address)| has_memory(i) && may_be_written(address)).collect();
    let (mut locked, mut locked_addresses) = (Operands::default(), SymbolicAddresses::default());
    for (i, address) in operands().filter(|(i, _)| is_locked(i)) {
        locked.add(i);
        address.iter().for_each(|&address| locked_addresses.add(address));
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
    let polls = polls(code, &flow, around.only_waits);
    let polled: Vec<(u64, SymbolicAddress)> = operands()
        .filter(|(i, _)| polls.binary_search(&i.ip()).is_ok())
        .filter_map(|(i, address)| Some((i.ip(), (*address)?)))
        .collect();
    let locks: Vec<bool> =
        code.iter().zip(around.locks).map(|(i, &locks)| locks || is_locked(i)).collect();
    let mut near = beside(code, &locks);
    let own: Vec<bool> =
        code.iter().zip(around.pauses).map(|(i, &pauses)| pauses || is_locked(i)).collect();
    let waits = match around.trusted {
        true => vec![false; code.len()],
        false if around.is_called_beside_own => vec![true; code.len()],
        false if own == locks => near.clone(),
        false => beside(code, &own),
    };
    if around.is_called_beside_locks {
        near.fill(true);
    }
    let waited: SymbolicAddresses = operands()
        .zip(&waits)
        .filter(|((i, _), waits)| **waits && is_candidate(i))
        .filter_map(|((_, address), _)| *address)
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
                    || is_store(i) && waited.look_like(address)
            })
    };
    let of_threads = around.trusted && compares_own_address(code);
    let is_site = |at: usize, address: Option<SymbolicAddress>| {
        let is_own = address.and_then(SymbolicAddress::variable).is_some_and(around.is_variable);
        let is_elsewhere = address
            .and_then(SymbolicAddress::pointer_at)
            .is_some_and(|at| !(around.is_variable)(at));
        let is_variable = is_own || is_elsewhere;
        let beside = near[at] || flags_of_locks[at];
        let is_meant = match around.trusted {
            true => beside && (is_variable || of_threads && is_compared(code, at)),
            false => beside || is_variable,
        };
        is_meant && is_candidate(&code[at])
    };
    let is_atomic = |i: &Instruction, address: SymbolicAddress| {
        let is_operation = around.is_atomic_operation && address.argument().is_some();
        is_operation && (is_load(i) || is_store(i))
            || address.is_kept() && (is_candidate(i) || is_store(i))
    };
    let is_constant = |at: usize| addresses[at].is_some_and(SymbolicAddress::is_constant);
    // Instructions are equal if they are alike but for their addresses.
    let mut watched: FixedSet<(&Instruction, Option<SymbolicAddress>)> = FixedSet::default();
    let mut sites = Vec::new();
    let mut is_any_site = false;
    let loops = flow.loops();
    let stack = |i: &Instruction| (i.memory_displacement64(), i.memory_size());
    let is_on_stack =
        |i: &Instruction| i.memory_base() == Register::RSP && i.memory_index() == Register::None;
    let polled_on_stack: Vec<_> = code
        .iter()
        .filter(|i| is_on_stack(i) && polls.binary_search(&i.ip()).is_ok())
        .map(|i| (i.ip(), stack(i)))
        .collect();
    let alike = |i: &Instruction, address: Option<SymbolicAddress>| {
        let is_polled = |&(at, word)| at != i.ip() && word == stack(i);
        alike(i, address) || is_on_stack(i) && polled_on_stack.iter().any(is_polled)
    };
    for (at, (i, &address)) in operands().enumerate().filter(|&(at, _)| accesses[at]) {
        if alike(i, address) && (is_load(i) || is_store(i)) {
            watched.insert((i, address));
        } else if !around.trusted
            && (address.is_some_and(|address| is_atomic(i, address))
                || is_candidate(i) && is_copied(code, is_constant, at))
        {
            sites.push(i.ip());
        } else {
            is_any_site |= is_site(at, address);
        }
    }
    if is_any_site {
        let elsewhere =
            operands().zip(computations(code, &loops, &polls, &unfolded_words)).enumerate();
        let elsewhere = elsewhere.filter(|(at, ((i, address), computes))| {
            let searches = || around.is_called_beside_own && is_word(i) && is_compared(code, *at);
            let is_site = accesses[*at] && is_site(*at, **address) && !alike(i, **address);
            (!computes || searches()) && is_site
        });
        watched.extend(elsewhere.map(|(_, ((i, address), _))| (i, *address)));
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
        let tested = tested(code);
        if !tested.is_empty() {
            let computes = computations(code, &loops, &polls, &unfolded_words);
            let flags = tested.into_iter().filter(|&at| accesses[at] && !computes[at]);
            sites.extend(flags.map(|at| code[at].ip()));
        }
        sites.extend(
            records(code, &waits, around.pauses, &loops).into_iter().map(|at| code[at].ip()),
        );
        sites.extend(shards(code, &loops).into_iter().map(|at| code[at].ip()));
        let links = fenced(code, &loops).into_iter().chain(marked(code, &loops));
        sites.extend(links.filter(|&at| accesses[at]).map(|at| code[at].ip()));
        sites.extend(walks(code, &locks, &loops).into_iter().map(|at| code[at].ip()));
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
    sites.extend(
        operands()
            .filter(|(i, address)| {
                !watched.is_empty() && has_memory(i) && watched.contains(&(*i, **address))
            })
            .map(|(i, _)| i.ip()),
    );
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

#[cfg(test)]
mod tests {
    use super::super::pauses::pauses;
    use super::{Surroundings, idioms};
    use crate::copy::tests::assembled;
    use iced_x86::Mnemonic;
    use iced_x86::code_asm::*;

    /// Mnemonics of the sites in what `write` assembles; variables lie at 0x7000 and above.
    fn found(
        calls_locks: bool,
        trusted: bool,
        write: impl FnOnce(&mut CodeAssembler),
    ) -> Vec<Mnemonic> {
        found_in(calls_locks, trusted, false, write)
    }

    /// The same, in a short function that may be called beside locks.
    fn found_in(
        calls_locks: bool,
        trusted: bool,
        is_called_beside_locks: bool,
        write: impl FnOnce(&mut CodeAssembler),
    ) -> Vec<Mnemonic> {
        let code = assembled(write);
        let is_variable = |address| address >= 0x7000;
        let locks: Vec<bool> = code.iter().map(|_| calls_locks).collect();
        let around = Surroundings {
            locks: &locks,
            handed: &[],
            pauses: &pauses(&code, |_| false),
            is_called_beside_locks,
            is_called_beside_own: is_called_beside_locks,
            is_atomic_operation: false,
            trusted,
            atomic: &[],
            is_variable: &is_variable,
            only_waits: &|call| call.near_branch_target() == 0x5000,
            writes: &|_, _| false,
        };
        let found = idioms(&code, &around);
        code.iter().filter(|i| found.sites.contains(&i.ip())).map(|i| i.mnemonic()).collect()
    }

    fn publish(a: &mut CodeAssembler) {
        a.lock().cmpxchg(qword_ptr(rdi), rcx).unwrap();
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.add(rax, qword_ptr(rsi)).unwrap();
        a.dec(rcx).unwrap();
        a.jne(again).unwrap();
        a.mov(rbx, qword_ptr(rdi + 8)).unwrap();
        a.mov(qword_ptr(rdi + 8), rax).unwrap();
        a.cmp(dword_ptr(0x7000), 0).unwrap();
        a.test(qword_ptr(rdi), rax).unwrap();
        a.mov(qword_ptr(rdi), rax).unwrap();
    }

    #[test]
    fn beside_locked_instructions() {
        use Mnemonic::*;
        assert_eq!(found(false, false, publish), [Mov, Mov, Cmp, Test, Mov]);
        assert_eq!(found(false, true, publish), [Cmp, Test, Mov], "the C library");
        let accessor = |a: &mut CodeAssembler| a.mov(rax, qword_ptr(rdi)).unwrap();
        assert_eq!(found(true, false, accessor), [Mov], "its callee locks");
        assert_eq!(found(false, false, accessor), []);
        assert_eq!(found(true, true, accessor), []);
    }

    #[test]
    fn the_c_librarys_detached_threads() {
        let detach = |a: &mut CodeAssembler, mark| {
            a.lock().cmpxchg(qword_ptr(rdi + 0x620), mark).unwrap();
            a.test(byte_ptr(rdi + 0x308), 0x10).unwrap();
        };
        let with = |mark| found(false, true, |a| detach(a, mark));
        assert_eq!((with(rdi), with(rsi)), (vec![Mnemonic::Test], vec![]));
    }

    /// As in a lock that lies behind a pointer: its release is a plain store.
    #[test]
    fn a_lock_behind_a_pointer() {
        let releases = |field: i32| {
            found(false, false, |a| {
                a.mov(rax, qword_ptr(rdx)).unwrap();
                a.xchg(dword_ptr(rax), ecx).unwrap();
                (0..100).for_each(|_| a.inc(rbx).unwrap());
                a.mov(rcx, qword_ptr(rdx + field)).unwrap();
                a.mov(dword_ptr(rcx), 0).unwrap();
            })
        };
        assert_eq!(releases(0), [Mnemonic::Mov; 2], "the pointer before the lock, and the release");
        assert_eq!(releases(8), [Mnemonic::Mov]);
    }

    /// As Rust's `store` of an atomic variable is without optimisation: it keeps its arguments by the
    /// stack pointer, and has an arm for each order.
    #[test]
    fn an_argument_kept_by_the_stack_pointer() {
        let stores = |kept: i32| {
            found(false, false, |a| {
                a.sub(rsp, 0x18).unwrap();
                a.mov(qword_ptr(rsp), rdi).unwrap();
                a.mov(qword_ptr(rsp + 8), rsi).unwrap();
                a.mov(rax, qword_ptr(rsp + kept)).unwrap();
                a.mov(byte_ptr(rax), cl).unwrap();
                (0..100).for_each(|_| a.inc(rbx).unwrap());
                a.mov(rcx, qword_ptr(rsp)).unwrap();
                a.xchg(byte_ptr(rcx), al).unwrap();
            })
        };
        assert_eq!(stores(0), [Mnemonic::Mov]);
        assert_eq!(stores(8), []);
    }

    /// As in a queue: look at a slot's stamp, and again if it is not the one, and again if somebody
    /// else was quicker.
    #[test]
    fn a_loop_may_try_again_in_two_ways() {
        let tries = |a: &mut CodeAssembler| {
            let (mut again, mut take) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.mov(rcx, qword_ptr(rdx)).unwrap();
            a.cmp(rcx, rsi).unwrap();
            a.je(take).unwrap();
            a.jmp(again).unwrap();
            a.set_label(&mut take).unwrap();
            a.lock().cmpxchg(qword_ptr(rdi), rcx).unwrap();
            a.jne(again).unwrap();
        };
        assert_eq!(found(false, false, tries), [Mnemonic::Mov]);
    }

    #[test]
    fn variables_and_constants() {
        let looks = |a: &mut CodeAssembler| {
            a.mov(eax, dword_ptr(0x7000)).unwrap();
            a.mov(ecx, dword_ptr(0x6000)).unwrap();
            a.mov(dword_ptr(0x7008), eax).unwrap();
        };
        assert_eq!(found(false, false, looks), [Mnemonic::Mov], "the variable's load");
        assert_eq!(found(false, true, looks), []);
    }

    /// As the cases of an interpreter: each looks at a flag, and one of them at what takes the lock.
    #[test]
    fn one_flag_in_several_cases() {
        let interpret = |a: &mut CodeAssembler| {
            let (mut slow, mut other) = (a.create_label(), a.create_label());
            a.mov(eax, dword_ptr(rdi + 0x64)).unwrap();
            a.test(eax, eax).unwrap();
            a.jne(slow).unwrap();
            a.jmp(rdx).unwrap();
            a.mov(ecx, dword_ptr(rsi + 0x64)).unwrap();
            a.test(ecx, ecx).unwrap();
            a.jne(other).unwrap();
            a.cmp(qword_ptr(rsi + 8), 3).unwrap();
            a.set_label(&mut other).unwrap();
            a.call(0x6000).unwrap();
            a.jmp(rdx).unwrap();
            a.set_label(&mut slow).unwrap();
            (0..200).for_each(|_| a.inc(rbx).unwrap());
            a.lock().inc(qword_ptr(r15)).unwrap();
            a.jmp(rdx).unwrap();
        };
        assert_eq!(found(false, false, interpret), [Mnemonic::Mov; 2]);
    }

    /// Tables and numbers that the compiler has made; variables lie at 0x7000 and above.
    #[test]
    fn constant_data() {
        let looks = |table: u64| {
            found(false, false, |a| {
                a.lock().inc(qword_ptr(rdi)).unwrap();
                a.mov(rdx, qword_ptr(rax * 8 + table)).unwrap();
                a.lea(rbx, ptr(table)).unwrap();
                a.movsxd(rax, dword_ptr(rbx + rax * 4)).unwrap();
                a.cmp(rcx, qword_ptr(table)).unwrap();
            })
        };
        assert_eq!(looks(0x7000), [Mnemonic::Mov, Mnemonic::Movsxd, Mnemonic::Cmp]);
        assert_eq!(looks(0x6000), []);
    }

    /// The linker keeps addresses of other modules' variables where nobody changes them.
    #[test]
    fn variables_of_other_modules() {
        let looks = |table: u64| {
            found(false, false, |a| {
                a.mov(rbx, qword_ptr(table)).unwrap();
                a.mov(ecx, dword_ptr(rbx)).unwrap();
                a.mov(edx, dword_ptr(rbx + 8)).unwrap();
                a.mov(dword_ptr(rbx), edx).unwrap();
                a.mov(rsi, qword_ptr(rdi)).unwrap();
                a.mov(ecx, dword_ptr(rsi)).unwrap();
            })
        };
        assert_eq!(looks(0x6000), [Mnemonic::Mov; 2]);
        assert_eq!(
            looks(0x7000),
            [Mnemonic::Mov],
            "the pointer is a variable; what it points to is any"
        );
    }

    /// As compilers make of a loop with a `switch` that ends by looking at a flag: one of its cases
    /// gets a tail of its own, which looks like an inner loop.
    #[test]
    fn duplicated_tails() {
        let interpret = |a: &mut CodeAssembler| {
            let (mut again, mut case) = (a.create_label(), a.create_label());
            a.set_label(&mut case).unwrap();
            a.lock().inc(qword_ptr(r15)).unwrap();
            a.mov(eax, dword_ptr(rbp)).unwrap();
            a.set_label(&mut again).unwrap();
            a.inc(r13).unwrap();
            a.test(r13, r13).unwrap();
            a.jne(case).unwrap();
            a.mov(ecx, dword_ptr(rbx)).unwrap();
            a.mov(eax, dword_ptr(rbp)).unwrap();
            a.test(eax, eax).unwrap();
            a.je(again).unwrap();
        };
        assert_eq!(
            found(false, false, interpret),
            [Mnemonic::Mov; 2],
            "both, and not what differs"
        );
    }

    /// As gcc compiles `while (!atomic_load(&object->flag)) sum += other->field;` without
    /// optimisation.
    #[test]
    fn code_that_is_not_optimised() {
        let waits = |a: &mut CodeAssembler| {
            let mut again = a.create_label();
            a.push(rbp).unwrap();
            a.mov(rbp, rsp).unwrap();
            a.mov(qword_ptr(rbp - 8), rdi).unwrap();
            a.mov(qword_ptr(rbp - 16), rsi).unwrap();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rbp - 16)).unwrap();
            a.mov(eax, dword_ptr(rax)).unwrap();
            a.add(dword_ptr(rbp - 36), eax).unwrap();
            a.mov(rax, qword_ptr(rbp - 8)).unwrap();
            a.mov(qword_ptr(rbp - 24), rax).unwrap();
            a.mov(rax, qword_ptr(rbp - 24)).unwrap();
            a.movzx(eax, byte_ptr(rax)).unwrap();
            a.test(eax, eax).unwrap();
            a.je(again).unwrap();
        };
        assert_eq!(found(false, false, waits), [Mnemonic::Movzx]);
        assert_eq!(found(false, true, waits), []);
    }

    /// As compilers make of `for (;;) { if (ring->in - ring->out == 64) { yield(); continue; } ...
    /// ring->in++; }`: neither a loop that only waits nor a lock.
    #[test]
    fn beside_a_pause() {
        let puts = |yields: bool| {
            found(false, false, |a| {
                let (mut again, mut full) = (a.create_label(), a.create_label());
                a.set_label(&mut again).unwrap();
                a.mov(eax, dword_ptr(rdx + 4)).unwrap();
                a.mov(esi, dword_ptr(rdx)).unwrap();
                a.sub(esi, eax).unwrap();
                a.je(full).unwrap();
                a.mov(qword_ptr(rdx + rcx * 8 + 8), rbx).unwrap();
                a.inc(eax).unwrap();
                a.mov(dword_ptr(rdx + 4), eax).unwrap();
                a.jmp(again).unwrap();
                a.set_label(&mut full).unwrap();
                if yields {
                    a.pause().unwrap();
                }
                a.jmp(again).unwrap();
            })
        };
        assert_eq!(puts(true), [Mnemonic::Mov; 3], "two loads and the store of what one loads");
        assert_eq!(puts(false), []);
    }

    /// As compilers make of `while (!*word) pause(); use(*word); *word = 0;`.
    #[test]
    fn around_a_loop_that_polls() {
        let waits = |a: &mut CodeAssembler| {
            let (mut again, mut done) = (a.create_label(), a.create_label());
            a.lea(rax, ptr(rdx + rcx)).unwrap();
            a.cmp(qword_ptr(rcx + rdx * 1), 0).unwrap();
            a.jne(done).unwrap();
            a.set_label(&mut again).unwrap();
            a.nop().unwrap();
            a.cmp(qword_ptr(rax), 0).unwrap();
            a.je(again).unwrap();
            a.set_label(&mut done).unwrap();
            a.mov(r8, qword_ptr(rax)).unwrap();
            a.mov(r9, qword_ptr(rax + 8)).unwrap();
            a.mov(qword_ptr(rax), 0).unwrap();
        };
        assert_eq!(found(false, false, waits), [Mnemonic::Cmp, Mnemonic::Mov, Mnemonic::Mov]);
    }

    /// The stack and thread-local storage are the thread's own.
    #[test]
    fn own_memory() {
        let own = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rsp + 8)).unwrap();
            a.mov(rax, qword_ptr(0x10).fs()).unwrap();
            a.lock().inc(qword_ptr(rdi)).unwrap();
        };
        assert_eq!(found(false, false, own), []);
        let named = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rsp + 8)).unwrap();
            a.lock().inc(qword_ptr(rsp + 8)).unwrap();
        };
        assert_eq!(found(false, false, named), [Mnemonic::Mov]);
    }

    /// Looks like a locked operand: the same one, or the same field of something else.
    #[test]
    fn operands_that_look_alike() {
        let forms = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdi + 8)).unwrap();
            a.mov(rax, qword_ptr(rcx)).unwrap();
            a.mov(rax, qword_ptr(rdi)).unwrap();
            a.mov(rax, qword_ptr(rdi + 16)).unwrap();
            a.lock().inc(dword_ptr(rsi + 8)).unwrap();
            a.xchg(qword_ptr(rcx), rdx).unwrap();
        };
        assert_eq!(found(false, true, forms), [Mnemonic::Mov; 2]);
    }

    /// As in `if (!object->busy) object->state++;`, a search for a number, and one for a character.
    #[test]
    fn short_functions_that_are_called_beside_locks() {
        let look = |a: &mut CodeAssembler| {
            a.mov(eax, dword_ptr(rdi + 4)).unwrap();
            a.inc(eax).unwrap();
            a.mov(dword_ptr(rdi + 4), eax).unwrap();
            a.mov(dword_ptr(rdi + 8), 0).unwrap();
        };
        assert_eq!(found_in(false, false, true, look), [Mnemonic::Mov; 2]);
        assert_eq!(found_in(false, false, false, look), []);
        let search = |words: bool| {
            found_in(false, false, true, |a| {
                let mut again = a.create_label();
                a.set_label(&mut again).unwrap();
                a.add(rdi, 8).unwrap();
                a.add(rcx, qword_ptr(rdx)).unwrap();
                if words {
                    a.cmp(qword_ptr(rdi), rsi).unwrap();
                } else {
                    a.cmp(byte_ptr(rdi), sil).unwrap();
                }
                a.jne(again).unwrap();
            })
        };
        assert_eq!(search(true), [Mnemonic::Cmp]);
        assert_eq!(search(false), []);
    }

    #[test]
    fn guards_release_locks() {
        let release = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdi)).unwrap();
            a.mov(dword_ptr(rax + 4), 0).unwrap();
            a.ret().unwrap();
        };
        assert_eq!(found_in(false, false, true, release), [Mnemonic::Mov; 2]);
        assert_eq!(found_in(false, false, false, release), []);
    }

    /// As gcc compiles `atomic_store_explicit(&object->flag, 0, memory_order_release);` without
    /// optimisation, and `object->flag = 0;`.
    #[test]
    fn stores_in_code_that_is_not_optimised() {
        let sets = |through_slot: bool| {
            found(false, false, |a| {
                a.push(rbp).unwrap();
                a.mov(rbp, rsp).unwrap();
                a.mov(qword_ptr(rbp - 24), rdi).unwrap();
                a.mov(rax, qword_ptr(rbp - 24)).unwrap();
                if through_slot {
                    a.add(rax, 4).unwrap();
                    a.mov(qword_ptr(rbp - 8), rax).unwrap();
                    a.mov(rax, qword_ptr(rbp - 8)).unwrap();
                    a.mov(dword_ptr(rax), 0).unwrap();
                } else {
                    a.mov(dword_ptr(rax + 4), 0).unwrap();
                }
            })
        };
        assert_eq!(sets(true), [Mnemonic::Mov]);
        assert_eq!(sets(false), []);
    }

    /// As in a queue of threads that wait, each for a word on its own stack: `if (!self.next) while
    /// (!self.next) sched_yield();`.
    #[test]
    fn words_on_the_stack_that_a_loop_polls() {
        let waits = |other: i32| {
            found(false, false, |a| {
                let (mut again, mut done) = (a.create_label(), a.create_label());
                a.mov(qword_ptr(rsp), 0).unwrap();
                a.mov(rax, qword_ptr(rsp + other)).unwrap();
                a.test(rax, rax).unwrap();
                a.jne(done).unwrap();
                a.set_label(&mut again).unwrap();
                a.call(0x5000).unwrap();
                a.cmp(qword_ptr(rsp), 0).unwrap();
                a.je(again).unwrap();
                a.set_label(&mut done).unwrap();
                a.ret().unwrap();
            })
        };
        assert_eq!(waits(0), [Mnemonic::Mov; 2], "what is written before, and the first look");
        assert_eq!(waits(8), [Mnemonic::Mov]);
    }

    /// As in Lamport's bakery: a loop over the numbers of others, each of which is waited for by a loop.
    #[test]
    fn loops_around_loops_that_poll() {
        let waits = |polls: bool| {
            found(false, false, |a| {
                let (mut next, mut again) = (a.create_label(), a.create_label());
                a.mfence().unwrap();
                a.set_label(&mut next).unwrap();
                a.cmp(dword_ptr(rax + rdx * 4 + 8), 0).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(ecx, dword_ptr(rdi + rdx * 4)).unwrap();
                a.test(ecx, ecx).unwrap();
                if polls {
                    a.jne(again).unwrap();
                }
                a.inc(rdx).unwrap();
                a.cmp(rdx, 3).unwrap();
                a.jne(next).unwrap();
            })
        };
        assert_eq!(waits(true), [Mnemonic::Cmp], "beside the fence, and what is polled anyway");
        assert_eq!(waits(false), [], "it computes");
    }
}
