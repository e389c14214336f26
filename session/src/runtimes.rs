//! What programs are built with, as far as recordings depend on it.
//!
//! Some language runtimes synchronize their threads through plain loads and stores, at places that no
//! idiom tells: scheduling in Go, safepoints in HotSpot, optimized code in V8 and JavaScriptCore, the collector's
//! stops in Mono, the progress of schedulers in Erlang's BEAM, compiled Lisp in SBCL's image, of whose functions
//! nobody tells the bounds, the virtual machine and the parallel collector of Guile, what GHC makes of
//! Haskell, whose threads share every value that has not been computed yet, Racket's places and futures,
//! the stubs and tables of .NET, which threads fill in as they need them, and the collector and interrupts of
//! Poly/ML. Boehm's collector searches the stacks of all threads for pointers, dead frames too; programs
//! that create threads by it (Crystal's), or whose runtime does (ECL), are listed.
//!
//! Recordings of programs that have such a runtime order every access, unless the user says otherwise.
//! A program whose runtime is not listed here costs a diverged replay, from which the next recording
//! learns; one that is listed without need costs time. Neither makes a replay wrong.
//!
//! Programs that a sanitizer is built into cannot be recorded: its memory lies where a recording has its own.

use memchr::memmem;
use object::read::ReadCache;
use object::{Object, ObjectSection};
use std::fs::File;
use std::path::Path;

