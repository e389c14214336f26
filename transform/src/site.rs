//! Where code is, as far as somebody knows.

use serde::Serialize;

/// One function of an inlined stack, innermost first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
pub struct Frame {
    /// Function name.
    pub function: String,
    /// Source file.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
}

/// A place in the program's code.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
pub struct Place {
    /// The guest address asked for.
    pub pc: u64,
    /// The function, its name, file and line; absent without symbols.
    pub frame: Option<Frame>,
    /// Functions that it is inlined into, innermost first.
    pub inlined_into: Vec<Frame>,
    /// The module's file.
    pub module: Option<String>,
    /// The address in the module's file.
    pub offset: u64,
    /// First address of the function that the code belongs to (inlining undone), if it is known.
    /// Two places with the same one are in one function.
    pub function_start: Option<u64>,
}

/// Tells places from addresses.
pub trait Resolver {
    /// The place of a call that returns to `pc`. (So the call itself is at `pc - 1`.)
    fn resolve(&mut self, pc: u64) -> Place;
}

/// Knows nothing: places are addresses.
impl Resolver for () {
    fn resolve(&mut self, pc: u64) -> Place {
        Place { pc, offset: pc, ..Place::default() }
    }
}
