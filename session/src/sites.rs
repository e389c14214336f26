//! What diverged replays have taught. Later recordings watch the sites that were found to race, beside
//! the idioms; and they order every access of a program if watching such sites did not help it.
//!
//! Kept per build of a program or library ([`Module::identity`]) in the user's cache folder, so that
//! another build, in which the instructions lie elsewhere, begins anew. Whether every access is ordered is
//! kept for a program together with the way in which it is started ([`started`]), so that one script does
//! not slow down all others of its interpreter. Once two ways of starting a program need it, all of them
//! get it.

use crate::cache;
use crate::error::{Context, Error};
use crate::races::{Races, Side};
use refrain_trace::Module;
use refrain_vm::LearnedSites;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Diverged recordings of a program, after which every access of it is ordered.
const PATIENCE: usize = 3;

/// What the file holds, and what `refrain sites export` prints.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// By identity of the module: addresses of instructions in it.
    pub sites: LearnedSites,
    /// Programs as they are started, or, by their identities alone, in whatever way.
    #[serde(default)]
    pub programs: BTreeSet<String>,
    /// Programs as they are started, of which is watched what other processes may have mapped of their memory.
    #[serde(default)]
    pub watched: BTreeSet<String>,
    /// By program as it is started: when the recordings were begun whose replays have diverged.
    #[serde(default)]
    pub recordings: BTreeMap<String, BTreeSet<u64>>,
}

impl Profile {
    /// How many sites there are.
    pub fn count_sites(&self) -> usize {
        self.sites.values().map(BTreeSet::len).sum()
    }

    /// How many sites and programs there are.
    pub fn count(&self) -> usize {
        self.count_sites() + self.programs.len() + self.watched.len()
    }

    /// A replay of a `recording` of the program has diverged, and taught so many `new` sites; whether
    /// the next recording orders every access: if there was nothing new, or sites of so many
    /// recordings did not help.
    pub fn diverged(&mut self, program: &str, recording: u64, new: usize) -> bool {
        let recordings = self.recordings.entry(program.to_owned()).or_default();
        // What a second replay of it finds is known from the first.
        let is_first = recordings.insert(recording);
        if is_first && new == 0 || recordings.len() >= PATIENCE {
            self.recordings.remove(program);
            self.every_access_of(program);
        }
        is_among(&self.programs, program)
    }

    /// A replay of a `recording` of the program has diverged, and taught so many `new` sites. Other processes may
    /// have written to its memory, which that recording did not watch. If no site was new, the next recording
    /// watches that memory before it orders every access; whether it does.
    pub fn watches(&mut self, program: &str, recording: u64, new: usize) -> bool {
        if new == 0 && !self.has_learned_of(program, recording) {
            self.watched.insert(program.to_owned());
        }
        self.watched.contains(program)
    }

    fn every_access_of(&mut self, program: &str) {
        let id = identity_of(program);
        let is_other = |known: &String| identity_of(known) == id && known != program;
        if self.programs.iter().any(is_other) {
            self.programs.retain(|known| identity_of(known) != id);
            self.programs.insert(id.to_owned());
        } else {
            self.programs.insert(program.to_owned());
        }
    }

    /// Whether a replay of this `recording` of the program has diverged before, and taught something that
    /// has not been given up since.
    pub fn has_learned_of(&self, program: &str, recording: u64) -> bool {
        self.recordings.get(program).is_some_and(|recordings| recordings.contains(&recording))
    }

    /// A replay of a recording with every access has diverged: it takes its time and does not help.
    pub fn forget(&mut self, program: &str) {
        self.recordings.remove(program);
        self.programs.remove(program);
        self.programs.remove(identity_of(program));
    }

    /// Adds another profile; returns how much of it is new.
    pub fn add(&mut self, other: Profile) -> usize {
        let before = self.count();
        for (id, sites) in other.sites {
            self.sites.entry(id).or_default().extend(sites);
        }
        self.programs.extend(other.programs);
        self.watched.extend(other.watched);
        self.count() - before
    }

    /// The sites of the program's own races, or, if there are none, of the C library's.
    pub fn of(races: &Races, modules: &[Module]) -> Profile {
        let only_library = races.pairs.iter().all(|pair| pair.in_library);
        let pairs = races.pairs.iter().filter(|pair| only_library || !pair.in_library);
        let mut profile = Profile::default();
        for Side { pc, watchable, .. } in pairs.flat_map(|pair| [&pair.first, &pair.second]) {
            let module = modules.iter().find(|module| (module.start..module.end).contains(pc));
            if let Some(module) = module
                && *watchable
            {
                let sites = profile.sites.entry(module.identity()).or_default();
                sites.insert(pc.wrapping_sub(module.bias));
            }
        }
        profile
    }
}

