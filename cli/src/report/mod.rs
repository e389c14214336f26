//! Reports: plain data, a text rendering for people and a JSON one for programs.
//!
//! Rendering is pure: it reads no clock, no terminal and no file, so that tests can pin it.

pub(crate) mod ab;
pub(crate) mod baseline;
pub(crate) mod check;
pub(crate) mod comparison;
pub(crate) mod data_races;
pub(crate) mod detectors;
#[cfg(test)]
pub(crate) mod example;
pub(crate) mod fidelity;
pub(crate) mod figure;
pub(crate) mod html;
pub(crate) mod info;
pub(crate) mod linkages;
pub(crate) mod locks;
pub(crate) mod model;
pub(crate) mod numbers;
pub(crate) mod pack;
pub(crate) mod perfplay;
pub(crate) mod races;
pub(crate) mod replay;
pub(crate) mod several;
pub(crate) mod simulation;
pub(crate) mod table;
pub(crate) mod topology;
pub(crate) mod transform;
pub(crate) mod words;
