//! The answers that a source holds in its comments.
//!
//! ```text
//! annotation = "/* @site" label [ "in" variant ] [ ":" claim { ";" claim } ] "*/"
//! claim      = kind "with" label { "," label }
//! kind       = "null-lock" | "read-read" | "disjoint-write" | "benign/" sort
//!            | "tlcp" | "conflict"
//! sort       = "redundant-write" | "disjoint-bits" | "commutative-update"
//!            | "ad-hoc-sync"
//! variant    = "ulcp" | "fixed"
//! label      = lower-case letter { lower-case letter | digit | "_" }
//! ```
//!
//! An annotation stands on the line of the call that takes the lock.

use std::collections::BTreeSet;
use std::fmt;

use crate::Variant;

/// What a pair of critical sections is (PerfPlay, Algorithm 1 and §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One of the two touches no shared data.
    NullLock,
    /// Both only read shared data.
    ReadRead,
    /// One writes, but they have no written byte in common.
    DisjointWrite,
    /// They conflict, but their order makes no difference.
    Benign(Benign),
    /// A true contention: it must never be reported as unnecessary.
    Tlcp,
    /// They conflict; whether that is benign is left open. It must never be
    /// reported as one of the first three kinds.
    Conflict,
}

/// Why a conflict is benign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Benign {
    /// Both write the value that is there.
    RedundantWrite,
    /// Both write bytes in common, but different bits.
    DisjointBits,
    /// Both apply updates that commute.
    CommutativeUpdate,
    /// One polls what the other sets.
    AdHocSync,
}

const KINDS: [(&str, Kind); 9] = [
    ("null-lock", Kind::NullLock),
    ("read-read", Kind::ReadRead),
    ("disjoint-write", Kind::DisjointWrite),
    ("benign/redundant-write", Kind::Benign(Benign::RedundantWrite)),
    ("benign/disjoint-bits", Kind::Benign(Benign::DisjointBits)),
    ("benign/commutative-update", Kind::Benign(Benign::CommutativeUpdate)),
    ("benign/ad-hoc-sync", Kind::Benign(Benign::AdHocSync)),
    ("tlcp", Kind::Tlcp),
    ("conflict", Kind::Conflict),
];

impl Kind {
    /// Is it unnecessary contention?
    pub fn is_ulcp(self) -> bool {
        !matches!(self, Kind::Tlcp | Kind::Conflict)
    }

    fn parse(word: &str) -> Option<Kind> {
        KINDS.iter().find(|(name, _)| *name == word).map(|&(_, kind)| kind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = KINDS.iter().find(|(_, k)| k == self).expect("KINDS lists every kind");
        f.pad(name)
    }
}

/// A named code site: the line of a call that takes a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The name, unique in its source.
    pub label: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The only variant that has this site; `None`: as the preprocessor says.
    pub variant: Option<Variant>,
}

/// A claim about one site and its partners, as the source states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plant {
    /// What each of the pairs is.
    pub kind: Kind,
    /// The site whose annotation makes the claim.
    pub label: String,
    /// The line of that site.
    pub line: u32,
    /// The other site of each pair; it may be the same one.
    pub partners: Vec<String>,
    /// The only variant in which the claim holds; `None`: in all. Unnecessary
    /// contention is only ever planted in [`Variant::Ulcp`].
    pub variant: Option<Variant>,
}

/// A claimed pair with both of its lines, the lower line first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// The two lines; equal if a site is paired with itself.
    pub lines: (u32, u32),
    /// The labels, in the order of the lines.
    pub labels: (String, String),
    /// What the pair is.
    pub kind: Kind,
}

/// All answers of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// The named sites, by line.
    pub sites: Vec<Site>,
    /// The claims, by line.
    pub plants: Vec<Plant>,
}

/// A fault in a source's annotations: the line and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Problem {
    /// The line, counted from 1.
    pub line: u32,
    /// What is wrong, in words.
    pub what: String,
}

impl Answers {
    /// Reads the annotations of a source.
    ///
    /// # Errors
    /// Every fault is returned, not only the first: wrong syntax, two sites of
    /// one name, unknown partners, contradictory claims.
    pub fn parse(source: &str) -> Result<Answers, Vec<Problem>> {
        let mut answers = Answers::default();
        let mut problems = Vec::new();
        for (line, text) in (1..).zip(source.lines()) {
            if text.contains("@site")
                && let Err(what) = answers.read_line(line, text)
            {
                problems.push(Problem { line, what });
            }
        }
        problems.extend(answers.faults());
        if problems.is_empty() { Ok(answers) } else { Err(problems) }
    }

