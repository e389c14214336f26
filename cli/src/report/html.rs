//! The ranking as a page of its own: nothing in it comes from elsewhere, it runs no script, and its
//! colours follow the reader's.
//!
//! Its size is bounded by the columns and lanes of the picture, and by the groups that are shown.

use super::locks::{Excerpt, Group, Report, counts};
use super::numbers::{count, counted, duration, percent, signed};
use anyhow::Context;
use minijinja::{AutoEscape, Environment, Value, context};
use refrain_session::symbols::Place;
use refrain_transform::{Column, Gain, Lane, Picture, UlcpKind};
use std::fmt::Write;

const PAGE: &str = include_str!("html/page.html");

/// Height of a lane, in steps.
const HEIGHT: u32 = 14;

/// The page.
pub(crate) fn render(report: &Report, picture: Option<&Picture>) -> anyhow::Result<String> {
    let mut templates = Environment::new();
    templates.set_auto_escape_callback(|_| AutoEscape::Html);
    templates.add_template("page", PAGE).context("the template of the page")?;
    let template = templates.get_template("page").context("the template of the page")?;
    let analysed = &report.analysed;
    let page = context! {
        command => report.command.clone(),
        facts => facts(report),
        notes => report.notes.clone(),
        believed => report.believes_gains(),
        groups => report.groups.iter().map(group).collect::<Vec<_>>(),
        left_out => report.groups_found.saturating_sub(report.groups.len()),
        suppressed => report.suppressed.as_ref().map(|it| format!("{} by {}", counted(it.groups, "group"), it.file)),
        sites => report.sites.iter().map(site).collect::<Vec<_>>(),
        together => report.together.iter().map(|it| context! {
            groups => it.groups, gain => range(&it.gain),
        }).collect::<Vec<_>>(),
        cores => cores(report),
        rows => report.baseline.iter().flat_map(|it| &it.rows).map(|row| context! {
            verdict => row.verdict.name(),
            before => parts(row.before),
            now => parts(row.now),
            first => row.first.short(),
            second => row.second.short(),
        }).collect::<Vec<_>>(),
        baseline => report.baseline.as_ref().map(|it| it.file.clone()),
        picture => picture.map(lanes),
        sections => count(analysed.critical_sections),
    };
    template.render(page).context("cannot make the page")
}

