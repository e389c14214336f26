//! One guest thread's executor: enters translated code and deals with what it is left for.

mod calls;
mod logged;

use super::desc::{Desc, Kind, Operand, Variant};
use super::faults::Fix;
use super::ordered::found;
use super::state::{Behind, Home, ThreadState, enter};
use super::translator::{Failure, Translator};
use super::{Inside, NAME, Shared};
use crate::accesses::{Part, bit_offset, spans_of};
use crate::fault::SignalStack;
use crate::memory::read_instruction;
use crate::moved;
use crate::transfer;
use calls::Calls;
use refrain_vm::{
    Context, Cpu, EngineConfig, EngineError, Exit, Fault, Filter, Interrupt, LastMet, Mode,
    RecordingCpu, Span, reg,
};
use std::arch::asm;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Gets a thread out of translated code.
struct Interrupter {
    shared: Arc<Shared>,
    inside: Arc<Inside>,
    number: u32,
}

impl Interrupt for Interrupter {
    fn interrupt(&self) {
        self.inside.wanted.store(true, Ordering::SeqCst);
        self.shared.barrier.heavy();
        // A thread that is outside sees that it is wanted when it comes in.
        if self.inside.inside.load(Ordering::SeqCst) {
            let mut translator = self.shared.lock();
            // It says that it has left under the lock.
            if self.inside.inside.load(Ordering::SeqCst) {
                translator.want(self.number);
            }
        }
    }
}

/// The executor of one thread.
pub(super) struct CopyCpu {
    shared: Arc<Shared>,
    state: Home,
    /// What the instruction of the last [`Exit::Spans`] accesses, and the part of it that is
    /// executed next.
    spans: Vec<Span>,
    part: Option<Part>,
    /// The next step is to be logged: that of an [`Exit::Spans`].
    logs_step: bool,
    /// The log's room behind what was taken of it.
    taken: u64,
    /// The calls under way that the observer has named.
    calls: Calls,
    /// It has watched loads without an event read what the thread met last.
    tells: bool,
    /// How the block is translated that the last [`Exit::Code`] was for.
    asks: Variant,
    /// Where the code goes on that the thread has read last, if it has not executed anything since.
    read: Option<Start>,
    inside: Arc<Inside>,
    /// Where this thread entered translated code lately, by [`place`].
    recent: Box<[Start; RECENT]>,
    /// Tells threads apart.
    number: u32,
    _signal_stack: Rc<SignalStack>,
}

/// Blocks that a thread remembers having entered, so that it need not ask the translator.
const RECENT: usize = 1 << 10;

/// A block to enter, as long as the generation is the same.
#[derive(Clone, Copy)]
struct Start {
    pc: u64,
    variant: Variant,
    body: u64,
    generation: u64,
}

impl Start {
    /// No block: none begins at the address of code that is no code.
    const NONE: Start = Start { pc: u64::MAX, variant: Variant::Step, body: 0, generation: 0 };
}

/// Place of a block among those remembered.
fn place(pc: u64, variant: Variant) -> usize {
    let hash = (pc ^ (variant as u64) << 60).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 54) as usize
}

/// What an exit means for the loop.
enum Next {
    Run(Start),
    Stop(Exit),
}

