//! `refrain sites`: what was learned from replays that diverged.

use crate::args::{Sites, SitesAction};
use crate::failure::Outcome;
use crate::output;
use crate::report::numbers::counted;
use anyhow::Context;
use refrain_session::sites::{self, Profile};
use std::fmt::Write;

/// Lists, clears, exports or imports.
pub(crate) fn run(args: &Sites) -> Outcome {
    match &args.action {
        SitesAction::List => output::print(&list(&sites::known()))?,
        SitesAction::Clear => {
            let cleared = sites::change(std::mem::take)?;
            output::print(&format!("forgot {}\n", describe(&cleared)))?;
        }
        SitesAction::Export => {
            let text = serde_json::to_string_pretty(&sites::known()).context("a map is JSON")?;
            output::print(&format!("{text}\n"))?;
        }
        SitesAction::Import { file } => {
            let cannot = || format!("cannot import sites from {}", file.display());
            let bytes = std::fs::read(file).with_context(cannot)?;
            let imported: Profile = serde_json::from_slice(&bytes).with_context(cannot)?;
            let (new, all) = sites::change(|known| (known.add(imported), describe(known)))?;
            output::print(&format!("{new} new; {all} in all\n"))?;
        }
    }
    Ok(0)
}

/// How much a profile holds, in words.
fn describe(known: &Profile) -> String {
    let sites = counted(known.count_sites() as u64, "site");
    match known.programs.len() + known.watched.len() {
        0 => sites,
        programs => format!("{sites} and {}", counted(programs as u64, "program")),
    }
}

fn list(known: &Profile) -> String {
    if known.count() == 0 {
        return "nothing was learned\n".to_owned();
    }
    let mut text = String::new();
    for (id, sites) in &known.sites {
        let _ = writeln!(text, "build id {id}: {}", counted(sites.len() as u64, "site"));
        for site in sites {
            let _ = writeln!(text, "  {site:#x}");
        }
    }
    let every = known.programs.iter().map(|program| (program, "every access"));
    let watched = known.watched.iter().map(|program| (program, "memory of other processes"));
    for (program, what) in every.chain(watched) {
        let _ = match program.split_once(' ') {
            None => writeln!(text, "program with build id {program}: {what}"),
            Some((id, words)) => {
                writeln!(text, "program with build id {id}, as `{words}`: {what}")
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Profile, list};

    #[test]
    fn sites_are_listed_by_build() {
        assert_eq!(list(&Profile::default()), "nothing was learned\n");
        let known = Profile {
            sites: [("ab12".to_owned(), [0x1139, 0x11c0].into())].into(),
            programs: ["cd34".to_owned(), "ef56 python3 a.py".to_owned()].into(),
            watched: ["cd34 d".to_owned()].into(),
            ..Profile::default()
        };
        let text = "build id ab12: 2 sites\n  0x1139\n  0x11c0\n\
                    program with build id cd34: every access\n\
                    program with build id ef56, as `python3 a.py`: every access\n\
                    program with build id cd34, as `d`: memory of other processes\n";
        assert_eq!(list(&known), text);
    }
}
