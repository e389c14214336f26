//! Signals: what happens to a recorded program is what would happen to it natively.

use refrain_tests::{Bench, Run};
use refrain_trace::{
    Event, EventKind, OwnedEvent, OwnedTrace, ThreadId, Trace, accessed, common, order,
};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// A program that says when it is ready and then only computes, for some seconds at most; its
/// handler of SIGTERM does this.
fn computing(bench: &Bench, handler: &str, beside: &str) {
    let source = format!(
        "#include <pthread.h>\n#include <signal.h>\n#include <unistd.h>\n\
         static volatile unsigned long work;\n\
         static void on(int s) {{ {handler} }}\n\
         static void *waits(void *_) {{ for (;;) pause(); }}\n\
         int main(void) {{ pthread_t thread; {beside}\n\
         signal(SIGTERM, on); write(1, \"ready\\n\", 6);\n\
         while (work < 20000000000) work++;\n\
         return 1; }}\n"
    );
    bench.cc(&source, &["-O1", "-pthread", "-o", "program"]);
}

/// Starts recording the program and waits until it is ready.
fn recorded_until_ready(bench: &Bench) -> Child {
    let mut command = bench.command(["record", "-o", "a.refrain", "--", "./program"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recording = command.spawn().expect("the command can be started");
    let output = recording.stdout.as_mut().expect("is piped");
    output.read_exact(&mut [0; 6]).expect("the program is ready");
    recording
}

/// Records the program, and replays it on both engines.
fn is_exact(bench: &Bench) {
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]).succeeds();
    is_replayed(bench);
}

fn is_replayed(bench: &Bench) {
    bench.refrain(["replay", "a.refrain"]).succeeds();
    bench.refrain(["replay", "--engine", "copy", "a.refrain"]).succeeds();
}

fn terminate(process: &Child) {
    Run::of(Command::new("kill").args(["-TERM", &process.id().to_string()])).succeeds();
}