/// A program of that identity as it is started by a command line: with its name, and the first of its
/// arguments that is no option, which names what an interpreter executes. By its identity alone, if there
/// is no such argument.
pub fn started<T: AsRef<str>>(identity: &str, argv: &[T]) -> String {
    let mut words = argv.iter().map(AsRef::as_ref);
    let name = words.next().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
    match words.find(|word| !word.starts_with('-')) {
        Some(word) => format!("{identity} {name} {word}"),
        None => identity.to_owned(),
    }
}

/// Whether all accesses are ordered of a program as it is started.
pub fn is_among(programs: &BTreeSet<String>, started: &str) -> bool {
    programs.contains(started) || programs.contains(identity_of(started))
}

fn identity_of(started: &str) -> &str {
    started.split(' ').next().unwrap_or_default()
}

/// What is known; nothing if it cannot be read.
pub fn known() -> Profile {
    path().and_then(|path| read(&path)).unwrap_or_default()
}

fn read(path: &Path) -> Option<Profile> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn path() -> Option<PathBuf> {
    Some(cache::directory()?.join("sites.json"))
}

/// Changes what is known, while no other command does.
pub fn change<T>(change: impl FnOnce(&mut Profile) -> T) -> crate::Result<T> {
    let none = || Error::Refused("there is no home directory to keep learned sites in".into());
    let path = path().ok_or_else(none)?;
    let directory = path.parent().expect("the path has a file name");
    let cannot = || format!("cannot keep learned sites in {}", path.display());
    std::fs::create_dir_all(directory).with_context(cannot)?;
    let lock = File::create(directory.join("sites.lock")).with_context(cannot)?;
    lock.lock().with_context(cannot)?;
    let mut profile = read(&path).unwrap_or_default();
    let result = change(&mut profile);
    let bytes = serde_json::to_vec(&profile).with_context(cannot)?;
    cache::replace(&path, &[bytes]).with_context(cannot)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::{Profile, is_among, started};

    fn profile(id: &str, sites: &[u64]) -> Profile {
        let sites = [(id.to_owned(), sites.iter().copied().collect())].into();
        Profile { sites, ..Profile::default() }
    }

    #[test]
    fn what_sites_do_not_help_is_ordered() {
        let mut known = Profile::default();
        assert!(!known.has_learned_of("a", 1) && !known.diverged("a", 1, 2));
        assert!(known.has_learned_of("a", 1) && !known.has_learned_of("b", 1));
        assert!(!known.diverged("a", 1, 0), "the same recording again");
        assert!(!known.diverged("a", 2, 1) && !known.diverged("b", 3, 1));
        assert!(known.diverged("a", 3, 1), "the third recording");
        assert!(known.diverged("b", 4, 0), "nothing new");
        assert!(!known.has_learned_of("b", 4), "watching has not helped");
        known.forget("a");
        assert!(!known.diverged("a", 5, 1));
        assert!(!known.watches("a", 5, 0), "what the recording has taught comes first");
        assert!(!known.watches("a", 6, 1), "so do new sites");
        assert!(known.watches("a", 7, 0) && known.watches("a", 7, 0));
        assert_eq!(known.programs, ["b".to_owned()].into());
    }

    #[test]
    fn every_access_is_learned_of_a_script_first() {
        let scripts = ["a.py", "b.py", "c.py"].map(|it| started("id", &["/bin/python3", "-B", it]));
        let [a, b, c] = &scripts;
        assert_eq!((a.as_str(), started("id", &["x", "-v"])), ("id python3 a.py", "id".into()));
        let mut known = Profile::default();
        assert!(known.diverged(a, 1, 0));
        assert!(is_among(&known.programs, a) && !is_among(&known.programs, b));
        assert!(known.diverged(a, 2, 0) && !is_among(&known.programs, b), "the same again");
        assert!(known.diverged(b, 3, 0));
        assert!(is_among(&known.programs, a) && is_among(&known.programs, c));
        assert_eq!(known.programs, ["id".to_owned()].into());
        known.forget(c);
        assert_eq!(known.programs, [].into());
    }

    #[test]
    fn new_sites_are_counted() {
        let mut known = profile("a", &[1, 2]);
        assert_eq!(known.add(profile("a", &[2, 3])), 1);
        assert_eq!(known.add(profile("b", &[2])), 1);
        assert_eq!((known.add(profile("b", &[2])), known.count()), (0, 4));
        let program = Profile { programs: ["c".to_owned()].into(), ..Profile::default() };
        assert_eq!((known.add(program.clone()), known.add(program)), (1, 0));
    }
}
