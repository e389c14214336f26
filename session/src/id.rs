//! Ids as `"t3"` and `"e1042"` where people read them, and as integers in messages of the child.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::Display;

/// For `#[serde(with = "id")]`.
pub(crate) fn serialize<T, S>(id: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Display + Serialize,
    S: Serializer,
{
    if serializer.is_human_readable() {
        serializer.collect_str(id)
    } else {
        id.serialize(serializer)
    }
}

/// For `#[serde(with = "id")]`. Nobody reads what was written for people.
pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(deserializer)
}
