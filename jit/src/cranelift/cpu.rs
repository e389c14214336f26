//! One guest thread's executor.

use super::frame::{BELOW, DF, Frame, Gs, ID, SPILL, leave};
use super::graph::{Site, Term, is_counted};
use super::thunk::{Batch, Operand};
use super::{AGAIN, Shared};
use crate::accesses::{Part, fits_register, records, spans_of};
use crate::cost::{BYTES_A_QUARTER, weigh};
use crate::emulated::emulated;
use crate::fault::{SignalStack, ThreadArea};
use crate::moved;
use crate::transfer;
use iced_x86::InstructionInfoFactory;
use refrain_trace::Access;
use refrain_vm::{
    Context, Count, Cpu, EngineError, Exit, Fault, LastMet, Mode, OrderedKind, Pages, Span, Zeroed,
    reg,
};
use std::arch::asm;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The executor of a thread.
pub(super) struct CraneliftCpu {
    shared: Arc<Shared>,
    stack: Stack,
    gs: Box<Gs>,
    /// Thunks for single steps, by address and where the operand is: no lock is taken for those that
    /// this thread has used before.
    steps: BTreeMap<(u64, Operand), Step>,
    /// Blocks behind hooks, likewise.
    bodies: BTreeMap<u64, u64>,
    /// What the thread met last, until the machine says where that is.
    _own_met: Zeroed<LastMet>,
    /// What an instruction accesses that is executed by itself, and the part of it.
    spans: Vec<Span>,
    part: Option<Part>,
    /// Translated code has ended by a fault, so that the registers are nowhere.
    has_faulted: bool,
    _signal_stack: Rc<SignalStack>,
}

/// Said of an indirect jump into the middle of a run of code that reads flags from before.
const KEEPS_FLAGS: &str = "indirect jump that carries flags";

/// The stack that translated code runs on, with the frame in it.
struct Stack(Pages);

const STACK: usize = BELOW + size_of::<Frame>().next_multiple_of(64) + SPILL + 4096;

impl Stack {
    fn new() -> std::io::Result<Stack> {
        let stack = Stack(Pages::new(STACK)?);
        // SAFETY: the frame lies inside the mapping, aligned, and nobody else knows it yet.
        unsafe { stack.frame().write(Frame::default()) };
        Ok(stack)
    }

    fn frame(&self) -> *mut Frame {
        // BELOW is a multiple of the page size, so that the frame is aligned to a cache line.
        self.0.start().as_ptr().wrapping_byte_add(BELOW).cast()
    }
}

impl CraneliftCpu {
    pub(super) fn new(shared: Arc<Shared>) -> Result<CraneliftCpu, EngineError> {
        let failed = |what: &str, error| EngineError::Unavailable {
            engine: super::NAME,
            why: format!("no memory for {what}: {error}"),
        };
        let signal_stack = SignalStack::of_thread().map_err(|e| failed("a signal stack", e))?;
        let stack = Stack::new().map_err(|e| failed("a stack", e))?;
        let code = shared.code_range();
        let area = ThreadArea {
            code_start: code.start,
            code_end: code.end,
            resume: shared.routines.resume,
            ..ThreadArea::default()
        };
        let gs = Box::new(Gs { area, frame: stack.frame() });
        let mut own_met = LastMet::new();
        // SAFETY: the frame is initialized, and nobody else knows it yet.
        unsafe { (*stack.frame()).met = &raw mut *own_met as u64 };
        Ok(CraneliftCpu {
            shared,
            stack,
            gs,
            _own_met: own_met,
            spans: Vec::new(),
            part: None,
            has_faulted: false,
            steps: BTreeMap::new(),
            bodies: BTreeMap::new(),
            _signal_stack: signal_stack,
        })
    }

    fn frame(&mut self) -> &mut Frame {
        // SAFETY: the frame was initialized in `Stack::new` and belongs to this executor; the
        // reference ends before translated code, which works on the frame, is entered.
        unsafe { &mut *self.stack.frame() }
    }

