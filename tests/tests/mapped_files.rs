//! Files that a program maps: a trace holds the pages that the program touched, and no more.

use refrain_tests::{Bench, Run};
use refrain_trace::{OwnedTrace, Trace};
use std::fs::{File, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

const MIB: usize = 1 << 20;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// A file of random bytes, which compress to nothing less, that nobody has written lately.
fn old_file(bench: &Bench, name: &str, len: usize) {
    let mut state = 88_172_645_463_325_252_u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let path = bench.file(name, &(0..len / 8).flat_map(|_| word()).collect::<Vec<_>>());
    make_old(&path);
}

fn make_old(path: &Path) {
    let times = FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(3600));
    File::options().write(true).open(path).expect("it is there").set_times(times).expect("ours");
}

fn size_of_trace(bench: &Bench) -> usize {
    std::fs::metadata(bench.path().join("a.refrain")).expect("there is a trace").len() as usize
}

fn replays(bench: &Bench) {
    bench.refrain(["check", "a.refrain"]).succeeds();
    for engine in ["tiered", "cranelift", "copy"] {
        bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
    }
}

/// Looks at a page here and there: directly, by the kernel, after it has written it, by a mapping
/// that is gone or has moved at the end, and through one that was taken back and made again.
const TOUCHES: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static unsigned long sum;
static void add(const unsigned char *at) {
    for (int i = 0; i < 4096; i++) sum = sum * 31 + at[i];
}
int main(int argc, char **argv) {
    int fd = open("data", O_RDONLY), null = open("/dev/null", O_WRONLY);
    size_t len = 64 << 20;
    unsigned char *all = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    add(all + (1 << 20));
    all[(5 << 20) + 7] ^= 1;
    add(all + (5 << 20));
    if (write(1, all + (9 << 20), 100) != 100 || write(null, all + (17 << 20), 5000) != 5000)
        return 1;
    mprotect(all + (12 << 20), 1 << 20, PROT_NONE);
    mprotect(all + (12 << 20), 1 << 20, PROT_READ);
    add(all + (12 << 20) + 4096);
    unsigned char *part = mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE, fd, 30 << 20);
    add(part + 8192);
    munmap(part, 1 << 20);
    unsigned char *moved = mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE, fd, 40 << 20);
    add(moved + 4096);
    moved = mremap(moved, 1 << 20, 2 << 20, MREMAP_MAYMOVE);
    add(moved + (1 << 20) + 4096);
    madvise(all, len, MADV_DONTNEED);
    add(all + (5 << 20));
    add(all + len - 4096);
    printf("%lx\n", sum);
    if (argc > 1) {
        fflush(stdout);
        for (;;) {
            // Enough events for the recorder to write some.
            for (int i = 0; i < 10000; i++) getppid();
            add(all + (20 << 20) + 4096 * (rand() % 64));
        }
    }
    return 0;
}
"#;

#[test]
fn a_trace_has_the_pages_that_were_touched() {
    let bench = bench();
    bench.cc(TOUCHES, &["-O1", "-o", "touches"]);
    old_file(&bench, "data", 64 * MIB);
    let native = Run::of(std::process::Command::new("./touches").current_dir(bench.path()));
    let record = ["record", "-q", "-o", "a.refrain", "--", "./touches"];
    let recorded = bench.refrain(record);
    assert_eq!(recorded.succeeds().stdout, native.stdout);
    // Some kernels map up to 2 MiB at once.
    assert!(size_of_trace(&bench) < 40 * MIB, "{} bytes", size_of_trace(&bench));
    // The trace is all that a replay needs.
    std::fs::remove_file(bench.path().join("data")).expect("it is ours");
    replays(&bench);
}

