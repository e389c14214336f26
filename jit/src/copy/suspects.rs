//! Words that threads hand over by plain loads and stores.
//!
//! The stamp of a slot in a lock-free queue, or the length of a queue that is looked at without
//! its lock, is an atomic variable that no locked instruction touches: a release store and an
//! acquire load are plain `mov`s, and nothing about them tells. What is around them does: they
//! stand in functions with locked instructions, or that call such functions, and in no inner loop
//! without. Such loads and stores are *suspects*, and so is what functions of a few instructions
//! read for others. The engine looks at a suspect's first executions: where it touches a word that
//! is known to synchronize threads, it is watched through the filter from then on; where one
//! thread has written its word and another touched it, the suspects that touch it are *handing it
//! over* and are always reported. To the others remains a jump to the next instruction.
//!
//! Functions that call the library's locks have suspects too, but what those touch is mostly
//! guarded by the locks, and ordered with them. So they hand over their word only if somebody
//! touches it next to locked instructions. Such a word is the flag by which a thread that waits
//! for an interpreter's lock asks the one that interprets for it.
//!
//! A global variable may be stored by one thread where nothing locks, and looked at by others: a
//! server's clock. Stores of global variables are suspects in any function. They hand over the
//! variable if another thread has touched it before, and none but the one that stores it now has
//! stored it since there are several.
//!
//! In the replay a load has its value, and a store its turn. What a load read before anybody was
//! found out is what the word held before the first store that was (`vm::replay`).
//!
//! # Limits
//! - What is handed over under a lock of the program's own is found as well, at some cost.
//! - A suspect that was executed often before its word was touched by a second thread is found
//!   when all are looked at again ([`Translator::suspect_again`]), and not before.
//! - Between being left alone and being found out a suspect may be executed without an event. The
//!   replay cannot tell, and gives that execution the next event of the same instruction: all of its
//!   thread's come one execution early.
//! - What functions that call the library's locks touch there and nowhere else is taken to be
//!   guarded, even if one of them looks at it without its lock.
//! - A variable that several threads store plainly, or through pointers, where nothing locks.
//! - Of a module that is trusted, the C library, only global variables are looked at.

use super::translator::{Map, Translator};

/// How often a suspect is looked at.
const TIMES: u32 = 32;
/// Words that are remembered.
const WORDS: usize = 1 << 20;
/// Suspects of a word that are remembered.
const SITES: usize = 64;

/// What is known of suspects. See the module's documentation.
#[derive(Default)]
pub(super) struct Suspects {
    /// Threads that there were.
    threads: u32,
    /// By address of the instruction.
    sites: Map<u64, Site>,
    /// By first byte.
    words: Map<u64, Word>,
    /// Translations are to be made anew.
    outdated: bool,
}

/// What a suspect turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Suspicion {
    /// It touches words that are known to synchronize threads.
    Known,
    /// It touches words that are handed over.
    HandsOver,
}

/// What a suspect stands next to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Locked instructions.
    Locked,
    /// Calls of the library's locks.
    Guarded,
    /// Nothing that locks, and it stores a global variable.
    Publishes,
    /// Nothing that locks, in a short function.
    Apart,
}

/// A suspect that is about to be executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspected {
    pub(super) pc: u64,
    /// First byte of its word.
    pub(super) address: u64,
    pub(super) thread: u32,
    pub(super) store: bool,
    /// The word is known to synchronize threads.
    pub(super) known: bool,
    /// It stands next to locked instructions.
    pub(super) tracked: bool,
}

#[derive(Default)]
struct Site {
    /// Known since it was looked at first.
    standing: Option<Standing>,
    suspicion: Option<Suspicion>,
    /// How often it was looked at.
    looked_at: u32,
    /// Its translations: the displacement of the jump before it, and the exit.
    jumps: Vec<(u64, u64)>,
}

#[derive(Default)]
struct Word {
    thread: u32,
    /// Others than `thread` have touched it.
    several: bool,
    written: bool,
    /// Somebody has touched it next to locked instructions.
    near: bool,
    /// Who has stored it since there are several threads.
    writer: Option<u32>,
    /// Others than `writer` have, too.
    several_writers: bool,
    /// The suspects that were seen to touch it.
    sites: Vec<u64>,
}

/// Displacements to be patched, and what they are to lead to.
type Patches = Vec<(u64, u64)>;

impl Suspects {
    /// Adds a translation of a suspect; says whether the jump is to lead to the exit.
    pub(super) fn add(&mut self, pc: u64, field: u64, exit: u64) -> bool {
        let site = self.sites.entry(pc).or_default();
        site.jumps.push((field, exit));
        site.is_wanted()
    }

    /// What a suspect turned out to be, if anything.
    pub(super) fn suspicion(&self, pc: u64) -> Option<Suspicion> {
        self.sites.get(&pc).and_then(|site| site.suspicion)
    }

    /// All translations are gone.
    pub(super) fn forget_code(&mut self) {
        self.outdated = false;
        self.sites.values_mut().for_each(|site| site.jumps.clear());
    }

