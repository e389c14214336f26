//! The next moment of each thread, and the earliest of all.

use std::hint::select_unpredictable;

/// A tournament over a fixed set of players: the earliest moment wins, ties go to the lower index.
/// Setting a moment takes as many comparisons as the tree is high, and nothing is allocated.
pub(super) struct Timers {
    /// `nodes[1]` is the winner of all; the children of `n` are `2n` and `2n + 1`, and the leaves
    /// are the players.
    nodes: Vec<Node>,
    size: usize,
}

#[derive(Clone, Copy)]
struct Node {
    moment: u64,
    player: u64,
}

/// No moment.
const NEVER: u64 = u64::MAX;

/// The winner of two; a tie goes to the left one, whose players have the lower indices.
#[inline]
fn earlier(left: Node, right: Node) -> Node {
    // A branch here would be wrong every other time.
    let wins = right.moment < left.moment;
    Node {
        moment: select_unpredictable(wins, right.moment, left.moment),
        player: select_unpredictable(wins, right.player, left.player),
    }
}

impl Timers {
    pub(super) fn new(players: usize) -> Timers {
        let size = players.next_power_of_two().max(2);
        let mut nodes = vec![Node { moment: NEVER, player: 0 }; 2 * size];
        for (player, node) in nodes[size..].iter_mut().enumerate() {
            node.player = player as u64;
        }
        for parent in (1..size).rev() {
            nodes[parent] = earlier(nodes[2 * parent], nodes[2 * parent + 1]);
        }
        Timers { nodes, size }
    }

    /// The player with the earliest moment.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, usize)> {
        let Node { moment, player } = self.nodes[1];
        (moment != NEVER).then_some((moment, player as usize))
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
        self.nodes[self.size + player].moment
    }

    #[inline]
    fn replay(&mut self, player: usize, moment: u64) {
        let mut at = self.size + player;
        self.nodes[at].moment = moment;
        while at > 1 {
            let winner = earlier(self.nodes[at & !1], self.nodes[at | 1]);
            at /= 2;
            self.nodes[at] = winner;
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
                assert_eq!(timers.get(player), keys[player]);
                let expected = (0..players).min_by_key(|&p| (keys[p], p)).expect("players");
                let expected = (keys[expected] != NEVER).then_some((keys[expected], expected));
                assert_eq!(timers.first(), expected);
            }
        }
    }
}
