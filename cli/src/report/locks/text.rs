//! The ranking for people: in a terminal of 60 columns and more, without knowing the paper.

use super::{Excerpt, Group, IrregularLock, Report, counts};
use crate::output::Style;
use crate::report::comparison;
use crate::report::numbers::{count, counted, duration, percent, signed};
use crate::report::table::{self, Column};
use crate::report::words::{cut, paragraph, wrap};
use refrain_session::symbols::Place;
use refrain_trace::harmless::escape;
use refrain_transform::{Gain, Irregularity, Make, UlcpKind};
use std::fmt::Write;

/// Below this, rows are blocks of lines.
const TABLE: u16 = 76;

/// Columns of a table before those for the sites.
const NUMBERS: usize = 46;

/// Gains and waiting that are a smaller part of the run are next to nothing.
const NOTHING: u64 = 1000;

/// Renders the report.
pub(crate) fn render(report: &Report, style: Style) -> String {
    let (report, small) = &without_small(report);
    let mut text = summary(report, style);
    if !report.groups.is_empty() {
        let order = match report.believes_gains() {
            true => "most costly first",
            false => "what threads waited for longest first",
        };
        text += &format!("\nUnnecessary contention, {order}:\n\n");
        text += &ranking(report, style);
        if report.details && !report.sites.is_empty() {
            text += &where_waited(report, style);
        }
        if report.believes_gains() {
            text += &together(report, style);
        }
        text += &legend(report, style);
    }
    text += &others(report, *small, style);
    if !report.spurious.is_empty() {
        let pairs = report.spurious.iter().map(|group| group.ranked.kinds.after_wait).sum();
        let what = format!(
            "{} between waits on condition variables, which need the lock although they change \
             nothing; no program can leave them out: {}.",
            counted(pairs, "hand-over"),
            list(report.spurious.iter().map(|group| group.ranked.second.short())),
        );
        text += &paragraph(&what, style);
    }
    for lock in &report.irregular {
        text += &paragraph(&irregular(lock), style);
    }
    text += &not_understood(report, style);
    if let Some(suppressed) = &report.suppressed {
        let groups = counted(suppressed.groups, "more group");
        let what = format!(
            "{groups} {} by {}.",
            if suppressed.groups == 1 { "is suppressed" } else { "are suppressed" },
            suppressed.file
        );
        text += &paragraph(&what, style);
    }
    if let Some(comparison) = &report.baseline {
        text += &comparison::render(comparison, style);
    }
    for note in &report.notes {
        text += &paragraph(&format!("note: {note}"), style);
    }
    text
}

/// The report without the groups that cost next to nothing, unless all details are wanted, and how many
/// these are.
///
/// Where gains are not believed all are shown: threads that hardly ran beside each other waited for
/// next to nothing, which says nothing about the program.
fn without_small(report: &Report) -> (Report, usize) {
    let mut shown = report.clone();
    if !report.details && report.believes_gains() {
        shown.groups.retain(|group| {
            let refrain_transform::Group { in_vain_ns, alone_ns, .. } = group.ranked;
            let costs = alone_ns.unwrap_or(0).max(signed(in_vain_ns));
            costs >= signed(report.original_ns / NOTHING)
        });
    }
    let small = report.groups.len() - shown.groups.len();
    (shown, small)
}

fn summary(report: &Report, style: Style) -> String {
    let analysed = &report.analysed;
    let conflicts = analysed.tlcps + analysed.pairs.atomic_only;
    let handed = analysed.pairs.ulcps() + analysed.pairs.after_wait + conflicts;
    let machine = format!("{}, {}", counted(report.cores, "core"), report.latencies.name());
    let mut rows = vec![("analysed", escape(&report.command)), ("", counts(analysed))];
    if !report.made.is_empty() {
        let made =
            report.made.iter().map(|(make, number)| format!("{} {}", count(*number), made(*make)));
        rows.push(("", format!("made by the program itself: {}", list(made))));
    }
    rows.extend([
        (
            "",
            format!(
                "{} between threads: {} unnecessary, {} of true contention",
                counted(handed, "hand-over"),
                count(analysed.pairs.ulcps()),
                count(conflicts)
            ),
        ),
        (
            "",
            format!(
                "{} found the lock taken in the recording",
                counted(analysed.contended, "acquisition")
            ),
        ),
        (
            "T original",
            format!(
                "{} (virtual time, {machine}), recorded in {}",
                duration(signed(report.original_ns)),
                duration(signed(report.recorded_ns))
            ),
        ),
        ("T ULCP-free", free(report)),
    ]);
    let mut text = String::new();
    let indent = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
    for (name, value) in rows {
        let lines = wrap(&value, usize::from(style.width) - indent);
        for (nth, line) in lines.iter().enumerate() {
            let name = if nth == 0 { name } else { "" };
            let _ = writeln!(text, "{name:indent$}{line}");
        }
    }
    text
}

