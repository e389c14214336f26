//! The guest sees its own system: each program of `guest/` says the same natively, recorded and
//! replayed, and ends the same way.

use refrain_tests::{Bench, Run};
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{EventKind, Executed, ThreadId, Trace};
use std::ffi::OsStr;
use std::process::Command;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// Compiles the program, and holds a recording and both engines' replays against a native run.
fn is_as_natively(source: &str) -> Run {
    is_as_natively_with(&[], source)
}

/// The same of a program that is compiled with further options.
fn is_as_natively_with(options: &[&str], source: &str) -> Run {
    let bench = bench();
    let usual = ["-g", "-O1", "-w", "-pthread", "-o", "program"];
    bench.cc(source, &[&usual, options].concat());
    is_the_same(&bench, &[])
}

/// The same if every access is ordered, too.
fn is_as_natively_in_each_order(source: &str) {
    let bench = bench();
    bench.cc(source, &["-g", "-O1", "-w", "-pthread", "-o", "program"]);
    for options in [&[][..], &["--order", "stride"]] {
        is_the_same(&bench, options);
    }
}

/// Holds a recording of `program` and the engines' replays against a native run.
fn is_the_same(bench: &Bench, options: &[&str]) -> Run {
    is_the_same_on(bench, options, &["copy", "cranelift"])
}

fn is_the_same_on(bench: &Bench, options: &[&str], engines: &[&str]) -> Run {
    let native = Run::of(Command::new("./program").current_dir(bench.path()));
    let record = [&["record", "--force", "-o", "a.refrain"], options, &["--", "./program"]];
    let recorded = bench.refrain(record.concat());
    assert_eq!(recorded.text(), native.text(), "{}", recorded.stderr);
    assert_eq!(recorded.status, native.status, "{}", recorded.stderr);
    for engine in engines {
        let replayed = bench.refrain(["replay", "--engine", engine, "--echo", "a.refrain"]);
        let replayed = replayed.succeeds();
        assert!(native.stdout.is_empty() || !replayed.stdout.is_empty(), "{replayed:?}");
    }
    bench.refrain(["check", "a.refrain"]).succeeds();
    recorded
}

#[test]
fn what_it_is() {
    is_as_natively(include_str!("../guest/itself.c"));
}

/// What a handler sees of a thread that waits, a replay shows, too, which executes nothing of the wait.
#[test]
fn descriptors_of_who_waits() {
    is_as_natively(include_str!("../guest/descriptors.c"));
}

/// The machine executes `iretq` in the processor's place.
#[test]
fn all_registers_at_once() {
    is_as_natively(include_str!("../guest/all_at_once.c"));
}

/// What the processor says of an exception, and what becomes of a handler whose frame has no room.
#[test]
fn exceptions_and_their_handlers() {
    is_as_natively(include_str!("../guest/exceptions.c"));
}

/// The machine executes `xsave` and `xrstor` in the processor's place.
#[test]
fn its_extended_state() {
    is_as_natively(include_str!("../guest/state.c"));
}

#[test]
fn where_its_memory_is() {
    is_as_natively(include_str!("../guest/memory.c"));
}

#[test]
fn locks_of_threads_that_end() {
    is_as_natively(include_str!("../guest/locks.c"));
}

/// Collectors search stacks for pointers, and programs write what they have not initialized.
#[test]
fn what_library_functions_leave_behind() {
    is_as_natively(include_str!("../guest/residue.c"));
}

#[test]
fn memory_in_common_with_a_child() {
    is_as_natively(include_str!("../guest/common.c"));
}

#[test]
fn signals_of_calls_that_fail() {
    is_as_natively(include_str!("../guest/kernel_signals.c"));
}

#[test]
fn a_child_that_a_descriptor_stands_for() {
    is_as_natively(include_str!("../guest/child_by_descriptor.c"));
}

#[test]
fn a_call_through_a_null_pointer() {
    is_as_natively(include_str!("../guest/null_call.c"));
}

#[test]
fn programs_that_execute_others() {
    is_as_natively(include_str!("../guest/execute.c"));
}

/// What is learned of a program is learned of the module that the trace has of it: also where a script
/// starts it, and by a symbolic link.
#[test]
fn an_executed_program_is_the_one_of_its_module() {
    let bench = bench();
    bench.cc("int main(void) { return 0; }", &["-o", "program"]);
    std::os::unix::fs::symlink("program", bench.path().join("link")).expect("can be linked");
    bench.refrain(["record", "-o", "a.refrain", "--", "/bin/sh", "-c", "exec ./link"]).succeeds();
    let trace = Trace::open(&bench.path().join("a.refrain")).expect("was recorded");
    let mut cursor = trace.cursor(ThreadId(0));
    let mut executed = Vec::new();
    while let Some(event) = cursor.next().expect("can be read") {
        if event.kind() == EventKind::Syscall
            && event.has_payload()
            && let Some(SyscallRecord { effect: Effect::Exec { image }, .. }) =
                cursor.payload().expect("can be read")
        {
            let bytes = trace.blob(image).expect("can be read");
            executed.push(Executed::from_bytes(&bytes).expect("is whole").program);
        }
    }
    assert!(executed.last().is_some_and(|program| program.ends_with("/link")), "{executed:?}");
    let is_module = |program: &String| trace.modules().iter().any(|it| it.path == *program);
    assert!(executed.iter().all(is_module), "{executed:?}");
}

