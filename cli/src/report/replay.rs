//! What a replay did, and whether it did what was recorded.

use super::numbers::{count, counted, duration, roughly};
use super::races;
use super::simulation::spread;
use refrain_session::SchedulerKind;
use refrain_session::symbols::Place;
use refrain_session::{Divergence, Replayed};
use refrain_trace::harmless::escape;
use std::fmt::Write;

/// All that is there of a trace without its end was equal.
pub(crate) const CUT_OFF: u8 = 3;

/// The command's exit status: 0 only if all that was recorded has happened.
pub(crate) fn status(report: &Replayed) -> u8 {
    match () {
        () if report.divergence.is_some() || report.events == 0 => 1,
        () if report.truncated => CUT_OFF,
        () => 0,
    }
}

/// Where a divergence happened: what the trace says, and what the replay did.
pub(crate) struct Places {
    /// Of the recorded event; `None` if there is none.
    pub(crate) recorded: Option<Place>,
    /// Where the thread was.
    pub(crate) replayed: Place,
}

/// The report in words, with the places of a divergence, if they could be found out.
pub(crate) fn render(report: &Replayed, places: Option<&Places>) -> String {
    let mut text = String::new();
    if let Some(divergence) = &report.divergence {
        text += &render_divergence(divergence, places);
        text += &render_order(report);
        if report.locks_freed > 0 {
            let locks = counted(report.locks_freed, "lock");
            text += &format!(
                "with {locks} freed the program does something else than it did: the order of \
                 these locks kept accesses apart that lie outside of their critical sections\n"
            );
        }
    }
    if let Some(found) = &report.races {
        text += &races::render(found, report.divergence.is_some());
    }
    let times = format!(
        "on the {} engine: {} to prepare, {} to run",
        report.engine,
        duration(report.prepare_ns as i64),
        duration(report.run_ns as i64),
    );
    let _ = match report.divergence {
        // What the recorded program did then, the replayed one did not.
        Some(_) => writeln!(text, "stopped {times} (in the recording: {})", report.ending),
        None => writeln!(text, "{} {times}", report.ending),
    };
    if let Some(times) = &report.times {
        let _ = writeln!(text, "{}", spread(times));
    }
    text += &last_line(report);
    text
}

/// Another order than the recorded one may change the program, which is no fault of the replay.
fn render_order(report: &Replayed) -> String {
    if report.reordered.is_empty() {
        return String::new();
    }
    format!(
        "under {} the program runs differently from here (its outcome depends on the order of {})\n",
        report.scheduler.name(),
        escape(&report.reordered.join(", "))
    )
}

fn render_divergence(divergence: &Divergence, places: Option<&Places>) -> String {
    let Divergence { kind, thread, event, pc, expected, actual } = divergence;
    let here = places.map(|places| places.replayed.short());
    let place = here.as_ref().map_or_else(String::new, |here| format!(", {here}"));
    // Another path of the program: both its ends are of interest.
    let recorded = places.and_then(|places| places.recorded.as_ref()).map(Place::short);
    let elsewhere = recorded
        .filter(|recorded| here.as_ref() != Some(recorded))
        .map_or_else(String::new, |recorded| format!("\n            at {recorded}"));
    let (expected, actual) = (escape(expected), escape(actual));
    format!(
        "diverged at {thread} {event} ({kind}), pc {pc:#x}{place}\n  \
         recorded  {expected}{elsewhere}\n  replayed  {actual}\n"
    )
}

/// How much of the trace was replayed, if that is not all of it.
fn extent(report: &Replayed) -> String {
    if report.divergence.is_some() || !report.truncated {
        return String::new();
    }
    let events =
        format!("{} of {}", count(report.events), counted(report.events_recorded, "event"));
    match (report.reached_ns, report.recorded_ns) {
        (Some(reached), Some(end)) => {
            let [reached, end] = [reached, end].map(|ns| duration(ns as i64));
            format!("up to {reached} of {end}, {events}: ")
        }
        _ => format!("{events}: "),
    }
}

