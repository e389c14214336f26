//! A scripted engine that records: it writes its script when it knows where the guest lies.

use super::{Script, Step, Thread};
use refrain_trace::CodeBlock;
use refrain_vm::{
    Context, Cpu, Engine, EngineError, Exit, Fault, Finding, Interrupt, LockRole, Mode, ModuleCode,
    ReadAtomics, ReadFunctions, Recall, RecordingCpu, RecordingEngine, reg,
};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Where the main thread begins, its stack pointer there, and the hooked functions.
pub(crate) type Write = fn(pc: u64, sp: u64, hooks: &BTreeSet<u64>) -> Script;

/// The engine.
pub(crate) struct Recorder(Arc<Shared>);

struct Shared {
    write: Write,
    hooks: Mutex<BTreeSet<u64>>,
    script: OnceLock<Arc<Script>>,
}

impl Recorder {
    /// That follows the script that is written when the main thread begins.
    pub(crate) fn new(write: Write) -> Recorder {
        Recorder(Arc::new(Shared { write, hooks: Mutex::default(), script: OnceLock::new() }))
    }

    /// The script, once it is written.
    pub(crate) fn script(&self) -> Script {
        Script::clone(self.0.script.get().expect("the guest has begun"))
    }
}

impl Engine for Recorder {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn hook(&self, pc: u64) {
        self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner).insert(pc);
    }

    fn forget(&self, _: Range<u64>) {}

    fn attach(&self) -> Result<Box<dyn Cpu>, EngineError> {
        unreachable!("this engine records")
    }
}

impl RecordingEngine for Recorder {
    fn functions(&self, _: &ModuleCode<'_>, _: ReadFunctions) {}

    fn atomics(&self, _: Range<u64>, _: u64, _: ReadAtomics) {}

    fn recall(&self, _: Recall) {}

    fn findings(&self) -> Option<Vec<Finding>> {
        None
    }

    fn keep_code(&self, _: u64, _: Option<&std::fs::File>) {}

    fn kept_code(&self) -> Option<Vec<Vec<u8>>> {
        None
    }

    fn lock_role(&self, _: u64, _: LockRole) {}

    fn watch(&self, _: &[u64]) {}

    fn attach_recording(&self) -> Result<Box<dyn RecordingCpu>, EngineError> {
        Ok(Box::new(RecordedThread(self.0.clone())))
    }

    fn count_from_now_on(&self) {}

    fn order_every_access(&self) {
        unreachable!("the recording's order stays")
    }

    fn fork(&self, _: &mut dyn FnMut() -> bool) {
        unreachable!("scripts start no processes")
    }

    fn take_blocks(&self) -> Vec<CodeBlock> {
        Vec::new()
    }
}

struct RecordedThread(Arc<Shared>);

impl RecordedThread {
    fn thread(&self, context: &Context) -> Thread {
        let script = self.0.script.get_or_init(|| {
            let hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
            let mut script = (self.0.write)(context.rip, context.gpr[reg::RSP], &hooks);
            // A replay hooks them all.
            for &pc in &*hooks {
                script.entry(pc).or_insert(Step::Return);
            }
            Arc::new(script)
        });
        Thread { script: script.clone(), pace: 0 }
    }
}

impl Cpu for RecordedThread {
    fn run(&mut self, context: &mut Context, mode: Mode) -> Exit {
        self.thread(context).run(context, mode)
    }

    fn step(&mut self, context: &mut Context) -> Option<Fault> {
        self.thread(context).step(context)
    }

    fn step_load(&mut self, context: &mut Context, value: u64) -> Option<Fault> {
        self.thread(context).step_load(context, value)
    }

    fn step_beside(&mut self, context: &mut Context, value: u64) -> Option<u64> {
        self.thread(context).step_beside(context, value)
    }
}

impl RecordingCpu for RecordedThread {
    fn interrupt(&self) -> Arc<dyn Interrupt> {
        Arc::new(Nobody)
    }

    fn finds(&self, pc: u64) -> Option<usize> {
        let step = self.0.script.get().and_then(|script| script.get(&pc));
        matches!(step, Some(Step::Overtaken { .. })).then_some(reg::RAX)
    }
}

/// Scripts get no signals, so that nobody has to be fetched.
struct Nobody;

impl Interrupt for Nobody {
    fn interrupt(&self) {}
}