/// A trace may refer to files; it can be replayed as long as these are what they were, or once it is packed.
#[test]
fn contents_may_be_left_in_their_files() {
    let bench = bench();
    bench.cc(TOUCHES, &["-O1", "-o", "touches"]);
    make_old(&bench.path().join("touches"));
    old_file(&bench, "data", 64 * MIB);
    let native = Run::of(std::process::Command::new("./touches").current_dir(bench.path()));
    let recorded =
        bench.refrain(["record", "--reference", "-q", "-o", "a.refrain", "--", "./touches"]);
    assert_eq!(recorded.succeeds().stdout, native.stdout);
    assert!(size_of_trace(&bench) < MIB, "{} bytes", size_of_trace(&bench));
    let info = bench.refrain(["info", "a.refrain"]);
    assert!(info.succeeds().text().contains("not in the trace"), "{info:?}");
    let check = bench.refrain(["check", "a.refrain"]);
    assert!(check.succeeds().text().contains("refers to files"), "{check:?}");
    replays(&bench);
    bench.refrain(["pack", "a.refrain", "-o", "packed.refrain"]).succeeds();
    let data = bench.path().join("data");
    let changed = File::options().write(true).open(&data).expect("it is ours");
    changed.write_all_at(b"changed", 40 * MIB as u64 + 4096 + 7).expect("it is ours");
    make_old(&data);
    for command in [&["replay", "a.refrain"][..], &["locks", "a.refrain"], &["pack", "a.refrain"]] {
        let changed = ["no copy of", "/data", "changed since the recording", "record anew"];
        bench.refrain(command).fails(1, &changed);
    }
    std::fs::remove_file(data).expect("it is ours");
    bench
        .refrain(["replay", "a.refrain"])
        .fails(1, &["no copy of", "/data", "No such file", "put the file back"]);
    std::fs::remove_file(bench.path().join("touches")).expect("it is ours");
    std::fs::rename(bench.path().join("packed.refrain"), bench.path().join("a.refrain"))
        .expect("both are ours");
    let check = bench.refrain(["check", "a.refrain"]);
    assert!(!check.succeeds().text().contains("refers"), "{check:?}");
    replays(&bench);
}

/// What a recording has packed of libraries, later ones of the program copy, unless it is damaged.
#[test]
fn packed_pages_are_used_again() {
    let bench = bench();
    let folder = bench.path().join("cache/refrain/pages");
    let kept = || {
        bench.refrain(["record", "-q", "-o", "a.refrain", "--", "ls", "--help"]).succeeds();
        replays(&bench);
        let mut files = std::fs::read_dir(&folder).expect("there is a folder");
        let path = files.next().expect("of one program").expect("it is there").path();
        let metadata = path.metadata().expect("it is there");
        (path, metadata.ino(), metadata.len())
    };
    let (path, first, len) = kept();
    assert!(len > 0);
    let (_, second, _) = kept();
    assert_eq!(second, first, "nothing was packed");
    let file = File::options().read(true).write(true).open(path).expect("it is ours");
    let mut last = [0];
    file.read_exact_at(&mut last, len - 1).expect("it is there");
    file.write_all_at(&[last[0] ^ 1], len - 1).expect("it is ours");
    let (_, third, nothing) = kept();
    assert_ne!(third, first);
    assert_eq!(nothing, 0);
    let (_, _, again) = kept();
    assert!(again > 0);
}

/// A recorder that is killed leaves a trace that can be packed and replayed as far as it goes.
#[test]
fn what_was_cut_off_can_be_packed() {
    let bench = bench();
    kill_recorder(&bench, &["--reference"], MIB as u64);
    bench.refrain(["pack", "a.refrain"]).succeeds();
    std::fs::remove_file(bench.path().join("data")).expect("it is ours");
    let replay = bench.refrain(["replay", "a.refrain"]);
    assert_eq!(replay.status, 3, "{replay:?}");
}

