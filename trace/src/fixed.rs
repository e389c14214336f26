//! Maps whose behaviour is the same on every run.
//!
//! The maps of `std` start from random state; what depends on their order would differ between
//! runs. These hash with `rustc-hash`, which is as good as its users need: addresses, ids and
//! tickets as keys. Nothing may depend on the order of iteration all the same.

use std::hash::{Hash, Hasher};

pub use rustc_hash::{FxHashMap as FixedMap, FxHashSet as FixedSet, FxHasher as FixedHasher};

/// A digest that is the same in every process.
pub fn digest(of: &impl Hash) -> u64 {
    let mut hasher = FixedHasher::default();
    of.hash(&mut hasher);
    hasher.finish()
}
