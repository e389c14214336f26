//! Vector clocks (FastTrack, section 2.2).

/// Threads have numbers below this one; the others are those of tasks ([`crate::tasks`]).
pub(crate) const FIRST_TASK: u16 = 0xf000;

/// Of each thread, and of each task, how much of it happens before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct VectorClock {
    /// By thread; what is missing is zero, and no thread is ever at zero.
    clocks: Vec<u32>,
    /// By task, likewise.
    tasks: Vec<u32>,
}

impl VectorClock {
    #[inline]
    pub(crate) fn of(&self, thread: u16) -> u32 {
        let (clocks, index) = match thread.checked_sub(FIRST_TASK) {
            None => (&self.clocks, thread),
            Some(task) => (&self.tasks, task),
        };
        clocks.get(usize::from(index)).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, thread: u16, clock: u32) {
        let (clocks, index) = match thread.checked_sub(FIRST_TASK) {
            None => (&mut self.clocks, usize::from(thread)),
            Some(task) => (&mut self.tasks, usize::from(task)),
        };
        if index >= clocks.len() {
            clocks.resize(index + 1, 0);
        }
        clocks[index] = clock;
    }

    /// The least clock that is not less than both.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        join(&mut self.clocks, &other.clocks);
        join(&mut self.tasks, &other.tasks);
    }

    /// As `clone_from`, which the derived implementation does not give: without allocating.
    pub(crate) fn copy_from(&mut self, other: &VectorClock) {
        self.clocks.clone_from(&other.clocks);
        self.tasks.clone_from(&other.tasks);
    }
}

fn join(own: &mut Vec<u32>, other: &[u32]) {
    if own.len() < other.len() {
        own.resize(other.len(), 0);
    }
    for (mine, &theirs) in own.iter_mut().zip(other) {
        *mine = (*mine).max(theirs);
    }
}