/// The time without unnecessary contention, held against the original's.
fn free(report: &Report) -> String {
    let Some(free) = report.ulcp_free_ns else { return "unknown".to_owned() };
    let original = report.original_ns.max(1) as f64;
    let share = |ns: i64| percent(ns as f64 / original);
    let gain = signed(report.original_ns) - signed(free);
    let time = duration(signed(free));
    if !report.believes_gains() {
        return format!("{time} (not to be believed: see the note)");
    }
    let range = |gain: &Gain| format!("{} to {}", share(gain.least_ns), share(gain.most_ns));
    let nothing = signed(report.original_ns / NOTHING);
    match (gain, &report.gain) {
        (0, _) => format!("{time} (no gain)"),
        (_, Some(none)) if none.least_ns > -nothing && none.most_ns < nothing => {
            format!("{time} (no gain)")
        }
        (_, Some(unsure)) if unsure.least_ns < nothing && unsure.most_ns > -nothing => {
            format!("{time} (no sure gain: {} less in the model's trials)", range(unsure))
        }
        (1.., Some(sure)) => format!(
            "{time} ({} less, {}; {} in the model's trials)",
            duration(gain),
            share(gain),
            range(sure)
        ),
        (1.., None) => format!("{time} ({} less, {})", duration(gain), share(gain)),
        _ => format!(
            "{time} (no gain: {} more, {}; without the waiting here, threads wait elsewhere)",
            duration(-gain),
            share(-gain)
        ),
    }
}

fn made(make: Make) -> &'static str {
    match make {
        Make::Word => "of an atomic word",
        Make::Counted => "that count readers",
        Make::Ticket => "with tickets",
        Make::Queue => "with queues of nodes",
        Make::Semaphore => "of semaphores",
    }
}

fn ranking(report: &Report, style: Style) -> String {
    let groups = &report.groups;
    if style.width < TABLE || groups.iter().any(|group| !group.excerpts.is_empty()) {
        return blocks(report, style);
    }
    let numbers: &[&str] = match report.believes_gains() {
        true => &["gain", "in vain"],
        false => &["in vain"],
    };
    let numbers = numbers.iter().map(|name| (*name, Column::Right));
    let mut header = vec![("rank", Column::Right), ("kind", Column::Left)];
    header.extend(numbers.chain([("where", Column::Left)]));
    let room = usize::from(style.width) - NUMBERS;
    let rows = groups.iter().map(|group| {
        let at = sites(group).iter().flat_map(|site| wrap(site, room)).collect::<Vec<_>>();
        let mut cells = vec![group.ranked.rank.to_string(), group.ranked.kind.name().to_owned()];
        cells.extend(report.believes_gains().then(|| gain(group)));
        cells.push(duration(signed(group.ranked.in_vain_ns)));
        cells.push(at.join("\n"));
        cells
    });
    table::render(&header, rows.collect(), style)
}

/// Each group as some lines, for narrow terminals and for details.
fn blocks(report: &Report, style: Style) -> String {
    let width = usize::from(style.width);
    let mut text = String::new();
    for group in &report.groups {
        let refrain_transform::Group { rank, kind, in_vain_ns, .. } = &group.ranked;
        let in_vain = format!("{} in vain", duration(signed(*in_vain_ns)));
        let costs = match report.believes_gains() {
            true => format!("gain {}, {in_vain}", gain(group)),
            false => in_vain,
        };
        let head = format!("{rank}  {}: {costs}", kind.name());
        for line in wrap(&head, width) {
            text += &(line + "\n");
        }
        for line in sites(group).iter().flat_map(|site| wrap(site, width - 3)) {
            let _ = writeln!(text, "   {line}");
        }
        if !group.excerpts.is_empty() {
            text += &detail(group, width);
        }
    }
    text
}

