//! Tables of virtual functions, by the symbol tables of their modules.
//!
//! A destructor begins with a store of its class's table to the object, which mostly has that table
//! already: a thread that calls a virtual function meanwhile is not disturbed by it.

use super::files::build_id;
use object::read::ReadCache;
use object::{Object, ObjectSegment, ObjectSymbol, RelocationTarget};
use refrain_trace::Module;
use std::fs::File;
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
    read(module).unwrap_or_default()
}

fn read(module: &Module) -> Option<Tables> {
    if !std::fs::metadata(&module.path).ok()?.is_file() {
        return None;
    }
    let data = ReadCache::new(File::open(&module.path).ok()?);
    let elf = object::File::parse(&data).ok()?;
    if build_id(&elf)? != module.build_id {
        return None;
    }
    let lowest = elf.segments().map(|segment| segment.address()).min()?;
    let place = |at: u64| at.wrapping_sub(lowest & !0xfff).wrapping_add(module.start);
    let symbols = elf.symbols().chain(elf.dynamic_symbols());
    let tables = symbols
        .filter(|it| it.is_definition() && it.name().is_ok_and(is_one))
        .map(|it| place(it.address())..place(it.address().saturating_add(it.size())))
        .collect();
    let mut words = Vec::new();
    for (at, relocation) in elf.dynamic_relocations().into_iter().flatten() {
        if let RelocationTarget::Symbol(index) = relocation.target()
            && let Some(table) = elf.dynamic_symbol_table()
            && let Ok(symbol) = object::ObjectSymbolTable::symbol_by_index(&table, index)
            && symbol.name().is_ok_and(is_one)
        {
            words.push(place(at));
        }
    }
    Some(Tables { tables, words })
}
