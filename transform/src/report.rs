//! The report's data. Formatting is the caller's.

use crate::measure::{OnCores, Together, Waiting, WithThreads};
use crate::site::Place;
use crate::ulcp::UlcpKind;
use serde::{Deserialize, Serialize};

/// Pairs by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PairCounts {
    /// Null-locks.
    pub null_lock: u64,
    /// Read-read pairs.
    pub read_read: u64,
    /// Disjoint writes.
    pub disjoint_write: u64,
    /// Benign: stores of the same value.
    #[serde(default)]
    pub redundant_write: u64,
    /// Benign: different bits.
    #[serde(default)]
    pub disjoint_bits: u64,
    /// Benign: updates that come to the same in either order.
    #[serde(default)]
    pub commutative_update: u64,
    /// What waits on condition variables made (null-locks behind them, looks before them); in no sum of
    /// ULCPs.
    pub after_wait: u64,
    /// Conflicts in atomic variables alone; in no sum of ULCPs.
    pub atomic_only: u64,
}

impl PairCounts {
    pub(crate) fn add(&mut self, other: &PairCounts) {
        self.null_lock += other.null_lock;
        self.read_read += other.read_read;
        self.disjoint_write += other.disjoint_write;
        self.redundant_write += other.redundant_write;
        self.disjoint_bits += other.disjoint_bits;
        self.commutative_update += other.commutative_update;
        self.after_wait += other.after_wait;
        self.atomic_only += other.atomic_only;
    }

    /// All ULCPs.
    pub fn ulcps(&self) -> u64 {
        self.null_lock + self.read_read + self.disjoint_write + self.benign()
    }

    /// ULCPs that conflict, but come to the same in either order.
    pub fn benign(&self) -> u64 {
        self.redundant_write + self.disjoint_bits + self.commutative_update
    }
}

/// A gain and how sure it is, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Gain {
    /// The smallest that any trial of the model found, less what the model does not know.
    pub least_ns: i64,
    /// The middle one of the trials with the likeliest latencies.
    pub likely_ns: i64,
    /// The greatest, with what the model does not know.
    pub most_ns: i64,
}

impl Gain {
    /// Whether nobody can say that there is one.
    pub fn is_none(&self) -> bool {
        self.least_ns <= 0 && self.most_ns >= 0
    }
}

/// What was analysed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Analysed {
    /// Threads.
    pub threads: u64,
    /// Events of all threads.
    pub events: u64,
    /// Locks.
    pub locks: u64,
    /// Locks of irregular use, left as they are.
    pub irregular_locks: u64,
    /// Acquisitions, inner ones of recursive mutexes included.
    pub acquisitions: u64,
    /// Acquisitions that came while another thread had the lock, in the recording.
    pub contended: u64,
    /// Critical sections.
    pub critical_sections: u64,
    /// Pairs of consecutive critical sections, by kind.
    pub pairs: PairCounts,
    /// Pairs that conflict: true contentions.
    pub tlcps: u64,
    /// Critical sections whose locking the transformation removed.
    pub removed: u64,
    /// Causal edges that survive.
    pub causal_edges: u64,
    /// Auxiliary locks (Rule 3).
    pub aux_locks: u64,
}

/// What the groups of a ranking are ranked by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// What the run gains without each, by the virtual clock.
    #[default]
    Gain,
    /// How long threads waited in vain in the recording: the virtual clock does not reproduce the
    /// recorded duration, so that the gains are not to be believed.
    RecordedWaiting,
}

impl Basis {
    /// Modelled and recorded duration further apart than this, in thousandths, and gains are not
    /// believed.
    const APART: u64 = 100;

    /// Of a recording that took so long, and takes so long by the model, if that is known.
    pub(crate) fn of(recorded_ns: u64, check_ns: Option<u64>) -> Basis {
        let apart = check_ns.map_or(0, |check_ns| check_ns.abs_diff(recorded_ns));
        match apart <= recorded_ns / 1000 * Basis::APART {
            true => Basis::Gain,
            false => Basis::RecordedWaiting,
        }
    }
}

/// ULCPs of one pair of code regions (of two classes of them, after fusion).
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Group {
    /// 1 costs most.
    pub rank: u32,
    /// Kind of most of its pairs.
    pub kind: UlcpKind,
    /// Where the critical sections begin that came first.
    pub first: Place,
    /// Where those begin that came second.
    pub second: Place,
    /// ULCPs.
    pub pairs: u64,
    /// The same by kind.
    pub kinds: PairCounts,
    /// Pairs of the same code that conflict: there the lock is needed.
    pub conflicts: u64,
    /// ΔT (Eq. 1), summed over the pairs, in nanoseconds, as if each thread had a core of its
    /// own. For ranking: gains overlap.
    pub delta_ns: i64,
    /// For how long threads waited at one of the two for the other in the recording, although the
    /// sections did not conflict, summed over the waits, in nanoseconds.
    pub in_vain_ns: u64,
    /// P (Eq. 2): its share of all groups' gains (of those that are gains), 0 to 1.
    pub share: f64,
    /// By how much the run is shorter if only this group's pairs are freed of their order, in
    /// nanoseconds; `None` if it was not replayed, or if fusion put together what was replayed
    /// apart.
    pub alone_ns: Option<i64>,
    /// The same with its range.
    pub alone: Option<Gain>,
    /// Why that replay did not end, if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_error: Option<String>,
}

/// A place where a lock is acquired, in the recording.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Site {
    /// Where.
    pub site: Place,
    /// Critical sections.
    pub critical_sections: u64,
    /// Those that found the lock taken.
    pub waited: u64,
    /// For how long these waited, in nanoseconds.
    pub waited_ns: u64,
    /// How much of that was for sections that they did not conflict with.
    #[serde(skip)]
    pub unnecessary_ns: u64,
    /// The same, as a part of it.
    pub unnecessary: f64,
    /// What the run gains if sections here exclude only what they conflict with; `None` if that was
    /// not replayed, or if fusion put together what was replayed apart.
    pub gain: Option<Gain>,
}

/// The ranking.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// What was analysed.
    pub analysed: Analysed,
    /// Duration of the original in virtual time, nanoseconds.
    pub original_ns: u64,
    /// What the model makes of the run as it was recorded, the recorder's work included: it is to
    /// be held against the recorded duration. `None` if the original was replayed in its recorded
    /// order.
    pub check_ns: Option<u64>,
    /// What the run gains without ULCPs, with its range, if it was replayed by arrival.
    pub gain: Option<Gain>,
    /// Duration without ULCPs. `None` if that replay did not end; then nothing is known of gains.
    pub ulcp_free_ns: Option<u64>,
    /// Why it did not.
    pub ulcp_free_error: Option<String>,
    /// What ranks the groups.
    pub ranked_by: Basis,
    /// Most costly first.
    pub groups: Vec<Group>,
    /// Groups that consist of spurious null-locks (after waits on condition variables) alone.
    pub spurious: Vec<Group>,
    /// Sites where threads waited, the longest in vain first.
    pub sites: Vec<Site>,
    /// What the most costly groups gain together.
    pub together: Vec<Together>,
    /// The run on other numbers of cores.
    pub over_cores: Vec<OnCores>,
    /// The run with more threads.
    pub over_threads: Vec<WithThreads>,
    /// How long threads waited with and without ULCPs, if the run was replayed by arrival.
    pub waiting: Option<Waiting>,
}
