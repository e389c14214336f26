//! The next moment of each thread, and the earliest of all.

/// A tournament over a fixed set of players: the earliest key wins, ties go to the lower index.
/// Setting a key takes as many comparisons as the tree is high, and nothing is allocated.
pub(super) struct Timers {
    keys: Vec<u64>,
    /// `winners[1]` is the winner of all; the children of `n` are `2n` and `2n + 1`.
    winners: Vec<u32>,
    size: usize,
}

/// No moment.
const NEVER: u64 = u64::MAX;

impl Timers {
    pub(super) fn new(players: usize) -> Timers {
        let size = players.next_power_of_two().max(2);
        let mut timers = Timers { keys: vec![NEVER; size], winners: vec![0; size], size };
        for player in (0..size).step_by(2) {
            timers.replay(player);
        }
        timers
    }

    /// The player with the earliest moment.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, usize)> {
        let winner = self.winners[1] as usize;
        let key = self.keys[winner];
        (key != NEVER).then_some((key, winner))
    }

    #[inline]
    pub(super) fn set(&mut self, player: usize, moment: u64) {
        self.keys[player] = moment.min(NEVER - 1);
        self.replay(player);
    }

    #[inline]
    pub(super) fn clear(&mut self, player: usize) {
        self.keys[player] = NEVER;
        self.replay(player);
    }

    pub(super) fn get(&self, player: usize) -> u64 {
        self.keys[player]
    }

    #[inline]
    fn replay(&mut self, player: usize) {
        let mut node = (self.size + player) / 2;
        let pair = player & !1;
        let right = self.keys[pair + 1] < self.keys[pair];
        let mut winner = (pair + usize::from(right)) as u32;
        self.winners[node] = winner;
        while node > 1 {
            let other = self.winners[node ^ 1];
            let (low, high) = if winner < other { (winner, other) } else { (other, winner) };
            let later = self.keys[high as usize] < self.keys[low as usize];
            winner = if later { high } else { low };
            node /= 2;
            self.winners[node] = winner;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_and_ties_by_index() {
        for players in 1..20 {
            let mut timers = Timers::new(players);
            assert_eq!(timers.first(), None);
            let mut keys = vec![NEVER; players];
            for step in 0..200u64 {
                let player = (step * 7 % players as u64) as usize;
                let key = step.wrapping_mul(0x9e37_79b9) % 16;
                if key == 0 {
                    timers.clear(player);
                    keys[player] = NEVER;
                } else {
                    timers.set(player, key);
                    keys[player] = key;
                }
                let expected = (0..players).min_by_key(|&p| (keys[p], p)).expect("players");
                let expected = (keys[expected] != NEVER).then_some((keys[expected], expected));
                assert_eq!(timers.first(), expected);
            }
        }
    }
}
