//! A replay in this process with an observer that is written here. One test: a process replays once.

use refrain_session::{Recording, Session, unconfined};
use refrain_trace::{Access, Event, EventId, ThreadId, Trace};
use refrain_vm::{Interest, Observer, ThreadObserver};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the accesses of all threads.
#[derive(Clone, Default)]
struct Accesses(Arc<AtomicU64>);

impl Observer for Accesses {
    fn interest(&self) -> Interest {
        Interest { accesses: true, calls: false }
    }

    fn thread(&self, _: ThreadId) -> Box<dyn ThreadObserver> {
        Box::new(self.clone())
    }
}

impl ThreadObserver for Accesses {
    fn accesses(&mut self, batch: &[Access]) {
        self.0.fetch_add(batch.len() as u64, Ordering::Relaxed);
    }

    fn event(&mut self, _: EventId, _: &Event, _: u64) {}
}

#[test]
fn an_observer_of_one_s_own_sees_the_accesses() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = refrain_corpus::find("ex_mutex").expect("the corpus has it");
    let path = refrain_corpus::compile(program, program.variants[0], directory.path());
    let command = path.expect("the corpus can be compiled").into_os_string();
    let trace = directory.path().join("a.refrain");
    let recording = Recording { no_learn: true, ..Recording::of([command, "50".into()], &trace) };
    Session::by(env!("CARGO_BIN_EXE_refrain")).record(&recording).expect("can be recorded");
    let accesses = Accesses::default();
    let trace = Trace::open(&trace).expect("a trace");
    let outcome = unconfined::replay(&trace, Arc::new(accesses.clone()), Default::default());
    assert!(outcome.expect("can be replayed").divergence.is_none());
    assert!(accesses.0.load(Ordering::Relaxed) > trace.events());
}