    /// Runs translated code at `entry` until it leaves.
    fn enter(&mut self, entry: u64, thunk: u64) {
        let frame = self.stack.frame();
        self.frame().leave = leave::NONE;
        let gs = &raw mut *self.gs;
        // SAFETY: FSGSBASE was found usable when the engine was made; executors of this crate
        // alone use GS, and each sets it before it enters code. FS stays the host's, which the
        // fault handler finds in the area. `enter` follows the calling convention as declared
        // and returns when the code at `entry`, which is the engine's own, jumps to `leave`.
        unsafe {
            let fs: u64;
            asm!("rdfsbase {}", out(reg) fs, options(nostack, nomem, preserves_flags));
            (*gs).area.host_fs = fs;
            (*gs).area.fault_signal = 0;
            asm!("wrgsbase {}", in(reg) gs, options(nostack, preserves_flags));
            let enter: extern "sysv64" fn(*mut Frame, u64, u64) =
                std::mem::transmute(self.shared.routines.enter);
            enter(frame, entry, thunk);
        }
    }

    /// Puts the context into the frame. What it has of AVX-512 is lent until [`Self::store`].
    fn load(&mut self, context: &mut Context) {
        let frame = self.frame();
        let wide = context.wide.take();
        frame.context = context.clone();
        frame.context.wide = wide;
        // Translated code does not say so where it writes there.
        frame.context.high_in_use = 1;
        frame.lazy_tag = 0;
        frame.direction = u64::from(context.rflags & DF != 0);
        frame.identification = context.rflags & ID;
    }

    fn store(&mut self, context: &mut Context) {
        let frame = self.frame();
        frame.settle_flags();
        let wide = frame.context.wide.take();
        *context = frame.context.clone();
        context.wide = wide;
    }

    /// The fault that ended translated code, if one did; `rip` is where it was.
    fn fault(&mut self) -> Option<Fault> {
        let area = &self.gs.area;
        if area.fault_signal == 0 {
            return None;
        }
        let host = area.fault_rip;
        let (signal, address, cause) = (area.fault_signal, area.fault_address, area.fault_cause);
        let fault = Fault { signal, address, cause };
        let pc = self.shared.place(host).unwrap_or_else(|| {
            panic!("only guest instructions fault in translated code, not {host:#x}")
        });
        let behind = self.shared.accesses_behind(pc);
        let frame = self.frame();
        frame.context.rip = pc;
        frame.left += i64::from(behind);
        Some(fault)
    }

    fn exit(&mut self) -> Option<Exit> {
        if let Some(fault) = self.fault() {
            return Some(Exit::Fault(fault));
        }
        let shared = Arc::clone(&self.shared);
        let frame = self.frame();
        let rip = frame.context.rip;
        Some(match frame.leave {
            leave::LOOKUP if shared.graph.is_hidden(rip) => Exit::Unsupported(KEEPS_FLAGS),
            leave::LOOKUP | leave::LINK => return None,
            leave::HOOK => Exit::Hook,
            leave::SYSCALL => Exit::Syscall,
            leave::ACCESSES_FULL => Exit::AccessesFull,
            leave::INTERRUPTED => Exit::Interrupted,
            leave::ORDERED => {
                let address = frame.detail;
                let (kind, size) = shared.ordered(rip);
                Exit::Ordered { address, size, kind }
            }
            leave::SPANS => Exit::Spans,
            leave::ALONE => Exit::Alone,
            leave::EMULATE => Exit::Emulate(shared.emulated(frame.detail)),
            leave::UNSUPPORTED => Exit::Unsupported(shared.unsupported(rip)),
            leave::RAISE => Exit::Fault(Fault::by_signal(frame.detail as i32, rip)),
            other => panic!("translated code leaves for known reasons, not {other}"),
        })
    }

    /// Executes the instruction at `rip` with its memory operand there, which `detail` tells.
    fn step_as(&mut self, context: &mut Context, operand: Operand, detail: u64) -> Option<Fault> {
        let key = (context.rip, operand);
        let known = self.steps.get(&key).copied();
        let Some(thunk) = known.or_else(|| self.shared.step_thunk(key.0, key.1)) else {
            if let Some(done) = transfer::step(context) {
                return done.err();
            }
            return Some(Fault::illegal(context.rip));
        };
        self.steps.insert(key, thunk);
        self.has_faulted = false;
        self.load(context);
        let frame = self.frame();
        frame.flags_in = context.rflags & !DF | 0x202;
        frame.detail = detail;
        self.enter(self.shared.routines.step, thunk.host);
        if let Some(fault) = self.fault() {
            // Nothing of a faulting instruction's effects counts, and none reached the frame.
            context.wide = self.frame().context.wide.take();
            return Some(fault);
        }
        let frame = self.frame();
        frame.context.rflags = frame.flags_out;
        frame.identification = frame.flags_out & ID;
        frame.context.rip = thunk.next;
        frame.context.retired += thunk.weight;
        self.store(context);
        None
    }

