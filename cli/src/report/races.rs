//! What races in a program, most likely cause of a divergence first.

use super::numbers::{count, counted};
use crate::symbols::Place;
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Pairs that the text shows; JSON has all.
const SHOWN: usize = 3;

/// The races that may explain why a replay diverged.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Races {
    /// Pairs of instructions, most likely cause first. Empty if nothing raced.
    pub(crate) pairs: Vec<Pair>,
    /// Why nothing is known, if the search failed.
    pub(crate) error: Option<String>,
    /// How many of their instructions were not watched so far and will be in the next recording,
    /// if that was asked for.
    pub(crate) learned: Option<u64>,
    /// Later recordings of the program order every access.
    pub(crate) every_access: bool,
}

/// Two accesses of which one writes, and that nothing orders.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// How often these instructions raced.
    pub(crate) count: u64,
    /// Both are in libraries of the system. In a search for the cause of a divergence, that is the C
    /// library alone, which has such races by design.
    pub(crate) in_library: bool,
    /// The access that was seen first.
    pub(crate) first: Side,
    /// The one that was seen second.
    pub(crate) second: Side,
}

/// One of the accesses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Side {
    /// The thread, as in `t2`.
    #[serde(with = "super::id")]
    pub(crate) thread: ThreadId,
    /// Its last event before the access, or the one that the access belongs to, as in `e1042`.
    #[serde(with = "super::id")]
    pub(crate) event: EventId,
    /// What it does: `reads`, `atomically updates`, `writes (the kernel)`, …
    pub(crate) access: String,
    /// First byte.
    #[serde(with = "super::hex")]
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// The instruction.
    #[serde(with = "super::hex")]
    pub(crate) pc: u64,
    /// The kernel accesses memory for the program.
    pub(crate) kernel: bool,
    /// Where that is.
    pub(crate) place: Place,
}

impl Races {
    /// The likeliest race, if it is the program's own.
    pub(crate) fn of_the_program(&self) -> Option<&Pair> {
        self.pairs.first().filter(|pair| !pair.in_library)
    }
}

impl Side {
    fn render(&self) -> String {
        let Side { thread, event, access, address, size, pc, place, kernel: _ } = self;
        let bytes = counted(*size, "byte");
        let mut text = format!(
            "{thread} after {event} {access} {bytes} at {address:#x}, pc {pc:#x}, {}\n",
            place.short()
        );
        for line in place.inlined_into() {
            let _ = writeln!(text, "          {line}");
        }
        text
    }
}

impl Pair {
    /// Both places, for a line.
    pub(crate) fn short(&self) -> String {
        format!("{} and {}", self.first.place.short(), self.second.place.short())
    }
}

/// What helps where there is no more site to be learned.
fn remedy(races: &Races) -> &'static str {
    match races.every_access {
        true => "the next recording of this program will order every access (--order stride)",
        false => "`refrain record --order stride` orders every access, whatever races",
    }
}

/// The races in words; `diverged` tells whether they are to explain something.
pub(crate) fn render(races: &Races, diverged: bool) -> String {
    if let Some(error) = &races.error {
        return format!("what raced could not be found out: {error}\n{}\n", remedy(races));
    }
    if races.pairs.is_empty() {
        let none = "no race was found";
        return match diverged {
            true => format!(
                "{none}: it did not happen again, or an order that the program keeps was \
                 missed\n{}\n",
                remedy(races)
            ),
            false => format!("{none}\n"),
        };
    }
    let mut text = match races.of_the_program() {
        Some(_) => "the program races: nothing that was recorded orders these accesses\n",
        None => "no race of the program's own was found; these are the system's libraries'\n",
    }
    .to_owned();
    for pair in races.pairs.iter().take(SHOWN) {
        let _ = write!(text, "  first   {}  second  {}", pair.first.render(), pair.second.render());
        if pair.count > 1 {
            let _ = writeln!(text, "          {} times", count(pair.count));
        }
    }
    if let Some(more) = races.pairs.len().checked_sub(SHOWN).filter(|&more| more > 0) {
        let _ = writeln!(text, "  and {}; --json has all", counted(more as u64, "more pair"));
    }
    match races.learned {
        Some(0) => {
            let why = "their instructions were watched already, or cannot be watched";
            let _ = writeln!(text, "{why}\n{}", remedy(races));
        }
        Some(_) if races.every_access => {
            let _ = writeln!(text, "watching more of them has not helped\n{}", remedy(races));
        }
        Some(new) => {
            let new = counted(new, "instruction");
            let _ = writeln!(
                text,
                "{new} more will be watched: record again for a replay that these races do not \
                 disturb"
            );
        }
        None => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    fn side(thread: u32, event: u64, access: &str, line: u32) -> Side {
        Side {
            thread: ThreadId(thread),
            event: EventId(event),
            access: access.into(),
            address: 0x1000_4080,
            size: 8,
            pc: 0x1000_1200 + u64::from(line),
            kernel: false,
            place: Place::example("update", "/src/race.c", line),
        }
    }

    fn pair(lines: [u32; 2]) -> Pair {
        let [first, second] = lines;
        let [first, second] = [side(1, 7, "writes", first), side(2, 3, "reads", second)];
        Pair { count: 40, in_library: false, first, second }
    }

    #[test]
    fn two_sided() {
        let mut races = Races { pairs: vec![pair([14, 11])], learned: Some(2), ..Races::default() };
        races.pairs[0].second.place.frames.extend(Place::example("role", "/src/race.c", 20).frames);
        races.pairs.extend([pair([14, 14]), pair([14, 15]), pair([1, 2]), pair([3, 4])]);
        assert_snapshot!(render(&races, true));
    }

    #[test]
    fn nothing_found() {
        let error = Some("the replay process was killed by signal 9".to_owned());
        let failed = render(&Races { error, ..Races::default() }, true);
        let library = Pair { in_library: true, ..pair([7, 8]) };
        let library = render(&Races { pairs: vec![library], ..Races::default() }, true);
        let none = [true, false].map(|diverged| render(&Races::default(), diverged)).concat();
        assert_snapshot!(none + &failed + &library);
    }
}
