//! Tables of virtual functions, by the symbol tables of their modules.
//!
//! A destructor begins with a store of its class's table to the object, which mostly has that table
//! already: a thread that calls a virtual function meanwhile is not disturbed by it.

use super::files::of_recorded;
use object::{Object, ObjectSymbol, ObjectSymbolTable, RelocationTarget};
use refrain_trace::Module;
use std::ops::Range;

/// How the names of such tables begin (Itanium C++ ABI), and those of their parts while a base is made or
/// destroyed.
const NAMES: [&str; 2] = ["_ZTV", "_ZTC"];

fn is_one(name: &str) -> bool {
    NAMES.iter().any(|start| name.starts_with(start))
}

/// Of a module.
#[derive(Default)]
pub struct Tables {
    /// Where they are.
    pub tables: Vec<Range<u64>>,
    /// Words in which the loader leaves the address of one.
    pub words: Vec<u64>,
}

/// The tables of a module; none if its file is not the recorded one.
pub fn of(module: &Module) -> Tables {
    let tables = of_recorded(module, |elf, place| {
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let tables = symbols
            .filter(|it| it.is_definition() && it.name().is_ok_and(is_one))
            .map(|it| place(it.address())..place(it.address().saturating_add(it.size())))
            .collect();
        let symbols = elf.dynamic_symbol_table();
        let relocations = elf.dynamic_relocations().into_iter().flatten();
        let words = relocations.filter(|(_, relocation)| {
            let RelocationTarget::Symbol(index) = relocation.target() else { return false };
            let symbol = symbols.as_ref().and_then(|all| all.symbol_by_index(index).ok());
            symbol.is_some_and(|symbol| symbol.name().is_ok_and(is_one))
        });
        Some(Tables { tables, words: words.map(|(at, _)| place(at)).collect() })
    });
    tables.unwrap_or_default()
}
