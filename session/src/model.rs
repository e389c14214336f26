//! The modelled machine of the virtual clock (cores, latencies), as results name it.

use crate::calibration::Source;
use crate::choices::Cost;
use serde::Serialize;

/// A modelled machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct VirtualMachine {
    /// Its cores.
    pub cores: u32,
    /// Where its latencies come from.
    pub latencies: Source,
    /// Where the time of the program's own work comes from.
    pub cost: Cost,
}
