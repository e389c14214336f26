//! The calls of asynchronous input and output, as [`super::aio`] explains them.

use super::aio::{Context, Contexts, create, destroy, wait_for};
use super::calls::{EBADF, EINVAL, Pending, words};
use super::coherence::Before;
use super::notice::Notice;
use super::signal_files::vectors;
use super::thread::GuestThread;
use crate::host::{self, Guest};
use crate::layout::PAGE;
use crate::memory::{AddressSpace, MapRequest, Purpose};
use crate::{hidden, syscall};
use refrain_trace::payload::{Effect, SyscallRecord, Write};
use refrain_trace::{Event, order};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const EAGAIN: i64 = 11;
const EFAULT: i64 = 14;
const EINTR: i64 = 4;

/// Between two looks for what other threads have submitted meanwhile.
static PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// An operation that is submitted (`struct iocb`).
struct Operation {
    code: u16,
    fd: i32,
    buffer: u64,
    len: u64,
    offset: u64,
}

impl Operation {
    const READ: u16 = 0;
    const WRITE: u16 = 1;
    const POLL: u16 = 5;
    const READ_VECTORS: u16 = 7;
    const WRITE_VECTORS: u16 = 8;

    fn at(address: u64) -> Option<Operation> {
        let [_, _, third, buffer, len, offset, _, _] = Guest.words::<8>(address)?;
        Some(Operation { code: third as u16, fd: (third >> 32) as i32, buffer, len, offset })
    }

    /// Where the kernel has put what it has read.
    fn written(&self, result: u64) -> Vec<Range<u64>> {
        let parts = match self.code {
            Operation::READ => vec![(self.buffer, self.len)],
            Operation::READ_VECTORS => vectors(self.buffer, self.len).unwrap_or_default(),
            _ => Vec::new(),
        };
        let mut rest = result;
        let part = |(at, len): (u64, u64)| {
            let len = len.min(rest);
            rest -= len;
            at..at + len
        };
        parts.into_iter().map(part).collect()
    }

    /// The system call that changes the file in the same way, if the operation writes.
    fn as_write(&self) -> Option<syscall::Call> {
        let writes = [Operation::WRITE, Operation::WRITE_VECTORS].contains(&self.code);
        let args = [self.fd as u64, self.buffer, self.len, self.offset, 0, 0];
        writes.then(|| syscall::resolve(libc::SYS_pwrite64 as u64, args).expect("it has a row"))
    }
}

impl GuestThread {
    fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.machine.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `io_setup(number, context)`: a new page, and its address at `context`.
    pub(crate) fn io_setup(&mut self, pending: Pending) {
        let args = *pending.call.arguments();
        let machine = self.machine.clone();
        let mut space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        self.fast_path.pages.forget();
        let (result, writes) = match self.new_context(&mut space, args) {
            Ok(name) => (0, words(args[1], &[name])),
            Err(result) => (result, Vec::new()),
        };
        for write in &writes {
            Guest.write(write.address, &write.bytes);
        }
        let effect = Effect::Memory { content: None };
        let record = SyscallRecord { args, writes, effect };
        self.context.finish_syscall(result);
        self.append_made(Some(&record), || Event {
            ticket: machine.tickets.take(order::MEMORY_SLOT),
            value: result as u64,
            end: host::ticks(),
            ..pending.event
        });
        drop(space);
        let written: Vec<_> = record.writes.iter().map(|it| it.address..it.address + 8).collect();
        self.access_for_kernel(&written, true, || ());
    }

    fn new_context(
        &self,
        space: &mut AddressSpace,
        [number, at, ..]: [u64; 6],
    ) -> Result<u64, i64> {
        if Guest.word(at).ok_or(-EFAULT)? != 0 {
            return Err(-EINVAL);
        }
        let kernel = create(number)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = MapRequest { address: 0, len: PAGE, prot, flags, fd: -1, offset: 0 };
        let name = space.map(page, Purpose::Data);
        if name < 0 {
            destroy(kernel);
            return Err(name);
        }
        let context = Context { idle: vec![kernel], done: VecDeque::new() };
        self.contexts().0.insert(name as u64, context);
        Ok(name as u64)
    }

    /// `io_destroy(context)`. The page stays: nobody else needs it.
    pub(crate) fn io_destroy(&mut self, mut pending: Pending) {
        self.enter(&mut pending);
        let context = self.contexts().0.remove(&pending.args[0]);
        let result = context.map_or(-EINVAL, Context::destroy);
        self.leave(&mut pending);
        self.conclude(pending, result, Vec::new(), Effect::None);
    }

    /// Another program takes the place of this one.
    pub(crate) fn forget_contexts(&self) {
        for context in std::mem::take(&mut self.contexts().0).into_values() {
            context.destroy();
        }
    }

