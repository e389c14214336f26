//! What is called benign, against both orders of the two sections.

mod common;

use common::Recording;
use proptest::prelude::*;
use refrain_trace::Access;
use refrain_transform::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const L: u64 = 0x1000;
/// Variables overlap: eight bytes of memory from here on.
const START: u64 = 0x10_0000;

/// Where a variable begins, and its bytes.
type Variable = (u64, u16);

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(Variable, u64),
    Bits(Variable, Bitwise, u64),
    Store(Variable, u64),
    Look(Variable, u64),
    /// From the second to the first.
    Copy(Variable, Variable),
}

/// Memory and what the section has seen of it.
type State = ([u8; 8], Vec<u64>);

fn load(memory: &[u8; 8], (at, size): Variable) -> u64 {
    (0..u64::from(size)).fold(0, |value, n| value | u64::from(memory[(at + n) as usize]) << (8 * n))
}

fn store(memory: &mut [u8; 8], (at, size): Variable, value: u64) {
    for n in 0..u64::from(size) {
        memory[(at + n) as usize] = (value >> (8 * n)) as u8;
    }
}

fn perform(step: Step, (memory, seen): &mut State) {
    match step {
        Step::Add(to, more) => store(memory, to, load(memory, to).wrapping_add(more)),
        Step::Bits(to, how, mask) => {
            let old = load(memory, to);
            let new = match how {
                Bitwise::Or => old | mask,
                Bitwise::And => old & mask,
                _ => old ^ mask,
            };
            store(memory, to, new);
        }
        Step::Store(to, value) => store(memory, to, value),
        Step::Look(at, mask) => seen.push(load(memory, at) & mask),
        Step::Copy(to, from) => store(memory, to, load(memory, from)),
    }
}

/// A recording of sections in this order, with what is known of the code: each step stands at
/// places of its own.
fn recorded(sections: &[(usize, &[Step])], memory: [u8; 8]) -> (Recording, Uses) {
    let mut r = Recording::new(2);
    let mut uses = Uses::default();
    r.share(START, 8);
    let mut pc = 0x100;
    let mut state = (memory, Vec::new());
    for &(thread, steps) in sections {
        r.lock(thread, 0, L, 0x10);
        for &step in steps {
            pc += 16;
            let mut touch = |(at, size): Variable, pc, kind| {
                let address = START.wrapping_add(at);
                r.access_at(thread, Access { address, pc, size, kind });
            };
            let (read, write) = (Access::READ, Access::WRITE);
            match step {
                Step::Add(to, _) => {
                    // A load and a store, or both at once.
                    if pc % 32 == 0 {
                        uses.uses.insert(pc, Use::Both(0, Update::Add));
                        touch(to, pc, read | write);
                    } else {
                        uses.uses.insert(pc, Use::Load(0));
                        uses.uses.insert(pc + 1, Use::Store(vec![(pc, Update::Add)]));
                        touch(to, pc, read);
                        touch(to, pc + 1, write);
                    }
                }
                Step::Bits(to, how, mask) => {
                    let how = Update::Bits(vec![(how, Operand::Register(pc))]);
                    uses.uses.insert(pc, Use::Both(0, how));
                    touch((mask.wrapping_sub(START), 0), pc, Access::VALUE);
                    touch(to, pc, read | write);
                }
                Step::Store(to, value) => {
                    uses.uses.insert(pc, Use::Value(Operand::Register(pc)));
                    touch((value.wrapping_sub(START), 0), pc, Access::VALUE);
                    touch(to, pc, write);
                }
                Step::Look(at, mask) => {
                    uses.uses.insert(pc, Use::Load(mask));
                    touch(at, pc, read);
                }
                Step::Copy(to, from) => {
                    let value = load(&state.0, from);
                    // As an update of another variable, or as a store of what was loaded.
                    if pc % 32 == 0 {
                        uses.uses.insert(pc, Use::Load(0));
                        uses.uses.insert(pc + 1, Use::Store(vec![(pc, Update::Add)]));
                    } else {
                        uses.uses.insert(pc, Use::Load(u64::MAX));
                        uses.uses.insert(pc + 1, Use::Value(Operand::Register(pc + 1)));
                    }
                    touch(from, pc, read);
                    touch((value.wrapping_sub(START), 0), pc + 1, Access::VALUE);
                    touch(to, pc + 1, write);
                }
            }
            perform(step, &mut state);
        }
        r.unlock(thread, 1, L, 0x20);
    }
    (r, uses)
}

