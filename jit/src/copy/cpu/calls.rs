//! The log of calls that the observer has named: what they are given, what they answer, and when they
//! end ([`EngineConfig::functions`], [`EngineConfig::nested`]).
//!
//! The executor keeps where these calls have their return addresses. A `ret` that takes the return
//! address of a call ends it, whichever function the `ret` belongs to: functions may end with a jump
//! to another. A call of [`EngineConfig::functions`] that was left in another way (`longjmp`) is ended
//! by the next one that is further up the stack; one of [`EngineConfig::nested`] does not end.

use super::logged::{hand_over, room};
use super::{CopyCpu, Next};
use crate::accesses::logged_pc;
use crate::copy::desc::Variant;
use crate::copy::state::RECORD;
use crate::memory::{read_instruction, read_word};
use iced_x86::{FlowControl, Instruction, OpKind};
use refrain_trace::Access;
use refrain_vm::reg::{R8, R9, RAX, RCX, RDI, RDX, RSI, RSP};
use refrain_vm::{Answer, Context, EngineConfig, Exit, List, Nested};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Records of a call at most: one of either kind, with a list.
const MOST: u64 = 4 + 11 + List::LONGEST as u64;

/// The named calls that a thread is in. Where the outermost one and the innermost one keep their
/// return addresses is in the thread's state.
pub(super) struct Calls {
    functions: Arc<BTreeMap<u64, Answer>>,
    nested: Arc<BTreeMap<u64, Nested>>,
    pub(super) compared: Arc<BTreeSet<u64>>,
    /// Where the call of one of `functions` leaves its answer, if not in rax.
    answer: u64,
    /// What the state has of each call around the innermost one.
    outer: Vec<u64>,
}

impl Calls {
    pub(super) fn new(config: &EngineConfig) -> Calls {
        let EngineConfig { functions, nested, compared, .. } = config;
        let (functions, nested) = (Arc::clone(functions), Arc::clone(nested));
        Calls { functions, nested, compared: Arc::clone(compared), answer: 0, outer: Vec::new() }
    }
}

impl CopyCpu {
    /// Logs the named call that begins at `rip`, and goes on there.
    pub(super) fn log_call(&mut self, context: &mut Context, variant: Variant) -> Next {
        self.take_log(context);
        if room(context) < MOST * RECORD {
            return Next::Stop(Exit::AccessesFull);
        }
        self.enter_function(context);
        let entered = self.enter_nested(context);
        self.state.minus_logged = logged(context.rip);
        // The observer learns at once which task goes on.
        if entered {
            return Next::Stop(Exit::AccessesFull);
        }
        self.open_log(context);
        self.at(context, variant)
    }

    /// Logs the end of the named calls whose return address the `ret` at `rip` takes.
    pub(super) fn log_end(&mut self, context: &mut Context) -> Next {
        self.take_log(context);
        if room(context) < MOST * RECORD {
            return Next::Stop(Exit::AccessesFull);
        }
        let (pc, result) = (context.rip, context.gpr[RAX]);
        let returns_from = context.gpr[RSP].wrapping_neg();
        if self.state.minus_called == returns_from {
            self.state.minus_called = 0;
            let answer = match (self.calls.answer, result) {
                (0, result) => result,
                (to, 0) => word(to),
                _ => 0,
            };
            log_values(context, pc, &[(answer, Access::ANSWERED)]);
        }
        if self.state.minus_innermost == returns_from {
            self.state.minus_innermost = self.calls.outer.pop().unwrap_or(0);
            log_values(context, pc, &[(result, Access::LEFT)]);
        }
        Next::Stop(Exit::AccessesFull)
    }

    /// If the thread goes on elsewhere than at the call that was logged last, that call begins anew when
    /// the thread comes back.
    pub(super) fn forget_logged_call(&mut self, rip: u64) {
        if self.state.minus_logged != logged(rip) {
            self.state.minus_logged = 0;
        }
    }

