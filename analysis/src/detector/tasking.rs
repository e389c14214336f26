//! What threads do in tasks (see [`crate::tasks`]).
//!
//! A library for OpenMP calls the body of a task wherever a thread waits. From there to its end, the thread's
//! watcher has the clock of the task, and afterwards its own again. What such a library does in a call that
//! is about tasks is the library's business: it orders nothing, and is no access of the program's.
//!
//! The stack below the body of a task is new memory, before and after it: what the thread keeps there
//! is of its calls, which are over, and other threads have no business there. So is what is local to
//! the thread, to the tasks that it executes.

use super::Watcher;
use crate::clock::VectorClock;
use crate::tasks::{Calls, Created, Dependences, Depends, Join, Joins, Place, Tasking};
use crate::tasks::{counted, records};
use refrain_trace::Access;
use std::ops::Range;
use std::sync::Arc;

/// No stack is taken for larger.
const STACK: u64 = 8 << 20;
/// Behind its thread pointer, a thread has so much that is its own.
const CONTROL: u64 = 4096;
/// What a call is told to be given, but for lists.
const GIVEN: usize = 11;

/// What a call is given: eight arguments, where it keeps its return address, the function, and how many words
/// there are in its list.
type Given = [u64; GIVEN];

/// A call that is under way.
enum Level {
    Function(Function),
    /// The body of a task that was created, of one that its creator executes at once, or of a team's.
    Body,
    /// Something else that the library calls.
    Other,
}

struct Function {
    what: Tasking,
    given: Given,
    /// Of a task that it creates, or what it waits for.
    behind: Joins,
    turns: Joins,
    end: Option<Arc<Join>>,
    /// Where the tasks are that it has created, with other blocks.
    made: Vec<u64>,
    /// What the team that it has had execute a function came to.
    place: Option<Place>,
}

/// A task that the thread is in.
struct Frame {
    /// The tasks that it has created.
    children: Arc<Join>,
    depends: Dependences,
    /// The groups that it is in, innermost last.
    groups: Joins,
    place: Place,
    /// What waits for its end, and what takes turns with it.
    ends: Joins,
    /// What the thread does meanwhile, if the task has a clock of its own.
    outer: Option<Outer>,
    /// Of a thread of a team, what it executes there.
    body: Option<Body>,
    /// It has asked which thread executes it.
    asked: bool,
}

/// What a thread of a team executes.
pub(super) struct Body {
    /// Where its stack begins.
    pub(super) start: u64,
    /// How many blocks the thread had allocated by then.
    pub(super) allocated: u64,
    /// It has asked which thread executes it.
    pub(super) has_asked: bool,
    /// What the thread does otherwise, if it is in a section.
    pub(super) section: Option<Outer>,
    /// What the sections have done that it has executed in the present construct.
    pub(super) done: VectorClock,
}

pub(super) struct Outer {
    id: u16,
    clock: VectorClock,
    /// Which of the thread's clocks the task has.
    own: usize,
    /// Where the task is, if it may go on later.
    task: Option<u64>,
    /// The stack that the thread used until then, and where the task's begins.
    top: u64,
    start: u64,
}

/// A clock for tasks.
struct Clock {
    id: u16,
    /// Up to which the last of them came.
    last: u32,
    is_used: bool,
}

/// What a thread does in tasks.
#[derive(Default)]
pub(crate) struct Working {
    /// A call of which not all has been told.
    told: Option<(u32, Vec<u64>)>,
    levels: Vec<Level>,
    frames: Vec<Frame>,
    clocks: Vec<Clock>,
    /// Tasks that ask which thread executes them.
    on_thread: Option<Arc<Join>>,
    /// The stack that is used: from where, how far down it may go, how far down it went.
    top: u64,
    floor: u64,
    low: u64,
    /// What is local to the thread, while it is in a task with a clock of its own.
    local: Range<u64>,
}

impl Working {
    /// Whether what the thread does is the library's business.
    pub(crate) fn is_hidden(&self) -> bool {
        matches!(self.levels.last(), Some(Level::Function(function)) if function.what.hides())
    }