fn detail(group: &Group, width: usize) -> String {
    let mut text = String::new();
    for Excerpt { file, line, lines } in &group.excerpts {
        let _ = writeln!(text, "\n   {file}:{line}");
        for (number, source) in lines {
            let mark = if number == line { '>' } else { ' ' };
            let shown = format!("   {mark}{number:6}  {source}");
            text += &(cut(&shown, width) + "\n");
        }
    }
    let kinds = &group.ranked.kinds;
    let by_kind = [
        (kinds.null_lock, "null-lock"),
        (kinds.read_read, "read-read"),
        (kinds.disjoint_write, "disjoint-write"),
        (kinds.redundant_write, "redundant-write"),
        (kinds.disjoint_bits, "disjoint-bits"),
        (kinds.commutative_update, "commutative-update"),
    ];
    let found = by_kind.iter().filter(|(pairs, _)| *pairs > 0);
    let pairs = format!(
        "{} at these lines were unnecessary ({}); {} did conflict, {} of them in atomic variables \
         alone.",
        counted(group.ranked.pairs, "hand-over"),
        list(found.map(|(pairs, kind)| format!("{} {kind}", count(*pairs)))),
        count(group.ranked.conflicts + kinds.atomic_only),
        count(kinds.atomic_only),
    );
    text.push('\n');
    for line in wrap(&pairs, width - 3).into_iter().chain(wrap(group.advice, width - 3)) {
        let _ = writeln!(text, "   {line}");
    }
    text.push('\n');
    text
}

/// What the first rows gain together, on more cores too.
fn together(report: &Report, style: Style) -> String {
    let mut text = String::new();
    let gain = |gain: &Gain| match gain.is_none() || gain.likely_ns <= 0 {
        true => "no sure gain".to_owned(),
        false => format!(
            "{} ({} to {})",
            duration(gain.likely_ns),
            duration(gain.least_ns),
            duration(gain.most_ns)
        ),
    };
    let rows = report.together.iter().map(|it| format!("{} rows: {}", it.groups, gain(&it.gain)));
    if !report.together.is_empty() {
        let rows = rows.collect::<Vec<_>>().join("; ");
        let what = "together: by how much the run is shorter if the rows with the greatest gains are \
                    fixed at once";
        text += &paragraph(&format!("{what}. {rows}."), style);
    }
    let gain = |original_ns: u64, free_ns: u64| {
        let part = 1.0 - free_ns as f64 / original_ns.max(1) as f64;
        if part > 0.0005 { percent(part) } else { "none".to_owned() }
    };
    let cores = report.over_cores.iter().map(|it| {
        let gain = gain(it.original_ns, it.ulcp_free_ns);
        format!("{}: {gain}", counted(it.cores.into(), "core"))
    });
    let threads = report.over_threads.iter().map(|it| {
        let gain = gain(it.original_ns, it.ulcp_free_ns);
        format!("{} times the threads: {gain}", it.copies)
    });
    if report.over_cores.len() > 1 {
        let cores = cores.chain(threads).collect::<Vec<_>>().join("; ");
        let what = "with all rows fixed, by which part the run is shorter";
        text += &paragraph(&format!("{what}. {cores}."), style);
    }
    text
}

/// Sites, as far as threads waited there.
fn where_waited(report: &Report, style: Style) -> String {
    let header = [
        ("sections", Column::Right),
        ("waited", Column::Right),
        ("waiting", Column::Right),
        ("in vain", Column::Right),
        ("gain", Column::Right),
        ("site", Column::Left),
    ];
    let rows = report.sites.iter().map(|site| {
        let gain = match site.gain.filter(|_| report.believes_gains()) {
            None => "-".to_owned(),
            Some(gain) if gain.likely_ns > 0 => duration(gain.likely_ns),
            Some(_) => "none".to_owned(),
        };
        vec![
            count(site.critical_sections),
            count(site.waited),
            duration(signed(site.waited_ns)),
            percent(site.unnecessary),
            gain,
            site.site.short(),
        ]
    });
    let mut text =
        "\nWhere threads waited in the recording, the longest in vain first:\n\n".to_owned();
    text += &table::render(&header, rows.collect(), style);
    text += &paragraph(
        "waited: sections that found the lock taken, and for how long. in vain: which part of that \
         was for sections that they did not conflict with. gain: by how much the run is shorter if \
         this site alone is fixed, whatever it waits for.",
        style,
    );
    text
}

