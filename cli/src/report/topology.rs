//! The topology of a transformed trace as a graph for GraphViz: PerfPlay, figures 7 and 8.
//!
//! Nodes are the critical sections that have causal edges, a column for each thread; solid arrows are
//! causal edges, dotted ones the order within a thread. A node says its lock, what it does with shared
//! data, and its lockset. Sections without edges run free and are left out.

use refrain_trace::Transformed;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The sections that are drawn, ascending.
pub(crate) fn drawn(record: &Transformed) -> BTreeSet<u32> {
    let there = |at: &u32| (*at as usize) < record.sections.len();
    record.edges.iter().flat_map(|edge| [edge.source, edge.target]).filter(there).collect()
}

/// The graph. `sites` says of a section's thread and acquisition where in the program it is.
pub(crate) fn render(record: &Transformed, sites: &BTreeMap<(u32, u32), String>) -> String {
    let nodes = drawn(record);
    let sources = record.sources();
    let mut by_thread: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for &node in &nodes {
        by_thread.entry(record.sections[node as usize].thread).or_default().push(node);
    }
    let free = record.sections.len() - nodes.len();
    let mut text = String::from("digraph topology {\n");
    let _ = writeln!(text, "  label=\"{free} more sections have no edges\";");
    text += "  node [shape=box, fontname=\"monospace\", fontsize=9];\n";
    for (thread, of_thread) in &mut by_thread {
        of_thread.sort_by_key(|&node| record.sections[node as usize].acquire);
        let _ = writeln!(text, "  subgraph cluster_t{thread} {{\n    label=\"t{thread}\";");
        for &node in of_thread.iter() {
            let section = &record.sections[node as usize];
            let access = match (section.reads, section.writes) {
                (_, 1..) => "writes",
                (1.., _) => "reads",
                _ => "nothing",
            };
            let mut lines = vec![format!("cs{node} e{}..e{}", section.acquire, section.release)];
            lines.extend(sites.get(&(section.thread, section.acquire)).cloned());
            let lock = record.locks.get(section.lock as usize).copied().unwrap_or(0);
            lines.push(format!("{lock:#x} {access}"));
            let locks = record.lockset(node, &sources);
            lines.push(locks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
            let label = lines.iter().map(|line| escaped(line)).collect::<Vec<_>>().join("\\n");
            let _ = writeln!(text, "    cs{node} [label=\"{label}\"];");
        }
        for pair in of_thread.windows(2) {
            let _ = writeln!(text, "    cs{} -> cs{} [style=dotted];", pair[0], pair[1]);
        }
        text += "  }\n";
    }
    for edge in &record.edges {
        let _ = writeln!(text, "  cs{} -> cs{} [constraint=false];", edge.source, edge.target);
    }
    text + "}\n"
}

/// A line within a quoted label.
fn escaped(line: &str) -> String {
    refrain_trace::harmless::escape(line).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use refrain_trace::OwnedTrace;

    #[test]
    fn sections_with_edges_are_drawn() {
        let text = "
            transformed 0x10000
            bytes
            bytes 0x20000:0x20008
            section cs0 lock=0 thread=t0 events=1:2 reads=0 writes=1
            section cs1 lock=0 thread=t1 events=1:2 reads=1 writes=0
            section cs2 lock=0 thread=t0 events=3:4
            section cs3 lock=0 thread=t1 events=5:6 reads=0 writes=1
            section cs4 lock=0 thread=t0 events=7:8 reads=1 writes=0
            edge cs0 cs1
            edge cs3 cs4
        ";
        let trace: OwnedTrace = text.parse().expect("the text is a trace");
        let record = trace.transformed.expect("it has one");
        let sites = [((1, 1), "look \"up\" map.c:7".to_owned())].into();
        assert_snapshot!(render(&record, &sites));
    }
}
