//! Tasks of OpenMP: what they order, whichever threads execute them.

use refrain_analysis::{Calls, Code, Detector, OneStep, Relation, Tasking, Watcher};
use refrain_trace::{Access, ThreadId};
use std::collections::BTreeMap;

const X: u64 = 0x10_0000;
const Y: u64 = 0x10_0100;
/// Where blocks of tasks are.
const HEAP: u64 = 0x20_0000;
const STACK: u64 = 0x1000_0000;
/// What is executed as a task.
const BODY: u64 = 0x1000;
/// The body of a team's threads.
const TEAM: u64 = 0x1100;
const SITE: u32 = 0x900;
const MALLOC: u32 = 0x901;

const FUNCTIONS: [(u32, Tasking); 12] = [
    (0x809, Tasking::Fulfills),
    (0x800, Tasking::Creates),
    (0x801, Tasking::Waits),
    (0x802, Tasking::Groups),
    (0x803, Tasking::EndsGroup),
    (0x804, Tasking::Barrier),
    (0x805, Tasking::Team),
    (0x806, Tasking::Asks),
    (0x807, Tasking::WaitsFor),
    (0x808, Tasking::CreatesAll),
    (0x80a, Tasking::Sections),
    (0x80b, Tasking::EndsSections),
];

fn pc(what: Tasking) -> u32 {
    FUNCTIONS.iter().find(|it| it.1 == what).expect("it has one").0
}

/// Threads of a program with GCC's library.
struct Run {
    detector: std::sync::Arc<Detector>,
    watchers: Vec<Watcher>,
    depth: u64,
}

impl Run {
    fn new() -> Run {
        let code = Code {
            tasking: FUNCTIONS.iter().map(|&(pc, what)| (pc.into(), what)).collect(),
            bodies: BTreeMap::from([(SITE.into(), Calls::Data)]),
            one_step: BTreeMap::from([(MALLOC.into(), OneStep::Size)]),
            ..Code::default()
        };
        let detector = Detector::new([], Relation::Program(code));
        let watchers = (0..2).map(|t| detector.thread(ThreadId(t)).expect("there are few"));
        let watchers = watchers.collect();
        let mut run = Run { detector, watchers, depth: 0 };
        (0..2).for_each(|thread| run.enter(thread, SITE, &[X, 0], TEAM, &[]));
        run
    }

    fn tell(&mut self, thread: usize, address: u64, kind: u16, pc: u32) {
        self.watchers[thread].accesses(&[Access { address, size: 0, kind, pc }]);
    }

    /// A call begins.
    fn enter(&mut self, thread: usize, pc: u32, arguments: &[u64], function: u64, list: &[u64]) {
        self.depth += 1;
        let slot = STACK * (thread as u64 + 1) - 0x100 * self.depth;
        let given = |at: usize| arguments.get(at).copied().unwrap_or(0);
        self.tell(thread, given(0), Access::ENTERED, pc);
        let rest = (1..8).map(given).chain([slot, function, list.len() as u64]);
        for value in rest.chain(list.iter().copied()) {
            self.tell(thread, value, Access::GIVEN, pc);
        }
    }

    fn leave(&mut self, thread: usize) {
        self.answer(thread, 0);
    }

    fn answer(&mut self, thread: usize, answer: u64) {
        self.depth -= 1;
        self.tell(thread, answer, Access::LEFT, 0);
    }

    /// A thread is told to execute the section with this number, or that there are no more.
    fn section(&mut self, thread: usize, number: u64) {
        self.enter(thread, pc(Tasking::Sections), &[], 0, &[]);
        self.answer(thread, number);
    }

    /// A thread allocates a block here.
    fn allocate(&mut self, thread: usize, address: u64) {
        self.tell(thread, 64, Access::CALLED, MALLOC);
        (0..3).for_each(|_| self.tell(thread, 0, Access::ARGUMENT, MALLOC));
        self.tell(thread, address, Access::ANSWERED, MALLOC);
    }

    fn call(&mut self, thread: usize, what: Tasking) {
        self.enter(thread, pc(what), &[], 0, &[]);
        self.leave(thread);
    }

    /// A thread creates the task with this number, which depends on what a list says.
    fn create(&mut self, thread: usize, number: u64, list: &[u64]) {
        let given = [BODY, 0, 0, 0, 0, 0, 0, u64::from(!list.is_empty())];
        self.enter(thread, pc(Tasking::Creates), &given, 0, list);
        self.allocate(thread, HEAP + number * 0x100);
        self.leave(thread);
    }

    /// A thread executes the task with this number, which writes.
    fn execute(&mut self, thread: usize, number: u64, address: u64) {
        self.begin(thread, number);
        self.write(thread, address);
        self.leave(thread);
    }

    fn begin(&mut self, thread: usize, number: u64) {
        self.enter(thread, SITE, &[HEAP + number * 0x100 + 32], BODY, &[]);
    }

    fn write(&mut self, thread: usize, address: u64) {
        let access = Access { address, size: 4, kind: Access::WRITE, pc: 0x2000 };
        self.watchers[thread].accesses(&[access]);
    }