/// What the columns say, and what to do about each kind that there is.
fn legend(report: &Report, style: Style) -> String {
    let mut text = String::new();
    let mut say = |what: &str| text += &paragraph(what, style);
    if report.believes_gains() {
        say(
            "gain: by how much the run is shorter if this row alone is fixed (-: not computed). Rows \
             overlap: what one gains another may gain too, so they do not add up to the difference \
             above, which fixes all rows at once.",
        );
        if report.groups.iter().any(|group| group.ranked.alone_ns.is_some_and(|gain| gain <= 0)) {
            say(
                "none: with this row alone fixed the run is no shorter; threads then wait elsewhere.",
            );
        }
    }
    say("in vain: for how long threads waited in the recording while another had the lock whose \
         section did not conflict with theirs, summed over threads. It says where time went, not \
         what a fix gains.");
    let detailed = report.groups.iter().any(|group| !group.excerpts.is_empty());
    for kind in UlcpKind::ALL {
        let group = report.groups.iter().find(|group| group.ranked.kind == kind);
        if let Some(group) = group.filter(|_| !detailed) {
            say(&format!("{}: {}", kind.name(), group.advice));
        }
    }
    text
}

/// What there is beside the rows, or instead of them.
fn others(report: &Report, small: usize, style: Style) -> String {
    let left = report.groups_found - report.groups.len() - small;
    let text = match (report.groups.len(), left) {
        (0, 0) if small > 0 => {
            "no unnecessary lock contention was found that is worth mending".to_owned()
        }
        (0, 0) if report.analysed.critical_sections == 0 => {
            "There is nothing to rank: what was analysed holds no critical section of a lock."
                .to_owned()
        }
        (0, 0) if report.irregular.is_empty() => {
            "no unnecessary lock contention was found".to_owned()
        }
        (0, 0) => {
            "no unnecessary lock contention was found, apart from locks that cannot be analysed:"
                .to_owned()
        }
        (_, 0) => String::new(),
        (0, _) => format!("{}; --top {left} shows them", counted(left as u64, "group")),
        _ => format!(
            "{}; --top {} shows all",
            counted(left as u64, "more group"),
            report.groups_found
        ),
    };
    let mut text = if text.is_empty() { text } else { paragraph(&text, style) };
    if small > 0 {
        let what = format!(
            "{} {} less than a thousandth of the run; --details shows {}.",
            counted(small as u64, "more row"),
            if small == 1 { "costs" } else { "cost" },
            if small == 1 { "it" } else { "them" }
        );
        text += &paragraph(&what, style);
    }
    text
}

fn irregular(lock: &IrregularLock) -> String {
    let why = match lock.why {
        Irregularity::ReadersWrite => {
            "a section that holds it for reading writes data that others use, which is a data race"
        }
        Irregularity::NeverReleased => "a thread never released it, and others had it later",
        Irregularity::ReleasedByAnother => "a thread released it that did not hold it",
    };
    format!(
        "not analysed: a lock with {}: {why}, at {}.",
        counted(lock.critical_sections, "critical section"),
        lock.site.short()
    )
}

fn not_understood(report: &Report, style: Style) -> String {
    if report.not_understood.is_empty() {
        return String::new();
    }
    let mut text = paragraph(
        "Threads also waited for words that are no locks as far as can be told (flags, queues, \
         counters, locks of an unknown make); what could be gained there is not known:",
        style,
    );
    for wait in &report.not_understood {
        let line = format!(
            "{} in {}: {}",
            duration(signed(wait.waited_ns)),
            counted(wait.waits, "wait"),
            wait.site.short()
        );
        for line in wrap(&line, usize::from(style.width) - 2) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn gain(group: &Group) -> String {
    match group.ranked.alone_ns {
        None => "-".to_owned(),
        Some(gain @ 1..) => duration(gain),
        Some(_) => "none".to_owned(),
    }
}

/// Both sites, one per line; once if they are the same.
fn sites(group: &Group) -> Vec<String> {
    let mut lines = lines_of(&group.ranked.first);
    let second = lines_of(&group.ranked.second);
    if lines == second {
        lines[0] += " (both)";
    } else {
        lines.extend(second);
    }
    lines
}

/// A place and the functions that it is inlined into, of which the first two matter.
fn lines_of(place: &Place) -> Vec<String> {
    let mut lines = vec![place.short()];
    lines.extend(place.inlined_into().take(2).map(|line| format!("  {line}")));
    lines
}

fn list(items: impl Iterator<Item = String>) -> String {
    let mut items: Vec<String> = items.collect();
    items.dedup();
    items.join(", ")
}