    /// The site of this name.
    pub fn site(&self, label: &str) -> Option<&Site> {
        self.sites.iter().find(|site| site.label == label)
    }

    /// The pairs that are claimed for a variant, sorted by line.
    pub fn pairs(&self, variant: Variant) -> Vec<Pair> {
        let mut pairs = BTreeSet::new();
        for plant in self.plants.iter().filter(|p| p.variant.is_none_or(|v| v == variant)) {
            for partner in &plant.partners {
                let other = self.site(partner).expect("`parse` has checked the partners");
                if other.variant.is_some_and(|v| v != variant) {
                    continue;
                }
                let mut ends = [(plant.line, &plant.label), (other.line, &other.label)];
                ends.sort();
                let [(first, a), (second, b)] = ends;
                pairs.insert(Pair {
                    lines: (first, second),
                    labels: (a.clone(), b.clone()),
                    kind: plant.kind,
                });
            }
        }
        pairs.into_iter().collect()
    }

    fn read_line(&mut self, line: u32, text: &str) -> Result<(), String> {
        let (_, rest) = text.split_once("/* @site ").ok_or("expected `/* @site `")?;
        let (body, _) = rest.split_once("*/").ok_or("the comment does not end on its line")?;
        if rest.contains("@site") {
            return Err("more than one annotation".into());
        }
        let (head, claims) = match body.split_once(':') {
            Some((head, claims)) => (head, Some(claims)),
            None => (body, None),
        };
        let words: Vec<&str> = head.split_whitespace().collect();
        let (name, variant) = match words[..] {
            [name] => (name, None),
            [name, "in", "ulcp"] => (name, Some(Variant::Ulcp)),
            [name, "in", "fixed"] => (name, Some(Variant::Fixed)),
            _ => return Err(format!("expected `label [in ulcp|fixed]`, found `{}`", head.trim())),
        };
        let site = Site { label: label(name)?, line, variant };
        let plants = claims
            .into_iter()
            .flat_map(|claims| claims.split(';'))
            .map(|text| claim(&site, text))
            .collect::<Result<Vec<_>, _>>()?;
        self.sites.push(site);
        self.plants.extend(plants);
        Ok(())
    }

    /// What only the whole source can show.
    fn faults(&self) -> Vec<Problem> {
        let mut faults = Vec::new();
        let mut fault = |line, what| faults.push(Problem { line, what });
        for (i, site) in self.sites.iter().enumerate() {
            if self.sites[..i].iter().any(|earlier| earlier.label == site.label) {
                fault(site.line, format!("a second site `{}`", site.label));
            }
        }
        let mut seen: Vec<(BTreeSet<&str>, Kind)> = Vec::new();
        for plant in &self.plants {
            for partner in &plant.partners {
                if self.site(partner).is_none() {
                    fault(plant.line, format!("no site `{partner}`"));
                }
                let pair = BTreeSet::from([plant.label.as_str(), partner]);
                for (_, kind) in seen.iter().filter(|(earlier, _)| *earlier == pair) {
                    if *kind == plant.kind {
                        fault(plant.line, format!("`{}` with `{partner}` again", plant.label));
                    } else if !kind.is_ulcp() || !plant.kind.is_ulcp() {
                        fault(
                            plant.line,
                            format!("`{}` with `{partner}` is {kind} elsewhere", plant.label),
                        );
                    }
                }
                seen.push((pair, plant.kind));
            }
        }
        faults
    }
}

fn label(word: &str) -> Result<String, String> {
    let tail = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(tail) {
        Ok(word.to_owned())
    } else {
        Err(format!("`{word}` is no label"))
    }
}

fn claim(site: &Site, text: &str) -> Result<Plant, String> {
    let (kind, partners) = text
        .trim()
        .split_once(" with ")
        .ok_or_else(|| format!("expected `kind with label`, found `{}`", text.trim()))?;
    let kind = Kind::parse(kind).ok_or_else(|| format!("`{kind}` is no kind"))?;
    let variant = match (kind.is_ulcp(), site.variant) {
        (true, Some(Variant::Fixed)) => return Err(format!("{kind} in the fixed variant")),
        (true, _) => Some(Variant::Ulcp),
        (false, variant) => variant,
    };
    let partners =
        partners.split(',').map(|word| label(word.trim())).collect::<Result<Vec<_>, _>>()?;
    Ok(Plant { kind, label: site.label.clone(), line: site.line, partners, variant })
}
