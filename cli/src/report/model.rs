//! The machine of the virtual clock, as reports name it.

use super::numbers::counted;
use crate::args::Cost;
use crate::calibration::Source;
use serde::Serialize;

/// A modelled machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Model {
    /// Its cores.
    pub(crate) cores: u32,
    /// Where its latencies come from.
    pub(crate) latencies: Source,
    /// Where the time of the program's own work comes from.
    pub(crate) cost: Cost,
}

impl Model {
    /// In words.
    pub(crate) fn describe(&self) -> String {
        let cores = counted(self.cores.into(), "modelled core");
        format!("{cores}, {}, {}", self.latencies.name(), self.cost.name())
    }
}
