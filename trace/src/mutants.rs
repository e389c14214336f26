//! Traces that are well-formed and wrong: the checksums are right, and something in them is not
//! what a recorder wrote. What a replay and an analysis make of them shows how little they trust.
//!
//! For tests and fuzz targets; a mutant is a function of its trace and a seed.

use crate::payload::Effect;
use crate::{EventKind, OwnedEvent, OwnedTrace};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A changed trace.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The trace.
    pub trace: OwnedTrace,
    /// What was changed, in words.
    pub what: String,
    /// Whether a replay compares what was changed, so that it must not call this trace exact.
    /// Otherwise the program has other inputs or another timing, and may or may not notice.
    pub is_compared: bool,
}

/// A small generator, so that a seed means the same everywhere.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Another number: near the old one, one bit away, at an edge, or anything.
    fn other(&mut self, old: u64) -> u64 {
        const EDGES: [u64; 8] =
            [0, 1, 0x6000_0000, 0x7fff_ffff_f000, 1 << 45, u64::MAX, u64::MAX - 7, 1 << 63];
        let new = match self.below(5) {
            0 => old.wrapping_add(1 + self.next() % 64),
            1 => old.wrapping_sub(1 + self.next() % 64),
            2 => old ^ 1 << self.below(64),
            3 => EDGES[self.below(EDGES.len())],
            _ => self.next(),
        };
        if new == old { old ^ 1 } else { new }
    }
}

/// The mutant of a trace with this seed.
#[must_use]
pub fn mutant(trace: &OwnedTrace, seed: u64) -> Mutant {
    let mut random = Random(SplitMix64::seed_from_u64(seed));
    let mut mutant = Mutant { trace: trace.clone(), what: String::new(), is_compared: false };
    (mutant.what, mutant.is_compared) = match random.below(16) {
        0..10 => event(&mut mutant.trace, &mut random),
        10..12 => sequence(&mut mutant.trace, &mut random),
        12 => code(&mut mutant.trace, &mut random),
        13 => content(&mut mutant.trace, &mut random),
        _ => header(&mut mutant.trace, &mut random),
    };
    mutant
}

/// Events that a replay compares in all of these fields: those of calls, at their call-sites.
fn is_compared(kind: EventKind) -> bool {
    use EventKind::*;
    matches!(kind, Syscall | MutexLock | MutexUnlock | CondSignal | SemPost | RwUnlock | Atomic)
}

fn event(trace: &mut OwnedTrace, random: &mut Random) -> (String, bool) {
    let Some((place, owned)) = pick(trace, random) else { return ("nothing".into(), false) };
    let event = &mut owned.event;
    let compared = is_compared(event.kind());
    let field = |name: &str, old: u64, new: u64| format!("{place} {name} {old:#x} to {new:#x}");
    match random.below(12) {
        0 => (field("pc", event.pc, changed(&mut event.pc, random)), compared),
        1 => (field("sp", event.sp, changed(&mut event.sp, random)), compared),
        2 => (field("object", event.object, changed(&mut event.object, random)), compared),
        3 => {
            let old = event.nr;
            event.nr = random.other(old.into()) as u16;
            (field("nr", old.into(), event.nr.into()), compared && event.nr != old)
        }
        4 => {
            let old = event.code;
            event.code = random.other(old.into()) as u8;
            (field("kind", old.into(), event.code.into()), compared && event.code != old)
        }
        5 => (field("ticket", event.ticket, changed(&mut event.ticket, random)), false),
        6 => (field("value", event.value, changed(&mut event.value, random)), false),
        7 => (field("aux", event.aux, changed(&mut event.aux, random)), false),
        8 => (field("end", event.end, changed(&mut event.end, random)), false),
        9 => {
            let old = event.result;
            event.result = random.other(old as u64) as i32;
            (field("result", old as u64, event.result as u64), false)
        }
        _ => payload(&place, owned, random),
    }
}

/// Changes a number; returns what it is then.
fn changed(number: &mut u64, random: &mut Random) -> u64 {
    *number = random.other(*number);
    *number
}

fn payload(place: &str, owned: &mut OwnedEvent, random: &mut Random) -> (String, bool) {
    let Some(record) = &mut owned.payload else { return (format!("{place} as it was"), false) };
    match (&mut record.effect, random.below(3)) {
        (Effect::Output { crc, .. }, _) => {
            *crc ^= 1 << random.below(32);
            (format!("{place} output's CRC"), true)
        }
        (Effect::Memory { content: Some(window) }, 0) => {
            window.len = random.other(window.len);
            (format!("{place} window's length"), false)
        }
        (Effect::Clone { child }, 0) => {
            child.0 = random.other(child.0.into()) as u32;
            (format!("{place} child"), false)
        }
        (_, 1) => {
            let index = random.below(6);
            record.args[index] = random.other(record.args[index]);
            (format!("{place} argument {index}"), false)
        }
        _ => {
            let count = record.writes.len();
            let Some(write) = record.writes.get_mut(random.below(count)) else {
                return (format!("{place} as it was"), false);
            };
            if random.below(2) == 0 || write.bytes.is_empty() {
                write.address = random.other(write.address);
                (format!("{place} write's address to {:#x}", write.address), false)
            } else {
                let index = random.below(write.bytes.len());
                write.bytes[index] ^= 1 << random.below(8);
                (format!("{place} write's byte {index}"), false)
            }
        }
    }
}