    fn races(&self) -> usize {
        self.detector.races().len()
    }
}

#[test]
fn tasks_of_one_thread_race_with_each_other_and_with_it() {
    let mut run = Run::new();
    run.create(0, 1, &[]);
    run.create(0, 2, &[]);
    run.execute(0, 1, X);
    assert_eq!(run.races(), 0);
    run.execute(0, 2, X);
    assert_eq!(run.races(), 1);
    let race = &run.detector.races()[0];
    assert_eq!([race.first.thread, race.second.thread], [ThreadId(0); 2]);
    let mut run = Run::new();
    run.write(0, X);
    run.create(0, 1, &[]);
    run.execute(1, 1, X);
    assert_eq!(run.races(), 0, "what its creator had done");
    run.write(0, X);
    assert_eq!(run.races(), 1, "what its creator does meanwhile");
}

#[test]
fn to_wait_is_for_children_only() {
    let mut run = Run::new();
    run.create(0, 1, &[]);
    run.begin(1, 1);
    run.create(1, 2, &[]);
    run.write(1, X);
    run.leave(1);
    run.execute(1, 2, Y);
    run.call(0, Tasking::Waits);
    run.write(0, X);
    assert_eq!(run.races(), 0);
    run.write(0, Y);
    assert_eq!(run.races(), 1);
}

#[test]
fn groups_and_barriers_are_for_descendants_too() {
    for barrier in [false, true] {
        let mut run = Run::new();
        run.call(0, Tasking::Groups);
        run.create(0, 1, &[]);
        run.begin(1, 1);
        run.create(1, 2, &[]);
        run.leave(1);
        run.execute(1, 2, Y);
        match barrier {
            true => run.call(0, Tasking::Barrier),
            false => run.call(0, Tasking::EndsGroup),
        }
        run.write(0, Y);
        assert_eq!(run.races(), 0);
    }
    // What is created behind a barrier is not waited for there.
    let mut run = Run::new();
    run.call(0, Tasking::Barrier);
    run.create(0, 1, &[]);
    run.execute(0, 1, Y);
    run.call(1, Tasking::Barrier);
    run.write(1, Y);
    assert_eq!(run.races(), 1);
}

#[test]
fn tasks_depend_on_addresses() {
    // How many addresses, how many of them are written, and these.
    let (out, input) = ([1, 1, Y], [1, 0, Y]);
    let program = |second: &[u64], third: &[u64]| {
        let mut run = Run::new();
        run.create(0, 1, &out);
        run.create(0, 2, second);
        run.create(0, 3, third);
        (1..=3).for_each(|number| run.execute(0, number, X));
        run.races()
    };
    assert_eq!(program(&out, &out), 0);
    assert_eq!(program(&input, &out), 0);
    assert_eq!(program(&input, &input), 1, "two that read");
    assert_eq!(program(&[1, 1, X], &out), 2, "another address: with both of the others");
    // By turns, in whichever order; and of what nobody knows, one after another.
    let turns = [0, 1, 0, 1, 0, Y];
    assert_eq!(program(&turns, &turns), 0);
    assert_eq!(program(&[0, 1, 0, 0, 0, Y], &out), 0);
}

/// The tasks of one task depend on each other, and not on those of another.
#[test]
fn only_siblings_depend_on_each_other() {
    let out = [1, 1, X];
    for late in [false, true] {
        let mut run = Run::new();
        run.create(0, 1, &out);
        run.create(0, 2, &out);
        run.begin(1, 1);
        run.create(1, 3, &out);
        run.leave(1);
        if !late {
            run.execute(0, 3, X);
        }
        run.begin(1, 2);
        run.create(1, 4, &out);
        run.leave(1);
        if late {
            run.execute(0, 3, X);
        }
        run.execute(1, 4, X);
        assert_eq!(run.races(), 1);
    }
}

#[test]
fn to_wait_for_an_address_is_not_to_wait_for_others() {
    let mut run = Run::new();
    run.create(0, 1, &[1, 1, X]);
    run.create(0, 2, &[1, 1, Y]);
    run.execute(1, 1, X);
    run.execute(1, 2, Y);
    run.enter(0, pc(Tasking::WaitsFor), &[1], 0, &[1, 0, X]);
    run.leave(0);
    run.write(0, X);
    assert_eq!(run.races(), 0);
    run.write(0, Y);
    assert_eq!(run.races(), 1);
}

#[test]
fn what_is_executed_at_once_is_a_part_of_its_creator() {
    let mut run = Run::new();
    run.enter(0, pc(Tasking::Creates), &[BODY], 0, &[]);
    run.enter(0, SITE, &[STACK], BODY, &[]);
    run.write(0, X);
    run.create(0, 1, &[]);
    run.leave(0);
    run.leave(0);
    run.write(0, X);
    run.execute(0, 1, Y);
    run.call(0, Tasking::Waits);
    assert_eq!(run.races(), 0);
    run.write(0, Y);
    assert_eq!(run.races(), 1, "it has not waited for its own child");
}

