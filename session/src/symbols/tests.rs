//! Tests of symbolization on this very test binary, which has line tables.

use super::*;
use object::{Object, ObjectSymbol};

const NAME: &str = "refrain_symbol_for_tests";

/// A function with a known name. No other function is inlined into it.
#[inline(never)]
fn refrain_symbol_for_tests() -> u32 {
    7
}

/// Has the compiler keep the function: an optimised build needs no call to know what it returns.
#[used]
static KEPT: fn() -> u32 = refrain_symbol_for_tests;

/// The module of this binary, as if its first byte were mapped at `bias`, and the guest address
/// of the function above.
fn this_module(bias: u64) -> (Module, u64) {
    assert_eq!(KEPT(), 7);
    let path = std::env::current_exe().expect("the test binary has a path");
    let data = std::fs::read(&path).expect("the test binary can be read");
    let elf = object::File::parse(&*data).expect("the test binary is an ELF file");
    let symbol = elf
        .symbols()
        .find(|symbol| symbol.name().is_ok_and(|name| name.contains(NAME)))
        .expect("the function is in the symbol table");
    let build_id = elf.build_id().expect("notes can be read");
    let module = Module {
        path: path.display().to_string(),
        build_id: build_id.map(|id| id.iter().map(|b| format!("{b:02x}")).collect()),
        bias,
        start: bias,
        end: bias + (1 << 32),
        ..Module::default()
    };
    (module, bias + symbol.address())
}

#[test]
fn a_function_is_found_with_its_line() {
    let (module, pc) = this_module(0x1000_0000);
    let place = Symbols::new(&[module]).place(Code::At(pc));
    let frame = place.frames.last().expect("the function has a frame");
    assert!(frame.function.ends_with(NAME), "{}", frame.function);
    assert!(frame.file.as_deref().is_some_and(|file| file.ends_with("symbols/tests.rs")));
    assert!(frame.line.is_some());
    assert!(place.short().contains("tests.rs:"), "{}", place.short());
}

#[test]
fn a_return_address_belongs_to_the_call_before_it() {
    let (module, pc) = this_module(0x1000_0000);
    let mut symbols = Symbols::new(&[module]);
    let after = symbols.place(Code::After(pc));
    assert!(after.frames.iter().all(|frame| !frame.function.ends_with(NAME)));
    assert_eq!(after.pc, pc);
    let inside = symbols.place(Code::After(pc + 1));
    assert!(inside.frames.last().expect("has a frame").function.ends_with(NAME));
}

#[test]
fn another_build_gives_module_and_offset() {
    let (mut module, pc) = this_module(0x1000_0000);
    module.build_id = Some("00ff00ff00ff".into());
    let offset = pc - module.bias;
    let name = module.path.rsplit('/').next().expect("a path has a name").to_owned();
    let place = Symbols::new(&[module]).place(Code::At(pc));
    assert_eq!(place.short(), format!("{name}+{offset:#x}"));
}

#[test]
fn hostile_modules_are_harmless() {
    let module = |path: &str, start, end| Module {
        path: path.into(),
        build_id: Some("../../etc".into()),
        bias: u64::MAX,
        start,
        end,
        ..Module::default()
    };
    let mut symbols = Symbols::new(&[
        module("/dev/zero", 0x1000, 0x2000),
        module("/proc/self/mem", 0x2000, 0x1000),
        module("/etc/passwd", 0x3000, u64::MAX),
    ]);
    for pc in [0, 1, 0x1000, 0x1fff, 0x2000, 0x3000, u64::MAX] {
        assert!(symbols.place(Code::At(pc)).frames.is_empty());
        assert!(symbols.place(Code::After(pc)).frames.is_empty());
    }
}

#[test]
fn inlined_calls_are_listed_from_the_inside_out() {
    let frame = |function: &str, file: &str, line| Frame {
        function: function.into(),
        file: Some(file.into()),
        line: Some(line),
    };
    let library = frame("std::__invoke", "/usr/include/c++/12/bits/invoke.h", 96);
    let frames = vec![frame("next", "queue.h", 12), library, frame("main", "/x/a.c", 3)];
    let place = Place { frames, ..Place::unknown(0x1000_000c) };
    assert_eq!(place.short(), "next queue.h:12");
    assert_eq!(place.inlined_into().collect::<Vec<_>>(), ["inlined into main a.c:3"]);
}

#[test]
fn names_are_demangled_only_if_they_are_mangled() {
    for c in ["w", "rd", "i", "f", "main", "_start", "Z3foov", "v"] {
        assert_eq!(demangled(c), c);
    }
    assert_eq!(demangled("_ZN5Queue4pushEi"), "Queue::push(int)");
    assert_eq!(demangled("_ZN4core3ptr4read17h0123456789abcdefE"), "core::ptr::read");
    assert_eq!(demangled("_RNvC6_123foo3bar"), "123foo::bar");
}