#[test]
fn settings_of_the_dynamic_linker() {
    is_as_natively(include_str!("../guest/settings.c"));
}

#[test]
fn programs_that_execute_others_with_threads() {
    is_as_natively_with(&["-pthread"], include_str!("../guest/execute_threads.c"));
}

#[test]
fn once_objects_in_memory_that_is_used_again() {
    is_as_natively(include_str!("../guest/once.c"));
}

#[test]
fn memory_that_is_locked_or_discarded() {
    is_as_natively(include_str!("../guest/locked_memory.c"));
}

#[test]
fn files_that_are_mapped_privately_and_changed() {
    is_as_natively(include_str!("../guest/private_files.c"));
}

#[test]
fn faults_behind_code_that_cannot_be_read() {
    is_as_natively(include_str!("../guest/unreadable.c"));
}

#[test]
fn causes_of_faults() {
    is_as_natively(include_str!("../guest/causes.c"));
}

#[test]
fn tasks_that_are_created_and_end() {
    let run = is_as_natively(include_str!("../guest/tasks.c"));
    assert_eq!(run.status, 9);
}

#[test]
fn words_that_the_kernel_changes() {
    is_as_natively(include_str!("../guest/wake_operation.c"));
}

#[test]
fn programs_at_fixed_addresses() {
    is_as_natively_with(&["-no-pie"], include_str!("../guest/fixed.c"));
}

#[test]
fn a_heap_behind_the_image() {
    is_as_natively_with(&["-no-pie"], include_str!("../guest/heap.c"));
}

#[test]
fn memory_that_files_show() {
    is_as_natively(include_str!("../guest/shared.c"));
}

#[test]
fn memory_behind_the_end_of_a_file() {
    is_as_natively_in_each_order(include_str!("../guest/behind_end.c"));
}

#[test]
fn what_private_mappings_show_of_shared_ones() {
    is_as_natively_in_each_order(include_str!("../guest/shown_privately.c"));
}

#[test]
fn code_that_may_not_be_executed() {
    let source = include_str!("../guest/not_executable.c");
    is_as_natively_in_each_order(source);
    let bench = bench();
    bench.cc(source, &["-O1", "-w", "-DTAKEN", "-o", "program"]);
    is_the_same_on(&bench, &[], &["copy", "tiered"]);
}

#[test]
fn code_on_a_stack_that_may_be_executed() {
    let bench = bench();
    let source = include_str!("../guest/stack_code.c");
    bench.cc(source, &["-O0", "-w", "-z", "execstack", "-o", "program"]);
    is_the_same_on(&bench, &[], &["copy", "tiered"]);
}

#[test]
fn words_that_the_end_of_a_thread_clears() {
    is_as_natively_in_each_order(include_str!("../guest/cleared_words.c"));
}

/// A replay is not refused what the recorded program is allowed, nor the other way round.
#[test]
fn a_program_break_under_a_limit() {
    let bench = bench();
    let source = include_str!("../guest/limited_break.c");
    is_as_natively_in_each_order(source);
    bench.cc(source, &["-O1", "-o", "program"]);
    let limited = |command: &[&str]| {
        let path = bench.command([""; 0]).get_program().to_owned();
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -S -v 60000; exec \"$@\"", "sh"]).current_dir(bench.path());
        shell.env("XDG_CACHE_HOME", bench.path().join("cache"));
        let command = command.iter().map(OsStr::new);
        let command = command.map(|word| if word == "refrain" { &path } else { word });
        Run::of(shell.args(command))
    };
    let native = limited(&["./program", "limited"]);
    let record = ["refrain", "record", "-qo", "a.refrain", "--", "./program", "limited"];
    assert_eq!(limited(&record).succeeds().text(), native.succeeds().text());
    for engine in ["copy", "cranelift"] {
        limited(&["refrain", "replay", "--engine", engine, "a.refrain"]).succeeds();
    }
}

#[test]
fn threads_that_are_cancelled() {
    is_as_natively(include_str!("../guest/cancel.c"));
}

#[test]
fn threads_that_refuse_to_be_cancelled() {
    is_as_natively(include_str!("../guest/cancel_refused.c"));
}

#[test]
fn joins_that_are_refused() {
    is_as_natively(include_str!("../guest/joins.c"));
}