/// Maps a file shared that it has open for reading, and changes it afterwards in the way that it is told.
const SHARES: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { LEN = 16 << 20 };
static unsigned long sum;
static void add(const unsigned char *at) {
    for (int i = 0; i < 4096; i++) sum = sum * 31 + at[i];
}
int main(int argc, char **argv) {
    const char *way = argv[1];
    int fd = open("data", O_RDONLY), writes = -1;
    if (!strcmp(way, "early")) writes = open("data", O_RDWR);
    unsigned char *all = mmap(0, LEN / 2, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *same = mmap(0, 1 << 20, PROT_READ, MAP_SHARED, fd, 1 << 20);
    unsigned char *own = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 2 << 20);
    close(fd);
    add(all + (1 << 20));
    add(same + (1 << 19));
    own[4096] = 1;
    add(own + 4096);
    if (write(1, all + (3 << 20) + 4096, 0) != 0) return 1;
    if (!strcmp(way, "early")) {
        if (pwrite(writes, "early", 5, (1 << 20) + (1 << 19) + 100) != 5) return 2;
    } else if (!strcmp(way, "late")) {
        writes = open("data", O_WRONLY);
        lseek(writes, 5 << 20, SEEK_SET);
        if (write(writes, "late", 4) != 4) return 3;
    } else if (!strcmp(way, "store")) {
        writes = open("data", O_RDWR);
        unsigned char *shown = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, writes, 0);
        memcpy(shown + (5 << 20), "stored", 7);
        shown[(1 << 20) + (1 << 19) + 5]++;
    } else if (!strcmp(way, "truncate")) {
        if (truncate("data", 5 << 20) || truncate("data", LEN)) return 4;
    } else if (!strcmp(way, "open")) {
        writes = open("data", O_RDWR | O_TRUNC);
        if (ftruncate(writes, LEN) || pwrite(writes, "anew", 5, 1 << 20) != 5) return 5;
    } else if (!strcmp(way, "fork")) {
        add(all + (4 << 20));
        writes = open("data", O_RDWR);
        int status, turn[2];
        char go;
        if (pipe(turn)) return 6;
        if (fork() == 0)
            _exit(read(turn[0], &go, 1) != 1 || pwrite(writes, "child", 5, 2 << 20) != 5);
        if (write(turn[1], "g", 1) != 1) return 7;
        wait(&status);
        if (status) return 8;
    } else if (!strcmp(way, "unwatched")) {
        if (system("echo unwatched >> data")) return 9;
    } else if (!strcmp(way, "grow")) {
        all = mremap(all, LEN / 2, LEN, MREMAP_MAYMOVE);
        add(all + LEN / 2 + (1 << 20));
    } else if (!strcmp(way, "hide")) {
        mprotect(all, LEN / 2, PROT_NONE);
        mprotect(all, LEN / 2, PROT_READ);
    }
    for (int at = 0; at < 5; at++) add(all + (1 << 20) * (at + 1));
    add(same + (1 << 19));
    // (What is cut off of a file is gone from private mappings, too.)
    if (strcmp(way, "open")) {
        add(own + 4096);
        add(own + 8192);
    }
    printf("%lx\n", sum);
    return 0;
}
"#;

/// The trace has the pages of a shared mapping that the program touched, until the program changes the file.
#[test]
fn a_shared_file_is_kept_whole_when_it_is_to_change() {
    let bench = bench();
    bench.cc(SHARES, &["-O1", "-o", "shares"]);
    for way in ["read", "hide", "grow", "early", "late", "store", "truncate", "open", "fork"] {
        let reads = ["read", "hide", "grow"].contains(&way);
        old_file(&bench, "data", 16 * MIB);
        let mut native = std::process::Command::new("./shares");
        let native = Run::of(native.arg(way).current_dir(bench.path()));
        old_file(&bench, "data", 16 * MIB);
        let record = ["record", "-q", "--force", "-o", "a.refrain", "--", "./shares", way];
        let recorded = bench.refrain(record);
        assert_eq!(recorded.succeeds().stdout, native.succeeds().stdout, "{way}");
        let size = size_of_trace(&bench);
        assert!(if reads { size < 6 * MIB } else { size > 7 * MIB }, "{way}: {size} bytes");
        replays(&bench);
        // A trace that refers to files has what will not be there any more.
        old_file(&bench, "data", 16 * MIB);
        let record = ["record", "--reference", "-q", "--force", "-o", "a.refrain", "--"];
        let recorded = bench.refrain(record.into_iter().chain(["./shares", way]));
        assert_eq!(recorded.succeeds().stdout, native.stdout, "{way}");
        let size = size_of_trace(&bench);
        assert!(if reads { size < MIB } else { size > 7 * MIB }, "{way}: {size} bytes");
        bench.refrain(["replay", "a.refrain"]).succeeds();
    }
}

/// The program starts another process, which opens the file for writing and adds to it.
#[test]
fn a_shared_file_that_another_process_changes_is_mentioned() {
    let bench = bench();
    bench.cc(SHARES, &["-O1", "-o", "shares"]);
    old_file(&bench, "data", 16 * MIB);
    let recorded = bench.refrain(["record", "-o", "a.refrain", "--", "./shares", "unwatched"]);
    assert!(recorded.succeeds().stderr.contains("a file was changed"), "{recorded:?}");
}