/// The line that says what was checked.
fn last_line(report: &Replayed) -> String {
    let verb = if report.divergence.is_some() { "diverged after" } else { "replayed" };
    let mut text = format!(
        "{verb} {}{}, {}",
        extent(report),
        counted(report.threads, "thread"),
        counted(report.acquisitions, "lock acquisition"),
    );
    if report.locks_freed > 0 {
        let _ = write!(text, ", {} freed", counted(report.locks_freed, "lock"));
    }
    if report.scheduler != SchedulerKind::Elsc {
        let _ = write!(text, " under {}", report.scheduler.name());
    }
    if let Some(instructions) = report.instructions {
        let _ = write!(text, ", {} instructions", roughly(instructions));
    }
    if report.events == 0 {
        return text + "; nothing was compared: this is no replay\n";
    }
    let equality = if report.divergence.is_some() { "compared" } else { "equal" };
    let _ = writeln!(
        text,
        "; {} of {} digests equal; {} output bytes {equality}",
        count(report.digests_equal),
        count(report.digests_checked),
        count(report.output_bytes),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;
    use insta::assert_snapshot;
    use refrain_session::describe;
    use refrain_session::stats::Distribution;
    use refrain_trace::{EventId, ThreadId};

    fn report() -> Replayed {
        Replayed {
            engine: "cranelift".into(),
            threads: 4,
            events: 1204,
            events_recorded: 1204,
            truncated: false,
            reached_ns: None,
            recorded_ns: None,
            acquisitions: 161,
            instructions: Some(5_100_000_000),
            digests_checked: 1204,
            digests_equal: 1204,
            output_bytes: 3_012_554,
            ending: "exited with status 0".into(),
            prepare_ns: 212_000_000,
            run_ns: 3_400_000_000,
            scheduler: SchedulerKind::Elsc,
            locks_freed: 0,
            times: None,
            reordered: Vec::new(),
            divergence: None,
            races: None,
        }
    }

    #[test]
    fn an_exact_replay() {
        assert_snapshot!(render(&report(), None));
    }

    #[test]
    fn a_trace_that_was_cut_off() {
        let (reached_ns, recorded_ns) = (Some(1_204_000_000), Some(1_290_000_000));
        let ending = describe(None);
        let cut = Replayed {
            events: 1100,
            truncated: true,
            reached_ns,
            recorded_ns,
            ending,
            digests_checked: 1100,
            digests_equal: 1100,
            ..report()
        };
        assert_snapshot!(render(&cut, None));
        assert_eq!((status(&report()), status(&cut)), (0, CUT_OFF));
        let none = Replayed { events: 0, digests_checked: 0, digests_equal: 0, ..cut };
        assert_snapshot!("nothing_was_replayed", render(&none, None));
        assert_eq!(status(&none), 1);
    }

    #[test]
    fn another_order_is_named() {
        let divergence = Divergence {
            kind: "a different event".into(),
            thread: ThreadId(2),
            event: EventId(17),
            pc: 0x1000_11d6,
            expected: "cond.wait(0x10006040)".into(),
            actual: "mutex.unlock".into(),
        };
        let report = Replayed {
            scheduler: SchedulerKind::OrigS,
            reordered: vec!["the mutex at 0x10006040".into()],
            divergence: Some(divergence),
            instructions: None,
            ..report()
        };
        assert_snapshot!(render(&report, None));
    }

    #[test]
    fn repetitions_show_their_spread() {
        let times = Distribution::of(&[3_300_000_000, 3_400_000_000, 3_600_000_000]);
        let report = Replayed { scheduler: SchedulerKind::Kendo, times, ..report() };
        assert_snapshot!(render(&report, None));
    }

    #[test]
    fn a_divergence_shows_both_sides() {
        let divergence = Divergence {
            kind: "different arguments".into(),
            thread: ThreadId(2),
            event: EventId(1042),
            pc: 0x1000_11d6,
            expected: "mutex.lock(0x10006040) sp=0xfffeffffe000".into(),
            actual: "mutex.lock(0x10006080) sp=0xfffeffffe000".into(),
        };
        let report = Replayed {
            divergence: Some(divergence),
            digests_equal: 1041,
            digests_checked: 1042,
            instructions: None,
            ..report()
        };
        let place = || example::place("worker", "demo.c", 92);
        let mut places = Places { recorded: Some(place()), replayed: place() };
        assert_snapshot!(render(&report, Some(&places)));
        places.recorded = Some(example::place("other", "demo.c", 40));
        let text = render(&report, Some(&places));
        let line = |place: &Place| text.lines().position(|line| line.ends_with(&place.short()));
        assert_eq!(line(&places.replayed), Some(0), "{text}");
        assert_eq!(places.recorded.as_ref().and_then(line), Some(2), "{text}");
    }
}