#[test]
fn priorities_and_their_ceilings() {
    is_as_natively(include_str!("../guest/priorities.c"));
}

#[test]
fn handlers_that_go_with_their_timers() {
    is_as_natively(include_str!("../guest/timer_stopped.c"));
}

#[test]
fn descriptors_that_tell_of_signals() {
    is_as_natively(include_str!("../guest/signal_files.c"));
}

/// What the kernel writes at any time natively, it has written when `io_submit` returns.
#[test]
fn asynchronous_input_and_output() {
    is_as_natively(include_str!("../guest/aio.c"));
}

/// Each waits for what it has submitted itself, and what is done is there for whoever is told of it.
#[test]
fn asynchronous_input_of_several_threads() {
    for _ in 0..5 {
        is_as_natively(include_str!("../guest/aio_threads.c"));
    }
}

#[test]
fn memory_in_common_with_a_child_and_threads() {
    assert_eq!(is_as_natively(include_str!("../guest/common_threads.c")).text(), "the child's\n");
}

/// Threads access that memory while another one forks, and after that.
#[test]
fn memory_in_common_that_threads_access() {
    let bench = bench();
    bench.cc(include_str!("../guest/common_in_use.c"), &["-O1", "-pthread", "-o", "program"]);
    for order in ["sync", "stride", "sync", "stride"] {
        let args = ["record", "--force", "--order", order, "-o", "a.refrain", "--", "./program"];
        let recorded = bench.refrain(args);
        assert_eq!(recorded.succeeds().text(), "1800 900\n", "{}", recorded.stderr);
        assert!(!recorded.stderr.contains("shares memory"), "{}", recorded.stderr);
        for engine in ["copy", "tiered", "cranelift"] {
            bench.refrain(["replay", "--no-learn", "--engine", engine, "a.refrain"]).succeeds();
        }
    }
}

/// Files and segments that a program maps when it has threads and children, and what the kernel reads
/// and writes there.
#[test]
fn memory_in_common_that_is_mapped_later() {
    is_as_natively(include_str!("../guest/common_later.c"));
}

/// What a program that the guest has executed writes is recorded where the guest looks.
#[test]
fn memory_in_common_that_is_a_segment() {
    is_as_natively(include_str!("../guest/common_segment.c"));
}

#[test]
fn memory_in_common_with_an_executed_program() {
    let recorded = is_as_natively(include_str!("../guest/common_executed.c"));
    assert_eq!(recorded.text(), "3570 0 2000\n");
}

/// What is not recorded is said when the recording ends, and again where a replay misses it.
#[test]
fn memory_in_common_with_a_child_while_a_thread_computes() {
    let bench = bench();
    let options = ["-O1", "-DCOMPUTES", "-pthread", "-o", "program"];
    bench.cc(include_str!("../guest/common_threads.c"), &options);
    for order in ["sync", "stride"] {
        let args = ["record", "--force", "--order", order, "-o", "a.refrain", "--", "./program"];
        let recorded = bench.refrain(args);
        assert_eq!(recorded.succeeds().text(), "the child's\n");
        assert!(recorded.stderr.contains("shares memory with a process"), "{}", recorded.stderr);
        let replayed = bench.refrain(["replay", "--no-learn", "a.refrain"]);
        assert_eq!(replayed.status, 1, "{replayed:?}");
        assert!(replayed.text().contains("shares memory with a process"), "{}", replayed.text());
    }
}

/// A process that the program has not started writes to its memory. That is not watched for, until a replay has
/// missed it.
#[test]
fn memory_in_common_with_a_process_from_outside() {
    for order in ["sync", "stride"] {
        let bench = bench();
        bench.cc(include_str!("../guest/common_outside.c"), &["-O1", "-pthread", "-o", "program"]);
        let memory = format!("/dev/shm/refrain-{}-{order}", std::process::id());
        let recorded = || {
            let made =
                Command::new("mkfifo").args(["ask", "answer"]).current_dir(bench.path()).status();
            assert!(made.expect("coreutils are there").success());
            let mut other = Command::new("./program");
            let mut other =
                other.args([&memory, "other"]).current_dir(bench.path()).spawn().unwrap();
            let args = ["--order", order, "-o", "a.refrain", "--", "./program", &memory];
            let recorded = bench.refrain(["record", "--force"].iter().chain(&args));
            assert!(other.wait().expect("it is a child").success());
            for file in [&memory, "ask", "answer"] {
                std::fs::remove_file(bench.path().join(file)).expect("both have made it");
            }
            assert_eq!(recorded.succeeds().text(), "..........270\n");
            recorded.stderr.contains("what other processes write there")
        };
        assert!(recorded(), "a note says what is not recorded");
        let replayed = bench.refrain(["replay", "a.refrain"]);
        assert_eq!(replayed.status, 1, "{replayed:?}");
        for words in ["memory that other processes may have mapped", "the next recording"] {
            assert!(replayed.text().contains(words), "{}", replayed.text());
        }
        assert!(!recorded(), "the next recording has it");
        bench.refrain(["replay", "a.refrain"]).succeeds();
        bench.refrain(["replay", "--engine", "copy", "a.refrain"]).succeeds();
    }
}