    /// A thread is about to execute a suspect; says whether it is to be ordered. `standing` finds
    /// out what the suspect stands next to.
    fn execute(
        &mut self,
        access: &Suspected,
        standing: impl FnOnce() -> Standing,
    ) -> (bool, Patches) {
        let site = self.sites.entry(access.pc).or_default();
        let standing = *site.standing.get_or_insert_with(standing);
        let mut patches = Patches::new();
        for pc in self.found(access, standing) {
            let site = self.sites.entry(pc).or_default();
            site.suspicion = Some(Suspicion::HandsOver);
            patches.extend(&site.jumps);
            self.outdated = true;
        }
        let site = self.sites.entry(access.pc).or_default();
        if access.known && site.suspicion.is_none() {
            site.suspicion = Some(Suspicion::Known);
            self.outdated = true;
        }
        site.looked_at = site.looked_at.saturating_add(1);
        if !site.is_wanted() {
            patches.extend(site.jumps.iter().map(|&(field, _)| (field, field + 4)));
        }
        (access.known || site.suspicion == Some(Suspicion::HandsOver), patches)
    }

    /// The suspects that turn out to hand over their word.
    fn found(&mut self, access: &Suspected, standing: Standing) -> Vec<u64> {
        if standing == Standing::Apart {
            return Vec::new();
        }
        if self.words.len() >= WORDS {
            self.words.clear();
        }
        let new = || Word { thread: access.thread, ..Word::default() };
        let word = self.words.entry(access.address).or_insert_with(new);
        word.touch(access, standing, self.threads > 1);
        if word.sites.len() < SITES && !word.sites.contains(&access.pc) {
            word.sites.push(access.pc);
        }
        if word.is_handed_over(standing) { std::mem::take(&mut word.sites) } else { Vec::new() }
    }

    /// There is another thread. What stored variables before is looked at again.
    fn begin_thread(&mut self) -> Patches {
        self.threads += 1;
        let mut patches = Patches::new();
        let publishes = |site: &&mut Site| site.standing == Some(Standing::Publishes);
        if self.threads.is_power_of_two() {
            for site in self.sites.values_mut().filter(publishes).filter(|site| !site.is_wanted()) {
                site.looked_at = 0;
                patches.extend(&site.jumps);
            }
        }
        patches
    }

    /// Lets all suspects be looked at again.
    fn again(&mut self) -> Patches {
        let unwanted = self.sites.values_mut().filter(|site| !site.is_wanted());
        let mut patches = Patches::new();
        for site in unwanted {
            site.looked_at = 0;
            patches.extend(&site.jumps);
        }
        patches
    }
}

impl Word {
    /// `several` says that there are several threads.
    fn touch(&mut self, access: &Suspected, standing: Standing, several: bool) {
        let thread = access.thread;
        self.several |= self.thread != thread;
        self.written |= access.store;
        self.near |= standing == Standing::Locked;
        if access.store && several {
            self.several_writers |= *self.writer.get_or_insert(thread) != thread;
        }
    }

    /// Whether the suspects that touch it hand it over, now that one with this standing does. A
    /// load does not publish: it may come after the last store, from who has joined the writer.
    fn is_handed_over(&self, standing: Standing) -> bool {
        let has_one_writer = self.writer.is_some() && !self.several_writers;
        let publishes = standing == Standing::Publishes && has_one_writer;
        self.several && self.written && (self.near || publishes)
    }
}

impl Site {
    /// Whether the machine is to see its next execution.
    fn is_wanted(&self) -> bool {
        self.suspicion.is_some() || self.looked_at < TIMES
    }
}

impl Translator {
    /// A thread is about to execute a suspect; says whether it is to be ordered.
    pub(super) fn suspect(&mut self, access: &Suspected) -> bool {
        let Translator { suspects, functions, .. } = self;
        let (ordered, patches) = suspects.execute(access, || match functions.findings(access.pc) {
            _ if access.tracked => Standing::Locked,
            Some(found) if found.calls_hooked => Standing::Guarded,
            Some(found) if found.publishes.binary_search(&access.pc).is_ok() => Standing::Publishes,
            _ => Standing::Apart,
        });
        patches.into_iter().for_each(|(field, to)| self.patch(field, to));
        ordered
    }

    /// There is another thread.
    pub(super) fn begin_thread(&mut self) {
        let patches = self.suspects.begin_thread();
        patches.into_iter().for_each(|(field, to)| self.patch(field, to));
    }

    /// Lets all suspects be looked at again; says whether code is to be translated anew.
    pub(super) fn suspect_again(&mut self) -> bool {
        let patches = self.suspects.again();
        patches.into_iter().for_each(|(field, to)| self.patch(field, to));
        self.suspects.outdated
    }
}

#[cfg(test)]
mod tests {
    use super::{Standing, Suspected, Suspects, Suspicion, TIMES};

    const WORD: u64 = 0x5000;
    const LOAD: u64 = 0x1000;
    const STORE: u64 = 0x1010;

    fn touch(pc: u64, thread: u32) -> Suspected {
        let store = pc == STORE;
        Suspected { pc, address: WORD, thread, store, known: false, tracked: true }
    }