    /// The body of a team that the thread is in, and not in a task of its own there.
    pub(super) fn body(&mut self) -> Option<&mut Body> {
        self.frames.last_mut()?.body.as_mut()
    }

    pub(super) fn present_body(&self) -> Option<&Body> {
        self.frames.last()?.body.as_ref()
    }

    /// Whether an access is none of anybody else's.
    pub(crate) fn passes(&mut self, address: u64) -> bool {
        if address < self.low && address >= self.floor {
            self.low = address;
        }
        self.local.contains(&address)
    }
}

impl Watcher {
    /// Takes a record of a call that may be within others.
    pub(crate) fn note_nested(&mut self, record: &Access) {
        match record.kind {
            Access::ENTERED => self.working.told = Some((record.pc, vec![record.address])),
            Access::GIVEN => {
                let Some((_, told)) = &mut self.working.told else { return };
                told.push(record.address);
            }
            Access::LEFT => return self.leave(record.address),
            _ => return,
        }
        let is_whole = |(_, told): &mut (u32, Vec<u64>)| {
            told.len() >= GIVEN && (told.len() - GIVEN) as u64 == told[GIVEN - 1]
        };
        if let Some((pc, told)) = self.working.told.take_if(is_whole) {
            let (&given, list) = told.split_first_chunk().expect("it was just looked at");
            self.enter_nested(pc, given, list);
        }
    }

    fn enter_nested(&mut self, pc: u32, given: Given, list: &[u64]) {
        let Some(code) = self.detector.relation.code() else { return };
        let (pc, slot) = (u64::from(pc), given[8]);
        let (function, calls) = (code.tasking.get(&pc).copied(), code.bodies.get(&pc).copied());
        if self.working.frames.is_empty() {
            let frame = self.frame(Place::default(), Joins::new());
            self.working.frames.push(frame);
            let pointer = self.detector.stacks().pointers.get(&self.thread).copied();
            let mapping = pointer.and_then(|pointer| self.detector.stacks().mapping(pointer));
            let start = mapping.filter(|it| it.contains(&slot)).map_or(0, |it| it.start);
            self.working.floor = start.max(slot.saturating_sub(STACK));
            (self.working.top, self.working.low) = (slot, self.working.floor);
        }
        self.working.low = self.working.low.min(slot.max(self.working.floor));
        let level = match (function, calls) {
            (Some(what), _) => Level::Function(self.call(what, given, list)),
            (None, Some(calls)) => self.enter_body(calls, given),
            (None, None) => Level::Other,
        };
        self.working.levels.push(level);
    }

    fn frame(&self, place: Place, groups: Joins) -> Frame {
        Frame {
            children: self.detector.tasks.join(),
            depends: Dependences::default(),
            groups,
            place,
            ends: Joins::new(),
            outer: None,
            body: None,
            asked: false,
        }
    }

    fn here(&mut self) -> &mut Frame {
        self.working.frames.last_mut().expect("a thread is in a task, its own at least")
    }

    /// One of the library's functions begins.
    fn call(&mut self, what: Tasking, given: Given, list: &[u64]) -> Function {
        let mut function = Function {
            what,
            given,
            behind: Joins::new(),
            turns: Joins::new(),
            end: None,
            made: Vec::new(),
            place: None,
        };
        match what {
            Tasking::Creates if given[7] != 0 => self.depend(&mut function, counted(list), true),
            Tasking::WaitsFor => self.depend(&mut function, counted(list), false),
            Tasking::WaitsForRecords => {
                self.depend(&mut function, records(list, given[2]), false);
            }
            Tasking::StartsBehind => {
                self.depend(&mut function, records(list, given[3]), true);
                self.start(&function);
            }
            Tasking::Starts => self.start(&function),
            Tasking::CreatesAll => self.begin_group(),
            Tasking::StartsAll => {
                self.begin_group();
                self.start(&function);
                if let Some(task) = self.detector.tasks.at(given[2]) {
                    self.detector.tasks.make_more(task.function, task);
                }
            }
            Tasking::Asks => self.ask(),
            Tasking::Sections => self.end_section(),
            Tasking::EndsSections | Tasking::Barrier => self.leave_sections(),
            Tasking::Fulfills => self.release_join(&self.detector.tasks.fulfilled),
            _ => {}
        }
        function
    }