/// Events that are missing, there twice, or in another order.
fn sequence(trace: &mut OwnedTrace, random: &mut Random) -> (String, bool) {
    let thread = random.below(trace.threads.len());
    let Some(events) = trace.threads.get_mut(thread).filter(|events| !events.is_empty()) else {
        return ("nothing".into(), false);
    };
    let index = random.below(events.len());
    match random.below(4) {
        0 => {
            events.remove(index);
            (format!("t{thread} without e{index}"), false)
        }
        1 => {
            let event = events[index].clone();
            events.insert(index, event);
            (format!("t{thread} e{index} twice"), false)
        }
        2 => {
            events.truncate(index);
            (format!("t{thread} up to e{index}"), false)
        }
        _ => {
            let other = random.below(events.len());
            events.swap(index, other);
            (format!("t{thread} e{index} and e{other} exchanged"), false)
        }
    }
}

fn code(trace: &mut OwnedTrace, random: &mut Random) -> (String, bool) {
    let index = random.below(trace.blocks.len());
    let Some(block) = trace.blocks.get_mut(index) else { return ("nothing".into(), false) };
    if random.below(2) == 0 || block.code.is_empty() {
        block.pc = random.other(block.pc);
        return (format!("blk{index} at {:#x}", block.pc), false);
    }
    let byte = random.below(block.code.len());
    block.code[byte] ^= 1 << random.below(8);
    (format!("blk{index} byte {byte}"), false)
}

fn content(trace: &mut OwnedTrace, random: &mut Random) -> (String, bool) {
    let pages = trace
        .files
        .iter_mut()
        .flat_map(|(id, (_, pages))| pages.values_mut().map(move |bytes| (id, bytes)));
    let mut all: Vec<_> = trace.blobs.iter_mut().chain(pages).collect();
    let index = random.below(all.len());
    let Some((id, bytes)) = all.get_mut(index) else {
        return ("nothing".into(), false);
    };
    let byte = random.below(bytes.len());
    if let Some(byte) = bytes.get_mut(byte) {
        *byte ^= 1 << random.below(8);
    }
    (format!("{id} byte {byte}"), false)
}

fn header(trace: &mut OwnedTrace, random: &mut Random) -> (String, bool) {
    let header = &mut trace.header;
    let mapping = random.below(header.mappings.len());
    let what = match random.below(8) {
        0 => format!("rip {:#x}", changed(&mut header.entry.rip, random)),
        1 => format!("rsp {:#x}", changed(&mut header.entry.rsp, random)),
        2 => format!("ticks per second {}", changed(&mut header.tsc_hz, random)),
        3 => format!("start {}", changed(&mut header.tsc_start, random)),
        4 => {
            let modules = trace.modules.len();
            let Some(module) = trace.modules.get_mut(random.below(modules)) else {
                return ("nothing".into(), false);
            };
            let hooks = module.hooks.len();
            match module.hooks.get_mut(random.below(hooks)) {
                Some((pc, name)) => format!("hook {name} at {:#x}", changed(pc, random)),
                None => format!("module at {:#x}", changed(&mut module.start, random)),
            }
        }
        number => match header.mappings.get_mut(mapping) {
            Some(map) if number == 5 => {
                format!("mapping at {:#x}", changed(&mut map.address, random))
            }
            Some(map) if number == 6 => format!("mapping of {:#x}", changed(&mut map.len, random)),
            Some(map) => {
                map.prot = random.other(map.prot.into()) as u32 & 7;
                format!("mapping's protection {}", map.prot)
            }
            None => "nothing".into(),
        },
    };
    (what, false)
}

fn pick<'a>(
    trace: &'a mut OwnedTrace,
    random: &mut Random,
) -> Option<(String, &'a mut OwnedEvent)> {
    let thread = random.below(trace.threads.len());
    let events = trace.threads.get_mut(thread)?;
    let index = random.below(events.len());
    let owned = events.get_mut(index)?;
    Some((format!("t{thread} e{index} ({})", owned.event.kind().name()), owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "
        map 0x10001000 len=0x1000 prot=5 content=blob0
        blob0 0f0b90c3
        blk0 0x10001000 0f0b
        t0 start
        t0 mutex.lock obj=0x1000 pc=0x10001001 at=+5+5
        t0 syscall nr=0 value=0x2 args=0,0x3000,0x20 write=0x3000:0001
        t0 mutex.unlock obj=0x1000 pc=0x10001002 at=+5
        t0 exit
        end exited=0
    ";

    #[test]
    fn a_seed_gives_a_mutant_that_is_a_trace() {
        let trace: OwnedTrace = TRACE.parse().expect("the text is a trace");
        let mut different = 0;
        for seed in 0..2000 {
            let mutant = mutant(&trace, seed);
            assert_eq!(mutant.trace, super::mutant(&trace, seed).trace, "seed {seed}");
            different += u32::from(mutant.trace != trace);
            assert!(!mutant.is_compared || mutant.trace != trace, "{}", mutant.what);
            if let Ok(bytes) = mutant.trace.to_bytes() {
                crate::fuzzing::trace_reader(&bytes);
            }
        }
        assert!(different > 1500, "{different} of 2000 differ");
    }
}