    fn apart(pc: u64, thread: u32) -> Suspected {
        Suspected { tracked: false, ..touch(pc, thread) }
    }

    fn locked() -> Standing {
        Standing::Locked
    }

    fn guarded() -> Standing {
        Standing::Guarded
    }

    /// Suspects whose one translation has its jump at `pc + 1` and its exit at `pc + 0x100`.
    fn both() -> Suspects {
        let mut all = Suspects::default();
        assert!(all.add(LOAD, LOAD + 1, LOAD + 0x100) && all.add(STORE, STORE + 1, STORE + 0x100));
        all
    }

    #[test]
    fn a_word_of_two_threads_is_handed_over() {
        let mut all = both();
        assert_eq!(all.execute(&touch(LOAD, 1), locked), (false, vec![]));
        assert_eq!(all.execute(&touch(LOAD, 2), locked), (false, vec![]), "nobody has written it");
        let (ordered, patches) = all.execute(&touch(STORE, 2), locked);
        assert!(ordered);
        assert_eq!(patches, [(LOAD + 1, LOAD + 0x100), (STORE + 1, STORE + 0x100)]);
        assert_eq!(all.suspicion(LOAD), Some(Suspicion::HandsOver));
        let elsewhere = Suspected { address: WORD + 8, ..touch(LOAD, 1) };
        assert!(all.execute(&elsewhere, locked).0, "the load, not only the word");
    }

    #[test]
    fn a_thread_of_its_own_is_left_alone() {
        let mut all = both();
        for _ in 1..TIMES {
            assert_eq!(all.execute(&touch(STORE, 1), locked), (false, vec![]));
        }
        assert_eq!(all.execute(&touch(STORE, 1), locked), (false, vec![(STORE + 1, STORE + 5)]));
        assert!(!all.add(STORE, 0x9000, 0x9100), "another translation");
        assert_eq!(all.again(), [(STORE + 1, STORE + 0x100), (0x9000, 0x9100)]);
    }

    #[test]
    fn a_known_word_concerns_its_own_load_alone() {
        let mut all = both();
        let known = Suspected { known: true, tracked: false, ..touch(LOAD, 1) };
        assert!(all.execute(&known, locked).0 && all.outdated);
        assert_eq!(all.suspicion(LOAD), Some(Suspicion::Known));
        assert!(!all.execute(&Suspected { known: false, ..known }, locked).0);
    }

    /// As a flag that a thread sets while it has a lock of the library's.
    #[test]
    fn what_a_lock_may_guard_is_handed_over_if_somebody_does_not_ask_for_it() {
        let mut all = both();
        assert!(!all.execute(&apart(LOAD, 1), guarded).0);
        assert!(!all.execute(&apart(STORE, 2), guarded).0, "the lock orders them");
        let elsewhere = Suspected { pc: LOAD + 8, ..touch(LOAD, 1) };
        assert!(all.execute(&elsewhere, locked).0);
        assert!(all.execute(&apart(STORE, 2), guarded).0, "found with it");
        let mut all = both();
        assert!(!all.execute(&touch(LOAD, 1), locked).0);
        assert!(!all.execute(&apart(STORE, 2), || Standing::Apart).0, "next to no lock");
        let mut all = both();
        assert!(!all.execute(&touch(LOAD, 1), locked).0);
        assert!(all.execute(&apart(STORE, 2), guarded).0);
    }

    /// As a clock that one thread sets.
    #[test]
    fn a_variable_that_one_thread_stores_is_handed_over() {
        let publishes = || Standing::Publishes;
        let mut all = both();
        all.begin_thread();
        assert!(!all.execute(&apart(STORE, 1), publishes).0);
        all.begin_thread();
        assert!(!all.execute(&apart(LOAD, 2), guarded).0, "it was set before there were threads");
        assert!(all.execute(&apart(STORE, 1), publishes).0);
        assert!(all.execute(&apart(LOAD, 2), guarded).0, "found with it");
        let mut all = both();
        (0..2).for_each(|_| drop(all.begin_thread()));
        assert!(!all.execute(&apart(STORE, 1), publishes).0, "nobody looks at it");
        assert!(!all.execute(&apart(STORE, 2), publishes).0, "both of them store it");
        assert!(!all.execute(&apart(LOAD, 2), guarded).0, "somewhere else there must be a lock");
        let mut all = both();
        (0..2).for_each(|_| drop(all.begin_thread()));
        assert!(!all.execute(&apart(STORE, 2), publishes).0);
        assert!(!all.execute(&apart(LOAD, 1), guarded).0, "who has joined it looks at the result");
        assert!(all.execute(&apart(STORE, 2), publishes).0);
    }

    #[test]
    fn a_second_thread_lets_stores_be_looked_at_again() {
        let mut all = both();
        all.begin_thread();
        for pc in [LOAD, STORE] {
            let standing = if pc == STORE { Standing::Publishes } else { Standing::Guarded };
            (0..TIMES).for_each(|_| drop(all.execute(&apart(pc, 1), || standing)));
        }
        assert_eq!(all.begin_thread(), [(STORE + 1, STORE + 0x100)]);
        assert_eq!(all.begin_thread(), [], "the third one");
    }
}