#[test]
fn who_asks_for_the_thread_relies_on_it() {
    for asks in [true, false] {
        let mut run = Run::new();
        for number in [1, 2] {
            run.create(0, number, &[]);
        }
        for number in [1, 2] {
            run.begin(1, number);
            if asks {
                run.call(1, Tasking::Asks);
            }
            run.write(1, X);
            run.leave(1);
        }
        assert_eq!(run.races(), usize::from(!asks));
    }
}

/// A task with a `detach` clause is done when somebody says so.
#[test]
fn what_was_done_before_a_task_was_said_to_be_done() {
    for fulfills in [true, false] {
        let mut run = Run::new();
        run.create(0, 1, &[]);
        run.execute(0, 1, Y);
        run.write(1, X);
        if fulfills {
            run.call(1, Tasking::Fulfills);
        }
        run.call(0, Tasking::Waits);
        run.write(0, X);
        assert_eq!(run.races(), usize::from(!fulfills));
    }
}

#[test]
fn the_stack_below_a_task_is_its_own() {
    let mut run = Run::new();
    run.create(0, 1, &[]);
    run.create(0, 2, &[]);
    let below = STACK - 0x800;
    run.execute(0, 1, below);
    run.execute(0, 2, below);
    run.write(0, below);
    assert_eq!(run.races(), 0);
    // Not so what is above it.
    let above = STACK - 0x80;
    run.create(0, 3, &[]);
    run.execute(0, 3, above);
    run.write(0, above);
    assert_eq!(run.races(), 1);
}

#[test]
fn what_the_library_does_is_its_own_business() {
    let mut run = Run::new();
    run.write(1, X);
    run.enter(0, pc(Tasking::Waits), &[], 0, &[]);
    run.write(0, X);
    run.leave(0);
    assert_eq!(run.races(), 0);
    run.enter(0, pc(Tasking::Barrier), &[], 0, &[]);
    run.write(0, X);
    run.leave(0);
    assert_eq!(run.races(), 1, "a barrier is seen through");
}

/// As many tasks as there are clocks for, and some more: what is not found is found by nobody, and nothing
/// else is.
#[test]
fn more_tasks_than_clocks() {
    let mut run = Run::new();
    for number in 0..5000 {
        run.create(0, number, &[]);
    }
    for number in 0..5000 {
        run.begin(0, number);
    }
    for number in 0..5000 {
        run.write(0, X + 4 * (5000 - number));
        run.leave(0);
    }
    run.call(0, Tasking::Waits);
    run.write(0, X + 400);
    assert_eq!(run.races(), 0);
}

/// What a thread does before sections, in two of them, and behind them.
fn sections(does: impl Fn(&mut Run, usize)) -> usize {
    let mut run = Run::new();
    does(&mut run, 0);
    for number in 1..=2 {
        run.section(0, number);
        does(&mut run, number as usize);
    }
    run.section(0, 0);
    does(&mut run, 3);
    run.races()
}

#[test]
fn sections_of_one_thread_race_with_each_other_alone() {
    let writes = |steps: &'static [usize]| {
        sections(move |run, step| {
            if steps.contains(&step) {
                run.write(0, X);
            }
        })
    };
    assert_eq!(writes(&[1, 2]), 1);
    assert_eq!(writes(&[0, 1, 3]), 0, "before and behind");
    assert_eq!(writes(&[0, 2, 3]), 0);
    // Another thread's section, and what this thread does meanwhile.
    let mut run = Run::new();
    run.section(0, 1);
    run.write(0, X);
    run.section(1, 2);
    run.write(1, X);
    run.write(1, Y);
    run.section(0, 0);
    run.write(0, Y);
    assert_eq!(run.races(), 2);
}

#[test]
fn what_a_thread_has_for_itself_is_none_of_other_sections() {
    let own = STACK - 0x300;
    assert_eq!(sections(|run, _| run.write(0, own)), 0, "its stack in the team's body");
    let allocated = |within: bool| {
        sections(move |run, step| match step {
            0 => {
                let block = HEAP + 0x8000;
                run.allocate(0, block);
                if !within {
                    // Another body begins.
                    run.enter(0, pc(Tasking::Team), &[BODY], 0, &[]);
                    run.enter(0, SITE, &[X, 0], BODY, &[]);
                }
                run.write(0, block);
            }
            _ => run.write(0, HEAP + 0x8000),
        })
    };
    assert_eq!([allocated(true), allocated(false)], [0, 1]);
}

#[test]
fn a_thread_that_asked_for_its_number_has_no_sections() {
    for asks_at in [0, 1, 2, 3] {
        let races = sections(|run, step| {
            if step == asks_at {
                run.call(0, Tasking::Asks);
            }
            if [1, 2].contains(&step) {
                run.write(0, X);
            }
        });
        assert_eq!(races, usize::from(asks_at == 3), "at {asks_at}");
    }
}

#[test]
fn a_section_that_is_cancelled_ends_with_its_construct() {
    for what in [Tasking::Barrier, Tasking::EndsSections] {
        let mut run = Run::new();
        run.section(0, 1);
        run.write(0, X);
        run.call(0, what);
        run.write(0, X);
        assert_eq!(run.races(), 0);
    }
}
