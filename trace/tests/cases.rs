//! Case files for the verifier: a trace, and all its violations.

use refrain_trace::{OwnedTrace, cases, verify::verify};
use std::path::Path;

#[test]
fn verifier() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    cases::check(&directory, |input| {
        let trace: OwnedTrace = match input.parse() {
            Ok(trace) => trace,
            Err(error) => return error.to_string(),
        };
        let trace = trace.to_trace().expect("a trace in memory can be written and read");
        let violations = verify(&trace).expect("it can be read");
        violations.iter().map(|violation| format!("{violation}\n")).collect()
    });
}