/// A debugger's child asks to be traced; nobody traces the recorded process itself.
#[test]
fn only_children_are_traced() {
    let bench = bench();
    let source = include_str!("../guest/traced.c");
    is_as_natively(source);
    bench.cc(source, &["-O1", "-o", "program"]);
    let refused = bench.refrain(["record", "-qo", "a.refrain", "--", "./program", "itself"]);
    // The function and the file that ask for it are named, and what to do.
    refused.fails(125, &["PTRACE_TRACEME", "in ptrace (", "libc.so.6", "/program", "debugger"]);
}

#[test]
fn signals_to_the_group() {
    is_as_natively(include_str!("../guest/kill_group.c"));
}

/// The library is hooked in each of a trace's programs.
#[test]
fn locks_of_a_program_that_another_executes() {
    let bench = bench();
    let source = include_str!("../guest/executed.c");
    bench.cc(source, &["-O1", "-pthread", "-o", "program"]);
    let run = bench.refrain(["record", "-o", "a.refrain", "--", "env", "./program"]);
    assert_eq!(run.succeeds().text(), "2000\n");
    for engine in ["copy", "cranelift"] {
        let replayed = bench.refrain(["replay", "--engine", engine, "a.refrain"]);
        let text = replayed.succeeds().text();
        let (before, _) = text.split_once(" lock acquisitions").expect("the report counts them");
        let count = before.rsplit(' ').next().expect("a number is there").replace(',', "");
        assert!(count.parse::<u32>().expect("it is a number") >= 2000, "{text}");
    }
}

/// A script starts its interpreter, whose children run natively, unless they are followed.
#[test]
fn children_are_followed() {
    let bench = bench();
    bench.program("script", b"#!/bin/sh\n/bin/echo child\nexec /bin/echo parent\n");
    let alone = bench.refrain(["record", "-o", "a.refrain", "--", "./script"]);
    assert_eq!(alone.succeeds().text(), "child\nparent\n");
    assert!(alone.stderr.contains("--follow"), "{}", alone.stderr);
    let followed = bench.refrain(["record", "--follow", "-o", "b.refrain", "--", "./script"]);
    assert_eq!(followed.succeeds().text(), "child\nparent\n");
    let traces = std::fs::read_dir(bench.path()).expect("the directory is there");
    let names = traces.flatten().map(|entry| entry.file_name().into_string().expect("is text"));
    let names: Vec<String> = names.filter(|name| name.ends_with(".refrain")).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names {
        let output = if name.matches('.').count() == 2 { "child\n" } else { "parent\n" };
        assert_eq!(
            bench.refrain(["replay", "--echo", &name]).succeeds().text().lines().next(),
            output.lines().next()
        );
    }
}

/// A child that has become another user may not write a trace into the first user's folder. It executes its program
/// unrecorded, and ends as it does natively.
#[test]
fn children_without_rights_are_not_followed() {
    let bench = bench();
    let source = "#include <sys/wait.h>\n#include <unistd.h>\n\
        int main(void) { int status;\n\
        if (fork() == 0) {\n\
        if (getuid() == 0 && setuid(65534)) _exit(1); // Only root can.\n\
        execl(\"/bin/echo\", \"echo\", \"child\", (char *)0); _exit(2); }\n\
        return wait(&status) < 0 || status; }\n";
    bench.cc(source, &["-o", "program"]);
    let record = ["record", "-q", "--follow", "-o", "a.refrain", "--", "./program"];
    assert_eq!(bench.refrain(record).succeeds().text(), "child\n");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// Shells and debuggers ask by which signal a program ended.
#[test]
fn the_recorder_ends_by_the_programs_signal() {
    use std::os::unix::process::ExitStatusExt;
    let bench = bench();
    bench.cc("#include <stdlib.h>\nint main(void) { abort(); }\n", &["-o", "program"]);
    let mut record = bench.command(["record", "-o", "a.refrain", "--", "./program"]);
    let status = record.status().expect("the command can be started");
    assert_eq!(status.signal(), Some(6));
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

#[test]
fn signals_that_come_all_the_time() {
    is_as_natively(include_str!("../guest/interrupted.c"));
}

/// Packets come through memory only with the right to read all packets; the program says so.
#[test]
fn memory_that_a_socket_shows() {
    is_as_natively(include_str!("../guest/packets.c"));
}

#[test]
fn single_system_calls() {
    is_as_natively(include_str!("../guest/calls.c"));
}