/// A handler cannot run where a replay could not find the place again. That must not make a
/// program that only computes unstoppable: the user is told, and one more signal ends it.
#[test]
fn a_signal_that_cannot_be_handled_ends_the_recording_when_it_is_sent_again() {
    let bench = bench();
    computing(&bench, "", "");
    let mut recording = recorded_until_ready(&bench);
    while recording.try_wait().expect("is our child").is_none() {
        terminate(&recording);
        std::thread::sleep(Duration::from_millis(50));
    }
    let recorded = recording.wait_with_output().expect("has ended");
    let errors = String::from_utf8_lossy(&recorded.stderr);
    assert_eq!(recorded.status.signal(), Some(15), "{errors}");
    assert!(errors.contains("note: a signal waits"), "{errors}");
    assert!(errors.contains("stopped by signal 15"), "{errors}");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// A signal for the process may be handled by any of its threads.
#[test]
fn a_signal_is_handled_by_a_thread_that_waits_while_the_main_thread_computes() {
    let bench = bench();
    computing(&bench, "_exit(3);", "pthread_create(&thread, 0, waits, 0);");
    let recording = recorded_until_ready(&bench);
    terminate(&recording);
    let recorded = recording.wait_with_output().expect("ends");
    assert_eq!(recorded.status.code(), Some(3), "{recorded:?}");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// Waiting for a signal takes any time that there is, and no other.
#[test]
fn a_wait_for_a_signal_may_be_as_long_as_it_likes() {
    let bench = bench();
    let source = "#define _GNU_SOURCE\n#include <errno.h>\n#include <limits.h>\n#include <signal.h>\n\
        int main(void) { sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR1);\n\
        sigprocmask(SIG_BLOCK, &set, 0); raise(SIGUSR1);\n\
        struct timespec ever = { LONG_MAX, 999999999 }, none = { 0, 1000000000 }, past = { -1, 0 };\n\
        if (sigtimedwait(&set, 0, &ever) != SIGUSR1) return 1;\n\
        if (sigtimedwait(&set, 0, &none) != -1 || errno != EINVAL) return 2;\n\
        if (sigtimedwait(&set, 0, &past) != -1 || errno != EINVAL) return 3;\n\
        return 0; }\n";
    bench.cc(source, &["-o", "program"]);
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]).succeeds();
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// As programs do that let the user stop them when they have put the terminal in order.
#[test]
fn a_program_that_stops_itself_goes_on_when_it_is_continued() {
    let bench = bench();
    let source = "#include <signal.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
        int main(void) { pid_t parent = getpid(), child = fork();\n\
        if (child == 0) while (getppid() == parent) { usleep(10000); kill(parent, SIGCONT); }\n\
        if (child == 0) _exit(0);\n\
        raise(SIGTSTP); kill(child, SIGKILL); waitpid(child, 0, 0); return 5; }\n";
    bench.cc(source, &["-o", "program"]);
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    assert_eq!(recorded.status, 5, "{recorded:?}");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// `nohup` and shells that start programs in the background have them ignore signals; what is
/// ignored or blocked stays so in what they execute.
#[test]
fn a_program_inherits_what_is_ignored_and_blocked() {
    let bench = bench();
    let source = "#include <signal.h>\n#include <unistd.h>\n\
        int main(int argc, char **argv) {\n\
        struct sigaction hup; sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR1);\n\
        if (argc > 1) { signal(SIGHUP, SIG_IGN); sigprocmask(SIG_BLOCK, &set, 0); }\n\
        if (argc > 1) execvp(argv[1], argv + 1);\n\
        raise(SIGHUP); raise(SIGUSR1);\n\
        sigaction(SIGHUP, 0, &hup); sigprocmask(SIG_BLOCK, 0, &set);\n\
        return (hup.sa_handler == SIG_IGN) + 2 * sigismember(&set, SIGUSR1); }\n";
    bench.cc(source, &["-o", "program"]);
    let record = bench.command(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    let mut launched = Command::new(bench.path().join("program"));
    launched.arg(record.get_program()).args(record.get_args()).current_dir(bench.path());
    let recorded = Run::of(&mut launched);
    assert_eq!(recorded.status, 3, "{recorded:?}");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// A thread that waits by yielding may do it any number of times between two events, and each time
/// is as good a place for a signal as the others.
#[test]
fn a_signal_comes_after_as_many_yields_as_it_did() {
    let bench = bench();
    let source = "#include <sched.h>\n#include <signal.h>\n#include <stdio.h>\n#include <sys/time.h>\n\
         static volatile unsigned long round, seen[40]; static volatile int n;\n\
         static void on(int s) { if (n < 40) seen[n++] = round; }\n\
         int main(void) { struct itimerval t = {{0, 1000}, {0, 1000}};\n\
         signal(SIGALRM, on); setitimer(ITIMER_REAL, &t, 0);\n\
         while (n < 40) { round++; sched_yield(); }\n\
         for (int i = 0; i < 40; i++) printf(\"%lu\\n\", seen[i]);\n\
         return 0; }\n";
    bench.cc(source, &["-O1", "-o", "program"]);
    bench.refrain(["record", "-o", "a.refrain", "--", "./program"]).succeeds();
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// Nobody counts the instructions of a thread that has only yielded since before the program had a
/// handler: such a thread takes its first signal where it yields.
#[test]
fn a_thread_that_has_only_ever_yielded_takes_a_signal() {
    let bench = bench();
    let source = "#include <pthread.h>\n#include <sched.h>\n#include <signal.h>\n#include <unistd.h>\n\
         static void on(int s) { _exit(7); }\n\
         static void *yields(void *_) { for (;;) sched_yield(); }\n\
         int main(void) { pthread_t thread; pthread_create(&thread, 0, yields, 0); usleep(50000);\n\
         signal(SIGUSR1, on); pthread_kill(thread, SIGUSR1); sleep(30); return 1; }\n";
    bench.cc(source, &["-O1", "-pthread", "-o", "program"]);
    let recorded = bench.refrain(["record", "-o", "a.refrain", "--", "./program"]);
    assert_eq!(recorded.status, 7, "{recorded:?}");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// A child process is not recorded: it may take a signal wherever it is.
#[test]
fn a_child_that_only_computes_takes_a_signal() {
    let bench = bench();
    let source = "#include <signal.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
         static volatile int got; static int ready[2];\n\
         static void on(int s) { got++; }\n\
         int main(void) { char byte; int status; pipe(ready); pid_t child = fork();\n\
         if (child == 0) { signal(SIGUSR1, on); write(ready[1], \"r\", 1);\n\
           while (!got); _exit(7); }\n\
         read(ready[0], &byte, 1); kill(child, SIGUSR1);\n\
         waitpid(child, &status, 0); return WEXITSTATUS(status); }\n";
    bench.cc(source, &["-O1", "-w", "-o", "program"]);
    let recorded = bench.refrain(["record", "-o", "a.refrain", "--", "./program"]);
    assert_eq!(recorded.status, 7, "{recorded:?}");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// A handler may read what the thread that sends the signal has written before: glibc's `setuid` hands
/// its arguments to all threads like that. The replay of a wait takes no time, but the handler in it
/// waits until the signal is sent. It prints, for which glibc looks at what the wait has noted of the
/// thread.
#[test]
fn a_handler_finds_what_was_written_before_its_signal_was_sent() {
    let bench = bench();
    let source = "#include <pthread.h>\n#include <semaphore.h>\n#include <signal.h>\n#include <stdio.h>\n\
         static int numbers[4096];\n\
         static sem_t begun, ended, never;\n\
         static void on(int s) { long all = 0; for (int i = 0; i < 4096; i++) all += numbers[i];\n\
           dprintf(1, \"%ld\\n\", all); sem_post(&ended); }\n\
         static void *waits(void *_) { sem_post(&begun); for (;;) sem_wait(&never); }\n\
         int main(void) { pthread_t thread; sem_init(&begun, 0, 0); sem_init(&ended, 0, 0);\n\
         sem_init(&never, 0, 0); signal(SIGUSR1, on);\n\
         pthread_create(&thread, 0, waits, 0); sem_wait(&begun);\n\
         for (int round = 1; round < 6; round++) {\n\
           for (volatile int i = 0; i < 2000000; i++);\n\
           for (int i = 0; i < 4096; i++) numbers[i] = i * round;\n\
           pthread_kill(thread, SIGUSR1); sem_wait(&ended); }\n\
         return 0; }\n";
    bench.cc(source, &["-O1", "-pthread", "-o", "program"]);
    is_exact(&bench);
}

/// glibc's `setuid` waits, with the lock that a creation of a thread needs, until all threads have
/// handled its signal: those that begin, those that create a thread and those that wait until another
/// one has created its own.
#[test]
fn a_user_is_set_while_threads_are_created() {
    let bench = bench();
    let source = "#include <pthread.h>\n#include <stdatomic.h>\n#include <unistd.h>\n\
         static atomic_int stop;\n\
         static void *nothing(void *_) { return 0; }\n\
         static void *sets(void *_) { while (!stop) { setuid(getuid()); usleep(200); } return 0; }\n\
         static void *creates(void *detached) { pthread_attr_t how; pthread_attr_init(&how);\n\
           if (detached) pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);\n\
           for (int i = 0; i < 12; i++) { pthread_t thread;\n\
             if (pthread_create(&thread, &how, nothing, 0) == 0 && !detached) pthread_join(thread, 0); }\n\
           return 0; }\n\
         int main(void) { pthread_t set[2], create[3];\n\
         for (int i = 0; i < 2; i++) pthread_create(&set[i], 0, sets, 0);\n\
         for (long i = 0; i < 3; i++) pthread_create(&create[i], 0, creates, (void *)(i % 2));\n\
         for (int i = 0; i < 3; i++) pthread_join(create[i], 0);\n\
         stop = 1; for (int i = 0; i < 2; i++) pthread_join(set[i], 0);\n\
         return 0; }\n";
    bench.cc(source, &["-O1", "-pthread", "-o", "program"]);
    is_exact(&bench);
}

/// A thread that takes a signal is out of guest code. Another thread that asks whether it is alone may find
/// the thread so, and put a handover before the signal.
#[test]
fn a_thread_is_found_away_while_it_takes_a_signal() {
    let bench = bench();
    let source = "#include <setjmp.h>\n#include <signal.h>\n#include <unistd.h>\n\
         static sigjmp_buf back; static int *volatile nowhere;\n\
         static void on(int s) { write(1, \"signal\\n\", 7); }\n\
         static void faulted(int s) { write(1, \"fault\\n\", 6); siglongjmp(back, 1); }\n\
         int main(void) { signal(SIGUSR1, on); signal(SIGSEGV, faulted);\n\
         for (int i = 0; i < 3; i++) raise(SIGUSR1);\n\
         if (!sigsetjmp(back, 1)) *nowhere = 1;\n\
         return 0; }\n";
    bench.cc(source, &["-O1", "-w", "-o", "program"]);
    is_exact(&bench);

    let path = bench.path().join("a.refrain");
    let mut trace = OwnedTrace::read(&Trace::open(&path).expect("a trace")).expect("can be read");
    let object = order::accesses_object(ThreadId(0));
    let is_of_slot = |it: &OwnedEvent| order::slot(it.event.object) == order::slot(object);
    assert!(!trace.threads.iter().flatten().any(is_of_slot), "nobody has found it away");
    let mut found = 0;
    let events = std::mem::take(&mut trace.threads[0]).into_iter().flat_map(|it| {
        let Event { nr, begin, .. } = it.event;
        let is_fault = it.event.kind() == EventKind::Common && nr == common::FAULT;
        let away = (is_fault || it.event.kind() == EventKind::Signal).then(|| {
            let (code, nr, ticket) = (EventKind::Handover as u8, accessed::AWAY, found);
            found += 1;
            Event { code, object, nr, ticket, begin, end: begin, ..Event::default() }.into()
        });
        away.into_iter().chain([it])
    });
    trace.threads[0] = events.collect();
    assert!(found >= 4, "{found} signals");
    std::fs::write(&path, trace.to_bytes().expect("can be written")).expect("there is room");
    is_replayed(&bench);
}

/// A handler that runs while its thread waits in a function of the library is interrupted at its
/// first instruction where two signals become deliverable at once: here, those that the first
/// handler has kept pending.
#[test]
fn two_signals_arrive_at_once_while_a_thread_waits() {
    let bench = bench();
    let source = "#include <pthread.h>\n#include <signal.h>\n#include <stdio.h>\n\
         #include <unistd.h>\n\
         static pthread_t first; static volatile int seen[3], n;\n\
         static void later(int s) { seen[n++] = s; }\n\
         static void both(int s) { raise(SIGUSR2); raise(SIGALRM); seen[n++] = s; }\n\
         static void *sends(void *_) { usleep(100000); pthread_kill(first, SIGUSR1);\n\
         usleep(100000); return 0; }\n\
         int main(void) { pthread_t thread; first = pthread_self();\n\
         struct sigaction action = { .sa_handler = both };\n\
         sigaddset(&action.sa_mask, SIGUSR2); sigaddset(&action.sa_mask, SIGALRM);\n\
         signal(SIGUSR2, later); signal(SIGALRM, later); sigaction(SIGUSR1, &action, 0);\n\
         pthread_create(&thread, 0, sends, 0); pthread_join(thread, 0);\n\
         printf(\"%d %d %d\\n\", seen[0], seen[1], seen[2]); return 0; }\n";
    bench.cc(source, &["-O1", "-pthread", "-o", "program"]);
    is_exact(&bench);
}

/// The kernel gives a signal that was sent to one thread (`tgkill`) to that thread alone.
#[test]
fn processes_send_signals_to_each_others_threads() {
    let bench = bench();
    let source = "#define _GNU_SOURCE\n#include <pthread.h>\n#include <semaphore.h>\n#include <signal.h>\n\
         #include <stdio.h>\n#include <sys/syscall.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
         static volatile sig_atomic_t got; static sem_t begun; static pid_t thread;\n\
         static void on(int s) { got++; }\n\
         static void *waits(void *_) { thread = gettid(); sem_post(&begun);\n\
           while (!got) usleep(1000); return 0; }\n\
         int main(void) { pthread_t waiting; pid_t process = getpid(); int status, ready[2]; char byte;\n\
         signal(SIGUSR1, on); sem_init(&begun, 0, 0); pthread_create(&waiting, 0, waits, 0);\n\
         sem_wait(&begun); pid_t child = fork();\n\
         if (child == 0) _exit(syscall(SYS_tgkill, process, thread, SIGUSR1) ? 1 : 0);\n\
         waitpid(child, &status, 0); pthread_join(waiting, 0); printf(\"%d, %d\\n\", status, got);\n\
         fflush(stdout); pipe(ready); got = 0; child = fork();\n\
         if (child == 0) { write(ready[1], \"r\", 1); while (!got) usleep(1000); _exit(7); }\n\
         read(ready[0], &byte, 1); syscall(SYS_tgkill, child, child, SIGUSR1);\n\
         waitpid(child, &status, 0); return WEXITSTATUS(status); }\n";
    bench.cc(source, &["-O1", "-w", "-pthread", "-o", "program"]);
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    assert_eq!((recorded.status, recorded.text().as_str()), (7, "0, 1\n"), "{recorded:?}");
    is_replayed(&bench);
}

/// A thread has computed for some time before the first signal is sent, and waits for nothing else.
#[test]
fn a_thread_that_computes_is_sent_a_signal() {
    let bench = bench();
    bench.cc(
        "#include <pthread.h>\n#include <signal.h>\n#include <unistd.h>\n\
         static volatile int told, begun;\nstatic volatile unsigned long work;\n\
         static void on(int s) { told = 1; }\n\
         static void *computes(void *_) { begun = 1; while (!told) work++; return 0; }\n\
         int main(void) { pthread_t thread; signal(SIGUSR1, on);\n\
         pthread_create(&thread, 0, computes, 0);\n\
         while (!begun) usleep(100);\n\
         for (int i = 0; !told; i++) {\n\
         if (i == 3000) _exit(1);\n\
         usleep(1000); pthread_kill(thread, SIGUSR1); }\n\
         pthread_join(thread, 0); return 0; }\n",
        &["-O1", "-pthread", "-o", "program"],
    );
    is_exact(&bench);
}

#[test]
fn a_thread_that_computes_is_sent_a_timers_signal() {
    let bench = bench();
    bench.cc(include_str!("../guest/thread_timer.c"), &["-O1", "-pthread", "-o", "program"]);
    is_exact(&bench);
}

/// Service managers ignore SIGPIPE for what they start.
#[test]
fn a_signal_that_is_ignored_from_the_start() {
    const SIGPIPE: i32 = 13;
    let bench = bench();
    let source = "#include <unistd.h>\n\
                  int main(void) { int ends[2]; pipe(ends); close(ends[0]);\n\
                  return write(ends[1], \"a\", 1) < 0 ? 7 : 0; }\n";
    bench.cc(source, &["-w", "-o", "program"]);
    let started = |before: &str| {
        let script = format!("{before} exec \"$0\" record -q -o a.refrain -- ./program");
        let mut shell = Command::new("sh");
        let refrain = env!("CARGO_BIN_EXE_refrain-under-test");
        shell.args(["-c", &script, refrain]).current_dir(bench.path());
        Run::of(shell.env("XDG_CACHE_HOME", bench.path().join("cache"))).status
    };
    assert_eq!(started("trap '' PIPE;"), 7);
    is_replayed(&bench);
    assert_eq!(started(""), 128 + SIGPIPE);
}
