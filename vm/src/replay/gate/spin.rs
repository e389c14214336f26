//! Spinning: a thread looks at its condition a few times before it gives its core away.

use super::Condition;

/// Pauses of the processor in all. Hand-overs between running threads take less; more of them,
/// and waiting up to 0.2 ms while a core seems free, were measured: replays took longer.
const PAUSES: u32 = if cfg!(test) { 1 } else { 200 };
/// The same for those who wait for a policy's decision: that is, for a thread that needs a core.
const PAUSES_FOR_NEWS: u32 = if cfg!(test) { 1 } else { 20 };
/// Pauses between two looks at most.
const MOST: u64 = 64;

/// The spinning of one wait.
pub(super) struct Spin {
    pauses: u32,
}

impl Spin {
    /// For so many pauses, by what is waited for.
    pub(super) fn on(condition: Condition) -> Spin {
        let news = matches!(condition, Condition::News { .. });
        Spin { pauses: if news { PAUSES_FOR_NEWS } else { PAUSES } }
    }

    /// Looks until what is waited for is there; false if there have been looks enough. A look in
    /// vain tells how many events must come before.
    pub(super) fn until(&mut self, look: impl Fn() -> Result<(), u64>) -> bool {
        loop {
            match look() {
                Ok(()) => return true,
                Err(distance) if !self.pause(distance) => return false,
                Err(_) => {}
            }
        }
    }

    /// Pauses before the next look, which takes the word's cache line from whoever is busy with
    /// the events that must come before.
    fn pause(&mut self, distance: u64) -> bool {
        let wanted = (2 * distance.min(MOST)).clamp(1, MOST) as u32;
        let pauses = wanted.min(self.pauses);
        (0..pauses).for_each(|_| std::hint::spin_loop());
        self.pauses -= pauses;
        pauses > 0
    }
}
