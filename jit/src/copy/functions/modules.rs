//! The modules of the guest. The engine is told of a module when it is mapped, and reads where the functions of
//! the module are when somebody asks for a function: a program of one thread has many modules, and nobody asks.

use super::Functions;
use refrain_vm::{ModuleCode, ModuleFunctions, ReadFunctions};
use std::ops::Range;

/// Modules that wait at most. (Each may hold a file open.)
const MOST: usize = 128;

/// A module whose functions are to be read.
pub(super) struct Unread {
    trusted: bool,
    read: ReadFunctions,
}

impl Functions {
    /// There is one more module. Its functions are read when somebody asks for a function.
    pub(in crate::copy) fn add(&mut self, module: &ModuleCode<'_>, read: ReadFunctions) {
        let &ModuleCode { ref code, constant, trusted, build } = module;
        self.known.module(build, code, constant, trusted);
        self.atomics.forget(code);
        self.constant.extend_from_slice(constant);
        self.constant.sort_unstable_by_key(|range| range.start);
        self.code.push(code.clone());
        self.unread.push(Unread { trusted, read });
        if self.unread.len() > MOST {
            self.settle();
        }
    }

    /// Reads the functions of all modules, in the order in which these came.
    pub(super) fn settle(&mut self) {
        if self.unread.is_empty() {
            return;
        }
        for Unread { trusted, read } in std::mem::take(&mut self.unread) {
            self.take(read(), trusted);
        }
        // Not `sort_unstable`: modules come sorted, and merging runs costs less.
        self.starts.sort();
        self.starts.dedup();
    }

    fn take(&mut self, functions: ModuleFunctions, trusted: bool) {
        let ModuleFunctions { starts, followed, code } = functions;
        let Some((&first, &last)) = starts.iter().min().zip(starts.iter().max()) else { return };
        let range = first..last.saturating_add(1);
        self.modules.push((range.clone(), trusted));
        self.lasts.insert(last);
        self.starts.extend(starts);
        // What was found in earlier code of this range does not count any more. The other modules' code is as it
        // was.
        self.followed.retain(|start, _| !range.contains(start));
        self.followed.extend(followed.iter().map(|function| (function.start, function.end)));
        self.found.retain(|start, _| !range.contains(start));
        self.targets.retain(|target, _| !range.contains(target));
        self.locked.retain(|start, _| !range.contains(start));
        self.behind_stubs.retain(|start, _| !range.contains(start));
        self.operations.retain(|start, _| !range.contains(start));
        self.locked_words.retain(|(start, _), _| !range.contains(start));
        self.wrappers.retain(|(start, _), _| !range.contains(start));
        self.calls_beside.retain(|start, _| !range.contains(start));
        self.second_looks.retain(|start, _| !range.contains(start));
        self.pieces.forget();
        self.pieces.add(range, code);
        self.yields.clear();
        self.waits.get_mut().clear();
        self.written.get_mut().clear();
    }

    /// The guest has changed the bytes of this range: if code is among them, what was found before does not count.
    pub(in crate::copy) fn changed(&mut self, range: &Range<u64>) {
        if self.code.iter().any(|code| code.start < range.end && range.start < code.end) {
            self.known.mix(range);
        }
    }
}

#[cfg(test)]
impl Functions {
    /// Adds a module with these functions, and reads them.
    pub(super) fn with(
        &mut self,
        starts: &[u64],
        followed: &[Range<u64>],
        constant: &[Range<u64>],
        trusted: bool,
        build: Option<&str>,
    ) {
        let (first, last) = (starts.iter().min(), starts.iter().max());
        let code = first.zip(last).map_or(0..0, |(first, last)| *first..last.saturating_add(1));
        let (starts, followed) = (starts.to_vec(), followed.to_vec());
        let read = ModuleFunctions { starts, followed, code: None };
        self.add(&ModuleCode { code, constant, trusted, build }, Box::new(|| read));
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Nobody asks for functions, then somebody does: the modules are read in their order, each once. Where
    /// many wait, they are read at once.
    #[test]
    fn functions_are_read_when_somebody_asks() {
        static READ: AtomicUsize = AtomicUsize::new(0);
        let mut functions = Functions::default();
        let module = |functions: &mut Functions, start: u64, place: usize| {
            let code = start..start + 0x1000;
            let module = ModuleCode { code, constant: &[], trusted: false, build: Some("a") };
            let read = move || {
                assert_eq!(READ.fetch_add(1, Ordering::SeqCst), place);
                ModuleFunctions { starts: vec![start + 0x10, start], ..ModuleFunctions::default() }
            };
            functions.add(&module, Box::new(read));
        };
        let empty = functions.surroundings();
        module(&mut functions, 0x2000, 0);
        module(&mut functions, 0x1000, 1);
        assert_ne!(functions.surroundings(), empty, "what is found may depend on them");
        assert_eq!(READ.load(Ordering::SeqCst), 0);
        functions.settle();
        functions.settle();
        assert_eq!(READ.load(Ordering::SeqCst), 2);
        assert_eq!(functions.starts, [0x1000, 0x1010, 0x2000, 0x2010]);
        for more in 0..=MOST {
            module(&mut functions, 0x10_0000 + 0x1000 * more as u64, 2 + more);
        }
        assert_eq!(READ.load(Ordering::SeqCst), 3 + MOST);
    }

    /// Code that changes is told before its functions are read, too.
    #[test]
    fn changes_of_code_are_told() {
        let mut functions = Functions::default();
        let module = ModuleCode { code: 0x1000..0x2000, ..ModuleCode::default() };
        let module = ModuleCode { build: Some("a"), ..module };
        functions.add(&module, Box::new(|| unreachable!("nobody asks")));
        let before = functions.surroundings();
        functions.changed(&(0x2000..0x3000));
        assert_eq!(functions.surroundings(), before);
        functions.changed(&(0x1fff..0x3000));
        assert_ne!(functions.surroundings(), before);
    }
}