    /// A call depends on what its list says, and others on the task that it `creates`.
    fn depend(
        &mut self,
        function: &mut Function,
        list: Option<Vec<(u64, Depends)>>,
        creates: bool,
    ) {
        let detector = self.detector.clone();
        function.end = creates.then(|| detector.tasks.join());
        let depends = &mut self.here().depends;
        (function.behind, function.turns) =
            depends.add(&detector.tasks, list.as_deref(), function.end.as_ref());
    }

    fn begin_group(&mut self) {
        let group = self.detector.tasks.join();
        self.here().groups.push(group);
    }

    fn end_group(&mut self) {
        if let Some(group) = self.here().groups.pop() {
            self.acquire_join(&group);
        }
    }

    /// What a task that the present one creates by this call has from it.
    fn created(&mut self, call: &Function, function: u64, memory: Range<u64>) -> Created {
        let clock = self.clock.clone();
        let frame = self.here();
        let (place, group) = (frame.place, frame.groups.last().cloned());
        let mut ends = vec![frame.children.clone()];
        ends.extend(group.iter().cloned());
        ends.extend(call.end.iter().cloned());
        ends.push(self.detector.tasks.place(place));
        let (behind, turns) = (call.behind.clone(), call.turns.clone());
        Created { clock, behind, turns, ends, group, place, memory, function }
    }

    /// A block is allocated: perhaps a task's, of GCC's library.
    pub(crate) fn create_in(&mut self, start: u64, size: u64) {
        let Some(Level::Function(call)) = self.working.levels.last() else { return };
        if !matches!(call.what, Tasking::Creates | Tasking::CreatesAll) {
            return;
        }
        let Some(Level::Function(mut call)) = self.working.levels.pop() else { return };
        call.made.push(start);
        let task = self.created(&call, call.given[0], start..start.saturating_add(size));
        self.detector.tasks.add(task);
        self.working.levels.push(Level::Function(call));
    }

    /// A task of LLVM's library may be executed from now on.
    fn start(&mut self, call: &Function) {
        let Some(known) = self.detector.tasks.at(call.given[2]) else { return };
        let task = self.created(call, known.function, known.memory);
        self.detector.tasks.add(task);
    }

    /// The library calls something of the program's.
    fn enter_body(&mut self, calls: Calls, given: Given) -> Level {
        let (target, slot) = (given[9], given[8]);
        let detector = self.detector.clone();
        let tasks = &detector.tasks;
        let created = match calls {
            Calls::Data => tasks.at(given[0]).filter(|task| task.function == target),
            Calls::Task => {
                let known = tasks.at(given[1]).filter(|task| task.memory.start == given[1]);
                known.filter(|task| task.function == target).or_else(|| {
                    let model = tasks.model(target).filter(|_| !self.is_in_team(target))?;
                    let size = model.memory.end - model.memory.start;
                    self.forget(given[1]..given[1].saturating_add(size));
                    Some(model)
                })
            }
        };
        if let Some(task) = created {
            let task_at = (calls == Calls::Task).then_some(given[1]);
            // The return address is the call's, which the body takes.
            self.begin_task(task, task_at, slot.saturating_add(8));
            return Level::Body;
        }
        let place = || match calls {
            Calls::Data => Place { team: target ^ given[0].rotate_left(32), round: 0 },
            Calls::Task => Place { team: target, round: 0 },
        };
        let place = match self.working.levels.last() {
            Some(Level::Function(call)) => match call.what {
                Tasking::Creates | Tasking::CreatesAll if call.given[0] == target => None,
                Tasking::Team if [call.given[0], call.given[2]].contains(&target) => Some(place()),
                _ => return Level::Other,
            },
            // The thread is one of the team, and this is the first thing that it does.
            None => Some(place()),
            _ => return Level::Other,
        };
        match place {
            Some(place) => {
                let body = Body {
                    start: slot.saturating_add(8),
                    allocated: self.allocated,
                    has_asked: false,
                    section: None,
                    done: VectorClock::default(),
                };
                let frame = self.frame(place, Joins::new());
                self.working.frames.push(Frame { body: Some(body), ..frame });
            }
            None => self.begin_included(),
        }
        Level::Body
    }