/// How a program shows what is built into it.
enum Mark {
    /// It has this section.
    Section(&'static str),
    /// The names for its dynamic linker, libraries among them, have one that begins so.
    Name(&'static str),
    /// Its constants, which are few, have this one. A program that loads its runtime does not name it otherwise.
    Constant(&'static str),
    /// The names have these two, which hardly any other program has both.
    Both(&'static str, &'static str),
}

const RUNTIMES: [(Mark, &str); 18] = [
    (Mark::Section(".go.buildinfo"), "Go"),
    // Some programs are built without that, and none without its table of functions.
    (Mark::Section(".gopclntab"), "Go"),
    (Mark::Section(".data.rel.ro.gopclntab"), "Go"),
    (Mark::Name("libjli.so"), "Java"),
    (Mark::Name("libnode.so"), "Node"),
    (Mark::Name("_ZN2v87Isolate3New"), "V8"),
    // Programs that hide their engine (Deno, Bun) show what extensions call of it.
    (Mark::Name("napi_create_reference"), "a JavaScript engine"),
    (Mark::Name("mono_jit_exec"), "Mono"),
    (Mark::Name("enif_"), "Erlang"),
    (Mark::Name("call_into_lisp"), "SBCL"),
    (Mark::Name("scm_shell"), "Guile"),
    (Mark::Section(".rackboot"), "Racket"),
    (Mark::Name("polymain"), "Poly/ML"),
    (Mark::Name("libecl.so"), "ECL"),
    (Mark::Name("GC_pthread_create"), "Boehm's collector"),
    (Mark::Constant("hostfxr_main"), ".NET"),
    (Mark::Name("libHSrts"), "GHC"),
    // A program without symbols that has all its libraries in itself.
    (Mark::Both("eventfd_write", "clock_getcpuclockid"), "GHC"),
];

/// As many bytes of constants are few.
const FEW: u64 = 1 << 20;

/// What a compiler builds into a program by `-fsanitize`.
const SANITIZERS: [(Mark, &str); 5] = [
    (Mark::Name("__asan_init"), "AddressSanitizer"),
    (Mark::Name("__hwasan_init"), "HWAddressSanitizer"),
    (Mark::Name("__lsan_init"), "LeakSanitizer"),
    (Mark::Name("__msan_init"), "MemorySanitizer"),
    (Mark::Name("__tsan_init"), "ThreadSanitizer"),
];

/// The runtime of the program in a file, if it is one of these.
pub fn of(program: &Path) -> Option<&'static str> {
    marked(program, &RUNTIMES)
}

/// The sanitizer that is built into the program in a file, if there is one.
pub(crate) fn sanitizer(program: &Path) -> Option<&'static str> {
    marked(program, &SANITIZERS)
}

/// What the program in a file shows the mark of.
fn marked(program: &Path, marks: &[(Mark, &'static str)]) -> Option<&'static str> {
    let data = ReadCache::new(File::open(program).ok()?);
    let elf = object::File::parse(&data).ok()?;
    let names = elf.section_by_name(".dynstr").and_then(|section| section.data().ok());
    let constants = elf.section_by_name(".rodata").filter(|section| section.size() <= FEW);
    let constants = constants.and_then(|section| section.data().ok());
    let shown = Shown {
        names: names.unwrap_or_default(),
        constants: constants.unwrap_or_default(),
        has_section: |name: &str| elf.section_by_name(name).is_some(),
    };
    first(marks, &shown)
}

/// Where a program may have marks.
struct Shown<'a, F> {
    names: &'a [u8],
    constants: &'a [u8],
    has_section: F,
}

/// The first mark that a program has.
fn first(
    marks: &[(Mark, &'static str)],
    Shown { names, constants, has_section }: &Shown<'_, impl Fn(&str) -> bool>,
) -> Option<&'static str> {
    let is_marked = |mark: &Mark| match mark {
        Mark::Section(name) => has_section(name),
        Mark::Name(begin) => has_name(names, begin),
        Mark::Constant(whole) => has_constant(constants, whole),
        Mark::Both(one, other) => has_name(names, one) && has_name(names, other),
    };
    marks.iter().find(|(mark, _)| is_marked(mark)).map(|&(_, name)| name)
}

/// Whether one of these names, each of which ends with a zero, begins so.
fn has_name(names: &[u8], begin: &str) -> bool {
    let mut found = memmem::find_iter(names, begin);
    found.any(|at| at == 0 || names[at - 1] == 0)
}

/// Whether these constants have this text, with a zero on both sides.
fn has_constant(constants: &[u8], whole: &str) -> bool {
    let ends = |at: usize| constants.get(at).is_none_or(|&byte| byte == 0);
    let mut found = memmem::find_iter(constants, whole);
    found.any(|at| at.checked_sub(1).is_none_or(ends) && ends(at + whole.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole() {
        let names = b"\0libjli.so\0xlibnode.so.108\0";
        assert!(has_name(names, "libjli.so") && has_name(&names[1..], "libjli"));
        assert!(!has_name(names, "libnode.so"));
    }

    #[test]
    fn names_tell_runtimes() {
        let told = |names: &[u8]| {
            first(&RUNTIMES, &Shown { names, constants: b"", has_section: |_: &str| false })
        };
        assert_eq!(told(b"\0malloc\0call_into_lisp\0"), Some("SBCL"));
        assert_eq!(told(b"\0scm_boot_guile\0scm_shell\0"), Some("Guile"));
        assert_eq!(told(b"\0scm_boot_guile\0"), None, "a program that a user may extend");
        assert_eq!(told(b"\0napi_wrap\0napi_create_reference\0"), Some("a JavaScript engine"));
        assert_eq!(told(b"\0libHSrts_thr-ghc9.0.2.so\0"), Some("GHC"));
        assert_eq!(told(b"\0clock_getcpuclockid\0eventfd_write\0"), Some("GHC"));
        assert_eq!(told(b"\0eventfd\0eventfd_write\0"), None, "Python");
        assert_eq!(told(b"\0GC_malloc\0GC_pthread_create\0"), Some("Boehm's collector"));
        assert_eq!(
            told(b"\0GC_malloc\0GC_init\0"),
            None,
            "a program whose threads do not allocate so"
        );
        for section in [".go.buildinfo", ".gopclntab", ".data.rel.ro.gopclntab"] {
            let has_section = |name: &str| name == section;
            let shown = Shown { names: b"", constants: b"", has_section };
            assert_eq!(first(&RUNTIMES, &shown), Some("Go"));
        }
    }

    #[test]
    fn constants_tell_the_runtime_that_is_loaded() {
        // This test must not have such constants itself.
        let told = |constants: &[&str]| {
            let constants = constants.join("\0").into_bytes();
            let constants = &constants;
            first(&RUNTIMES, &Shown { names: b"", constants, has_section: |_: &str| false })
        };
        assert_eq!(told(&["libhostfxr.so", "hostfxr_main", "main"]), Some(".NET"));
        assert_eq!(told(&["hostfxr_main"]), Some(".NET"));
        assert_eq!(told(&["no hostfxr_main", "hostfxr_main_info"]), None);
    }

    #[test]
    fn ordinary_programs_have_none() {
        let own = std::env::current_exe().expect("a test is a program");
        assert_eq!((of(&own), sanitizer(&own)), (None, None));
        assert_eq!(of(Path::new("/proc/self/nothing")), None);
    }
}
