//! The machine of the virtual clock, as reports name it.

use super::numbers::counted;
use refrain_session::Cost;
use refrain_session::VirtualMachine;

/// In words.
pub(crate) fn describe(model: &VirtualMachine) -> String {
    let cores = counted(model.cores.into(), "modelled core");
    format!("{cores}, {}, {}", model.latencies.name(), costs(model.cost))
}

/// Where the time of the program's own work comes from, in words.
pub(crate) fn costs(cost: Cost) -> &'static str {
    match cost {
        Cost::Recorded => "recorded costs",
        Cost::Instructions => "costs of instructions",
    }
}
