//! Functions whose calls are one step, by their names: those of allocators, and those by which the
//! threads of OpenMP share work.

use super::files::of_recorded;
use object::{Object, ObjectSymbol, SymbolKind};
use refrain_analysis::OneStep::{self, *};
use refrain_trace::Module;
use std::ops::Range;

/// What C has, and what goes by these names behind a [prefix](PREFIXES).
const FUNCTIONS: [(&str, OneStep); 12] = [
    ("malloc", Size),
    ("valloc", Size),
    ("pvalloc", Size),
    ("calloc", Product),
    ("memalign", SecondSize),
    ("aligned_alloc", SecondSize),
    ("posix_memalign", ThirdSize),
    ("realloc", Again),
    ("reallocarray", AgainProduct),
    ("reallocf", Again),
    ("free", Free),
    ("cfree", Free),
];

/// Of jemalloc, tcmalloc and mimalloc.
const PREFIXES: [&str; 4] = ["", "je_", "tc_", "mi_"];

/// Operators of C++. A program's own are its own affair.
const OPERATORS: [(&str, OneStep); 14] = [
    ("_Znwm", Size),
    ("_Znam", Size),
    ("_ZnwmRKSt9nothrow_t", Size),
    ("_ZnamRKSt9nothrow_t", Size),
    ("_ZnwmSt11align_val_t", Size),
    ("_ZnamSt11align_val_t", Size),
    ("_ZdlPv", Free),
    ("_ZdaPv", Free),
    ("_ZdlPvm", Free),
    ("_ZdaPvm", Free),
    ("_ZdlPvSt11align_val_t", Free),
    ("_ZdaPvSt11align_val_t", Free),
    ("_ZdlPvmSt11align_val_t", Free),
    ("_ZdaPvmSt11align_val_t", Free),
];

/// Functions of GCC's and LLVM's OpenMP that tell a thread which sections or iterations to do next, or
/// that none are left: how their names begin and end.
const SHARING: [(&str, &str); 11] = [
    ("GOMP_loop_", "_start"),
    ("GOMP_loop_", "_next"),
    ("GOMP_loop_", "_end_nowait"),
    ("GOMP_sections", "_start"),
    ("GOMP_sections", "_next"),
    ("GOMP_sections", "_end_nowait"),
    ("GOMP_single", "_start"),
    ("__kmpc_dispatch_init", ""),
    ("__kmpc_dispatch_next", ""),
    ("__kmpc_next_section", ""),
    ("__kmpc_single", ""),
];

/// Whether a function shares work, and does no more than that: the iterations of some loops are
/// `ordered`, and what `single` has computed may be copied to all.
fn shares(name: &str) -> bool {
    let is_one = |(begin, end): &(&str, &str)| name.starts_with(begin) && name.ends_with(end);
    SHARING.iter().any(is_one) && !["_ordered_", "_copy_"].iter().any(|more| name.contains(more))
}

/// The function of a name.
fn by_name(name: &str, is_system: bool) -> Option<OneStep> {
    let find = |all: &[(&str, OneStep)], name: &str| {
        all.iter().find(|(other, _)| *other == name).map(|&(_, function)| function)
    };
    let plain = || PREFIXES.iter().filter_map(|prefix| name.strip_prefix(prefix));
    let function = plain().find_map(|name| find(&FUNCTIONS, name));
    let function = function.or_else(|| find(&OPERATORS, name).filter(|_| is_system));
    function.or_else(|| shares(name).then_some(Shares))
}

/// Such functions that a module defines, by their addresses. None if the module's file is
/// not the recorded one.
pub fn functions(module: &Module, is_system: bool) -> Vec<(u64, OneStep)> {
    let named = |text: &Text| {
        let named = text.iter().filter_map(|(at, name)| Some((*at, by_name(name, is_system)?)));
        named.collect()
    };
    names(module, Names::All).as_ref().map_or_else(Vec::new, named)
}

/// The code of a C library's allocator, which is one piece in glibc and in musl: from the function before
/// its first one to the one behind its last, of those that it exports.
pub fn code(module: &Module) -> Option<Range<u64>> {
    let text = names(module, Names::Exported)?;
    let own = || {
        let own = text.iter().filter(|(_, name)| FUNCTIONS.iter().any(|(other, _)| name == other));
        own.map(|&(at, _)| at)
    };
    let (first, last) = (own().min()?, own().max()?);
    let starts = || text.iter().map(|&(at, _)| at);
    let begin = starts().filter(|&at| at < first).max().unwrap_or(first);
    let end = starts().filter(|&at| at > last).min().unwrap_or(last + 1);
    Some(begin..end)
}

/// The functions of a module, by their addresses.
pub(super) type Text = Vec<(u64, String)>;

/// Which functions of a module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// Those that it exports.
    Exported,
    /// All that it names.
    All,
}

/// The functions of a module. None if the module's file is not the recorded one.
pub(super) fn names(module: &Module, which: Names) -> Option<Text> {
    of_recorded(module, |elf, place| {
        let others = elf.symbols().filter(|_| which == Names::All);
        let symbols = elf.dynamic_symbols().chain(others);
        let text = symbols.filter(|it| it.is_definition() && it.kind() == SymbolKind::Text);
        let named = text.filter_map(|it| Some((place(it.address()), it.name().ok()?.to_owned())));
        Some(named.collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(by_name("malloc", false), Some(Size));
        assert_eq!(by_name("je_realloc", false), Some(Again));
        assert_eq!(by_name("je_malloc_stats", true), None);
        assert_eq!(by_name("_ZdlPvm", true), Some(Free));
        assert_eq!(by_name("_ZdlPvm", false), None, "the program's own");
        assert_eq!(by_name("GOMP_loop_ull_nonmonotonic_dynamic_next", true), Some(Shares));
        assert_eq!(by_name("GOMP_sections2_start", true), Some(Shares));
        assert_eq!(by_name("GOMP_single_copy_start", true), None, "it waits for a value");
        assert_eq!(by_name("GOMP_loop_ordered_static_next", true), None, "it lets the next one in");
        assert_eq!(by_name("GOMP_loop_end", true), None, "it is a barrier");
    }
}
