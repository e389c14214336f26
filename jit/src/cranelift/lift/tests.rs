//! What the lifter makes of single instructions: case files (`tests/cases`).
//!
//! A case is guest code as hexadecimal bytes, at address 0x1000, and the Cranelift IR of its region.
//! Offsets in the frame are shown by the names of what is there, so that a frame that grows changes
//! no case.

use crate::cranelift::frame::{self, off_gpr, off_xmm};
use crate::cranelift::graph::{Cuts, Graph};
use crate::cranelift::lift::Watch;
use crate::cranelift::{LIMITS, body, compile, regions};
use cranelift_codegen::ir::Function;
use cranelift_frontend::FunctionBuilderContext;
use refrain_trace::{CodeBlock, cases};
use refrain_vm::{Count, LeaveOut, Processor};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const GPR: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// What is at an offset in the frame.
fn name(offset: i32) -> String {
    let others = [
        (frame::OFF_RIP, "rip"),
        (frame::OFF_RFLAGS, "rflags"),
        (frame::OFF_FS_BASE, "fs_base"),
        (frame::OFF_TAG, "lazy_tag"),
        (frame::OFF_A, "lazy_a"),
        (frame::OFF_B, "lazy_b"),
        (frame::OFF_DIRECTION, "direction"),
        (frame::OFF_FLAGS_IN, "flags_in"),
        (frame::OFF_FLAGS_OUT, "flags_out"),
        (frame::OFF_LEAVE, "leave"),
        (frame::OFF_DETAIL, "detail"),
    ];
    let gpr = GPR.iter().enumerate().map(|(n, name)| (off_gpr(n), (*name).to_owned()));
    let xmm = (0..16).map(|n| (off_xmm(n), format!("xmm{n}")));
    let others = others.into_iter().map(|(at, name)| (at, name.to_owned()));
    let mut all = gpr.chain(xmm).chain(others);
    all.find(|(at, _)| *at == offset).map_or_else(|| format!("+{offset}"), |(_, name)| name)
}

/// The text of a function, with names in place of offsets.
fn shown(function: &Function) -> String {
    const SLOT: &str = "ss0";
    let mut out = String::new();
    for line in function.display().to_string().lines() {
        if line.contains("explicit_slot") {
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find(SLOT) {
            let (before, after) = rest.split_at(at + SLOT.len());
            let digits = after.strip_prefix('+').unwrap_or_default();
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            out.push_str(before.strip_suffix(SLOT).expect("it was found there"));
            out.push_str(&name(digits[..end].parse().unwrap_or(0)));
            rest = if end == 0 { after } else { &digits[end..] };
        }
        out.push_str(rest);
        out.push('\n');
    }
    out
}

fn lifted(input: &str) -> String {
    let lines = input.lines().filter(|line| !line.starts_with('#'));
    let byte = |word| u8::from_str_radix(word, 16).expect("a case is hexadecimal bytes");
    let code = lines.flat_map(str::split_whitespace).map(byte).collect();
    let blocks = [CodeBlock { pc: 0x1000, code, loads: Vec::new() }];
    let cuts = Cuts {
        hooks: &[],
        places: &BTreeSet::new(),
        alone: &BTreeSet::new(),
        functions: &BTreeMap::new(),
        nested: &BTreeMap::new(),
        values: &BTreeMap::new(),
        compared: &BTreeSet::new(),
        watched: None,
        order_atomics: false,
        every_access: false,
        processor: Processor::V2,
        pieces: false,
    };
    let graph = Graph::new(&blocks, cuts).expect("one block agrees with itself");
    let watch = Watch {
        accesses: false,
        leave_out: LeaveOut::Nothing,
        calls: false,
        functions: false,
        nested: false,
        count: Count::Nothing,
        tells: true,
        every: false,
        several: 0x2000,
    };
    let isa = compile::host_isa().expect("the host is an x86-64");
    let mut context = FunctionBuilderContext::new();
    let regions = regions::partition(&graph, LIMITS, false);
    let text = regions.iter().map(|region| {
        let mut function = Function::new();
        let config = isa.frontend_config();
        body::translate(&graph, region, watch, config, &mut function, &mut context);
        shown(&function)
    });
    text.collect()
}

#[test]
fn instructions() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    cases::check(&directory, lifted);
}
