//! Global variables, by the symbol tables of their modules.

use super::{Symbols, demangled};
use object::elf::R_X86_64_COPY;
use object::read::ReadCache;
use object::{Object, ObjectSymbol, RelocationFlags, SymbolKind};
use serde::{Deserialize, Serialize};
use std::fs::File;

/// A global variable, or as much as is known of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Variable {
    /// Its name, if there are symbols.
    pub name: Option<String>,
    /// Bytes, if there are symbols.
    pub size: Option<u64>,
    /// How far behind its beginning the address is; without symbols, behind that of the module.
    pub offset: u64,
    /// Path of the module.
    pub module: String,
    /// It is a library's, which uses the program's copy of it.
    #[serde(skip)]
    pub is_a_copy: bool,
}

/// The global variable at an address. `None` if no module is there.
pub fn at(address: u64, symbols: &mut Symbols) -> Option<Variable> {
    let (module, file) = symbols.module(address)?;
    let (path, in_module) = (module.path.clone(), address.wrapping_sub(module.bias));
    let found = file.and_then(|file| {
        let data = ReadCache::new(File::open(file).ok()?);
        let elf = object::File::parse(&data).ok()?;
        let holds = |start: u64, size: u64| in_module.wrapping_sub(start) < size;
        let symbol = elf
            .symbols()
            .chain(elf.dynamic_symbols())
            .filter(|it| it.is_definition() && it.kind() == SymbolKind::Data)
            .find(|it| holds(it.address(), it.size()))?;
        let name = demangled(symbol.name().ok()?);
        let is_a_copy = elf.dynamic_relocations().into_iter().flatten().any(|(at, relocation)| {
            at == symbol.address()
                && matches!(relocation.flags(), RelocationFlags::Elf { r_type: R_X86_64_COPY })
        });
        Some((name, symbol.size(), in_module.wrapping_sub(symbol.address()), is_a_copy))
    });
    Some(match found {
        Some((name, size, offset, is_a_copy)) => {
            Variable { name: Some(name), size: Some(size), offset, module: path, is_a_copy }
        }
        None => {
            Variable { name: None, size: None, offset: in_module, module: path, is_a_copy: false }
        }
    })
}