    fn is_in_team(&self, target: u64) -> bool {
        matches!(self.working.levels.last(), Some(Level::Function(call))
            if call.what == Tasking::Team && call.given[2] == target)
    }

    /// The thread executes at once what it creates by the present call.
    fn begin_included(&mut self) {
        let (place, group) = (self.here().place, self.here().groups.last().cloned());
        let mut frame = self.frame(place, group.into_iter().collect());
        if let Some(Level::Function(call)) = self.working.levels.last() {
            let behind = call.behind.iter().chain(&call.turns).cloned().collect::<Joins>();
            frame.ends = call.end.iter().chain(&call.turns).cloned().collect();
            behind.iter().for_each(|join| self.acquire_join(join));
        }
        self.working.frames.push(frame);
    }

    /// The thread executes a task that was created, from the call at `start` on its stack on.
    fn begin_task(&mut self, task: Created, at: Option<u64>, start: u64) {
        let mut frame = self.frame(task.place, task.group.into_iter().collect());
        frame.ends = task.ends.iter().chain(&task.turns).cloned().collect();
        match self.clock_after(&task.clock) {
            Some(own) => {
                let outer = self.take_apart(own, task.clock, start);
                frame.outer = Some(Outer { task: at, ..outer });
            }
            // There are too many.
            None => self.clock.join(&task.clock),
        }
        task.behind.iter().chain(&task.turns).for_each(|join| self.acquire_join(join));
        self.working.frames.push(frame);
    }

    /// What the thread does from now on has a clock of its own, which begins with another one, and a stack
    /// from `start` on.
    pub(super) fn take_apart(&mut self, own: usize, begins: VectorClock, start: u64) -> Outer {
        let clock = &mut self.working.clocks[own];
        clock.is_used = true;
        let (id, last) = (clock.id, clock.last);
        self.forget(self.working.low.min(start)..start);
        let outer = std::mem::replace(&mut self.clock, begins);
        let top = self.working.top;
        let outer = Outer { id: self.id, clock: outer, own, task: None, top, start };
        self.id = id;
        self.clock.set(id, last.saturating_add(1));
        (self.working.top, self.working.low) = (start, start);
        self.working.local = self.local_memory();
        self.forget_accesses();
        outer
    }

    /// That is over, and the thread goes on with what it did before.
    pub(super) fn put_together(&mut self, outer: Outer) {
        let clock = &mut self.working.clocks[outer.own];
        (clock.last, clock.is_used) = (self.clock.of(self.id), false);
        self.forget(self.working.low..outer.start);
        (self.working.top, self.working.low) = (outer.top, outer.start);
        (self.id, self.clock) = (outer.id, outer.clock);
        if self.working.clocks.iter().all(|clock| !clock.is_used) {
            self.working.local = 0..0;
        }
        self.next_epoch();
    }

    /// One of the thread's clocks for a task that begins with this one.
    pub(super) fn clock_after(&mut self, begins: &VectorClock) -> Option<usize> {
        let clocks = &mut self.working.clocks;
        let free = |it: &Clock| !it.is_used;
        let behind = clocks.iter().position(|it| free(it) && it.last <= begins.of(it.id));
        behind.or_else(|| match self.detector.tasks.new_clock(self.thread) {
            Some(id) => {
                clocks.push(Clock { id, last: 0, is_used: false });
                Some(clocks.len() - 1)
            }
            None => clocks.iter().position(free),
        })
    }

    /// What is local to the thread.
    fn local_memory(&self) -> Range<u64> {
        let size = self.detector.relation.code().map_or(0, |code| code.local);
        match self.detector.stacks().local.get(&self.thread) {
            Some(&pointer) => pointer.saturating_sub(size)..pointer.saturating_add(CONTROL),
            None => 0..0,
        }
    }

