//! Addresses as `"0x4011d6"` where people read them, and as integers elsewhere. (JSON numbers
//! lose bits above 2⁵³ in many readers.)

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// For `#[serde(with = "hex")]`.
pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.collect_str(&format_args!("{value:#x}"))
    } else {
        serializer.serialize_u64(*value)
    }
}

/// For `#[serde(with = "hex")]`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    if !deserializer.is_human_readable() {
        return u64::deserialize(deserializer);
    }
    let text = String::deserialize(deserializer)?;
    text.strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| D::Error::custom("not a hexadecimal number"))
}