/// The program's own pages are no others.
#[test]
fn a_program_may_be_large() {
    let bench = bench();
    old_file(&bench, "data", 16 * MIB);
    let source = r#"
#include <stdio.h>
__asm__(".section .rodata\nconstants: .incbin \"data\"\n"
        ".section .data\nvariables: .incbin \"data\"\n.text");
extern unsigned char constants[], variables[];
unsigned char zeros[8 << 20];
int main(void) {
    variables[5 << 20] += 3;
    zeros[1 << 20] = constants[7 << 20];
    unsigned sum = 0;
    for (int i = 0; i < 4096; i++)
        sum = sum * 31 + constants[(9 << 20) + i] + variables[(5 << 20) + i] + zeros[i];
    printf("%x\n", sum + zeros[1 << 20]);
    return 0;
}
"#;
    for how in ["-pie", "-static"] {
        bench.cc(source, &["-O1", how, "-o", "large"]);
        let program = bench.path().join("large");
        make_old(&program);
        let native = Run::of(std::process::Command::new("./large").current_dir(bench.path()));
        let recorded =
            bench.refrain(["record", "-q", "--force", "-o", "a.refrain", "--", "./large"]);
        assert_eq!(recorded.succeeds().stdout, native.succeeds().stdout, "{how}");
        assert!(size_of_trace(&bench) < 16 * MIB, "{how}: {} bytes", size_of_trace(&bench));
        std::fs::remove_file(program).expect("it is ours");
        replays(&bench);
    }
}

/// Never zeros instead.
#[test]
fn a_page_that_is_not_in_the_trace_is_missed() {
    let bench = bench();
    bench.cc(TOUCHES, &["-O1", "-o", "touches"]);
    old_file(&bench, "data", 64 * MIB);
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./touches"]).succeeds();
    let path = bench.path().join("a.refrain");
    let mut trace = OwnedTrace::read(&Trace::open(&path).expect("a trace")).expect("can be read");
    let mut files = trace.files.values_mut();
    let (_, pages) = files.find(|(file, _)| file.path.ends_with("/data")).expect("was mapped");
    pages.remove(&(30 * MIB as u64 + 8192)).expect("was touched");
    for engine in ["tiered", "cranelift", "copy"] {
        std::fs::write(&path, trace.to_bytes().expect("can be written")).expect("ours");
        let replay = bench.refrain(["replay", "--engine", engine, "a.refrain"]);
        assert_eq!(replay.status, 1, "{replay:?}");
        let words = "in a page of a file that the trace does not have";
        assert!(replay.text().contains(words), "{replay:?}");
        let cut_off = OwnedTrace { footer: None, ..trace.clone() };
        std::fs::write(&path, cut_off.to_bytes().expect("can be written")).expect("ours");
        let replay = bench.refrain(["replay", "--engine", engine, "a.refrain"]);
        assert_eq!(replay.status, 3, "{replay:?}");
    }
}

/// More than a replay unpacks beforehand.
#[test]
fn a_file_may_be_large() {
    let bench = bench();
    let path = bench.file("sparse", b"first");
    let file = File::options().write(true).open(&path).expect("it is there");
    file.write_all_at(b"last", (700 << 20) - 4).expect("it can be sparse");
    drop(file);
    make_old(&path);
    bench.cc(
        r#"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
    size_t len = 700 << 20;
    char *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, open("sparse", O_RDONLY), 0);
    char *end = mmap(0, 8192, PROT_READ, MAP_PRIVATE, open("sparse", O_RDONLY), len - 8192);
    at[1 << 20] = 1;
    // These lie side by side, and the second mapping shows half of them.
    for (size_t page = 4; page > 0; page--) ((volatile char *)at)[len - page * 4096];
    return memcmp(at, "first", 5) || memcmp(at + len - 4, "last", 4) || memcmp(end + 8188, "last", 4);
}
"#,
        &["-O1", "-o", "large"],
    );
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./large"]).succeeds();
    assert!(size_of_trace(&bench) < 4 * MIB, "{} bytes", size_of_trace(&bench));
    replays(&bench);
}

/// Nobody can say which pages of such a file had which content when.
#[test]
fn a_file_that_was_just_written_is_kept_at_once() {
    let bench = bench();
    bench.cc(
        r#"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    int fd = open("fresh", O_RDWR | O_CREAT | O_TRUNC, 0600);
    char block[4096];
    for (int i = 0; i < 300; i++) {
        memset(block, i, sizeof block);
        if (write(fd, block, sizeof block) != sizeof block) return 1;
    }
    volatile char *at = mmap(0, 300 * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    int before = at[0];
    unlink("fresh");
    close(fd);
    return before + at[299 * 4096] - 43;
}
"#,
        &["-o", "fresh-file"],
    );
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./fresh-file"]).succeeds();
    replays(&bench);
}

