//! The single-instruction oracle: each instruction lifted, against the processor itself.
//!
//! `REFRAIN_ORACLE_ROUNDS` says how many random encodings of each opcode are tried (default 2),
//! `REFRAIN_ORACLE_SEED` where the random numbers start.

mod support;

use refrain_vm::{Count, EngineConfig, LeaveOut, Processor};
use support::generate::{self, Addressing, Random};
use support::native::{Native, ONE};
use support::{Case, address};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn check(cases: &[Case], native: &Native, watched: bool) -> Vec<String> {
    let config = EngineConfig {
        accesses: watched,
        leave_out: if watched { LeaveOut::Touched } else { LeaveOut::Nothing },
        calls: watched,
        count: if watched { Count::Instructions } else { Count::Nothing },
        processor: Processor::host(),
        ..EngineConfig::default()
    };
    support::compare(native, cases, &config)
}

fn report(seed: u64, differences: &[String]) {
    assert!(
        differences.is_empty(),
        "seed {seed}: {} differences, among them\n{}",
        differences.len(),
        differences.iter().take(400).cloned().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn single_instructions() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let native = Native::new();
    let seed = setting("REFRAIN_ORACLE_SEED", 1);
    let mut random = Random::new(seed);
    let mut differences = Vec::new();
    let mut tried = 0;
    let only = std::env::var("REFRAIN_ORACLE_ONLY").ok();
    for round in 0..setting("REFRAIN_ORACLE_ROUNDS", 2) {
        for codes in generate::codes().chunks(200) {
            let mut cases: Vec<Case> = Vec::new();
            for &code in codes
                .iter()
                .filter(|c| only.as_ref().is_none_or(|o| format!("{c:?}").starts_with(o.as_str())))
            {
                for _ in 0..2 {
                    cases.extend(generate::case(code, address(cases.len()), 6, &mut random));
                }
            }
            tried += cases.len();
            differences.extend(check(&cases, &native, round % 2 == 1));
        }
    }
    report(seed, &differences);
    assert!(tried > 1000 || only.is_some(), "the generator makes instructions: {tried}");
    println!("{tried} encodings, 6 states each");
}

/// What copies log of every instruction is what compiled code logs.
#[test]
fn engines_log_the_same() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let native = Native::new();
    let seed = setting("REFRAIN_ORACLE_SEED", 1);
    let mut random = Random::new(seed ^ 0x106);
    let config =
        EngineConfig { accesses: true, processor: Processor::host(), ..EngineConfig::default() };
    let mut differences = Vec::new();
    for cases in batches(&mut random) {
        differences.extend(support::compare_logs(&native, &cases, &config));
    }
    report(seed, &differences);
}

/// A case of each opcode, in two states.
fn batches(random: &mut Random) -> Vec<Vec<Case>> {
    let batch = |codes: &[iced_x86::Code]| {
        let mut cases = Vec::new();
        for &code in codes {
            cases.extend(generate::case(code, address(cases.len()), 2, random));
        }
        cases
    };
    generate::codes().chunks(200).map(batch).collect()
}

/// Instructions are executed with operands elsewhere as they are where they say.
#[test]
fn moved_operands() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let native = Native::new();
    let seed = setting("REFRAIN_ORACLE_SEED", 1);
    let mut random = Random::new(seed ^ 0x30ed);
    let (mut differences, mut executed) = (Vec::new(), 0);
    for cases in batches(&mut random) {
        let (found, done) = support::compare_moved(&native, &cases);
        differences.extend(found);
        executed += done;
    }
    report(seed, &differences);
    assert!(executed > 1000, "the generator makes operands in memory: {executed}");
}

#[test]
fn straight_lines() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let native = Native::new();
    let seed = setting("REFRAIN_ORACLE_SEED", 1);
    let mut random = Random::new(seed ^ 0x5eed);
    let codes: Vec<_> = generate::codes().into_iter().filter(|c| suits_lines(*c)).collect();
    let mut differences = Vec::new();
    for round in 0..setting("REFRAIN_ORACLE_ROUNDS", 2) {
        let cases: Vec<Case> = (0..300).map(|n| line(&codes, address(n), &mut random)).collect();
        differences.extend(check(&cases, &native, round % 2 == 1));
    }
    report(seed, &differences);
}

/// Leaves no address to chance when other instructions come before it.
fn suits_lines(code: iced_x86::Code) -> bool {
    use iced_x86::Mnemonic::*;
    let mut i = iced_x86::Instruction::default();
    i.set_code(code);
    !i.is_string_instruction()
        && !matches!(
            code.mnemonic(),
            Push | Pop | Div | Idiv | Bt | Bts | Btr | Btc | Fxrstor | Fxrstor64 | Xlatb
        )
        && !generate::goes_by_lanes(&i)
}

/// Several instructions in a row; flags that one of them leaves undefined count as undefined to
/// the end, and so do those that come from them.
fn line(codes: &[iced_x86::Code], pc: u64, random: &mut Random) -> Case {
    let mut instructions = Vec::new();
    let mut code = Vec::new();
    let mut undefined = 0;
    while code.len() < 60 {
        let i = generate::instruction(
            codes[random.below(codes.len() as u64) as usize],
            random,
            Addressing::Absolute,
        );
        let Some((i, bytes)) = i.and_then(|i| generate::encoded(&i, pc + code.len() as u64)) else {
            continue;
        };
        if i.rflags_read() & undefined != 0 {
            continue;
        }
        undefined = undefined & !i.rflags_modified() | generate::undefined(&i);
        if sometimes(&i) {
            undefined |= i.rflags_modified();
        }
        instructions.push(i);
        code.extend(bytes);
    }
    let states = (0..3).map(|_| generate::state(&[], random)).collect();
    let defined = [
        (iced_x86::RflagsBits::CF, 0),
        (iced_x86::RflagsBits::PF, 2),
        (iced_x86::RflagsBits::AF, 4),
        (iced_x86::RflagsBits::ZF, 6),
        (iced_x86::RflagsBits::SF, 7),
        (iced_x86::RflagsBits::OF, 11),
    ];
    let defined = defined
        .iter()
        .fold(0, |mask, &(bit, shift)| if undefined & bit == 0 { mask | 1 << shift } else { mask });
    Case { instructions, code, states, defined }
}

/// Shifts by CL: whether they write flags depends on it.
fn sometimes(i: &iced_x86::Instruction) -> bool {
    use iced_x86::Mnemonic::*;
    matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd)
}
