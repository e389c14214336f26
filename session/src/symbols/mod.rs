//! From guest addresses to functions and source lines, inlined calls included.
//!
//! A trace names the modules that were mapped and their build ids. A module's file is used only
//! if its build id is still the recorded one; otherwise a separate debug file of that build id
//! is looked for; otherwise the address stays `module+offset`. An old trace therefore never gets
//! the lines of a newer program.

mod files;
pub mod one_step;
pub mod tasking;
pub mod variables;
pub mod vtables;

pub use refrain_transform::{Frame, Place};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolized, Symbolizer};
use refrain_trace::{Event, EventKind, Module};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// An address in executed code, and how it was come by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Code {
    /// The address of an instruction.
    At(u64),
    /// The address after a call instruction, which is what is meant. It may already belong to
    /// another line, or to another function.
    After(u64),
}

impl Code {
    /// Of an event: an access by an instruction is there, a call of the library's or the kernel's has
    /// returned.
    pub fn of(event: &Event) -> Code {
        match event.kind() {
            EventKind::Atomic | EventKind::SyncLoad | EventKind::SyncStore => Code::At(event.pc),
            kind if kind.is_of_access() => Code::At(event.pc),
            _ => Code::After(event.pc),
        }
    }

    /// The address itself.
    pub fn pc(self) -> u64 {
        match self {
            Code::At(pc) | Code::After(pc) => pc,
        }
    }

    /// An address within the instruction that is meant.
    fn within(self) -> u64 {
        match self {
            Code::At(pc) => pc,
            Code::After(pc) => pc.saturating_sub(1),
        }
    }
}

/// The symbols of a trace's modules; answers are remembered.
pub struct Symbols {
    modules: Vec<Module>,
    /// By position in `modules`: the file to read, once it has been looked for.
    files: Vec<Option<Option<PathBuf>>>,
    symbolizer: Symbolizer,
    known: BTreeMap<Code, Place>,
}

impl Symbols {
    /// Of these modules. Files are opened when the first address asks for them.
    pub fn new(modules: &[Module]) -> Symbols {
        let mut modules = modules.to_vec();
        modules.sort_by_key(|module| module.start);
        let symbolizer = Symbolizer::builder()
            .enable_code_info(true)
            .enable_inlined_fns(true)
            .enable_demangling(false)
            .enable_auto_reload(false)
            .build();
        Symbols { files: vec![None; modules.len()], modules, symbolizer, known: BTreeMap::new() }
    }

    /// The place of one address.
    pub fn place(&mut self, code: Code) -> Place {
        self.places(&[code]).pop().expect("one address has one place")
    }

    /// The places of many addresses, in their order.
    pub fn places(&mut self, codes: &[Code]) -> Vec<Place> {
        self.learn(codes);
        codes.iter().map(|code| self.known[code].clone()).collect()
    }

    /// Looks up what is not known yet, one module at a time.
    fn learn(&mut self, codes: &[Code]) {
        let mut wanted: BTreeMap<Option<usize>, Vec<Code>> = BTreeMap::new();
        for &code in codes.iter().filter(|code| !self.known.contains_key(code)) {
            wanted.entry(self.module_of(code.within())).or_default().push(code);
        }
        for (index, mut codes) in wanted {
            codes.sort_unstable();
            codes.dedup();
            match index {
                Some(index) => self.learn_in(index, &codes),
                None => {
                    for code in codes {
                        self.known.insert(code, Place::unknown(code.pc()));
                    }
                }
            }
        }
    }

    /// The module that an address lies in, with the file that has its symbols.
    pub fn module(&mut self, address: u64) -> Option<(&Module, Option<PathBuf>)> {
        let index = self.module_of(address)?;
        let module = &self.modules[index];
        let file = self.files[index].get_or_insert_with(|| files::of_module(module)).clone();
        Some((module, file))
    }

    fn module_of(&self, pc: u64) -> Option<usize> {
        let after = self.modules.partition_point(|module| module.start <= pc);
        let index = after.checked_sub(1)?;
        (pc < self.modules[index].end).then_some(index)
    }

    fn learn_in(&mut self, index: usize, codes: &[Code]) {
        let module = &self.modules[index];
        let file = self.files[index].get_or_insert_with(|| files::of_module(module)).clone();
        let offsets: Vec<u64> =
            codes.iter().map(|code| code.within().wrapping_sub(module.bias)).collect();
        let found = file.and_then(|file| {
            self.symbolizer
                .symbolize(&Source::Elf(Elf::new(file)), Input::VirtOffset(&offsets))
                .inspect_err(|error| tracing::debug!("no symbols of {}: {error}", module.path))
                .ok()
        });
        let mut found = found.unwrap_or_default().into_iter();
        for &code in codes {
            let (frames, in_function) = match found.next() {
                Some(Symbolized::Sym(symbol)) => (frames(&symbol), Some(symbol.offset as u64)),
                _ => (Vec::new(), None),
            };
            let in_module = code.pc().wrapping_sub(module.bias);
            let place = Place {
                pc: code.pc(),
                module: Some(module.path.clone()),
                in_module,
                in_function,
                frames,
            };
            self.known.insert(code, place);
        }
    }
}

/// For the ranking, which puts together what is one function in the source.
impl refrain_transform::Resolver for Symbols {
    fn resolve(&mut self, pc: u64) -> Place {
        let place = self.place(Code::After(pc));
        // What a library has inlined into the program is not what the programmer wrote.
        let own = place.frames.iter().position(|frame| !frame.is_of_a_library());
        let own = own.unwrap_or(place.frames.len().saturating_sub(1));
        // It was the call before `pc` that was looked up.
        let in_function = place.in_function.map(|offset| offset.wrapping_add(1));
        Place { in_function, frames: place.frames.into_iter().skip(own).collect(), ..place }
    }
}

/// The frames of a symbol, innermost first; blazesym reports the outermost first.
fn frames(symbol: &Sym<'_>) -> Vec<Frame> {
    let frame = |name: &str, info: Option<&blazesym::symbolize::CodeInfo<'_>>| Frame {
        function: demangled(name),
        file: info.map(|info| info.to_path().display().to_string()),
        line: info.and_then(|info| info.line).filter(|&line| line != 0),
    };
    let inlined =
        symbol.inlined.iter().rev().map(|inner| frame(&inner.name, inner.code_info.as_ref()));
    inlined.chain([frame(&symbol.name, symbol.code_info.as_deref())]).collect()
}

/// The name as its language writes it. A name without a mangled one's prefix is C's, whatever else
/// it could be read as: to a demangler of C++, `w` is `wchar_t`.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let mangled = name.starts_with("_Z") || name.starts_with("__Z");
    let symbol = mangled.then(|| cpp_demangle::Symbol::new(name).ok()).flatten();
    symbol.and_then(|symbol| symbol.demangle().ok()).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests;
