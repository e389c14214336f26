//! What a trace says of the guest's memory before it is replayed: which thread has which stack, and which
//! memory holds no data of the program's.

use rangemap::RangeMap;
use refrain_trace::linux::{CLONE, MMAP, MREMAP, MUNMAP};
use refrain_trace::payload::Effect;
use refrain_trace::{EventKind, ThreadId, Trace};
use refrain_transform::Interval;
use std::ops::Range;

/// The guest's memory, as far as the ranking must know it.
#[derive(Debug)]
pub(super) struct Ground {
    /// Per thread: its stack with its thread-local storage, where the trace tells.
    pub(super) own: Vec<Option<Range<u64>>>,
    /// What holds no data of the program's.
    pub(super) constant: Vec<Interval>,
}

/// Mappings, each with the range that was asked for: a stack is one of them, its guard pages included,
/// however the kernel merges it with its neighbours.
type Mapped = RangeMap<u64, Range<u64>>;

enum Change {
    Mapped(Range<u64>),
    Unmapped(Range<u64>),
    /// A thread was created with its stack pointer here.
    Created(ThreadId, u64),
}

impl Ground {
    /// Reads the changes of the address space, in the order of their time.
    pub(super) fn of(trace: &Trace) -> crate::Result<Ground> {
        let mut changes = Vec::new();
        for thread in (0..trace.threads()).map(ThreadId) {
            let mut cursor = trace.cursor(thread);
            while let Some(event) = cursor.next()? {
                let relevant = matches!(event.nr, MMAP | MUNMAP | MREMAP | CLONE);
                if event.kind() != EventKind::Syscall || !relevant || (event.value as i64) < 0 {
                    continue;
                }
                let Some(record) = cursor.payload()? else { continue };
                let range = |start: u64, len: u64| start..start.saturating_add(len);
                let mut change = |change| changes.push((event.end, thread, change));
                match (event.nr, record.effect) {
                    (MMAP, _) => change(Change::Mapped(range(event.value, record.args[1]))),
                    (MUNMAP, _) => {
                        change(Change::Unmapped(range(record.args[0], record.args[1])));
                    }
                    (MREMAP, _) => {
                        change(Change::Unmapped(range(record.args[0], record.args[1])));
                        change(Change::Mapped(range(event.value, record.args[2])));
                    }
                    (_, Effect::Clone { child }) => {
                        change(Change::Created(child, record.args[1]));
                    }
                    _ => {}
                }
            }
        }
        // Stable: what one thread did at one time stays in its order.
        changes.sort_by_key(|(end, thread, _)| (*end, *thread));
        let mut ground = Ground::initial(trace);
        let mut mapped = Mapped::new();
        for (_, _, change) in changes {
            ground.apply(change, &mut mapped);
        }
        Ok(ground)
    }

    fn initial(trace: &Trace) -> Ground {
        let header = trace.header();
        let mut own = vec![None; trace.threads() as usize];
        if let Some(main) = own.first_mut() {
            let stack = header.mappings.iter().map(|m| m.address..m.address.saturating_add(m.len));
            *main = stack.into_iter().find(|range| range.contains(&header.entry.rsp));
        }
        let ranges = trace.modules().iter().flat_map(|module| &module.constant);
        let constant = ranges.map(|&(start, end)| Interval { start, end }).collect();
        Ground { own, constant }
    }

    fn apply(&mut self, change: Change, mapped: &mut Mapped) {
        match change {
            Change::Mapped(range) if range.is_empty() => {}
            Change::Mapped(range) => mapped.insert(range.clone(), range),
            Change::Unmapped(range) => {
                if !range.is_empty() {
                    mapped.remove(range.clone());
                }
                // A library was unloaded; who knows what lies there next.
                let gone = |c: &Interval| c.start < range.end && range.start < c.end;
                self.constant.retain(|constant| !gone(constant));
            }
            Change::Created(child, sp) => {
                let stack = mapped.get_key_value(&sp.saturating_sub(1));
                if let Some(own) = self.own.get_mut(child.index()) {
                    *own = stack.map(|(stack, _)| stack.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_the_mapping_below_the_first_stack_pointer() {
        let constant =
            vec![Interval { start: 0x100, end: 0x200 }, Interval { start: 0x900, end: 0xa00 }];
        let mut ground = Ground { own: vec![None; 3], constant };
        let mut mapped = Mapped::new();
        for change in [
            Change::Mapped(0x1000..0x9000),
            Change::Unmapped(0x1000..0x2000),
            Change::Unmapped(0x6000..0x7000),
            Change::Mapped(0x7000..0x8000),
            Change::Created(ThreadId(1), 0x6000),
            Change::Created(ThreadId(2), 0x6800),
            Change::Created(ThreadId(7), 0x6800),
            Change::Unmapped(0x180..0x190),
        ] {
            ground.apply(change, &mut mapped);
        }
        assert_eq!(ground.own, [None, Some(0x2000..0x6000), None]);
        assert_eq!(ground.constant, [Interval { start: 0x900, end: 0xa00 }]);
        let left: Vec<_> = mapped.into_iter().map(|(range, _)| range).collect();
        assert_eq!(left, [0x2000..0x6000, 0x7000..0x8000, 0x8000..0x9000]);
    }
}
