//! A place in a program, as reports name it.

use refrain_trace::harmless::escape;
use serde::{Deserialize, Serialize};

/// Where an address lies.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    /// The guest address.
    #[serde(with = "refrain_trace::hex")]
    pub pc: u64,
    /// Path of the module, if the address lies in one.
    pub module: Option<String>,
    /// The address in the module's file, as `addr2line` takes it.
    #[serde(with = "refrain_trace::hex")]
    pub in_module: u64,
    /// Distance from the start of the function, if that is known.
    #[serde(skip)]
    pub in_function: Option<u64>,
    /// Functions, innermost first: all but the last are inlined. Empty if there are no symbols.
    pub frames: Vec<Frame>,
}

/// A function, and where in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled name.
    pub function: String,
    /// Source file, if there is debug information.
    pub file: Option<String>,
    /// Source line.
    pub line: Option<u32>,
}

impl Place {
    /// An address outside all modules.
    pub fn unknown(pc: u64) -> Place {
        Place { pc, module: None, in_module: pc, in_function: None, frames: Vec::new() }
    }

    /// First address of the function that the code belongs to (inlining undone), if it is known. Two
    /// places with the same one are in one function.
    pub(crate) fn function_start(&self) -> Option<u64> {
        self.in_function.map(|offset| self.pc.wrapping_sub(offset))
    }

    /// One line: the innermost function with its file and line, or as near as can be told.
    pub fn short(&self) -> String {
        escape(&self.name())
    }

    fn name(&self) -> String {
        let module = self.module.as_deref().map(base);
        match (self.frames.first(), module) {
            (Some(frame), module) => match (frame.source(), module) {
                (Some(source), _) => format!("{} {source}", frame.function),
                (None, Some(module)) => format!("{} ({module})", self.function_offset(frame)),
                (None, None) => self.function_offset(frame),
            },
            (None, Some(module)) => format!("{module}+{:#x}", self.in_module),
            (None, None) => format!("{:#x}", self.pc),
        }
    }

    /// The functions of this place, innermost first, each as a line.
    pub fn lines(&self) -> Vec<String> {
        let module = self.module.as_deref().map(base);
        let line = |frame: &Frame| match (frame.source(), module) {
            (Some(source), _) => escape(&format!("{} {source}", frame.function)),
            (None, Some(module)) => escape(&format!("{} ({module})", frame.function)),
            (None, None) => escape(&frame.function),
        };
        match self.frames.is_empty() {
            true => vec![self.short()],
            false => self.frames.iter().map(line).collect(),
        }
    }

    /// The innermost function, or where it would be.
    pub fn function(&self) -> String {
        self.frames.first().map_or_else(|| self.short(), |frame| escape(&frame.function))
    }

    /// The functions of the program into which the innermost one is inlined, from the inside out. (What
    /// the standard library calls it by, as it does a thread's function, says nothing.)
    pub fn inlined_into(&self) -> impl Iterator<Item = String> {
        let outer = self.frames.iter().skip(1).filter(|frame| !frame.is_of_a_library());
        outer.map(|frame| match frame.source() {
            Some(source) => escape(&format!("inlined into {} {source}", frame.function)),
            None => escape(&format!("inlined into {}", frame.function)),
        })
    }

    fn function_offset(&self, frame: &Frame) -> String {
        match self.in_function {
            Some(offset) => format!("{}+{offset:#x}", frame.function),
            None => frame.function.clone(),
        }
    }
}

/// Where the sources of languages' own libraries lie, and of crates that are nothing but locks.
const LIBRARY_FILES: [&str; 6] =
    ["/rustc/", "/lib/rustlib/src/", "/include/c++/", "/lib/gcc/", "/parking_lot", "/lock_api-"];
/// How names in them begin, for where files are not known.
const LIBRARY_NAMES: [&str; 6] =
    ["core::", "std::", "alloc::", "__gnu_cxx::", "parking_lot", "lock_api::"];

impl Frame {
    /// Whether the function is a language's own, and no line of the program's.
    pub fn is_of_a_library(&self) -> bool {
        let name = self.function.trim_start_matches('<');
        match &self.file {
            Some(file) => {
                LIBRARY_FILES.iter().any(|part| file.contains(part))
                    || file.contains("gthr-default.h")
            }
            None => LIBRARY_NAMES.iter().any(|start| name.starts_with(start)),
        }
    }

    /// `file.c:12`, the directory left out.
    fn source(&self) -> Option<String> {
        let file = base(self.file.as_deref()?);
        Some(match self.line {
            Some(line) => format!("{file}:{line}"),
            None => file.to_owned(),
        })
    }
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Tells places from addresses.
pub trait Resolver {
    /// The place of a call that returns to `pc`. (So the call itself is at `pc - 1`.)
    fn resolve(&mut self, pc: u64) -> Place;
}

/// Knows nothing: places are addresses.
impl Resolver for () {
    fn resolve(&mut self, pc: u64) -> Place {
        Place::unknown(pc)
    }
}
