//! Vector clocks (FastTrack, section 2.2).

/// Of each thread, how much of it happens before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct VectorClock {
    /// By thread; what is missing is zero, and no thread is ever at zero.
    clocks: Vec<u32>,
}

impl VectorClock {
    pub(crate) fn of(&self, thread: u16) -> u32 {
        self.clocks.get(usize::from(thread)).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, thread: u16, clock: u32) {
        let index = usize::from(thread);
        if index >= self.clocks.len() {
            self.clocks.resize(index + 1, 0);
        }
        self.clocks[index] = clock;
    }

    /// The least clock that is not less than both.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        if self.clocks.len() < other.clocks.len() {
            self.clocks.resize(other.clocks.len(), 0);
        }
        for (mine, &theirs) in self.clocks.iter_mut().zip(&other.clocks) {
            *mine = (*mine).max(theirs);
        }
    }

    /// As `clone_from`, which the derived implementation does not give: without allocating.
    pub(crate) fn copy_from(&mut self, other: &VectorClock) {
        self.clocks.clone_from(&other.clocks);
    }
}
