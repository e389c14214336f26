//! Locks that exclude only what conflicts: what a lock would be without its unnecessary contention.
//!
//! PerfPlay removes locks and puts the order of true contentions back as causal edges
//! ([`crate::Edge`]), in the order of the recording. Which of two conflicting sections came first
//! was the accident of one run, though: a program without its unnecessary contention has its true
//! contention in whatever order threads come. So an object can be *relaxed* instead: a section
//! enters as soon as no section is inside that it conflicts with, and everything else (who comes
//! first, who sleeps, who is woken, what that costs) follows the rules of the original.
//!
//! Invariant: where every two sections conflict, the replay is that of the original to the tick.

use refrain_trace::ThreadId;
use std::fmt;

/// No class: an operation that begins no section, or one that excludes everything.
const NONE: u32 = u32::MAX;

/// Which classes of sections conflict. Replays that are under way at once may ask.
pub trait Conflicts: Sync {
    /// Whether sections of these classes need each other's exclusion. Symmetric.
    fn conflict(&self, a: u32, b: u32) -> bool;

    /// Whether sections of this class pay for no lock: they conflict with none of another thread, or hardly ever
    /// with one.
    fn is_lockless(&self, class: u32) -> bool;
}

/// The sections of a run by the conflicts that they have.
#[derive(Clone)]
pub struct Admission<'a> {
    /// By thread, ascending: an acquisition and the class of the section that it begins.
    classes: Vec<Vec<(u32, u32)>>,
    conflicts: &'a dyn Conflicts,
}

impl fmt::Debug for Admission<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("classes", &self.classes).finish_non_exhaustive()
    }
}

impl<'a> Admission<'a> {
    /// `sections` names acquisitions, by thread and event, with their classes. Acquisitions of a
    /// relaxed object that are not among them exclude everything.
    pub fn new(
        threads: usize,
        sections: impl IntoIterator<Item = (ThreadId, u32, u32)>,
        conflicts: &'a dyn Conflicts,
    ) -> Admission<'a> {
        let mut classes = vec![Vec::new(); threads];
        for (thread, event, class) in sections {
            if let Some(of_thread) = classes.get_mut(thread.index()) {
                of_thread.push((event, class));
            }
        }
        for of_thread in &mut classes {
            of_thread.sort_unstable();
        }
        Admission { classes, conflicts }
    }

    fn class(&self, thread: u32, event: u32) -> u32 {
        let of_thread = &self.classes[thread as usize];
        let found = of_thread.binary_search_by_key(&event, |&(event, _)| event);
        found.map_or(NONE, |index| of_thread[index].1)
    }

    /// Whether two acquisitions, by thread and event, exclude each other.
    pub(crate) fn exclude(&self, a: (u32, u32), b: (u32, u32)) -> bool {
        self.conflict(self.class(a.0, a.1), self.class(b.0, b.1))
    }

    fn conflict(&self, a: u32, b: u32) -> bool {
        a == NONE || b == NONE || self.conflicts.conflict(a, b)
    }
}

/// A thread inside of a relaxed object.
#[derive(Clone, Copy, Debug)]
struct Inside {
    thread: u32,
    class: u32,
    depth: u32,
    reads: bool,
}

/// Who is inside of which relaxed object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Occupants(Vec<Vec<Inside>>);

impl Occupants {
    pub(crate) fn new(objects: usize) -> Occupants {
        Occupants(vec![Vec::new(); objects])
    }

    /// Whether an acquisition is possible now.
    pub(crate) fn allow(
        &self,
        admission: &Admission<'_>,
        object: u32,
        (thread, event): (u32, u32),
        reads: bool,
    ) -> bool {
        let inside = &self.0[object as usize];
        if inside.iter().any(|inside| inside.thread == thread) {
            return true;
        }
        if inside.is_empty() {
            return true;
        }
        let class = admission.class(thread, event);
        !inside
            .iter()
            .any(|other| !(reads && other.reads) && admission.conflict(class, other.class))
    }

    /// Whether a thread pays for the lock that it is about to take, with the event by which it takes it.
    pub(crate) fn pays_to_enter(
        &self,
        admission: &Admission<'_>,
        object: u32,
        (thread, event): (u32, u32),
    ) -> bool {
        let inside = self.inside(object, thread);
        let class = inside.map_or_else(|| admission.class(thread, event), |it| it.class);
        pays(admission, class)
    }

    /// Whether a thread that is inside has paid for the lock; who is not inside has.
    pub(crate) fn pays(&self, admission: &Admission<'_>, object: u32, thread: u32) -> bool {
        self.inside(object, thread).is_none_or(|inside| pays(admission, inside.class))
    }

    fn inside(&self, object: u32, thread: u32) -> Option<&Inside> {
        self.0[object as usize].iter().find(|inside| inside.thread == thread)
    }

    /// Lets a thread in.
    pub(crate) fn enter(
        &mut self,
        admission: &Admission<'_>,
        object: u32,
        (thread, event): (u32, u32),
        reads: bool,
    ) {
        let inside = &mut self.0[object as usize];
        match inside.iter_mut().find(|inside| inside.thread == thread) {
            Some(again) => again.depth += 1,
            None => {
                let class = admission.class(thread, event);
                inside.push(Inside { thread, class, depth: 1, reads });
            }
        }
    }

    /// Lets a thread out, `wholly` if it was inside several times.
    pub(crate) fn leave(&mut self, object: u32, thread: u32, wholly: bool) {
        let inside = &mut self.0[object as usize];
        let Some(index) = inside.iter().position(|inside| inside.thread == thread) else { return };
        inside[index].depth -= 1;
        if wholly || inside[index].depth == 0 {
            inside.swap_remove(index);
        }
    }

    /// How many threads are inside.
    pub(crate) fn count(&self, object: u32) -> u32 {
        self.0.get(object as usize).map_or(0, |inside| inside.len() as u32)
    }
}

fn pays(admission: &Admission<'_>, class: u32) -> bool {
    class == NONE || !admission.conflicts.is_lockless(class)
}
