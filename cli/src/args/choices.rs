//! Values of options that are the library's: their names, and what the help says of them.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use refrain_analysis::paper::{Granularity, Prefilter, Which};
use refrain_session::{Atomics, Clock, Cost, EngineKind, SchedulerKind};
use refrain_vm::Level;

/// Values by what the help says of each, with the function that names one.
struct Named<T: 'static>(fn(T) -> &'static str, &'static [(T, &'static str)]);

impl<T: Copy + Send + Sync + 'static> Named<T> {
    fn parser(self) -> impl TypedValueParser<Value = T> {
        let Named(name, values) = self;
        let shown = values.iter().map(|&(value, help)| PossibleValue::new(name(value)).help(help));
        PossibleValuesParser::new(shown).map(move |given| {
            let found = values.iter().find(|&&(value, _)| name(value) == given);
            found.expect("the parser lets no other name through").0
        })
    }
}

/// `--engine`.
pub(super) fn engine() -> impl TypedValueParser<Value = EngineKind> {
    let values = &[
        (
            EngineKind::Tiered,
            "Copied at first; what threads come to often is compiled by Cranelift in the background",
        ),
        (EngineKind::Cranelift, "Code compiled by Cranelift; observers are compiled into it"),
        (EngineKind::Copy, "The same instructions, copied; nearest to native speed"),
    ];
    Named(EngineKind::name, values).parser()
}

/// `--detector`.
pub(super) fn detector() -> impl TypedValueParser<Value = Which> {
    let values = &[
        (Which::Empty, "Looks at nothing"),
        (Which::Eraser, "Locksets; names what other things than locks order"),
        (Which::MultiRace, "DJIT+ behind locksets"),
        (Which::Goldilocks, "Sets of owners"),
        (Which::BasicVc, "A vector clock for reads, one for writes"),
        (Which::Djit, "The same, once in an epoch"),
        (Which::FastTrack, "Epochs"),
        (Which::Shb, "Races that are real beyond the first"),
        (Which::Velodrome, "Are critical sections serializable?"),
        (Which::SingleTrack, "Does it matter who has a lock first?"),
    ];
    Named(Which::name, values).parser()
}

/// `--prefilter`.
pub(super) fn prefilter() -> impl TypedValueParser<Value = Prefilter> {
    let values = &[
        (Prefilter::ThreadLocal, "Variables that one thread alone has used"),
        (Prefilter::By(Which::Eraser), "Variables that Eraser finds protected"),
        (Prefilter::By(Which::Djit), "Variables that do not race, by DJIT+"),
        (Prefilter::By(Which::FastTrack), "Variables that do not race, by FastTrack"),
    ];
    Named(Prefilter::name, values).parser()
}

/// `--granularity`.
pub(super) fn granularity() -> impl TypedValueParser<Value = Granularity> {
    let values = &[
        (Granularity::Fine, "A byte"),
        (Granularity::Coarse, "A block of the heap, or 64 bytes of other memory"),
    ];
    Named(Granularity::name, values).parser()
}

/// `--atomics`.
pub(super) fn atomics() -> impl TypedValueParser<Value = Atomics> {
    let values = &[
        (Atomics::Relaxed, "Nothing"),
        (Atomics::AcquireRelease, "What a thread does before a store, for who reads it"),
        (
            Atomics::SequentiallyConsistent,
            "All that is done before an access, for the next one of the same variable",
        ),
    ];
    Named(Atomics::name, values).parser()
}

/// `--cpu`.
pub(super) fn level() -> impl TypedValueParser<Value = Level> {
    let values = &[
        (Level::V2, "x86-64-v2, without AVX"),
        (Level::V3, "x86-64-v3, with AVX2"),
        (Level::V4, "x86-64-v4, with the common part of AVX-512"),
        (Level::Host, "All that this machine has of what a recorded program may have"),
    ];
    Named(Level::name, values).parser()
}

/// `--scheduler`.
pub(super) fn scheduler() -> impl TypedValueParser<Value = SchedulerKind> {
    let values = &[
        (SchedulerKind::Elsc, "Each lock in its recorded order; free otherwise"),
        (SchedulerKind::Kendo, "By deterministic logical clocks (PerfPlay's SYNC-S)"),
        (SchedulerKind::MemS, "Everything that is ordered in one sequence"),
        (SchedulerKind::OrigS, "Whoever comes first"),
        (SchedulerKind::Pct, "Random priorities with a few changes, from --seed"),
        (SchedulerKind::Random, "Random choices at each step, from --seed"),
    ];
    Named(SchedulerKind::name, values).parser()
}

/// `--clock`.
pub(super) fn clock() -> impl TypedValueParser<Value = Clock> {
    let values = &[
        (Clock::Virtual, "Computed from recorded durations; nothing is executed"),
        (Clock::Wall, "Measured: the program's code runs"),
    ];
    Named(Clock::name, values).parser()
}

/// `--cost`.
pub(super) fn cost() -> impl TypedValueParser<Value = Cost> {
    let values = &[
        (Cost::Recorded, "The time that was recorded"),
        (
            Cost::Instructions,
            "The instructions, by their classes: free of the recording's noise, and blind to caches",
        ),
    ];
    Named(Cost::name, values).parser()
}