impl CopyCpu {
    /// An executor for the calling thread.
    pub(super) fn new(shared: Arc<Shared>) -> Result<CopyCpu, EngineError> {
        let signal_stack = SignalStack::of_thread().map_err(|error| EngineError::Unavailable {
            engine: NAME,
            why: format!("no memory for a signal stack: {error}"),
        })?;
        let (state, calls, tells) = {
            let translator = shared.lock();
            let EngineConfig { every_access, watched, processor, accesses, live, .. } =
                &translator.config;
            let behind = match (*accesses, *every_access && watched.is_none()) {
                (true, _) => Behind::Log,
                (false, true) => Behind::Tables,
                (false, false) => Behind::Nothing,
            };
            let (code, fast_path) = (translator.code(), translator.ordered_fast_path);
            let state = ThreadState::at_home(code, fast_path, *processor, behind);
            let state = state.map_err(|error| EngineError::Unavailable {
                engine: NAME,
                why: format!("no memory: {error}"),
            })?;
            (state, Calls::new(&translator.config), *accesses && !live)
        };
        let inside = Arc::new(Inside::default());
        shared
            .threads
            .lock()
            .expect("the list is only pushed to and filtered")
            .push(Arc::clone(&inside));
        let recent = Box::new([Start::NONE; RECENT]);
        let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
        Ok(CopyCpu {
            shared,
            state,
            spans: Vec::new(),
            part: None,
            logs_step: false,
            taken: 0,
            calls,
            tells,
            asks: Variant::Observed,
            read: None,
            inside,
            recent,
            number,
            _signal_stack: signal_stack,
        })
    }

    /// Runs until something concerns the machine.
    fn drive(&mut self, context: &mut Context, first: Variant) -> Exit {
        let mut next = self.at(context, first);
        self.bind();
        loop {
            next = match next {
                Next::Stop(exit) => return exit,
                Next::Run(start) => match self.enter(context, start) {
                    Some(desc) => self.handle(desc, start.generation, context, first.next()),
                    None => self.at(context, start.variant),
                },
            }
        }
    }

    /// Goes on at the context's `rip`.
    fn at(&mut self, context: &mut Context, variant: Variant) -> Next {
        let pc = context.rip;
        let generation = self.shared.generation.load(Ordering::Acquire);
        let is_at = |start: &Start| (start.pc, start.generation) == (pc, generation);
        if let Some(read) = self.read.take().filter(is_at) {
            return Next::Run(read);
        }
        let is_this = |start: &Start| is_at(start) && start.variant == variant;
        let place = place(pc, variant);
        let known = self.recent[place];
        if is_this(&known) {
            return Next::Run(known);
        }
        let next = self.translated(context, variant, |_| Ok(None));
        if let Next::Run(start) = next {
            self.recent[place] = start;
        }
        next
    }

    /// Makes GS point to this thread's state, and the state know the host's FS. That GS has the
    /// state's address says nothing: a thread begins with the GS of the one that made it, and
    /// memory is used again.
    fn bind(&mut self) {
        let state = &raw mut *self.state;
        // SAFETY: FSGSBASE was found usable when the engine was made. Nothing else in the process
        // uses GS but executors of this crate, each of which sets it before it enters code.
        unsafe {
            asm!("rdfsbase {}", out(reg) self.state.area.host_fs, options(nomem, nostack, preserves_flags));
            asm!("wrgsbase {}", in(reg) state, options(nostack, preserves_flags));
        }
    }

    /// Enters translated code and returns why it was left; `None` if the block is of another
    /// generation.
    fn enter(&mut self, context: &mut Context, start: Start) -> Option<Desc> {
        if !self.come_in(start) {
            return Some(Desc::new(Kind::Interrupted, start.pc));
        }
        if start.generation != self.shared.generation.load(Ordering::Acquire) {
            self.go_out();
            return None;
        }
        let mut entry = start.body;
        let desc = loop {
            self.state.entry = entry;
            // A thread may enter a block behind its look, where the block takes rcx for spilled.
            self.state.rcx = context.gpr[reg::RCX];
            self.state.context = context;
            let state = &raw mut *self.state;
            // SAFETY: GS points to the state (`bind`); the entry is translated code that is not
            // reused while `inside` is set; the context outlives the call, and its FS base is
            // canonical, because only the machine and `write_fs_base` set it.
            unsafe { enter(state) };
            // SAFETY: translated code sets `exit` to a descriptor of the translator's arena, which
            // lives while `inside` is set, or to the state's own.
            let desc = unsafe { *self.state.exit };
            break match desc.kind {
                Kind::Faulted => match self.without_log(context) {
                    Some(behind) => {
                        entry = behind;
                        continue;
                    }
                    None => self.faulted(context),
                },
                Kind::Kept => self.shared.lock().kept_descriptor(self.state.exit as u64),
                _ => desc,
            };
        };
        // Whoever waits for the window reads the count then.
        self.state.window.store(0, Ordering::Release);
        self.state.retired = self.state.retired.wrapping_sub(desc.rest.into());
        self.go_out();
        Some(desc)
    }