fn sections_of(r: &Recording, uses: Uses) -> Sections {
    let uses = Arc::new(uses);
    let collectors = r.collectors_knowing(&uses);
    Sections::merge(collectors, &[], &[]).expect("a sound recording")
}

fn verdict(a: &[Step], b: &[Step], memory: [u8; 8]) -> Verdict {
    let (r, uses) = recorded(&[(0, a), (1, b)], memory);
    pairs(&sections_of(&r, uses)).next().expect("there are two sections").verdict
}

/// Memory in the end and what each of the two has seen, `a` first or not.
fn end(a: &[Step], b: &[Step], memory: [u8; 8], a_first: bool) -> ([u8; 8], [Vec<u64>; 2]) {
    let mut memory = memory;
    let mut seen = [Vec::new(), Vec::new()];
    for who in if a_first { [0, 1] } else { [1, 0] } {
        let mut state = (memory, Vec::new());
        [a, b][who].iter().for_each(|step| perform(*step, &mut state));
        (memory, seen[who]) = state;
    }
    (memory, seen)
}

fn step() -> impl Strategy<Value = Step> {
    let variable =
        || prop_oneof![Just((0, 2)), Just((0, 1)), Just((1, 1)), Just((1, 2)), Just((4, 4))];
    let few = || prop_oneof![Just(0u64), Just(1), Just(0x80), Just(0xff00), Just(0x0101), Just(!1)];
    let how = prop_oneof![Just(Bitwise::Or), Just(Bitwise::And), Just(Bitwise::Xor)];
    prop_oneof![
        3 => (variable(), few()).prop_map(|(to, more)| Step::Add(to, more)),
        3 => (variable(), how, few()).prop_map(|(to, how, mask)| Step::Bits(to, how, mask)),
        3 => (variable(), few()).prop_map(|(to, value)| Step::Store(to, value)),
        1 => (variable(), few()).prop_map(|(at, mask)| Step::Look(at, mask)),
        1 => (variable(), variable())
            .prop_filter("of one size", |(to, from)| to.1 == from.1)
            .prop_map(|(to, from)| Step::Copy(to, from)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn benign_sections_come_to_the_same_in_either_order(
        a in proptest::collection::vec(step(), 1..4),
        b in proptest::collection::vec(step(), 1..4),
        memory in any::<[u8; 8]>(),
    ) {
        if let Verdict::Ulcp(kind) = verdict(&a, &b, memory) {
            let (there, back) = (end(&a, &b, memory, true), end(&a, &b, memory, false));
            prop_assert_eq!(there, back, "{:?}", kind);
        }
    }
}

#[test]
fn each_kind_is_told() {
    let (x, y) = ((0, 2), (4, 4));
    let kind = |a: &[Step], b: &[Step]| verdict(a, b, [0; 8]);
    let ulcp = Verdict::Ulcp;
    let adds = [Step::Add(x, 1), Step::Add(y, 7)];
    assert_eq!(kind(&adds, &adds[..1]), ulcp(UlcpKind::CommutativeUpdate));
    assert_eq!(kind(&[Step::Store(x, 1)], &[Step::Store(x, 1)]), ulcp(UlcpKind::RedundantWrite));
    assert_eq!(kind(&[Step::Store(x, 1)], &[Step::Store(x, 2)]), Verdict::Conflict);
    let set = |mask| [Step::Bits(x, Bitwise::Or, mask)];
    let clear = |mask: u64| [Step::Bits(x, Bitwise::And, !mask)];
    assert_eq!(kind(&set(1), &clear(2)), ulcp(UlcpKind::DisjointBits));
    assert_eq!(kind(&set(3), &set(1)), ulcp(UlcpKind::CommutativeUpdate));
    assert_eq!(kind(&set(3), &clear(1)), Verdict::Conflict, "though nothing is changed here");
    assert_eq!(kind(&[Step::Look(x, 2)], &set(1)), ulcp(UlcpKind::DisjointBits));
    assert_eq!(kind(&[Step::Look(x, 3)], &set(1)), Verdict::Conflict);
    assert_eq!(kind(&adds, &[Step::Look(x, 1)]), Verdict::Conflict);
    // Another variable there.
    assert_eq!(kind(&[Step::Add((0, 2), 1)], &[Step::Add((0, 1), 1)]), Verdict::Conflict);
    // One that adds and looks.
    assert_eq!(kind(&[Step::Add(x, 1), Step::Look(x, 1)], &adds), Verdict::Conflict);
}

/// A lock that keeps two variables consistent for those who look at them.
#[test]
fn updates_of_variables_that_belong_together_are_none() {
    let (x, y) = ((0, 2), (4, 4));
    let moves = [Step::Add(x, !0), Step::Add(y, 1)];
    let first = |sections: &[(usize, &[Step])]| {
        let (r, uses) = recorded(sections, [0; 8]);
        pairs(&sections_of(&r, uses)).next().expect("there are two sections").verdict
    };
    let benign = Verdict::Ulcp(UlcpKind::CommutativeUpdate);
    assert_eq!(first(&[(0, &moves), (1, &moves)]), benign);
    let looks = [Step::Look(x, 0xffff)];
    assert_eq!(first(&[(0, &moves), (1, &moves), (0, &looks)]), Verdict::Conflict);
    // One variable alone is always what it is.
    assert_eq!(first(&[(0, &moves[..1]), (1, &moves[..1]), (0, &looks)]), benign);
}

#[test]
fn an_update_that_began_before_the_section_is_none() {
    let mut r = Recording::new(2);
    let mut uses = Uses::default();
    r.share(START, 8);
    uses.uses.insert(1, Use::Load(0));
    uses.uses.insert(2, Use::Store(vec![(1, Update::Add)]));
    let touch = |r: &mut Recording, thread, pc, kind| {
        r.access_at(thread, Access { address: START, pc, size: 4, kind });
    };
    for thread in [0, 1] {
        // The load, another section, the store.
        r.lock(thread, 0, L + 64, 0x10);
        touch(&mut r, thread, 1, Access::READ);
        r.lock(thread, 0, L, 0x10);
        touch(&mut r, thread, 2, Access::WRITE);
        r.unlock(thread, 1, L, 0x20);
        r.unlock(thread, 1, L + 64, 0x20);
    }
    let sections = sections_of(&r, uses);
    assert!(pairs(&sections).all(|pair| pair.verdict == Verdict::Conflict));
    assert_eq!(pairs(&sections).count(), 2);
}

#[test]
fn of_a_long_section_no_update_is_known() {
    for others in [1_000, 40_000] {
        let mut r = Recording::new(2);
        let mut uses = Uses::default();
        r.share(START, 8);
        uses.uses.insert(1, Use::Both(0, Update::Add));
        for thread in [0, 1] {
            r.lock(thread, 0, L, 0x10);
            let kind = Access::READ | Access::WRITE;
            r.access_at(thread, Access { address: START, pc: 1, size: 4, kind });
            for at in 1..=others {
                let address = START + (1 + thread as u64 * others + at) * 64;
                r.access_at(thread, Access { address, pc: 2, size: 4, kind: Access::READ });
            }
            r.unlock(thread, 1, L, 0x20);
        }
        let sections = sections_of(&r, uses);
        let verdict = pairs(&sections).next().expect("there are two sections").verdict;
        let expected = match others {
            1_000 => Verdict::Ulcp(UlcpKind::CommutativeUpdate),
            _ => Verdict::Conflict,
        };
        assert_eq!(verdict, expected, "{others} other accesses");
    }
}

#[test]
fn operands_that_vary_are_not_told_apart() {
    let mut r = Recording::new(2);
    let mut uses = Uses::default();
    r.share(START, 8);
    uses.uses.insert(1, Use::Value(Operand::Register(1)));
    let or = Update::Bits(vec![(Bitwise::Or, Operand::Register(2))]);
    uses.uses.insert(2, Use::Both(0, or));
    let mut values: BTreeMap<u32, u64> = BTreeMap::new();
    for round in 0..20 {
        for thread in [0, 1] {
            r.lock(thread, 0, L, 0x10);
            let (pc, kind) =
                if round < 10 { (1, Access::WRITE) } else { (2, Access::READ | Access::WRITE) };
            *values.entry(pc).or_default() += 1;
            let (address, size) = (values[&pc], 8);
            r.access_at(thread, Access { address, pc, size, kind: Access::VALUE });
            let address = START + if round < 10 { 0 } else { 4 };
            r.access_at(thread, Access { address, pc, size: 4, kind });
            r.unlock(thread, 1, L, 0x20);
        }
    }
    let sections = sections_of(&r, uses);
    let of = |from: usize, to: usize| {
        let all = sections.all();
        (from..to).map(|at| identify(&sections, &all[at], &all[at + 1])).collect::<Vec<_>>()
    };
    assert!(of(0, 19).iter().all(|verdict| *verdict == Verdict::Conflict));
    let benign = Verdict::Ulcp(UlcpKind::CommutativeUpdate);
    assert!(of(20, 39).iter().all(|verdict| *verdict == benign));
}