    /// What the machine and the thread share of its watched accesses.
    fn met(&mut self) -> &LastMet {
        // SAFETY: it is there as long as the executor (`set_last_met`), or is the executor's own; and
        // nobody else uses it.
        unsafe { &*(self.frame().met as *const LastMet) }
    }

    /// How many accesses come before the thread's next event, if they are counted.
    fn counts(&mut self) -> Option<u64> {
        let counts = self.shared.watch.every && self.shared.several.load(Ordering::SeqCst) != 0;
        counts.then(|| self.met().unrecorded.load(Ordering::Relaxed))
    }

    /// Logs what an instruction has accessed that was executed by itself. (The buffer is empty when the
    /// machine has an instruction executed.)
    fn log(&self, context: &mut Context, pc: u64, spans: Vec<Span>) {
        let Some(instruction) = self.shared.graph.instruction(pc) else { return };
        for record in records(instruction, spans) {
            if context.access_cursor + size_of::<Access>() as u64 > context.access_limit {
                return;
            }
            // SAFETY: the machine's buffer, which has room up to its limit.
            unsafe { (context.access_cursor as *mut Access).write(record) };
            context.access_cursor += size_of::<Access>() as u64;
        }
    }

    /// Host address of the block at `pc` past its hook, if it is hooked.
    fn body(&mut self, pc: u64) -> Option<u64> {
        if let Some(&body) = self.bodies.get(&pc) {
            return Some(body);
        }
        let body = self.shared.body(pc)?;
        self.bodies.insert(pc, body);
        Some(body)
    }

    /// Host address for `pc`, compiled now if need be, unless the engine compiles on demand.
    fn target(&mut self, pc: u64) -> Option<u64> {
        match self.shared.table.get(pc) {
            0 if self.shared.on_demand => None,
            0 => self.shared.compile_at(pc, AGAIN),
            host => Some(host.into()),
        }
    }
}

impl Cpu for CraneliftCpu {
    fn run(&mut self, context: &mut Context, mode: Mode) -> Exit {
        if mode != Mode::Observed {
            return Exit::Unsupported("opaque mode");
        }
        let mut entry = match self.body(context.rip) {
            Some(body) => Some(body),
            None => self.target(context.rip),
        };
        self.load(context);
        let counts = self.counts();
        self.frame().left = counts.map_or(i64::MAX / 2, |left| left as i64);
        let exit = loop {
            let Some(host) = entry else { break Exit::UnknownTarget };
            self.enter(host, 0);
            match self.exit() {
                Some(exit) => break exit,
                None => {
                    let pc = self.frame().context.rip;
                    entry = self.target(pc);
                }
            }
        };
        self.has_faulted = matches!(exit, Exit::Fault(_));
        self.store(context);
        if counts.is_some() {
            let left = self.frame().left;
            self.met().unrecorded.store(left as u64, Ordering::Relaxed);
        }
        if exit == Exit::Spans {
            (self.spans, self.part) = self.shared.spans(context);
        }
        exit
    }

    fn shows_registers(&self) -> bool {
        !self.has_faulted
    }

    unsafe fn set_last_met(&mut self, met: *mut LastMet) {
        self.frame().met = met as u64;
    }

    fn step(&mut self, context: &mut Context) -> Option<Fault> {
        let (pc, part) = (context.rip, self.part.take());
        let logs = self.shared.watch.every && self.shared.watch.accesses;
        let spans = if logs { self.shared.spans(context).0 } else { Vec::new() };
        let Some(part) = part else {
            let fault = self.step_as(context, Operand::Own, 0);
            self.log(context, pc, spans);
            return fault;
        };
        part.begin(context);
        let before = context.gpr[reg::RCX];
        let fault = self.step_as(context, Operand::Own, 0);
        let elements = before - context.gpr[reg::RCX];
        if self.shared.watch.count == Count::Cycles {
            let size = self.shared.graph.instruction(pc).map_or(1, |i| i.memory_size().size());
            context.retired += elements * size as u64 / BYTES_A_QUARTER;
        }
        self.log(context, pc, spans);
        if part.end(context) && fault.is_none() {
            context.rip = pc;
        }
        fault
    }

