//! The next moment of each thread, and the earliest of all.

/// A tournament over a fixed set of players: the earliest moment wins, ties go to the lower index.
/// Setting a moment takes as many matches as the tree is high, and nothing is allocated.
///
/// A match is the minimum of four numbers, which takes no branch: a branch would be wrong every
/// other time. A third of the time of a replay with many threads goes by here.
pub(super) struct Timers {
    moments: Vec<u64>,
    /// `matches[n]` is who meets at node `n`: the winners of its children `4n + 1` to `4n + 4`. The
    /// last nodes are the players, from `players` on. A key is the time from `epoch` to the moment,
    /// or [`Timers::far`], and in its lowest `bits` the player.
    matches: Vec<[u64; 4]>,
    /// Winner at node 0.
    winner: u64,
    players: usize,
    bits: u32,
    /// No moment is earlier: time does not go back behind what was first.
    epoch: u64,
}

/// No moment.
const NEVER: u64 = u64::MAX;

impl Timers {
    pub(super) fn new(players: usize) -> Timers {
        let bits = players.next_power_of_two().trailing_zeros();
        // Each match leaves three players fewer.
        let inner = players.saturating_sub(1).div_ceil(3);
        let (moments, matches) = (vec![NEVER; players], vec![[u64::MAX; 4]; inner]);
        let winner = u64::MAX;
        let mut timers = Timers { moments, matches, winner, players: inner, bits, epoch: 0 };
        for player in 0..players {
            timers.clear(player);
        }
        timers
    }

    /// The player with the earliest moment.
    #[inline]
    pub(super) fn first(&mut self) -> Option<(u64, usize)> {
        if self.winner >> self.bits == self.far() {
            self.rebase();
        }
        let player = (self.winner & !(u64::MAX << self.bits)) as usize;
        let moment = self.moments[player];
        (moment != NEVER).then_some((moment, player))
    }

    /// Whether a player has a moment.
    pub(super) fn is_set(&self, player: usize) -> bool {
        self.moments[player] != NEVER
    }

    /// The time in the key of a moment that is too far away for one, or of none.
    #[inline]
    fn far(&self) -> u64 {
        u64::MAX >> self.bits
    }

    #[inline]
    pub(super) fn set(&mut self, player: usize, moment: u64) {
        self.replay(player, moment.min(NEVER - 1));
    }

    #[inline]
    pub(super) fn clear(&mut self, player: usize) {
        self.replay(player, NEVER);
    }

    pub(super) fn get(&self, player: usize) -> u64 {
        self.moments[player]
    }

    #[inline]
    fn replay(&mut self, player: usize, moment: u64) {
        self.moments[player] = moment;
        let time = moment.saturating_sub(self.epoch).min(self.far());
        let mut winner = time << self.bits | player as u64;
        let mut node = self.players + player;
        while node > 0 {
            let place = (node - 1) & 3;
            node = (node - 1) / 4;
            let keys = &mut self.matches[node];
            keys[place] = winner;
            // The winner so far stays in a register: reading back what was just stored would take
            // longer than the match.
            let others = keys[place ^ 2].min(keys[place ^ 3]);
            winner = winner.min(keys[place ^ 1]).min(others);
        }
        self.winner = winner;
    }

    /// Nobody has a moment that a key can hold: they count from the earliest from now on.
    #[cold]
    fn rebase(&mut self) {
        let earliest = self.moments.iter().copied().min().unwrap_or(NEVER);
        if earliest == NEVER {
            return;
        }
        self.epoch = earliest;
        for player in 0..self.moments.len() {
            self.replay(player, self.moments[player]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who should be first.
    fn expected(moments: &[u64]) -> Option<(u64, usize)> {
        let first = (0..moments.len()).min_by_key(|&player| (moments[player], player));
        first.map(|player| (moments[player], player)).filter(|(moment, _)| *moment != NEVER)
    }

    #[test]
    fn earliest_first_and_ties_by_index() {
        for players in 1..90 {
            let mut timers = Timers::new(players);
            assert_eq!(timers.first(), None);
            let mut moments = vec![NEVER; players];
            for step in 0..200u64 {
                let player = (step * 7 % players as u64) as usize;
                let moment = step.wrapping_mul(0x9e37_79b9) % 16;
                if moment == 0 {
                    timers.clear(player);
                    moments[player] = NEVER;
                } else {
                    timers.set(player, moment);
                    moments[player] = moment;
                }
                assert_eq!(timers.get(player), moments[player]);
                assert_eq!(timers.first(), expected(&moments));
            }
        }
    }

    #[test]
    fn moments_too_far_away_for_a_key_are_exact() {
        for players in [1, 2, 3, 5, 64, 65, 1000] {
            let mut timers = Timers::new(players);
            let mut moments = vec![NEVER; players];
            let mut state = 1u64;
            let mut now = 0u64;
            for step in 0..300 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let player = (state >> 33) as usize % players;
                // From a few ticks to more than the age of the world.
                let moment = now.saturating_add(state >> (step % 64)).min(NEVER - 1);
                timers.set(player, moment);
                moments[player] = moment;
                assert_eq!(timers.first(), expected(&moments));
                let (first, winner) = timers.first().expect("a moment was set");
                now = first;
                if step % 3 == 0 {
                    timers.clear(winner);
                    moments[winner] = NEVER;
                }
            }
        }
    }
}
