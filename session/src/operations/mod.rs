//! The methods of a session that work on traces, one operation a file.

mod data_races;
mod locks;
mod pack;
pub(crate) mod racing;
mod record;
mod replay;
mod transform;
mod virtual_time;

pub use pack::PackedTrace;
pub use racing::{Look, libraries, must_be_searchable};
pub use transform::TransformedTrace;
