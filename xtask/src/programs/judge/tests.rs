//! Verdicts of programs that a stub records, which runs them and says what is wanted of replays.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, PoisonError};

/// Whoever ends what a program has left ends all children of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// A recorder that runs the program, and whose replays diverge for so many recordings.
const STUB: &str = r#"#!/bin/sh
here=$(dirname "$0")
case $1 in
record)
    while [ "$1" != -- ]; do [ "$1" = -o ] && trace=$2; shift; done
    shift
    echo x >>"$here/recordings"
    echo trace >"$trace"
    "$@"
    status=$?
    echo "refrain: note: noted" >&2
    exit $status ;;
info) echo '{"threads":[{}],"events":2,"size":3,"order":"sync"}' ;;
replay)
    if [ "$(wc -l <"$here/recordings")" -le DIVERGED ]; then
        echo '{"divergence":{"thread":"t1","event":"e2","kind":"k","expected":"a","actual":"b"},"races":RACES}'
        exit 1
    fi
    echo '{"divergence":null,"truncated":false}' ;;
esac
"#;
const RACE: &str = r#"{"pairs":[{
    "first":{"access":"reads","place":{"module":"/a/b","in_module":"0x12"}},
    "second":{"access":"writes","place":{"module":"/a/b","frames":[{"function":"f"}]}}}]}"#;

fn judged(name: &str, program: &str, diverged: u32, races: &str) -> Row {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let refrain = folder.path().join("refrain");
    let races = races.split_whitespace().collect::<String>();
    let stub = STUB.replace("DIVERGED", &diverged.to_string()).replace("RACES", &races);
    std::fs::write(&refrain, stub).expect("a file");
    std::fs::set_permissions(&refrain, std::fs::Permissions::from_mode(0o755)).expect("owned");
    let judge = Judge {
        refrain,
        orders: vec!["sync".into()],
        replays: 2,
        limit: Duration::from_secs(60),
        date: String::new(),
        commit: String::new(),
    };
    // Tests of another checkout may run at the same time.
    let text = format!("name = 'test of judge {}, {name}'\n{program}", std::process::id());
    let program: Program = toml::from_str(&text).expect("a program");
    let row = judge.judge(&program, None).expect("a row");
    Place::new(&program).and_then(|place| place.remove()).expect("can be removed");
    row
}

fn verdict(row: &Row) -> &Verdict {
    assert_eq!(row.broken, None);
    &row.modes["sync"].verdict
}

#[test]
fn replays_are_exact_or_become_so() {
    let program = "setup = 'echo 1 >a'\ncommand = 'cat a'\nwrites = ['a']";
    assert_eq!(verdict(&judged("exact", program, 0, RACE)), &Verdict::Exact);
    let learned = judged("learned", program, 2, RACE);
    assert_eq!(verdict(&learned), &Verdict::Learned(2));
    let mode = &learned.modes["sync"];
    assert_eq!((mode.divergences.len(), mode.has_unexplained()), (2, false));
    assert_eq!(mode.divergences[0].race.as_deref(), Some("0x12 of b reads, f (b) writes"));
    assert_eq!((mode.kept.len(), mode.notes.as_slice()), (0, &["noted".to_owned()][..]));
    let diverged = judged("diverged", program, 9, "null");
    assert_eq!(verdict(&diverged), &Verdict::Diverged("t1 e2: k: b, not a".into()));
    assert!(diverged.modes["sync"].has_unexplained());
}

#[test]
fn a_recording_is_held_against_the_native_run() {
    // What the program finds beside its folder tells it who runs it.
    let program = |then: &str| {
        let script =
            format!("[ ! -e ../traces/sync-0/program.refrain ] || {{ {then}; }}; echo fine");
        format!("files = {{ 'a.sh' = \"{script}\" }}\ncommand = 'sh a.sh'")
    };
    let differs = |why: &str| Verdict::Differs(why.to_owned());
    let output = judged("output", &program("echo more"), 0, RACE);
    let said = "10 bytes of output instead of 5, different from byte 0 on";
    assert_eq!(verdict(&output), &differs(said));
    let status = judged("status", &program("echo bad >&2; exit 3"), 0, RACE);
    assert_eq!(verdict(&status), &differs("status 3 instead of 0: bad"));
    let left = judged("left", &program("sleep 100 & true"), 0, RACE);
    assert_eq!(verdict(&left), &differs("left 1 processes instead of 0"));
}

#[test]
fn servers_end_after_their_load() {
    // The load begins when the server runs, and not only the stub that is to start it.
    let program = "files = { 'a.sh' = 'echo >up; exec sleep 100' }\ncommand = 'sh a.sh'\n\
                   status = 143\n\
                   server = { ready = 'test -e up', load = 'echo a', signal = 'TERM' }";
    let row = judged("server", program, 0, RACE);
    assert!(row.native_ms < 50_000, "{}", row.native_ms);
    // The signal ends the stub, which leaves what it has started.
    assert_eq!(verdict(&row), &Verdict::Differs("left 1 processes instead of 0".into()));
}

#[test]
fn what_does_not_work_natively_is_no_result() {
    let row = judged("broken", "command = 'sh -c \"echo bad >&2; exit 4\"'", 0, RACE);
    assert_eq!(row.broken.as_deref(), Some("the native run ended with 4: bad"));
    assert!(row.modes.is_empty());
}