    fn spans(&self) -> &[Span] {
        &self.spans
    }

    fn step_load(&mut self, context: &mut Context, value: u64) -> Option<Fault> {
        self.step_as(context, Operand::Detail, value)
    }

    fn operands(&mut self, context: &Context, most: u64) -> Vec<Span> {
        let instruction = self.shared.graph.instruction(context.rip);
        instruction.map_or(Vec::new(), |i| moved::operands(i, context, most))
    }

    fn step_moved(&mut self, context: &mut Context, most: u64, places: &[u64]) -> Option<Fault> {
        self.part = None;
        let (pc, i) = (context.rip, *self.shared.graph.instruction(context.rip)?);
        let logs = self.shared.watch.every && self.shared.watch.accesses;
        let spans = if logs { moved::operands(&i, context, most) } else { Vec::new() };
        let fault = moved::step(context, &i, (most, places), |context, operand| match operand {
            Some(at) => self.step_as(context, Operand::AtDetail, at),
            None => self.step_as(context, Operand::Own, 0),
        });
        self.log(context, pc, spans);
        fault
    }

    fn step_beside(&mut self, context: &mut Context, value: u64) -> Option<u64> {
        self.step_load(context, value).is_none().then(|| self.frame().detail)
    }
}

impl Drop for CraneliftCpu {
    fn drop(&mut self) {
        // SAFETY: as in `enter`; a GS that points here must not outlive the area.
        unsafe {
            let gs: u64;
            asm!("rdgsbase {}", out(reg) gs, options(nostack, nomem, preserves_flags));
            if gs == &raw const *self.gs as u64 {
                asm!("wrgsbase {}", in(reg) 0u64, options(nostack, preserves_flags));
            }
        }
    }
}

/// A step thunk and where it goes on.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) host: u64,
    pub(super) next: u64,
    /// What it counts as.
    pub(super) weight: u64,
}

impl Shared {
    fn ordered(&self, pc: u64) -> (OrderedKind, u8) {
        let block = self.graph.at(pc).expect("ordered instructions are blocks of their own");
        let block = &self.graph.blocks[block];
        match (block.site, block.term) {
            (Some(Site::Access(kind, size)), _) => (kind, size),
            (_, Term::Watched(kind, _)) => {
                (kind, self.graph.instructions(block)[0].memory_size().size() as u8)
            }
            _ => panic!("an ordered exit comes from such a block"),
        }
    }

    /// What the instruction that the thread is at accesses, and the part of it that is executed by
    /// itself.
    fn spans(&self, context: &Context) -> (Vec<Span>, Option<Part>) {
        let i = self.graph.instruction(context.rip).expect("the thread has come to it");
        spans_of(i, context)
    }

    /// How many accesses have been counted that come behind the one at `pc` in its block.
    fn accesses_behind(&self, pc: u64) -> u32 {
        let Some(at) = self.graph.blocks.partition_point(|block| block.pc <= pc).checked_sub(1)
        else {
            return 0;
        };
        let block = &self.graph.blocks[at];
        if block.accesses == 0 {
            return 0;
        }
        let behind = self.graph.instructions(block).iter().filter(|i| i.ip() > pc);
        behind.filter(|i| is_counted(i)).count() as u32
    }

    fn emulated(&self, pc: u64) -> refrain_vm::Emulate {
        let i = self.graph.instruction(pc).expect("the exit came from this instruction");
        emulated(i).expect("the exit came from such an instruction")
    }

    fn unsupported(&self, pc: u64) -> &'static str {
        self.graph.instruction(pc).map_or("instruction", super::graph::name)
    }

    fn step_thunk(&self, pc: u64, operand: Operand) -> Option<Step> {
        let i = self.graph.instruction(pc)?;
        let batch = Batch::new(i, self.graph.processor, &mut InstructionInfoFactory::new())?;
        if operand == Operand::Detail && !fits_register(i) {
            return None;
        }
        let batch = batch.with(operand);
        let host = self.lock().step(&batch)?;
        let weight = weigh(self.watch.count, slice::from_ref(i)) as u64;
        Some(Step { host, next: i.next_ip(), weight })
    }
}