/// The writer may not have read it yet.
#[test]
fn a_file_may_be_overwritten_when_it_is_not_mapped_any_more() {
    let bench = bench();
    bench.cc(
        r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static char junk[1 << 20];
int main(void) {
    unsigned long sum = 0;
    for (int file = 0; file < 12; file++) {
        char name[8];
        sprintf(name, "old%d", file);
        int fd = open(name, O_RDWR);
        char *at = mmap(0, sizeof junk, PROT_READ, MAP_PRIVATE, fd, 0);
        for (unsigned i = 0; i < sizeof junk; i += 4096) sum = sum * 31 + at[i + file];
        struct timespec wait = {0, file % 4 * 5000000};
        nanosleep(&wait, 0);
        munmap(at, sizeof junk);
        memset(junk, 'a' + file, sizeof junk);
        if (pwrite(fd, junk, sizeof junk, 0) != sizeof junk) return 1;
        close(fd);
    }
    printf("%lx\n", sum);
    return 0;
}
"#,
        &["-O1", "-o", "overwrites"],
    );
    (0..12).for_each(|file| old_file(&bench, &format!("old{file}"), MIB));
    let recorded = bench.refrain(["record", "-o", "a.refrain", "--", "./overwrites"]);
    assert!(!recorded.succeeds().stderr.contains("a file was changed"), "{recorded:?}");
    replays(&bench);
}

#[test]
fn a_file_that_changes_is_mentioned() {
    let bench = bench();
    old_file(&bench, "data", MIB);
    bench.cc(
        r#"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    int fd = open("data", O_RDWR);
    volatile char *at = mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE, fd, 0);
    char first = at[0];
    return pwrite(fd, "x", 1, 0) != 1 || first == 'x';
}
"#,
        &["-o", "changes"],
    );
    let recorded = bench.refrain(["record", "-o", "a.refrain", "--", "./changes"]);
    assert!(recorded.succeeds().stderr.contains("a file was changed"), "{recorded:?}");
}

/// However long ago the page was written that was touched before the change.
#[test]
fn a_file_that_changes_late_is_mentioned() {
    let bench = bench();
    for end in ["return 0;", "munmap(at, 1 << 20); return 0;"] {
        old_file(&bench, "data", MIB);
        let source = format!(
            r#"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {{
    int fd = open("data", O_RDWR);
    char *at = mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE, fd, 0);
    volatile char first = *(volatile char *)at;
    for (int i = 0; i < 20; i++) usleep(10000);
    if (pwrite(fd, "x", 1, 0) != 1 || first == 'x') return 1;
    {end}
}}
"#
        );
        bench.cc(&source, &["-o", "changes"]);
        let recorded = bench.refrain(["record", "--force", "-o", "a.refrain", "--", "./changes"]);
        assert!(recorded.succeeds().stderr.contains("a file was changed"), "{recorded:?}");
    }
}

/// Records a program that maps a file, until there are so many bytes of the trace, and kills the recorder then: some
/// chunks of events are there.
fn kill_recorder(bench: &Bench, options: &[&str], bytes: u64) {
    bench.cc(TOUCHES, &["-O1", "-o", "touches"]);
    old_file(bench, "data", 64 * MIB);
    let record = ["record", "-q", "-o", "a.refrain"].iter().chain(options);
    let mut command = bench.command(record.chain(&["--", "./touches", "forever"]));
    let mut child = command.stdout(Stdio::null()).spawn().expect("starts");
    while std::fs::metadata(bench.path().join("a.refrain")).map_or(0, |m| m.len()) < bytes {
        assert_eq!(child.try_wait().expect("it is ours"), None, "it runs until it is killed");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
}

/// What events that were written need was written before them.
#[test]
fn a_killed_recorder_leaves_the_pages_of_its_events() {
    let bench = bench();
    kill_recorder(&bench, &[], 2 * MIB as u64);
    let replayed = |engine| {
        let replay = bench.refrain(["replay", "--json", "--engine", engine, "a.refrain"]);
        assert_eq!(replay.status, 3, "{replay:?}");
        let report: serde_json::Value = serde_json::from_slice(&replay.stdout).expect("is JSON");
        // One thread: all that is in the trace can happen.
        assert_eq!(report["events"], report["events_recorded"], "{report}");
        report["events"].clone()
    };
    let events = replayed("copy");
    assert!(events.as_u64() > Some(10_000), "{events}");
    let repair = bench.refrain(["check", "--repair", "a.refrain"]);
    assert!(repair.succeeds().text().contains("repaired"), "{repair:?}");
    bench.refrain(["check", "a.refrain"]).succeeds();
    assert_eq!(replayed("cranelift"), events);
}