fn facts(report: &Report) -> Vec<(String, String)> {
    let analysed = &report.analysed;
    let time = |ns: u64| duration(signed(ns));
    let mut facts = vec![
        ("recorded in", time(report.recorded_ns)),
        (
            "machine",
            format!("{} modelled, {}", counted(report.cores, "core"), report.latencies.name()),
        ),
        ("analysed", counts(analysed)),
        ("original", time(report.original_ns)),
    ];
    if let Some(free) = report.ulcp_free_ns.filter(|_| report.believes_gains()) {
        facts.push(("without unnecessary contention", time(free)));
    }
    if let Some(gain) = report.gain.as_ref().filter(|_| report.believes_gains()) {
        facts.push(("gain", range(gain)));
    }
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn range(gain: &Gain) -> String {
    match gain.is_none() || gain.likely_ns <= 0 {
        true => "none that is sure".to_owned(),
        false => format!(
            "{} ({} to {})",
            duration(gain.likely_ns),
            duration(gain.least_ns),
            duration(gain.most_ns)
        ),
    }
}

fn parts(range: Option<[f64; 2]>) -> String {
    range.map_or_else(
        || "–".to_owned(),
        |[least, most]| format!("{} to {}", percent(least), percent(most)),
    )
}

fn group(group: &Group) -> Value {
    let inlined = |place: &Place| place.inlined_into().collect::<Vec<_>>();
    let kind = match group.ranked.kind {
        UlcpKind::NullLock => "null",
        UlcpKind::ReadRead => "read",
        UlcpKind::DisjointWrite
        | UlcpKind::RedundantWrite
        | UlcpKind::DisjointBits
        | UlcpKind::CommutativeUpdate => "write",
    };
    context! {
        rank => group.ranked.rank,
        kind => group.ranked.kind.name(),
        class => kind,
        gain => group.ranked.alone.as_ref().map_or_else(|| "not computed".to_owned(), range),
        in_vain => duration(signed(group.ranked.in_vain_ns)),
        waiting => if group.ranked.delta_ns > 0 { duration(group.ranked.delta_ns) } else { "none".to_owned() },
        share => percent(group.ranked.share),
        first => group.ranked.first.short(),
        second => group.ranked.second.short(),
        same => group.ranked.first.short() == group.ranked.second.short(),
        inlined => inlined(&group.ranked.first),
        pairs => count(group.ranked.pairs),
        conflicts => count(group.ranked.conflicts + group.ranked.kinds.atomic_only),
        advice => group.advice,
        excerpts => group.excerpts.iter().map(excerpt).collect::<Vec<_>>(),
    }
}

fn excerpt(excerpt: &Excerpt) -> Value {
    let lines = excerpt.lines.iter().map(|(number, text)| {
        context! { number => format!("{number:6}"), text => text, marked => *number == excerpt.line }
    });
    context! { file => excerpt.file.clone(), line => excerpt.line, lines => lines.collect::<Vec<_>>() }
}

fn site(site: &refrain_transform::Site) -> Value {
    context! {
        place => site.site.short(),
        sections => count(site.critical_sections),
        waited => count(site.waited),
        waiting => duration(signed(site.waited_ns)),
        vain => percent(site.unnecessary),
        gain => site.gain.as_ref().map_or_else(|| "–".to_owned(), range),
    }
}

/// Bars of both runs for each number of cores, and with more threads, as parts of the longest.
fn cores(report: &Report) -> Vec<Value> {
    let cores = report
        .over_cores
        .iter()
        .map(|it| (counted(it.cores.into(), "core"), it.original_ns, it.ulcp_free_ns));
    let threads = report
        .over_threads
        .iter()
        .map(|it| (format!("{} times the threads", it.copies), it.original_ns, it.ulcp_free_ns));
    let runs: Vec<(String, u64, u64)> = cores.chain(threads).collect();
    let longest = runs.iter().map(|(_, original, free)| original.max(free)).max();
    let longest = longest.copied().unwrap_or(0).max(1) as f64;
    // Room is left for the times.
    let part = |ns: u64| format!("{:.1}", ns as f64 / longest * 80.0);
    let bars = runs.iter().map(|(name, original, free)| {
        context! {
            cores => name,
            original => part(*original),
            free => part(*free),
            original_time => duration(signed(*original)),
            free_time => duration(signed(*free)),
        }
    });
    bars.collect()
}

fn lanes(picture: &Picture) -> Value {
    let lane = |lane: &Lane| {
        context! {
            thread => format!("t{}", lane.thread),
            original => areas(&lane.original),
            free => areas(&lane.free),
        }
    };
    context! {
        columns => refrain_transform::COLUMNS,
        height => HEIGHT,
        width => duration(signed(picture.width_ns)),
        original => duration(signed(picture.original_ns)),
        free => duration(signed(picture.free_ns)),
        left_out => picture.left_out,
        lanes => picture.lanes.iter().map(lane).collect::<Vec<_>>(),
    }
}

type Share = fn(&Column) -> u32;

/// The outline of each kind of time, one upon the other from the bottom: class and path.
fn areas(columns: &[Column]) -> Vec<Value> {
    let kinds: [(&str, Share); 4] = [
        ("vain", |column| column.vain),
        ("waiting", |column| column.waiting),
        ("inside", |column| column.inside),
        ("outside", |column| column.outside),
    ];
    let mut below = vec![0; columns.len()];
    let mut found = Vec::new();
    for (class, of) in kinds {
        let mut path = String::new();
        let mut run: Option<(usize, u32, u32)> = None;
        let steps = columns.iter().zip(&mut below).map(|(column, below)| {
            let from = *below;
            *below += of(column);
            let step = |share: u32| (share * HEIGHT + 500) / refrain_transform::WHOLE;
            (step(from).min(HEIGHT), step(*below).min(HEIGHT))
        });
        for (x, step) in steps.map(Some).chain([None]).enumerate() {
            if let (Some((_, bottom, top)), Some(now)) = (run, step)
                && (bottom, top) == now
            {
                continue;
            }
            if let Some((start, bottom, top)) = run.filter(|(_, bottom, top)| top > bottom) {
                let (y, width, height) = (HEIGHT - top, x - start, top - bottom);
                let _ = write!(path, "M{start} {y}h{width}v{height}h-{width}z");
            }
            run = step.map(|(bottom, top)| (x, bottom, top));
        }
        if !path.is_empty() {
            found.push(context! { class, path });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::locks::tests::example;

    fn noise(seed: u32) -> Vec<Column> {
        let part = |n: u32| n.wrapping_mul(2_654_435_761) >> 24;
        let column = |n: usize| {
            let n = n as u32 * 7 + seed;
            Column {
                outside: part(n),
                inside: part(n + 1),
                waiting: part(n + 2),
                vain: part(n + 3),
            }
        };
        (0..refrain_transform::COLUMNS).map(column).collect()
    }

    fn picture(lanes: u32) -> Picture {
        let lane = |thread| Lane { thread, original: noise(thread), free: noise(thread + 9) };
        let lanes = (0..lanes).map(lane).collect();
        Picture {
            width_ns: 9_000_000,
            original_ns: 9_000_000,
            free_ns: 5_000_000,
            lanes,
            left_out: 2,
        }
    }

    /// The names of open elements, at the end of the page.
    fn open_elements(page: &str) -> Vec<String> {
        let mut open: Vec<String> = Vec::new();
        for tag in page.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').expect("every tag ends");
            let name: String = tag
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || "/!".contains(*c))
                .collect();
            let void = ["meta", "br", "!DOCTYPE"].contains(&name.as_str()) || tag.ends_with('/');
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop().as_deref(), Some(name)),
                None if !void => open.push(name),
                None => {}
            }
        }
        open
    }

    #[test]
    fn a_page_is_whole_and_needs_nothing_else() {
        let mut report = example();
        report.command = "<script>alert(1)</script> & \"more\"".into();
        let page = render(&report, Some(&picture(3))).expect("can be made");
        assert_eq!(open_elements(&page), Vec::<String>::new());
        assert!(!page.contains("<script"), "what the trace says is text");
        for reference in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(
            page.contains("cache_lookup demo.c:92") && page.contains("prefers-color-scheme: dark")
        );
        assert!(render(&report, None).is_ok());
    }

    #[test]
    fn the_size_is_bounded_whatever_the_threads_do() {
        let lanes = refrain_transform::LANES as u32;
        let page = render(&example(), Some(&picture(lanes))).expect("can be made");
        assert!(page.len() < 16 << 20, "{} bytes", page.len());
    }

    #[test]
    fn columns_that_are_alike_are_one_rectangle() {
        let column = Column { outside: 500, inside: 500, ..Column::default() };
        let shown: Vec<String> = areas(&[column; 10]).iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(
            shown[0].contains("M0 7h10v7h-10z") && shown[1].contains("M0 0h10v7h-10z"),
            "{shown:?}"
        );
    }
}