    /// Says that this thread is inside translated code. `false` if somebody wants it not to be.
    fn come_in(&self, start: Start) -> bool {
        let Inside { inside, wanted } = &*self.inside;
        let mut stays = false;
        loop {
            inside.store(true, Ordering::Relaxed);
            self.shared.barrier.light();
            let closing = self.shared.closing.load(Ordering::Acquire);
            if !closing && (stays || !wanted.load(Ordering::Acquire)) {
                return true;
            }
            inside.store(false, Ordering::Release);
            if closing {
                std::thread::yield_now();
            } else if self.may_leave(start) {
                return false;
            } else {
                stays = true;
            }
        }
    }

    /// Whether this thread, which is wanted outside, may leave before a block. It must not before
    /// one that is hooked: it would go on behind the hook.
    fn may_leave(&self, start: Start) -> bool {
        let mut translator = self.shared.lock();
        match start.variant {
            Variant::Opaque => self.inside.wanted.store(false, Ordering::Relaxed),
            variant if variant.steps() => {}
            _ if translator.hooks.contains(start.pc) => translator.want(self.number),
            _ => {
                self.inside.wanted.store(false, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Says that this thread is outside translated code.
    fn go_out(&self) {
        self.inside.inside.store(false, Ordering::Release);
        if self.inside.wanted.load(Ordering::Relaxed) {
            self.shared.lock().left(self.number);
        }
    }

    /// Where an instruction begins behind its log, if that has faulted.
    fn without_log(&self, context: &mut Context) -> Option<u64> {
        let host = self.state.area.fault_rip;
        self.shared.lock().faults.without_log(host, &self.state, context)
    }

    /// Puts the state in order after a fault in translated code and says what it means.
    fn faulted(&mut self, context: &mut Context) -> Desc {
        let missed = Desc::new(Kind::ReturnMiss(Variant::Observed), 0);
        let host = self.state.area.fault_rip;
        if host == 0 {
            // A return by an unused entry of the return table: its own address is put back.
            context.gpr[reg::RCX] = self.state.rcx;
            let popped = (context.gpr[reg::RSP] - 8) as *mut u64;
            // SAFETY: translated code wrote this word of the guest's stack just before.
            unsafe { popped.write_unaligned(self.state.target) };
            return missed;
        }
        let translator = self.shared.lock();
        let recorded = translator.records();
        match translator.faults.restore(host, &mut self.state, context, recorded) {
            Some(Fix::Return) => missed,
            Some(_) => Desc::faulted(),
            None => panic!("only guest instructions fault in translated code, not {host:#x}"),
        }
    }

    /// Enters guest code itself, which must jump to an exit of translated code.
    #[cfg(test)]
    pub(super) fn enter_untranslated(&mut self, context: &mut Context, code: u64) {
        let generation = self.shared.generation.load(Ordering::SeqCst);
        self.bind();
        self.enter(context, Start { body: code, generation, ..Start::NONE });
    }

    /// Deals with one exit; `variant` is what code goes on as.
    fn handle(
        &mut self,
        desc: Desc,
        generation: u64,
        context: &mut Context,
        variant: Variant,
    ) -> Next {
        if !matches!(desc.kind, Kind::Faulted) {
            context.rip = desc.pc;
        }
        Next::Stop(match desc.kind {
            Kind::Link { field, variant } => {
                return self.translated(context, variant, |translator| {
                    let body = translator.body(desc.pc, variant)?;
                    if translator.generation == generation {
                        translator.link(field.into(), body);
                    }
                    Ok(Some(body))
                });
            }
            Kind::Changed { body, field, variant } => {
                let next = self.translated(context, variant, |translator| {
                    let same = translator.generation == generation;
                    let field = same.then_some(field.into());
                    translator.changed(desc.pc, variant, body.into(), field).map(|()| None)
                });
                let compared = self.shared.lock().compared_by_itself(desc.pc, variant);
                let Some(len) = compared.filter(|_| matches!(next, Next::Run(_))) else {
                    return next;
                };
                self.asks = variant;
                self.spans.clear();
                self.spans.push(Span { start: desc.pc, len, write: false });
                Exit::Code
            }
            Kind::JumpMiss(variant) => {
                let pc = self.state.target;
                context.rip = pc;
                return self.translated(context, variant, |translator| {
                    translator.enter_jump(pc, variant).map(|()| None)
                });
            }
            Kind::ReturnMiss(variant) => {
                let pc = self.state.target;
                context.rip = pc;
                return self.translated(context, variant, |translator| {
                    translator.enter_return(pc, variant).map(|()| None)
                });
            }
            Kind::WriteFsBase(register, wide) => {
                return match write_fs_base(context, register, wide) {
                    None => self.at(context, variant),
                    Some(fault) => Next::Stop(Exit::Fault(fault)),
                };
            }
            Kind::Return => {
                context.rip = self.state.target;
                Exit::Return
            }
            Kind::Ordered(operand) => {
                let address = self.operand_address(context, operand);
                if let Some(value) = self.told(address, operand) {
                    return self.load_told(context, (address, operand.size), value, variant);
                }
                Exit::Ordered { address, size: operand.size, kind: operand.kind }
            }
            Kind::Spans | Kind::Strings(_) => match read_instruction(desc.pc) {
                Some(instruction) => {
                    (self.spans, self.part) = spans_of(&instruction, context);
                    self.logs_step = self.state.logs();
                    Exit::Spans
                }
                None => Exit::Fault(Fault::fetch(desc.pc)),
            },
            Kind::Code { len, variant } => {
                self.asks = variant;
                self.spans.clear();
                self.spans.push(Span { start: desc.pc, len: len.into(), write: false });
                Exit::Code
            }
            Kind::LogFull => return self.log_full(context, variant),
            Kind::LogAlone => return self.log_alone(context, variant),
            Kind::LogCall => return self.log_call(context, variant),
            Kind::LogEnd => return self.log_end(context),
            Kind::Syscall => Exit::Syscall,
            Kind::Hook => Exit::Hook,
            Kind::Emulate(what) => Exit::Emulate(what),
            Kind::Trap(vector) => Exit::Fault(Fault::exception(vector, desc.pc)),
            Kind::Unsupported(name) => Exit::Unsupported(self.shared.lock().named(name)),
            Kind::Faulted => Exit::Fault(self.fault()),
            Kind::Interrupted => Exit::Interrupted,
            Kind::Stepped => unreachable!("only `step` enters code that steps"),
            Kind::Kept => unreachable!("the translator has said what was kept"),
            Kind::Performed { .. } => unreachable!("the gate to the machine goes on"),
        })
    }

    /// Goes on at the block at the context's `rip`, after `install` has made it known to
    /// wherever it was missed, and has said where it is if it has looked that up.
    fn translated(
        &mut self,
        context: &mut Context,
        variant: Variant,
        install: impl Fn(&mut Translator) -> Result<Option<u64>, Failure>,
    ) -> Next {
        let begin = ticks();
        let mut locked;
        let result = loop {
            let mut translator = self.shared.lock();
            locked = ticks();
            let body = install(&mut translator).and_then(|body| match body {
                Some(body) => Ok(body),
                None => translator.body(context.rip, variant),
            });
            self.shared.publish(&translator);
            match body {
                Ok(body) => {
                    let (pc, generation) = (context.rip, translator.generation);
                    break Next::Run(Start { pc, variant, body, generation });
                }
                Err(Failure::Fault(fault)) => break Next::Stop(Exit::Fault(fault)),
                Err(Failure::Full) => {
                    drop(translator);
                    self.shared.reclaim();
                }
            }
        };
        context.translating.add(begin, locked, ticks());
        result
    }

    /// Executes one instruction, translated as `variant` says.
    fn step_as(&mut self, context: &mut Context, variant: Variant) -> Option<Fault> {
        self.state.retired = context.retired;
        self.bind();
        let mut next = self.at(context, variant);
        let fault = loop {
            let start = match next {
                Next::Run(start) => start,
                Next::Stop(Exit::Fault(fault)) => break Some(fault),
                Next::Stop(_) => {
                    break Some(Fault::illegal(context.rip));
                }
            };
            next = match self.enter(context, start) {
                Some(Desc { kind: Kind::Stepped, pc, .. }) => {
                    context.rip = pc;
                    break None;
                }
                Some(desc) => self.handle(desc, start.generation, context, variant),
                None => self.at(context, variant),
            };
        };
        context.retired = self.state.retired;
        fault
    }

    /// How the code at an address is translated that a thread in [`Mode::Observed`] begins with.
    fn observed_at(&self, pc: u64) -> Variant {
        if self.shared.may_be_hooked(pc) { Variant::Resumed } else { Variant::Observed }
    }

    /// The fault that the handler noted.
    fn fault(&self) -> Fault {
        let area = &self.state.area;
        Fault { signal: area.fault_signal, address: area.fault_address, cause: area.fault_cause }
    }

    /// First byte that an ordered instruction accesses.
    fn operand_address(&self, context: &Context, operand: Operand) -> u64 {
        let base = if operand.fs { context.fs_base } else { 0 };
        let bits = operand
            .bit_register
            .map_or(0, |register| bit_offset(operand.size, context.gpr[usize::from(register)]));
        self.state.operand.wrapping_add(base).wrapping_add(bits)
    }
}

impl Cpu for CopyCpu {
    fn run(&mut self, context: &mut Context, mode: Mode) -> Exit {
        let variant = match mode {
            Mode::Opaque { sp } => {
                self.state.minus_watched = sp.wrapping_neg();
                Variant::Opaque
            }
            Mode::Observed => self.observed_at(context.rip),
        };
        self.state.retired = context.retired;
        self.state.minus_leave_at = context.leave_at.wrapping_neg();
        self.forget_logged_call(context.rip);
        self.open_log(context);
        let exit = self.drive(context, variant);
        self.take_log(context);
        context.retired = self.state.retired;
        exit
    }

    fn step(&mut self, context: &mut Context) -> Option<Fault> {
        if std::mem::take(&mut self.logs_step)
            && let Some(instruction) = read_instruction(context.rip)
        {
            let part = self.part;
            return self.step_logged(context, &instruction, part, CopyCpu::step);
        }
        let Some(part) = self.part.take() else {
            let fault = self.step_as(context, Variant::Step)?;
            let refused = (fault.signal, fault.address) == (libc::SIGILL, context.rip);
            return match refused.then(|| transfer::step(context)).flatten() {
                Some(done) => done.err(),
                None => Some(fault),
            };
        };
        let pc = context.rip;
        part.begin(context);
        let fault = self.step_as(context, Variant::Step);
        if part.end(context) && fault.is_none() {
            context.rip = pc;
        }
        fault
    }

    fn read_code(&mut self, context: &mut Context, len: u64) {
        let (pc, variant) = (context.rip, self.asks);
        self.read = None;
        let again =
            |translator: &mut Translator| translator.look_again(pc, len, variant).map(|()| None);
        if let Next::Run(start) = self.translated(context, variant, again) {
            let translator = self.shared.lock();
            let behind = translator.behind_the_look(pc, variant);
            let same = translator.generation == start.generation;
            self.read = behind.filter(|_| same).map(|body| Start { body, ..start });
        }
    }

    fn filter(&self) -> Option<Filter> {
        self.shared.lock().config.every_access.then(|| self.state.filter())
    }

    fn spans(&self) -> &[Span] {
        &self.spans
    }

    fn step_load(&mut self, context: &mut Context, value: u64) -> Option<Fault> {
        self.state.operand = value;
        self.step_as(context, Variant::StepLoad)
    }

    fn operands(&mut self, context: &Context, most: u64) -> Vec<Span> {
        read_instruction(context.rip).map_or(Vec::new(), |i| moved::operands(&i, context, most))
    }

    fn step_moved(&mut self, context: &mut Context, most: u64, places: &[u64]) -> Option<Fault> {
        self.part = None;
        let i = read_instruction(context.rip)?;
        let step = |cpu: &mut CopyCpu, context: &mut Context| {
            moved::step(context, &i, (most, places), |context, operand| {
                cpu.state.operand = operand.unwrap_or(0);
                let variant = if operand.is_some() { Variant::StepMoved } else { Variant::Step };
                cpu.step_as(context, variant)
            })
        };
        if std::mem::take(&mut self.logs_step) {
            return self.step_logged(context, &i, moved::part(&i, context, most), step);
        }
        step(self, context)
    }

    fn step_beside(&mut self, context: &mut Context, value: u64) -> Option<u64> {
        self.step_load(context, value).is_none().then_some(self.state.operand)
    }

    fn set_fast_path_data(&mut self, data: u64) {
        self.state.fast_path_data = data;
    }

    unsafe fn set_last_met(&mut self, met: *mut LastMet) {
        self.state.met = met;
    }
}

impl RecordingCpu for CopyCpu {
    fn interrupt(&self) -> Arc<dyn Interrupt> {
        let (shared, inside) = (Arc::clone(&self.shared), Arc::clone(&self.inside));
        Arc::new(Interrupter { shared, inside, number: self.number })
    }

    fn finds(&self, pc: u64) -> Option<usize> {
        let instruction = read_instruction(pc)?;
        found(&instruction).map(usize::from)
    }
}

impl Drop for CopyCpu {
    fn drop(&mut self) {
        let state = &raw mut *self.state;
        // SAFETY: FSGSBASE is usable. If GS points to the state that is about to be freed, it is
        // cleared, so that the fault handler does not use it.
        unsafe {
            let current: *mut ThreadState;
            asm!("rdgsbase {}", out(reg) current, options(nomem, nostack, preserves_flags));
            if current == state {
                asm!("wrgsbase {}", in(reg) 0_u64, options(nostack, preserves_flags));
            }
        }
        if let Ok(mut threads) = self.shared.threads.lock() {
            threads.retain(|thread| !Arc::ptr_eq(thread, &self.inside));
        }
    }
}

/// Completes a `wrfsbase`, or returns the fault that it raises.
fn write_fs_base(context: &mut Context, register: u8, wide: bool) -> Option<Fault> {
    const CANONICAL: u64 = 1 << 47;
    let value = context.gpr[usize::from(register)];
    let value = if wide { value } else { value & 0xffff_ffff };
    if value >= CANONICAL {
        // wrfsbase is five bytes long with a 64-bit register, the only form that comes here.
        const LENGTH: u64 = 5;
        context.rip -= LENGTH;
        return Some(Fault::protection());
    }
    context.fs_base = value;
    None
}

/// The time-stamp counter.
fn ticks() -> u64 {
    // SAFETY: the instruction exists on every x86-64 processor.
    unsafe { std::arch::x86_64::_rdtsc() }
}