    fn enter_function(&mut self, context: &mut Context) {
        let pc = context.rip;
        let Some(answer) = self.calls.functions.get(&pc) else { return };
        let sp = context.gpr[RSP];
        // Not if it is within one.
        if sp <= self.state.minus_called.wrapping_neg() {
            return;
        }
        let [first, second, third] = [RDI, RSI, RDX].map(|register| context.gpr[register]);
        self.state.minus_called = sp.wrapping_neg();
        self.calls.answer = match answer {
            Answer::Register => 0,
            Answer::Memory => first,
        };
        let given = [second, third, word(sp)].map(|value| (value, Access::ARGUMENT));
        log_values(context, pc, &[(first, Access::CALLED)]);
        log_values(context, pc, &given);
    }

    /// Whether a call begins here that is logged with those it is within.
    fn enter_nested(&mut self, context: &mut Context) -> bool {
        let (pc, sp) = (context.rip, context.gpr[RSP]);
        let (slot, function, list) = match self.calls.nested.get(&pc) {
            None => return false,
            Some(Nested::Function(list)) => (sp, pc, *list),
            Some(Nested::Site(range)) => match target_of_call(context) {
                Some(target) if !range.contains(&target) => (sp.wrapping_sub(8), target, None),
                _ => return false,
            },
        };
        if self.calls.outer.len() == Nested::DEEPEST {
            return false;
        }
        self.calls.outer.push(self.state.minus_innermost);
        self.state.minus_innermost = slot.wrapping_neg();
        let registers = [RDI, RSI, RDX, RCX, R8, R9].map(|register| context.gpr[register]);
        let on_stack = [8, 16].map(|at| word(slot.wrapping_add(at)));
        let arguments: Vec<u64> = registers.into_iter().chain(on_stack).collect();
        let words = list.map_or(Vec::new(), |list| words_of(list, &arguments));
        let fixed = [slot, function, words.len() as u64];
        let given = arguments[1..].iter().chain(&fixed).chain(&words);
        let given: Vec<_> = given.map(|&value| (value, Access::GIVEN)).collect();
        log_values(context, pc, &[(arguments[0], Access::ENTERED)]);
        log_values(context, pc, &given);
        true
    }
}

/// What the state has of a call that has been logged.
fn logged(rip: u64) -> u64 {
    // As translated code adds the address.
    (rip as i32 as u64).wrapping_neg()
}

/// Appends records of the instruction at `pc`. What is noted of the epoch does not count any more, until
/// the log has been taken.
fn log_values(context: &mut Context, pc: u64, values: &[(u64, u16)]) {
    let pc = logged_pc(pc);
    let record = |&(address, kind): &(u64, u16)| Access { address, pc, size: 0, kind };
    context.same_epoch.end();
    hand_over(&values.iter().map(record).collect::<Vec<_>>(), context);
}

/// A word of the guest's memory; 0 if it cannot be read.
fn word(address: u64) -> u64 {
    read_word(address).unwrap_or(0)
}

/// Where the instruction at `rip` leads, if it is an indirect call.
fn target_of_call(context: &Context) -> Option<u64> {
    let is_call = |it: &Instruction| it.flow_control() == FlowControl::IndirectCall;
    let instruction = read_instruction(context.rip).filter(is_call)?;
    let value = |register, at, size| crate::values::value_of(context, register, at, size);
    match instruction.op0_kind() {
        OpKind::Register => value(instruction.op0_register(), 0, 0),
        OpKind::Memory => Some(word(instruction.virtual_address(0, 0, value)?)),
        _ => None,
    }
}

/// The words of a list that is to be logged.
fn words_of(list: List, arguments: &[u64]) -> Vec<u64> {
    let (List::Counted(at) | List::Records(at, _)) = list;
    let address = arguments[at];
    let count = match list {
        _ if address == 0 => 0,
        List::Counted(_) => match word(address) {
            0 => word(address.wrapping_add(8)).saturating_add(5),
            first => first.saturating_add(2),
        },
        List::Records(_, count) => 3 * (arguments[count] & u64::from(u32::MAX)),
    };
    let count = count.min(List::LONGEST.into());
    (0..count).map(|at| word(address.wrapping_add(8 * at))).collect()
}
