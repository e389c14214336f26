//! RAPID's STD format of traces: a line for each event, `thread|operation(operand)|place`.
//!
//! Operations are `r`, `w` (a variable), `acq`, `rel` (a lock), `fork`, `join` (a thread), and
//! `begin` and `end`, which say nothing further. Places are numbers; here, instructions.
//!
//! # What else orders
//! The format has no atomic variables, barriers or messages. An order from one thread to another that is
//! no lock's is written as a lock of its own, taken and given back by the first and then by the second:
//! happens-before has that order then, and no other.

use super::{Op, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// A trace in the format.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Std {
    /// Its steps; variables, objects and threads are numbered as they come.
    pub steps: Vec<Step>,
    /// Names of threads, by their numbers.
    pub threads: Vec<String>,
    /// Names of variables, by their numbers.
    pub variables: Vec<String>,
}

/// Text that is no trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StdError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for StdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for StdError {}

/// Names, in the order in which they came.
#[derive(Default)]
struct Names {
    numbers: BTreeMap<String, u64>,
    names: Vec<String>,
}

impl Names {
    fn number(&mut self, name: &str) -> u64 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len() as u64;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

/// Objects: a lock, the beginning of a thread, its end.
fn object(kind: u64, number: u64) -> u64 {
    3 * number + kind
}

impl Std {
    /// Reads a trace.
    pub fn read(text: &str) -> Result<Std, StdError> {
        let (mut threads, mut locks, mut variables) = <(Names, Names, Names)>::default();
        let mut steps = Vec::new();
        // Threads that have begun, where their last steps are, and who is joined.
        let mut last: BTreeMap<u32, usize> = BTreeMap::new();
        let mut joined: BTreeSet<u32> = BTreeSet::new();
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let fails = |what: String| StdError { line, what };
            let mut parts = text.trim().split('|');
            let name = parts.next().unwrap_or_default();
            let operation = parts.next().ok_or_else(|| fails("there is no operation".into()))?;
            let site = match parts.next() {
                Some(place) => {
                    place.trim().parse().map_err(|_| fails(format!("{place:?} is no place")))?
                }
                None => 0,
            };
            let (verb, rest) = operation.split_once('(').unwrap_or((operation, ")"));
            let operand =
                rest.strip_suffix(')').ok_or_else(|| fails(format!("{operation:?} has no end")))?;
            let thread = threads.number(name) as u32;
            let mut push = |op| steps.push(Step { thread, op, site });
            if !last.contains_key(&thread) {
                push(Op::Acquire(object(1, thread.into())));
            }
            match verb {
                "r" => push(Op::Read(variables.number(operand))),
                "w" => push(Op::Write(variables.number(operand))),
                "acq" => {
                    let lock = object(0, locks.number(operand));
                    push(Op::Hold { lock, alone: true });
                    push(Op::Acquire(lock));
                }
                "rel" => {
                    let lock = object(0, locks.number(operand));
                    push(Op::Release(lock));
                    push(Op::Drop(lock));
                }
                "fork" => push(Op::Release(object(1, threads.number(operand)))),
                "join" => {
                    let other = threads.number(operand);
                    joined.insert(other as u32);
                    push(Op::Acquire(object(2, other)));
                }
                "begin" | "end" => {}
                other => return Err(fails(format!("{other:?} is no operation"))),
            }
            last.insert(thread, steps.len());
        }
        // Who is joined releases its end after its last step.
        let mut ends: BTreeMap<usize, u32> = BTreeMap::new();
        ends.extend(joined.iter().filter_map(|thread| Some((*last.get(thread)?, *thread))));
        let mut all = Vec::with_capacity(steps.len() + ends.len());
        for (at, step) in steps.into_iter().enumerate() {
            all.push(step);
            if let Some(&thread) = ends.get(&(at + 1)) {
                all.push(Step { thread, op: Op::Release(object(2, thread.into())), site: 0 });
            }
        }
        Ok(Std { steps: all, threads: threads.names, variables: variables.names })
    }

    /// The text of a trace, whose variables may be new at times: then they have another name.
    pub fn write(steps: &[Step]) -> String {
        let ordering = Ordering::of(steps);
        let mut text = String::new();
        let mut lives: BTreeMap<u64, u64> = BTreeMap::new();
        for (at, step) in steps.iter().enumerate() {
            let mut line = |operation: &str, operand: &str| {
                let Step { thread, site, .. } = step;
                writeln!(text, "T{thread}|{operation}({operand})|{site}").expect("strings grow");
            };
            let name = |variable: u64| match lives.get(&variable) {
                Some(life) => format!("V{variable}.{life}"),
                None => format!("V{variable}"),
            };
            match step.op {
                Op::Read(variable) => line("r", &name(variable)),
                Op::Write(variable) => line("w", &name(variable)),
                Op::Hold { lock, alone: true } => line("acq", &format!("L{lock}")),
                Op::Drop(lock) if ordering.drops.contains(&at) => line("rel", &format!("L{lock}")),
                Op::Fresh(variable) => *lives.entry(variable).or_default() += 1,
                _ => {}
            }
            for edge in ordering.edges.get(&at).into_iter().flatten() {
                line("acq", &format!("E{edge}"));
                line("rel", &format!("E{edge}"));
            }
        }
        text
    }
}

/// The orders that no lock of the format makes.
#[derive(Default)]
struct Ordering {
    /// By step: the edges that begin or end there.
    edges: BTreeMap<usize, Vec<usize>>,
    /// Steps that give back a lock that was held alone.
    drops: BTreeSet<usize>,
}

impl Ordering {
    fn of(steps: &[Step]) -> Ordering {
        let mut ordering = Ordering::default();
        let mut count = 0;
        // By object and thread: where it was released last; what the acquirer has had of that.
        let mut released: BTreeMap<u64, BTreeMap<u32, (usize, bool)>> = BTreeMap::new();
        let mut had: BTreeSet<(u32, usize)> = BTreeSet::new();
        let mut held: BTreeSet<(u32, u64)> = BTreeSet::new();
        for (at, step) in steps.iter().enumerate() {
            let thread = step.thread;
            match step.op {
                Op::Hold { lock, alone: true } => drop(held.insert((thread, lock))),
                Op::Drop(lock) if held.remove(&(thread, lock)) => drop(ordering.drops.insert(at)),
                Op::Release(object) => {
                    let alone = held.contains(&(thread, object));
                    released.entry(object).or_default().insert(thread, (at, alone));
                }
                Op::Acquire(object) => {
                    // From one who held it alone to another the lock itself is the order.
                    let is_held = held.contains(&(thread, object));
                    for (&other, &(from, alone)) in released.get(&object).into_iter().flatten() {
                        let is_lock = is_held && alone;
                        if other != thread && !is_lock && had.insert((thread, from)) {
                            ordering.edges.entry(from).or_default().push(count);
                            ordering.edges.entry(at).or_default().push(count);
                            count += 1;
                        }
                    }
                }
                _ => {}
            }
        }
        ordering
    }
}