    /// `io_submit(context, number, operations)`.
    pub(crate) fn io_submit(&mut self, mut pending: Pending) {
        let [name, number, list, ..] = *pending.call.arguments();
        self.access_for_kernel(&pending.call.reads(&Guest), false, || ());
        self.enter(&mut pending);
        let mut writes = Vec::new();
        let is_known = (number as i64) >= 0 && self.contexts().0.contains_key(&name);
        let mut result = if is_known { 0 } else { -EINVAL };
        while (0..number as i64).contains(&result) {
            let at = list.wrapping_add(8 * result as u64);
            match self.submit(name, at, &mut writes) {
                Ok(()) => result += 1,
                Err(error) if result == 0 => result = error,
                Err(_) => break,
            }
        }
        self.leave(&mut pending);
        self.conclude(pending, result, writes, Effect::None);
    }

    /// Submits the operation whose address is at `at`, and waits until it is done.
    fn submit(&mut self, name: u64, at: u64, writes: &mut Vec<Write>) -> Result<(), i64> {
        let block = Guest.word(at).ok_or(-EFAULT)?;
        let operation = Operation::at(block).ok_or(-EFAULT)?;
        if hidden::is_own(operation.fd) {
            return Err(-EBADF);
        }
        if operation.code == Operation::POLL {
            // `io_submit` would have to wait for an event that may never come.
            self.machine.notice(Notice::Withheld("io_submit of IOCB_CMD_POLL"));
            return Err(-EINVAL);
        }
        let before = operation.as_write().and_then(|call| self.before_change(&call));
        let kernel = self.contexts().take(name)?;
        let submit = syscall::resolve(libc::SYS_io_submit as u64, [kernel, 1, at, 0, 0, 0]);
        let done = match self.issue(&submit.expect("it has a row"), libc::SYS_io_submit as u16) {
            1 => wait_for(kernel),
            result if result < 0 => Err(result),
            _ => Err(-EAGAIN),
        };
        if let Ok(done) = done {
            writes.extend(self.written(&operation, block, before, done[2] as i64));
        }
        // From now on others may learn of it, and change the buffer.
        self.contexts().give_back(name, kernel, done.ok());
        done.map(drop)
    }

    /// What the kernel has written for the operation at `block`: to its buffers, to the block, and to the memory
    /// that shows the file, which was as `before` says.
    fn written(
        &self,
        operation: &Operation,
        block: u64,
        before: Option<Before>,
        result: i64,
    ) -> Vec<Write> {
        let key = block + 8;
        let read = u64::try_from(result).map_or(Vec::new(), |it| operation.written(it));
        let mut writes: Vec<_> = std::iter::once(key..key + 4)
            .chain(read)
            .map(|range| Write {
                address: range.start,
                bytes: Guest.read_prefix(range.start, (range.end - range.start) as usize),
            })
            .collect();
        if let Some(call) = operation.as_write() {
            writes.extend(self.shown_changes(&call, result, before));
        }
        writes
    }

    /// `io_getevents(context, at least, at most, events, timeout)`.
    pub(crate) fn io_events(&mut self, mut pending: Pending) {
        let [name, least, most, events, timeout, _] = *pending.call.arguments();
        self.enter(&mut pending);
        let outcome = match (timeout, Guest.words::<2>(timeout)) {
            _ if most as i64 <= 0 || least > most => Err(-EINVAL),
            (0, _) => self.wait_for_events(name, least, None),
            (_, None) => Err(-EFAULT),
            (_, Some([seconds, nanoseconds])) => {
                let time = Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds);
                self.wait_for_events(name, least, Some(time))
            }
        };
        let (result, writes) = match outcome {
            Err(result) => (result, Vec::new()),
            Ok(()) => self.take_events(name, most as usize, events),
        };
        self.leave(&mut pending);
        self.conclude(pending, result, writes, Effect::None);
    }

    /// Until at least so many operations are done, or the time is over.
    fn wait_for_events(
        &mut self,
        name: u64,
        least: u64,
        time: Option<Duration>,
    ) -> Result<(), i64> {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            let done = self.contexts().0.get(&name).ok_or(-EINVAL)?.done.len();
            if done as u64 >= least || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            let args = [&raw const PAUSE as u64, 0, 0, 0, 0, 0];
            let pause = syscall::resolve(libc::SYS_nanosleep as u64, args).expect("it has a row");
            if self.issue(&pause, libc::SYS_nanosleep as u16) < 0 {
                return if done == 0 { Err(-EINTR) } else { Ok(()) };
            }
        }
    }

    fn take_events(&self, name: u64, most: usize, at: u64) -> (i64, Vec<Write>) {
        let mut contexts = self.contexts();
        let Some(context) = contexts.0.get_mut(&name) else { return (-EINVAL, Vec::new()) };
        let count = context.done.len().min(most);
        let told: Vec<u64> = context.done.iter().take(count).flatten().copied().collect();
        let writes = words(at, &told);
        let stored = writes.iter().all(|write| Guest.write(write.address, &write.bytes));
        if !stored || writes.is_empty() {
            return (-EFAULT, Vec::new());
        }
        context.done.drain(..count);
        (count as i64, writes)
    }
}
