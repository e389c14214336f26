//! What races in a program, most likely cause of a divergence first.

use super::numbers::{count, counted};
use refrain_session::{Races, Side};
use std::fmt::Write;

/// Pairs that the text shows; JSON has all.
const SHOWN: usize = 3;

/// Where a replay need not have diverged because of a race.
const SHARES_MEMORY: &str = "\
the program shares memory with a process that it started, and could not be kept from it (other threads
were computing when it forked, or it is too large): what that process wrote there may be the cause";

/// The same of processes that the program has not started.
const UNWATCHED: &str = "\
the program has mapped memory that other processes may have mapped, too (a memory file, or a segment): what
these wrote there may be the cause";

fn render_side(side: &Side) -> String {
    let Side { thread, event, access, address, size, pc, place, kernel: _, watchable: _ } = side;
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

/// What helps where there is no more site to be learned.
fn remedy(races: &Races) -> &'static str {
    if races.watched {
        return "the next recording of this program will have what other processes write to its memory";
    }
    match races.every_access {
        true => "the next recording of this program will order every access (--order stride)",
        false => "`refrain record --order stride` orders every access, whatever races",
    }
}

/// The races in words; `diverged` tells whether they are to explain something.
pub(crate) fn render(races: &Races, diverged: bool) -> String {
    if races.shares_memory {
        let found = Races { shares_memory: false, ..races.clone() };
        let known = !found.pairs.is_empty() || found.error.is_some();
        let rest = if known { render(&found, diverged) } else { String::new() };
        return format!("{SHARES_MEMORY}\n{rest}");
    }
    if races.unwatched {
        let found = Races { unwatched: false, ..races.clone() };
        let known = !found.pairs.is_empty() || found.error.is_some();
        let rest = match (known, races.watched) {
            (true, _) => render(&found, diverged),
            (false, true) => format!("{}\n", remedy(races)),
            (false, false) => "`refrain record --follow` records that\n".to_owned(),
        };
        return format!("{UNWATCHED}\n{rest}");
    }
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
        let [first, second] = [&pair.first, &pair.second].map(render_side);
        let _ = write!(text, "  first   {first}  second  {second}");
        if pair.count > 1 {
            let _ = writeln!(text, "          {} times", count(pair.count));
        }
    }
    if let Some(more) = races.pairs.len().checked_sub(SHOWN).filter(|&more| more > 0) {
        let _ = writeln!(text, "  and {}; --json has all", counted(more as u64, "more pair"));
    }
    match races.learned {
        Some(0) if races.learned_before && !races.every_access => {
            text += "an earlier replay has taught which instructions to watch: record again for a \
                     replay that these races do not disturb\n";
        }
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
    use crate::report::example;
    use insta::assert_snapshot;
    use refrain_session::Pair;
    use refrain_trace::{EventId, ThreadId};

    fn side(thread: u32, event: u64, access: &str, line: u32) -> Side {
        Side {
            thread: ThreadId(thread),
            event: EventId(event),
            access: access.into(),
            address: 0x1000_4080,
            size: 8,
            pc: 0x1000_1200 + u64::from(line),
            kernel: false,
            watchable: true,
            place: example::place("update", "/src/race.c", line),
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
        races.pairs[0].second.place.frames.extend(example::place("role", "/src/race.c", 20).frames);
        races.pairs.extend([pair([14, 14]), pair([14, 15]), pair([1, 2]), pair([3, 4])]);
        assert_snapshot!(render(&races, true));
    }

    #[test]
    fn learned_by_an_earlier_replay() {
        let again = Races { pairs: vec![pair([14, 11])], learned: Some(0), ..Races::default() };
        let again = Races { learned_before: true, ..again };
        let text = render(&again, true);
        assert!(
            text.ends_with("record again for a replay that these races do not disturb\n"),
            "{text}"
        );
        let given_up = render(&Races { every_access: true, ..again }, true);
        assert!(given_up.ends_with("(--order stride)\n"), "{given_up}");
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
