//! Where each module has code of atomic operations, as its debug information says.

use super::Functions;
use refrain_vm::ReadAtomics;
use std::ops::Range;

/// What is known of all modules.
#[derive(Default)]
pub(super) struct Atomics(Vec<Module>);

struct Module {
    range: Range<u64>,
    ranges: Ranges,
}

enum Ranges {
    /// Nobody has asked yet.
    Unread(ReadAtomics),
    /// In ascending order.
    Read(Vec<Range<u64>>),
}

impl Module {
    fn read(&mut self) -> &[Range<u64>] {
        if let Ranges::Unread(read) = &mut self.ranges {
            let read = std::mem::replace(read, Box::new(Vec::new));
            self.ranges = Ranges::Read(read());
        }
        match &self.ranges {
            Ranges::Read(ranges) => ranges,
            Ranges::Unread(_) => &[],
        }
    }
}

impl Atomics {
    /// Another module lies there now, or the same one again.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        self.0.retain(|module| module.range.end <= range.start || range.end <= module.range.start);
    }

    /// The code of atomic operations in a function.
    pub(super) fn within(&mut self, function: &Range<u64>) -> Vec<Range<u64>> {
        let module = self.0.iter_mut().find(|module| module.range.contains(&function.start));
        let Some(ranges) = module.map(Module::read) else { return Vec::new() };
        let first = ranges.partition_point(|range| range.end <= function.start);
        let inside = ranges[first..].iter().take_while(|range| range.start < function.end);
        inside.cloned().collect()
    }
}

impl Functions {
    /// As [`refrain_vm::RecordingEngine::atomics`] says.
    pub(in crate::copy) fn add_atomics(
        &mut self,
        module: Range<u64>,
        digest: u64,
        read: ReadAtomics,
    ) {
        self.known.mix((&module, digest));
        self.atomics.forget(&module);
        self.atomics.0.push(Module { range: module, ranges: Ranges::Unread(read) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_once_and_by_function() {
        let mut functions = Functions::default();
        let mut reads = vec![0x1010..0x1018, 0x1020..0x1030, 0x2000..0x2004].into_iter();
        functions.add_atomics(0x1000..0x3000, 1, Box::new(move || reads.by_ref().collect()));
        functions.add_atomics(0x8000..0x9000, 1, Box::new(|| panic!("nobody asks")));
        let mut within = |range| functions.atomics.within(&range);
        assert_eq!(within(0x1014..0x1021), [0x1010..0x1018, 0x1020..0x1030]);
        assert_eq!(within(0x1020..0x2000).len(), 1);
        assert_eq!(within(0x2004..0x3000), []);
        assert_eq!(within(0x5000..0x6000), []);
        functions.add_atomics(0x2000..0x4000, 1, Box::new(Vec::new));
        assert_eq!(functions.atomics.within(&(0x1000..0x2000)), [], "another module");
    }
}
