//! Data races as SARIF 2.1.0, which code hosts and editors show beside the source.

use super::Report;
use refrain_session::data_races::{Access, DataRace};
use refrain_session::symbols::Place;
use serde_json::{Value, json};

/// The document.
pub(crate) fn sarif(report: &Report) -> Value {
    let results: Vec<Value> = report.races.iter().map(result).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "refrain",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [{
                    "id": RULE,
                    "shortDescription": { "text": "Data race" },
                    "fullDescription": { "text": "Two threads access the same memory, one of \
                        them writes, and nothing orders the two accesses." },
                    "defaultConfiguration": { "level": "error" },
                }, {
                    "id": AFTER_FREE,
                    "shortDescription": { "text": "Heap use after free" },
                    "fullDescription": { "text": "A block of the heap is used after it was freed, \
                        by the same thread or by one that comes after it." },
                    "defaultConfiguration": { "level": "error" },
                }],
            } },
            "results": results,
        }],
    })
}

const RULE: &str = "data-race";
const AFTER_FREE: &str = "heap-use-after-free";

fn result(race: &DataRace) -> Value {
    let what = |side: &Access| {
        let place = side.place().map_or_else(String::new, Place::short);
        format!("{} by {} in {place}", side.access, side.thread)
    };
    let (rule, verb) = match race.after_free {
        true => (AFTER_FREE, "comes after"),
        false => (RULE, "races with"),
    };
    let text = format!("{} {verb} {}", what(&race.second), what(&race.first));
    json!({
        "ruleId": rule,
        "level": if race.in_library { "note" } else { "error" },
        "message": { "text": text },
        "locations": location(&race.second).into_iter().collect::<Vec<_>>(),
        "relatedLocations": location(&race.first).into_iter().collect::<Vec<_>>(),
        "stacks": race.sides().map(stack),
        "occurrenceCount": race.count,
    })
}

/// The innermost place of a side, outside of the system's libraries, that has a file; none if there is no
/// debug information.
fn location(side: &Access) -> Option<Value> {
    let mut places = side.stack.iter().skip(side.site).filter_map(physical);
    let physical = places.next()?;
    let message = format!("{} by {}", side.access, side.thread);
    Some(json!({ "physicalLocation": physical, "message": { "text": message } }))
}

fn physical(place: &Place) -> Option<Value> {
    let frame = place.frames.first()?;
    let file = frame.file.as_deref()?;
    let mut physical = json!({ "artifactLocation": { "uri": uri(file) } });
    if let Some(line) = frame.line {
        physical["region"] = json!({ "startLine": line });
    }
    Some(physical)
}

/// A path as a reference: what is not of the few characters that mean themselves is escaped.
fn uri(path: &str) -> String {
    let scheme = if path.starts_with('/') { "file://" } else { "" };
    let escaped = path.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' | b'+' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    });
    scheme.chars().chain(escaped.collect::<String>().chars()).collect()
}

fn stack(side: &Access) -> Value {
    let frames = side.stack.iter().map(|place| {
        let mut location = json!({ "message": { "text": place.short() } });
        if let Some(physical) = physical(place) {
            location["physicalLocation"] = physical;
        }
        json!({ "location": location, "module": place.module.clone().unwrap_or_default() })
    });
    json!({
        "message": { "text": format!("{} by {}", side.access, side.thread) },
        "frames": frames.collect::<Vec<_>>(),
    })
}
