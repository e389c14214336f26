//! The figure of `fidelity`: bars with error bars, as in PerfPlay's Figure 13, as SVG.

use super::numbers::{duration, signed};
use refrain_session::compare::{Fidelity, Row};
use refrain_session::{Clock, SchedulerKind};
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// Around the plot: for the axis and its title at the left, and words above and below.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;
/// Part of a bar's room that the bar takes.
const FILL: f64 = 0.7;

/// Draws the report. Times are normalized to the recorded run; error bars show one standard
/// deviation to each side.
pub(crate) fn svg(report: &Fidelity) -> String {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.times.is_some()).collect();
    let highest = rows.iter().map(|row| upper(row, report)).fold(1.0, f64::max);
    let plot = Plot { step: step(highest), top: highest, bars: rows.len().max(1) };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"13\">{}: replay time, \
         recorded run = 1 ({})</text>\n",
        escape(&report.command),
        duration(signed(report.recorded_ns)),
    );
    plot.axis(&mut text);
    for (index, row) in rows.iter().enumerate() {
        plot.bar(&mut text, index, row, report);
    }
    let y = plot.y(1.0);
    let _ = writeln!(
        text,
        "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"black\" \
         stroke-dasharray=\"4 3\"/>",
        WIDTH - RIGHT
    );
    text + "</svg>\n"
}

struct Plot {
    step: f64,
    top: f64,
    bars: usize,
}

impl Plot {
    fn y(&self, value: f64) -> f64 {
        let room = HEIGHT - TOP - BOTTOM;
        HEIGHT - BOTTOM - value / (self.top * 1.05) * room
    }

    fn axis(&self, text: &mut String) {
        let mut tick = 0.0;
        while tick <= self.top {
            let y = self.y(tick);
            let _ = writeln!(
                text,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick:.2}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0
            );
            tick += self.step;
        }
    }

    fn bar(&self, text: &mut String, index: usize, row: &Row, report: &Fidelity) {
        let Some(times) = &row.times else { return };
        let room = (WIDTH - LEFT - RIGHT) / self.bars as f64;
        let width = room * FILL;
        let middle = LEFT + room * (index as f64 + 0.5);
        let recorded = report.recorded_ns.max(1) as f64;
        let (mean, spread) = (times.mean_ns as f64 / recorded, times.stddev_ns as f64 / recorded);
        let (y, base) = (self.y(mean), self.y(0.0));
        let (low, high) = (self.y((mean - spread).max(0.0)), self.y(mean + spread));
        let _ = writeln!(
            text,
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\" \
             fill-opacity=\"{}\"/>",
            middle - width / 2.0,
            base - y,
            colour(row.scheduler),
            if row.clock == Clock::Virtual { "0.55" } else { "1" },
        );
        let _ = writeln!(
            text,
            "<path d=\"M{0:.1} {low:.1}H{1:.1}M{middle:.1} {low:.1}V{high:.1}\
             M{0:.1} {high:.1}H{1:.1}\" stroke=\"black\" fill=\"none\"/>",
            middle - 5.0,
            middle + 5.0
        );
        let _ = writeln!(
            text,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{mean:.2}</text>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            high - 5.0,
            base + 16.0,
            row.scheduler.name(),
            base + 31.0,
            row.clock.name()
        );
    }
}

/// The end of a row's error bar, in parts of the recorded run.
fn upper(row: &Row, report: &Fidelity) -> f64 {
    let end = row.times.as_ref().map_or(0, |times| times.mean_ns + times.stddev_ns);
    end as f64 / report.recorded_ns.max(1) as f64
}

/// A round distance that gives two to five ticks.
fn step(highest: f64) -> f64 {
    let magnitude = 10f64.powf((highest / 2.0).log10().floor());
    let round = [5.0, 2.0, 1.0].map(|times| times * magnitude);
    round.into_iter().find(|step| highest / step >= 2.0).unwrap_or(magnitude)
}

/// Okabe and Ito's palette, which colour-blind people can tell apart.
fn colour(scheduler: SchedulerKind) -> &'static str {
    match scheduler {
        SchedulerKind::MemS => "#D55E00",
        SchedulerKind::Kendo => "#E69F00",
        SchedulerKind::OrigS => "#56B4E9",
        SchedulerKind::Elsc => "#009E73",
        SchedulerKind::Pct => "#CC79A7",
        SchedulerKind::Random => "#0072B2",
    }
}

fn escape(text: &str) -> String {
    let visible = text.chars().filter(|c| !c.is_control());
    visible.fold(String::new(), |mut escaped, c| {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            c => escaped.push(c),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::super::fidelity::tests::example;
    use super::*;
    use insta::assert_snapshot;

    #[test]
    fn a_figure() {
        let mut report = example();
        report.command = "a <b> & c".into();
        assert_snapshot!(svg(&report));
    }

    #[test]
    fn ticks_are_round_and_few() {
        for highest in [1.0, 1.3, 2.4, 7.0, 19.0, 250.0] {
            let ticks = highest / step(highest);
            assert!((2.0..=5.1).contains(&ticks), "{highest}: {ticks}");
        }
    }
}