    /// The innermost task ends.
    fn end_task(&mut self) {
        let Some(frame) = self.working.frames.pop() else { return };
        frame.ends.iter().for_each(|join| self.release_join(join));
        if frame.asked
            && let Some(join) = self.working.on_thread.clone()
        {
            self.release_join(&join);
        }
        if let Some(Level::Function(call)) = self.working.levels.last_mut()
            && call.what == Tasking::Team
        {
            call.place = Some(frame.place);
        }
        let Some(outer) = frame.outer else { return self.next_epoch() };
        if let Some(at) = outer.task {
            let clock = self.clock.clone();
            self.detector.tasks.change(at, |task| task.clock.join(&clock));
        }
        self.put_together(outer);
    }

    /// The innermost call returns.
    fn leave(&mut self, answer: u64) {
        let call = match self.working.levels.pop() {
            Some(Level::Function(call)) => call,
            Some(Level::Body) => return self.end_task(),
            Some(Level::Other) => return self.leave_other(),
            None => return,
        };
        match call.what {
            Tasking::Waits => {
                let children = self.here().children.clone();
                self.acquire_join(&children);
            }
            Tasking::WaitsFor | Tasking::WaitsForRecords => {
                call.behind.iter().for_each(|join| self.acquire_join(join));
            }
            Tasking::Groups => self.begin_group(),
            Tasking::EndsGroup | Tasking::CreatesAll | Tasking::StartsAll => self.end_group(),
            Tasking::Allocates if answer != 0 => {
                let size = call.given[3].saturating_add(call.given[4]).saturating_add(16);
                let memory = answer..answer.saturating_add(size);
                self.forget(memory.clone());
                let task = self.created(&call, call.given[5], memory);
                self.detector.tasks.add(task);
            }
            Tasking::Begins => self.begin_included(),
            // The answer is an `unsigned`.
            Tasking::Sections if answer as u32 != 0 => self.begin_section(),
            Tasking::Sections => self.leave_sections(),
            Tasking::Ends if self.here().outer.is_none() && self.working.frames.len() > 1 => {
                self.end_task();
            }
            Tasking::Barrier | Tasking::BarrierUnlessZero | Tasking::AnyBarrier => {
                self.pass_barrier(call.what, answer);
            }
            Tasking::Team => {
                let done = call.place.and_then(|place| self.detector.tasks.done_at(place));
                done.iter().for_each(|join| self.acquire_join(join));
            }
            _ => {}
        }
        self.next_epoch();
    }

    /// Something of the program's returns to the library: perhaps what copies data for a new task.
    fn leave_other(&mut self) {
        if let Some(Level::Function(call)) = self.working.levels.last()
            && !call.made.is_empty()
        {
            let clock = &self.clock;
            // Of a loop, each task is filled in by itself, after the others.
            for &made in &call.made {
                self.detector.tasks.change(made, |task| task.clock.join(clock));
            }
            self.next_epoch();
        }
    }

    fn pass_barrier(&mut self, what: Tasking, answer: u64) {
        if what == Tasking::BarrierUnlessZero && answer == 0 {
            return;
        }
        let place = self.here().place;
        if let Some(done) = self.detector.tasks.done_at(place) {
            self.acquire_join(&done);
        }
        if what != Tasking::AnyBarrier {
            self.here().place.round += 1;
        }
    }

    /// The present task asks which thread executes it: it relies on what that thread does in turns.
    fn ask(&mut self) {
        self.ask_in_team();
        let frame = self.here();
        if frame.outer.is_none() || frame.asked {
            return;
        }
        frame.asked = true;
        let detector = self.detector.clone();
        let join = self.working.on_thread.get_or_insert_with(|| detector.tasks.join()).clone();
        self.acquire_join(&join);
    }

    fn acquire_join(&mut self, join: &Join) {
        self.clock.join(&join.clock());
        self.clock.join(&self.detector.tasks.fulfilled.clock());
    }

    fn release_join(&self, join: &Join) {
        join.clock().join(&self.clock);
    }
}
