//! Programs that cannot be recorded: one clear line each, and the status that `env` would give.

use refrain_tests::Bench;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// The first bytes of an ELF file, enough for the kernel to refuse it too.
fn elf(class: u8, machine: u16) -> Vec<u8> {
    let mut head = b"\x7fELF".to_vec();
    head.extend([class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    head.extend(3u16.to_le_bytes());
    head.extend(machine.to_le_bytes());
    head.extend(1u32.to_le_bytes());
    head.resize(if class == 2 { 64 } else { 52 }, 0);
    head
}

#[test]
fn missing_programs() {
    let bench = bench();
    for command in ["record", "run"] {
        bench.refrain([command, "--", "no-such-program"]).fails(127, &["no-such-program", "PATH"]);
        bench.refrain([command, "--", "./no/such"]).fails(127, &["./no/such"]);
    }
    assert!(!bench.path().join("no-such-program.refrain").exists(), "no trace is left behind");
}

#[test]
fn files_that_are_no_x86_64_programs() {
    let bench = bench();
    let cases: [(&str, Vec<u8>, &str); 6] = [
        ("text", b"hello\n".to_vec(), "not an ELF"),
        ("empty", Vec::new(), "not an ELF"),
        ("script", b"#!/no/such/interpreter\necho\n".to_vec(), "interpreter"),
        ("i386", elf(1, 3), "32-bit"),
        ("arm64", elf(2, 183), "AArch64"),
        ("cut", elf(2, 62)[..12].to_vec(), "cut off"),
    ];
    for (name, content, word) in cases {
        bench.program(name, &content);
        for command in ["record", "run"] {
            let run = bench.refrain([command, "--", &format!("./{name}")]);
            run.fails(126, &[name, word]);
        }
        assert!(!bench.path().join(format!("{name}.refrain")).exists(), "no trace of {name}");
    }
}

#[test]
fn programs_with_sanitizers() {
    let bench = bench();
    let source = "void __tsan_init(void) {} int main(void) { return 0; }";
    bench.cc(source, &["-rdynamic", "-o", "main"]);
    let words = ["./main", "ThreadSanitizer", "-fsanitize"];
    bench.refrain(["record", "--", "./main"]).fails(126, &words);
}

#[test]
fn files_that_may_not_be_executed() {
    let bench = bench();
    bench.file("plain", &elf(2, 62));
    bench.refrain(["record", "--", "./plain"]).fails(126, &["plain", "not executable"]);
    bench.refrain(["record", "--", "/"]).fails(126, &["directory"]);
}

#[test]
fn outputs_that_cannot_be_written() {
    let bench = bench();
    let missing = ["record", "-o", "no/such/dir/a.refrain", "--", "/bin/true"];
    bench.refrain(missing).fails(125, &["no/such/dir/a.refrain", "-o"]);
    bench.refrain(["record", "-o", "/", "--", "/bin/true"]).fails(125, &["/"]);
    let full = bench.refrain(["record", "-o", "/dev/full", "--", "/bin/true"]);
    full.fails(125, &["cannot write the trace"]);
    assert_eq!(full.stderr.matches("No space left").count(), 1, "{full:?}");
    bench.file("precious.txt", b"precious");
    let precious = ["record", "-o", "precious.txt", "--", "/bin/true"];
    bench.refrain(precious).fails(125, &["precious.txt", "--force"]);
    let content = std::fs::read(bench.path().join("precious.txt")).expect("is still there");
    assert_eq!(content, b"precious");
}
