//! What a hostile trace may not do: the calls that the replay child is refused, and traces whose
//! code or effects reach for more than a replay needs.

use refrain_tests::{Bench, Run};
use refrain_trace::{OwnedTrace, Trace};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// What a program of the kernel's ABI answers when a filter refuses.
const EPERM: i64 = -1;
const ENOSYS: i64 = -38;
const SIGSYS: i32 = 31;

/// The request to try a forbidden call, by its number.
const ATTEMPT: u8 = 7;

/// A process that an attack is aimed at. It notices nothing.
struct Victim(Child);

impl Victim {
    fn new() -> Victim {
        Victim(Command::new("sleep").arg("1000").spawn().expect("there is sleep"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        assert!(self.0.try_wait().expect("is ours").is_none(), "the victim lives");
        self.0.kill().and_then(|()| self.0.wait()).expect("is ours");
    }
}

/// How the real child takes an attempt: what the kernel answered, or the signal that ended it.
fn attempt(bench: &Bench, name: &str, victim: u32) -> Result<i64, i32> {
    let greeting = bench.refrain(["__replay-child", "{}"]).text();
    let protocol = greeting.split(' ').nth(1).and_then(|word| word.parse().ok());
    let protocol: u32 = protocol.unwrap_or_else(|| panic!("{greeting:?}"));
    let build = serde_json::json!({ "protocol": protocol, "version": "any" });
    let call = serde_json::json!({ "build": build, "request": "an attempt" });
    // The number of the request among all of them, and what it holds.
    let request = postcard::to_stdvec(&(ATTEMPT, name, victim)).expect("can be written");
    let length = u32::try_from(request.len()).expect("is short");
    let (mut pipe, childs) = UnixStream::pair().expect("there are sockets");
    let trace = std::fs::File::open(bench.path().join("a.refrain")).expect("was written");
    let mut command = bench.command(["__replay-child", &call.to_string()]);
    let child = command.stdin(trace).stdout(OwnedFd::from(childs)).spawn();
    let mut child = child.expect("can be started");
    drop(command);
    pipe.write_all(&[&length.to_le_bytes(), request.as_slice()].concat()).expect("is read");
    let mut answer = Vec::new();
    pipe.read_to_end(&mut answer).expect("can be read");
    if let Some(signal) = child.wait().expect("is ours").signal() {
        return Err(signal);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let words = answer.split_once("the kernel answered ").unwrap_or_else(|| panic!("{answer:?}"));
    Ok(words.1.trim().parse().expect("is a number"))
}

/// Every form is tried in the child of all replays: `replay`, `locks`, `fidelity`, `ab` and `run`
/// have no other.
#[test]
fn no_forbidden_call_passes() {
    let bench = bench();
    bench.file("a.refrain", &recorded(&bench).to_bytes().expect("can be written"));
    let victim = Victim::new();
    let mut passed = Vec::new();
    let (mut refused, mut deadly) = (0, 0);
    for name in refrain_vm::forbidden_calls() {
        match attempt(&bench, name, victim.0.id()) {
            Ok(EPERM) => refused += 1,
            Ok(ENOSYS) if name == "clone3" => refused += 1,
            Err(SIGSYS) => deadly += 1,
            other => passed.push((name, other)),
        }
    }
    assert!(passed.is_empty(), "{passed:?}");
    assert!(refused > 50 && deadly > 20, "{refused} refused, {deadly} ended the child");
}

/// Does what its input says: runs in a circle so often, touches so many pages of memory that it
/// has reserved, and stores a word so far from a variable.
const OBEDIENT: &str = r#"
    #include <stdint.h>
    #include <stdio.h>
    #include <unistd.h>
    #include <sys/mman.h>
    static volatile uint64_t cell;
    int main(void) {
        uint64_t order[3];
        if (read(0, order, sizeof order) != sizeof order) return 1;
        printf("%p\n", (void *)&cell);
        fflush(stdout);
        for (volatile uint64_t i = 0; i < order[0]; i++) {}
        char *p = mmap(0, 1ull << 32, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        for (uint64_t i = 0; i < order[1]; i++) p[i * 4096] = 1;
        *(volatile uint64_t *)((char *)&cell + order[2]) = 1;
        write(1, "done\n", 5);
        return 0;
    }
"#;

/// A recording of it, with a harmless input.
fn recorded(bench: &Bench) -> OwnedTrace {
    record(bench).0
}

/// The same, and where its variable is.
fn record(bench: &Bench) -> (OwnedTrace, u64) {
    bench.cc(OBEDIENT, &["-O1", "-o", "obedient"]);
    let order: Vec<u8> = [10_u64, 10, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let input = std::fs::File::open(bench.file("order", &order)).expect("was written");
    let mut command = bench.command(["record", "--force", "-o", "r.refrain", "--", "./obedient"]);
    let run = Run::of(command.stdin(input));
    run.succeeds();
    let text = run.text();
    let cell = text.lines().next().and_then(|line| line.strip_prefix("0x"));
    let cell = cell.and_then(|digits| u64::from_str_radix(digits, 16).ok()).expect("is printed");
    let trace = Trace::open(&bench.path().join("r.refrain")).expect("is whole");
    (OwnedTrace::read(&trace).expect("is whole"), cell)
}

/// The trace with another input: what the program read is what the trace says.
fn ordered(mut trace: OwnedTrace, order: [u64; 3]) -> OwnedTrace {
    let bytes: Vec<u8> = order.iter().flat_map(|word| word.to_le_bytes()).collect();
    let records = trace.threads[0].iter_mut().filter_map(|owned| owned.payload.as_mut());
    let mut inputs = records.flat_map(|record| &mut record.writes).filter(|w| w.bytes.len() == 24);
    inputs.next().expect("the program reads its input").bytes = bytes;
    trace
}

/// Replays a hostile trace; it must be stopped, and in time.
fn stopped(bench: &Bench, trace: &OwnedTrace, arguments: &[&str]) -> Run {
    bench.file("h.refrain", &trace.to_bytes().expect("can be written"));
    let began = Instant::now();
    let run = bench.refrain([arguments, &["h.refrain"]].concat());
    assert_eq!(run.status, 1, "{run:?}");
    assert!(!run.stderr.contains("panicked") && !run.stderr.contains("bug"), "{run:?}");
    // By its own clock a looping replay ends after 20 s of computing.
    assert!(began.elapsed() < Duration::from_secs(300), "{run:?}");
    run
}

#[test]
fn what_the_program_does_is_up_to_its_input() {
    let bench = bench();
    let (trace, _) = record(&bench);
    let same = ordered(trace, [10, 10, 0]);
    bench.file("h.refrain", &same.to_bytes().expect("can be written"));
    assert!(bench.refrain(["replay", "h.refrain"]).succeeds().text().contains("replayed 1 thread"));
}

#[test]
fn code_that_runs_in_circles_is_a_divergence() {
    let bench = bench();
    let endless = ordered(recorded(&bench), [u64::MAX, 10, 0]);
    for engine in ["tiered", "cranelift", "copy"] {
        let run = stopped(&bench, &endless, &["replay", "--engine", engine]);
        assert!(run.text().contains("a computation without end"), "{engine}: {run:?}");
    }
}

#[test]
fn memory_beyond_the_limit_is_refused() {
    let bench = bench();
    let greedy = ordered(recorded(&bench), [10, (3 << 30) / 4096, 0]);
    let run = stopped(&bench, &greedy, &["--max-memory", "300", "replay"]);
    run.fails(1, &["more than 300 MiB of memory"]);
}

/// Nor where its tables are.
#[test]
fn code_does_not_write_where_translated_code_is() {
    let bench = bench();
    let (trace, cell) = record(&bench);
    for address in [0x6000_0000_u64, 0x1_0000_0000] {
        let hostile = ordered(trace.clone(), [10, 10, address.wrapping_sub(cell)]);
        for engine in ["tiered", "cranelift", "copy"] {
            let run = stopped(&bench, &hostile, &["replay", "--engine", engine]);
            assert!(run.text().contains("a fault that was not recorded"), "{engine}: {run:?}");
            assert!(run.text().contains(&format!("{address:#x}")), "{engine}: {run:?}");
        }
    }
}

/// The engine's own memory, the host's stack, and where nobody has anything.
#[test]
fn effects_of_system_calls_are_for_guest_memory_alone() {
    let bench = bench();
    let trace = recorded(&bench);
    let notes = refrain_vm::layout::NOTES + 0x1000;
    for address in [0x6000_0000, 0x7fff_ffff_0000, notes, 0, u64::MAX - 7] {
        let mut hostile = trace.clone();
        let records = hostile.threads[0].iter_mut().filter_map(|owned| owned.payload.as_mut());
        let mut writes = records.flat_map(|record| &mut record.writes);
        writes.next().expect("something was written").address = address;
        for engine in ["tiered", "cranelift", "copy"] {
            let run = stopped(&bench, &hostile, &["replay", "--engine", engine]);
            let text = run.text();
            assert!(text.contains("different arguments"), "{address:#x}: {run:?}");
            assert!(text.contains("none of the guest's"), "{address:#x}: {run:?}");
        }
    }
}

/// Initial mappings and their contents are effects, too.
#[test]
fn a_trace_maps_memory_only_where_guests_have_it() {
    let bench = bench();
    let trace = recorded(&bench);
    for address in [0x6000_0000, 0x7000_0000, 0x5555_5555_4000, 0x7fff_0000_0000] {
        let mut hostile = trace.clone();
        hostile.header.mappings[0].address = address;
        let run = stopped(&bench, &hostile, &["replay"]);
        assert!(run.stderr.contains("outside the guest's address space"), "{run:?}");
    }
}

/// The names in a trace: whoever prints them, prints no escape sequence, no line that is not its
/// own, and nothing that turns text around.
#[test]
fn text_out_of_a_trace_only_stands_there() {
    const EVIL: &str =
        "\x1b]0;owned\x07\x1b[2J\r\nrefrain: all is well\u{9b}31m\u{202e}\u{2066}\x7f";
    let bench = bench();
    let mut trace = recorded(&bench);
    let header = &mut trace.header;
    header.argv = vec![format!("a{EVIL}"), format!("b{EVIL}")];
    for text in [&mut header.program, &mut header.cwd, &mut header.recorder] {
        text.push_str(EVIL);
    }
    header.machine.cpu.push_str(EVIL);
    header.machine.kernel.push_str(EVIL);
    for module in &mut trace.modules {
        module.path.push_str(EVIL);
        module.build_id = Some(EVIL.into());
    }
    // A divergence has its module's name in it.
    let diverging = ordered(trace.clone(), [11, 10, 1 << 40]);
    bench.file("e.refrain", &trace.to_bytes().expect("can be written"));
    bench.file("d.refrain", &diverging.to_bytes().expect("can be written"));
    let commands: [&[&str]; 12] = [
        &["info", "e.refrain"],
        &["info", "--json", "e.refrain"],
        &["check", "e.refrain"],
        &["dump", "--sites", "e.refrain"],
        &["dump", "--instructions", "e.refrain"],
        &["replay", "e.refrain"],
        &["replay", "d.refrain"],
        &["replay", "--json", "d.refrain"],
        &["replay", "--clock", "virtual", "e.refrain"],
        &["locks", "e.refrain"],
        &["locks", "--json", "e.refrain"],
        &["ab", "e.refrain", "e.refrain"],
    ];
    let is_evil = |c: char| c.is_control() && c != '\n' || "\u{202e}\u{2066}".contains(c);
    for command in commands {
        let run = bench.refrain(command);
        assert!(run.status <= 1, "{command:?}: {run:?}");
        for text in [run.text(), run.stderr.clone()] {
            assert!(!text.contains(is_evil), "{command:?}: {text:?}");
            assert!(
                !text.lines().any(|line| line == "refrain: all is well"),
                "{command:?}: {text}"
            );
        }
    }
}

/// A trace is mended in the sandbox of `check --repair`, wherever its name leads.
#[test]
fn a_trace_behind_a_link_is_mended() {
    let bench = bench();
    let bytes = recorded(&bench).to_bytes().expect("can be written");
    let (here, there) = (bench.path().join("here"), bench.path().join("there"));
    for folder in [&here, &there] {
        std::fs::create_dir(folder).expect("can be made");
    }
    std::fs::write(there.join("cut.refrain"), &bytes[..bytes.len() - 100]).expect("can be written");
    std::os::unix::fs::symlink("../there/cut.refrain", here.join("a.refrain")).expect("can be");
    assert_eq!(bench.refrain(["check", "here/a.refrain"]).status, 1);
    bench.refrain(["check", "--repair", "here/a.refrain"]).succeeds();
    bench.refrain(["check", "here/a.refrain"]).succeeds();
}

/// A descriptor that somebody left open is not the child's.
#[test]
fn inherited_descriptors_are_closed_in_the_child() {
    let bench = bench();
    bench.file("a.refrain", &recorded(&bench).to_bytes().expect("can be written"));
    let refrain = Path::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    // The shell opens descriptor 9 for refrain; strace is not there everywhere, /proc is. The
    // child runs long enough to be looked at.
    let endless = ordered(recorded(&bench), [u64::MAX, 10, 0]);
    bench.file("h.refrain", &endless.to_bytes().expect("can be written"));
    let script = format!("exec 9>left-open; exec {} replay h.refrain", refrain.display());
    let mut shell = Command::new("sh");
    let mut parent = shell
        .args(["-c", &script])
        .current_dir(bench.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("there is a shell");
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let child = loop {
        let text = std::fs::read_to_string(&children).expect("the parent is there");
        let child = text.split_whitespace().next().map(str::to_owned);
        if let Some(child) = child {
            let name = std::fs::read_to_string(format!("/proc/{child}/cmdline"));
            if name.is_ok_and(|name| name.contains("__replay-child")) {
                break child;
            }
        }
        std::thread::yield_now();
    };
    let open = std::fs::read_dir(format!("/proc/{child}/fd")).expect("the child is there");
    let open: Vec<_> = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).collect();
    parent.kill().and_then(|()| parent.wait()).expect("is ours");
    assert!(!open.is_empty());
    assert!(!open.iter().any(|path| path.ends_with("left-open")), "{open:?}");
}
