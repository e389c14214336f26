//! Where the C library's allocator is.

use super::files::build_id;
use object::read::ReadCache;
use object::{Object, ObjectSegment, ObjectSymbol};
use refrain_trace::Module;
use std::fs::File;
use std::ops::Range;

/// Functions of the allocator that libraries export: musl's and glibc's are each one piece of code.
const FUNCTIONS: [&str; 12] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "mallopt",
    "malloc_trim",
    "malloc_usable_size",
    "mallinfo",
];

/// The code of a module's allocator: from the exported function before its first one to the one behind
/// its last. `None` if the module's file has none, or cannot be read.
pub(crate) fn code(module: &Module) -> Option<Range<u64>> {
    let data = ReadCache::new(File::open(&module.path).ok()?);
    let elf = object::File::parse(&data).ok()?;
    if build_id(&elf)? != module.build_id {
        return None;
    }
    let lowest = elf.segments().map(|segment| segment.address()).min()?;
    let functions: Vec<(u64, &str)> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.kind() == object::SymbolKind::Text)
        .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)))
        .collect();
    let own = || functions.iter().filter(|(_, name)| FUNCTIONS.contains(name)).map(|&(at, _)| at);
    let (first, last) = (own().min()?, own().max()?);
    let starts = || functions.iter().map(|&(at, _)| at);
    let begin = starts().filter(|&at| at < first).max().unwrap_or(first);
    let end = starts().filter(|&at| at > last).min().unwrap_or(last + 1);
    let place = |at: u64| at.wrapping_sub(lowest & !0xfff).wrapping_add(module.start);
    Some(place(begin)..place(end))
}
