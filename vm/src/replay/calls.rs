//! System calls of a replayed guest: results and effects from the trace.

use super::gate::Condition;
use super::mapped_files::store;
use super::objects::Operation;
use super::outcome::DivergenceKind;
use super::thread::{GuestThread, Halt, spawn};
use crate::context::Translating;
use crate::context::reg::*;
use crate::file_maps::Part;
use crate::host::{self, Guest};
use crate::layout::PAGE;
use crate::memory::MapRequest;
use crate::syscall::{self, Action, Call, MachineCall, Sent};
use crate::{Error, digest, memory};
use refrain_trace::payload::{Effect, SyscallRecord, Window, Write};
use refrain_trace::{BlobId, Event, EventKind, Executed, ThreadId, UNFINISHED, order};
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Files in memory that the trace has no number for have this bit, and the number of their content.
const UNNUMBERED: u64 = 1 << 32;

impl GuestThread {
    /// The guest has executed `syscall`.
    pub(crate) fn syscall(&mut self) -> Result<(), Halt> {
        let came = Instant::now();
        let nr = self.context.gpr[RAX];
        if nr == libc::SYS_sched_yield as u64 {
            host::yield_now();
            self.context.finish_syscall(0);
            self.yields += 1;
            return Ok(());
        }
        let args = self.context.syscall_args();
        let Ok(call) = syscall::resolve(nr, args) else {
            // The recording refused it, and ended.
            return Err(Halt::Done);
        };
        if call.ends_creation() {
            self.leave_creation();
        }
        let actual = Event {
            nr: nr as u16,
            object: digest::of_call(&call),
            ..self.here(EventKind::Syscall)
        };
        let mut turns = Vec::new();
        let done = self.perform_call(&call, &actual, came, &mut turns);
        if matches!(done, Err(Halt::Done)) {
            // The program ended before the call did, and others wait for its turns.
            self.end_turns(&mut turns);
        }
        done
    }

    /// Performs a call and its events; `turns` are those that the thread has meanwhile.
    fn perform_call(
        &mut self,
        call: &Call,
        actual: &Event,
        came: Instant,
        turns: &mut Vec<(usize, u64)>,
    ) -> Result<(), Halt> {
        let sent = self.read_for_call(turns, |event| {
            let sent = call.sent(event.value as i64, &Guest)?;
            Some((digest::of_ranges(&sent.ranges), sent))
        })?;
        if !turns.is_empty() && self.cursor.peek()?.is_none() {
            return Err(Halt::Done);
        }
        self.operation(call)?;
        let event = self.next(EventKind::Syscall)?;
        let record = self.record()?;
        self.compare_call(&event, actual, &record, call)?;
        if let Effect::Memory { content } = record.effect {
            self.memory_call((&event, came), call, (content, &record.writes))?;
            self.end_turns(turns);
            return Ok(());
        }
        self.end_turns(turns);
        // Others may learn of what it has done before it returns.
        let is_done_early = call.action() == Action::Machine(MachineCall::IoSubmit);
        if is_done_early {
            self.put_all(&record.writes)?;
        }
        self.enter(&event)?;
        if event.flags & UNFINISHED != 0 {
            self.tally.events += 1;
            return Err(Halt::Done);
        }
        self.leave(&event)?;
        if call.changes_file() {
            record.writes.iter().try_for_each(|write| self.change_file(write))?;
        } else if !is_done_early {
            self.put_all(&record.writes)?;
        }
        if let Effect::Exec { image } = record.effect {
            self.execute(image)?;
            self.times(|times| times.last(&event, came));
            return self.note_event(&event);
        }
        let result = event.value as i64;
        if let Effect::Output { fd, len, crc, raced } = &record.effect {
            self.check_output(sent, (*fd, *len, *crc), raced)?;
        }
        self.note_kernel(call, result, &record);
        self.context.finish_syscall(result);
        if result == syscall::BEGIN_AGAIN {
            self.context.begin_syscall_again(event.nr);
        }
        if let Effect::Clone { child } = record.effect {
            self.machine.engine.several_threads();
            self.end_creation();
            self.clone_thread(child, &event, &record)?;
        }
        self.machine_effects(call, &event)?;
        self.times(|times| times.last(&event, came));
        self.note_event(&event)
    }

    /// Does what the kernel did to a word before the call's event, if it has an event of its own.
    fn operation(&mut self, call: &Call) -> Result<(), Halt> {
        let Some(operation) = call.operation() else { return Ok(()) };
        self.await_former_owners()?;
        if self.cursor.peek()?.is_none_or(|event| event.kind() != EventKind::Atomic) {
            return Ok(());
        }
        let word = operation.word;
        let event = self.begin_write(word, 4, EventKind::Atomic)?;
        self.put(word, &operation.apply(event.value as u32).to_le_bytes())?;
        self.end_write(&event)
    }

    fn put_all(&mut self, writes: &[Write]) -> Result<(), Halt> {
        writes.iter().try_for_each(|write| self.put(write.address, &write.bytes))
    }

    /// Has memory show what the call has made of a file.
    fn change_file(&mut self, write: &Write) -> Result<(), Halt> {
        let Write { address, bytes } = write;
        let end = address.saturating_add(bytes.len() as u64);
        if !self.machine.common.meets(&(*address..end))
            && self.machine.shared.change(*address, bytes)
        {
            return Ok(());
        }
        self.put(*address, bytes)
    }

    /// Stores what an event of the trace left in guest memory, and nowhere else.
    pub(crate) fn put(&mut self, address: u64, bytes: &[u8]) -> Result<(), Halt> {
        let len = bytes.len() as u64;
        if self.machine.common.meets(&(address..address.saturating_add(len))) {
            return self.put_beside_common(address, bytes);
        }
        if self.machine.shared.write(address, bytes) {
            return Ok(());
        }
        let is_guests = memory::guest_may_map(&(address..address.saturating_add(len)));
        if is_guests && Guest.read(address, bytes.len()).is_some() {
            // A file that the program has changed is shown where it may only read.
            return self.store_content(&Write { address, bytes: bytes.to_vec() });
        }
        let expected = format!("{len} bytes of memory at {address:#x}");
        let actual = if is_guests { "none that can be written" } else { "none of the guest's" };
        self.diverge(DivergenceKind::Arguments, expected, actual.into())
    }

    /// The same where some of it is in common with other processes: what the memory shows there is
    /// recorded when the guest looks.
    fn put_beside_common(&mut self, address: u64, bytes: &[u8]) -> Result<(), Halt> {
        let mut at = 0;
        while at < bytes.len() {
            let here = address + at as u64;
            let room = (PAGE - here % PAGE).min((bytes.len() - at) as u64);
            let part = &bytes[at..at + room as usize];
            if !self.machine.common.meets(&(here..here + room)) {
                self.put(here, part)?;
            }
            at += part.len();
        }
        Ok(())
    }

    fn compare_call(
        &mut self,
        event: &Event,
        actual: &Event,
        record: &SyscallRecord,
        call: &Call,
    ) -> Result<(), Halt> {
        if event.nr == actual.nr && event.object == actual.object {
            return self.compare(event, actual);
        }
        self.tally.digests += 1;
        let name = |nr: u16| syscall::name(u64::from(nr)).unwrap_or("?");
        let list = |args: &[u64]| {
            let args: Vec<String> = args.iter().map(|a| format!("{a:#x}")).collect();
            args.join(", ")
        };
        // What lay in other registers is recorded, too.
        let recorded = syscall::resolve(event.nr.into(), record.args).ok();
        let recorded = recorded.map_or(record.args, |call| *call.arguments());
        let same = (event.nr, &recorded) == (actual.nr, call.arguments());
        let reads = if same { ", reading other bytes" } else { "" };
        let expected = format!("{}({}) at {:#x}", name(event.nr), list(&recorded), event.pc);
        let actual =
            format!("{}({}) at {:#x}{reads}", name(actual.nr), list(call.arguments()), actual.pc);
        self.diverge(DivergenceKind::Arguments, expected, actual)
    }

    /// The entry of a call has its place among the entries of all threads, to observers too.
    fn enter(&mut self, event: &Event) -> Result<(), Halt> {
        if !event.has_ticket() {
            self.note_entry(event);
        } else {
            self.await_turn(order::SYSCALL_SLOT, event.ticket)?;
            self.note_entry(event);
            self.machine.gate.advance(order::SYSCALL_SLOT, event.ticket);
            // Its return may wait for the entries of others, which come later in the sequence.
            self.leave_place();
        }
        Ok(())
    }

    /// It returns once the entries that it may have depended on have happened.
    fn leave(&mut self, event: &Event) -> Result<(), Halt> {
        // Where the order is decided anew, sleep must not bring the recorded one back.
        let sleeps = matches!(i64::from(event.nr), libc::SYS_nanosleep | libc::SYS_clock_nanosleep);
        if !event.has_ticket() || sleeps && self.machine.gate.is_live() {
            return Ok(());
        }
        self.wait(Condition::Reached { slot: order::SYSCALL_SLOT, count: event.aux })
    }

    fn check_output(
        &mut self,
        sent: Option<(u32, Sent)>,
        (fd, len, crc): (i32, u64, u32),
        raced: &[u8],
    ) -> Result<(), Halt> {
        let actual = sent.as_ref().map(|(digest, _)| *digest);
        if actual != Some(crc) && !raced.is_empty() && crc32fast::hash(raced) == crc {
            // Known to race: sent as it was recorded, as a watched load reads what was recorded.
            self.machine.options.output.iter().for_each(|output| output(fd, raced));
            return Ok(());
        }
        self.tally.digests += 1;
        if actual != Some(crc) {
            let expected = format!("{len} bytes with CRC {crc:#010x} to descriptor {fd}");
            let actual = format!("CRC {:#010x}", actual.unwrap_or(0));
            return self.diverge(DivergenceKind::Output, expected, actual);
        }
        self.tally.equal += 1;
        self.tally.output_bytes += len;
        if let Some(output) = &self.machine.options.output {
            for range in sent.into_iter().flat_map(|(_, sent)| sent.ranges) {
                output(fd, &Guest.read_prefix(range.start, (range.end - range.start) as usize));
            }
        }
        Ok(())
    }

    /// Another program takes the place of this one, which has no other threads by now.
    fn execute(&mut self, image: BlobId) -> Result<(), Halt> {
        let executed = Executed::from_bytes(&self.machine.trace.blob(image)?).ok_or_else(|| {
            Error::Unsupported("a trace whose executed program is damaged".into())
        })?;
        self.machine.await_others();
        memory::unmap_all();
        self.machine.mapped_files.replaced(&(0..u64::MAX));
        self.machine.common.forget();
        let mut space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        *space = memory::AddressSpace::new();
        space.begin_heap(executed.entry.brk);
        drop(space);
        super::restore_all(&self.machine, &executed.mappings)?;
        self.machine.initial_sp.store(executed.entry.rsp, Ordering::SeqCst);
        self.context = self.context.at_entry(&executed.entry);
        host::fp_reset();
        self.fast_path.pages.forget();
        self.clear_at_exit = 0;
        self.creating = None;
        self.handlers_in_bodies.clear();
        Ok(())
    }

    fn clone_thread(
        &mut self,
        child: ThreadId,
        event: &Event,
        record: &SyscallRecord,
    ) -> Result<(), Halt> {
        if self.machine.gate.is_live() {
            self.ask_for(Operation::Create { thread: child }, event, self.event_id())?;
        }
        let [flags, stack, _, child_tid, tls, _] = record.args;
        let mut context = self.context.clone();
        context.finish_syscall(0);
        (context.retired, context.translating) = (0, Translating::default());
        if stack != 0 {
            context.gpr[RSP] = stack;
        }
        if flags & libc::CLONE_SETTLS as u64 != 0 {
            context.fs_base = tls;
        }
        let clear = flags & libc::CLONE_CHILD_CLEARTID as u64 != 0;
        spawn(&self.machine, child, context, if clear { child_tid } else { 0 })?;
        Ok(())
    }

    /// What a call does to the machine itself.
    fn machine_effects(&mut self, call: &Call, event: &Event) -> Result<(), Halt> {
        const ARCH_SET_FS: u64 = 0x1002;
        let Action::Machine(what) = call.action() else {
            return Ok(());
        };
        let [a, b, _, _, _, _] = *call.arguments();
        match what {
            MachineCall::ArchPrctl if a == ARCH_SET_FS && event.value == 0 => {
                self.context.fs_base = b;
            }
            MachineCall::SetTidAddress => self.clear_at_exit = a,
            MachineCall::SigReturn => self.handler_returned()?,
            MachineCall::Exit => {
                self.note_event(event)?;
                self.exit_thread()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn exit_thread(&mut self) -> Result<(), Halt> {
        let is_owed = |event: Event| event.kind() == EventKind::MutexUnlock;
        // A robust mutex that the thread still holds.
        while self.behind_handovers()?.is_some_and(is_owed) {
            let event = self.next(EventKind::MutexUnlock)?;
            self.compare(&event, &Event { object: event.object, ..self.here(event.kind()) })?;
            self.take_turn(&event)?;
            self.finish_event(&event)?;
        }
        // As in the kernel, an address without memory is nobody's trouble.
        let word = Some(self.clear_at_exit).filter(|&word| word != 0);
        let clear = || word.into_iter().for_each(|word| _ = Guest.store(word, &[0; 4]));
        let clears_in_turn = self.machine.trace.header().order.is_of_every_access();
        if clears_in_turn {
            self.access_at_end(clear)?;
        }
        let event = self.next(EventKind::ThreadExit)?;
        self.perform(&event)?;
        if self.machine.gate.is_live() {
            self.ask_for(Operation::Exit, &event, self.event_id())?;
        }
        if !clears_in_turn {
            clear();
        }
        self.finish_event(&event)?;
        Err(Halt::Done)
    }

    /// Repeats a change of the address space, at the recorded address.
    fn memory_call(
        &mut self,
        (event, came): (&Event, Instant),
        call: &Call,
        (content, writes): (Option<Window>, &[Write]),
    ) -> Result<(), Halt> {
        let slot = order::MEMORY_SLOT;
        self.fast_path.pages.forget();
        self.await_turn(slot, event.ticket)?;
        let result = event.value as i64;
        let replaced = self.replaced_by(call);
        let sets_up = call.action() == Action::Machine(MachineCall::IoSetup);
        let repeated = match sets_up {
            true => self.set_up(result, writes)?,
            false => self.repeat(call, (result, event.result as u64), content)?,
        };
        for write in writes.iter().filter(|_| !sets_up) {
            self.have_grown(call, result, write)?;
            self.store_content(write)?;
        }
        self.note_code(call, result, replaced);
        if repeated != result {
            let name = call.name();
            let expected = format!("{name} = {result:#x}");
            let actual = format!("{name} = {repeated:#x}");
            return self.diverge(DivergenceKind::Arguments, expected, actual);
        }
        self.context.finish_syscall(result);
        self.times(|times| times.last(event, came));
        self.finish_event_of(event, slot)
    }

    /// A private mapping of a file has become longer: a replay has nothing behind what it showed before.
    fn have_grown(&mut self, call: &Call, result: i64, shown: &Write) -> Result<(), Halt> {
        let [_, old, new, ..] = *call.arguments();
        let grown = (result as u64).saturating_add(memory::page_up(old));
        let len = memory::page_up(new).saturating_sub(memory::page_up(old));
        let is_growth = call.action() == Action::Machine(MachineCall::Mremap);
        if !is_growth || shown.address != grown || self.machine.shared.shows(grown) {
            return Ok(());
        }
        self.map_again(grown, len, (libc::PROT_READ | libc::PROT_WRITE, 0), None)
    }

    /// Repeats `io_setup`: a page, whose address the program is told.
    fn set_up(&mut self, result: i64, writes: &[Write]) -> Result<i64, Halt> {
        for Write { address, bytes } in writes {
            let name = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            self.machine.shared.cut(&(name..name.saturating_add(PAGE)));
            self.map_again(name, PAGE, (prot, 0), None)?;
            let mut space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
            space.note(name..name + PAGE, prot);
            drop(space);
            self.put(*address, bytes)?;
        }
        Ok(result)
    }

    /// The range of code that a call is about to take away or to replace.
    fn replaced_by(&self, call: &Call) -> Option<Range<u64>> {
        let space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        match call.action() {
            Action::Machine(what) => space.replaced_by(what, *call.arguments()),
            _ => None,
        }
    }

    /// Tells the engine what has become of code by a call that has been repeated.
    fn note_code(&self, call: &Call, result: i64, replaced: Option<Range<u64>>) {
        let Action::Machine(what) = call.action() else { return };
        let space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        if replaced.is_some() || memory::may_allow_execution(what, *call.arguments()) {
            self.machine.engine.executable(space.executable());
        }
        if result < 0 {
            return;
        }
        if let Some(range) = space.generated_by(what, *call.arguments(), result) {
            self.machine.engine.generated(range);
        }
        if let Some(range) = replaced {
            self.machine.engine.forget(range);
        }
    }

    /// `file` is the number of the file that a mapping shows to all, if it does.
    fn repeat(
        &self,
        call: &Call,
        (result, file): (i64, u64),
        content: Option<Window>,
    ) -> Result<i64, Halt> {
        let shared = &self.machine.shared;
        let [address, len, third, fourth, _, sixth] = *call.arguments();
        let mut space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        let Action::Machine(what) = call.action() else {
            return Ok(result);
        };
        // A call that fails at a hole has had its effect before the hole.
        let reached_a_hole = result == memory::OUT_OF_MEMORY
            && matches!(what, MachineCall::Mprotect | MachineCall::Madvise);
        if result < 0 && !reached_a_hole {
            return Ok(result);
        }
        let files = &self.machine.mapped_files;
        let range = address..address.saturating_add(memory::page_up(len));
        // A private mapping of a file that ends before the mapping does.
        let behind_end = content.filter(|window| {
            what == MachineCall::Mmap && memory::page_up(window.len) < memory::page_up(len)
        });
        let file = match (file, behind_end) {
            (0, Some(Window { blob, .. })) => UNNUMBERED | u64::from(blob.0),
            _ => file,
        };
        Ok(match what {
            MachineCall::Mmap | MachineCall::Shmat if file != 0 => {
                let (len, prot, offset) = match what {
                    MachineCall::Mmap => (memory::page_up(len), third as i32, sixth),
                    _ => {
                        let prot = memory::prot_of_segment(third);
                        (content.map_or(0, |window| window.len), prot, 0)
                    }
                };
                let start = result as u64;
                let range = start..start.saturating_add(len);
                if !memory::guest_may_map(&range) {
                    return Err(outside(start).into());
                }
                files.replaced(&range);
                let is_private = what == MachineCall::Mmap && fourth as i32 & libc::MAP_SHARED == 0;
                let part = Part { start, end: range.end, file, offset, writable: !is_private };
                let shown = content.map_or(len, |window| window.len);
                match content {
                    Some(Window { blob, .. }) if self.machine.trace.file(blob)?.is_some() => {
                        shared.map(part, prot, &[], shown)?;
                        files.show_pages(
                            &self.machine.trace,
                            blob,
                            part,
                            prot,
                            |offset, bytes| shared.fill(file, offset, bytes),
                        )?;
                    }
                    _ => {
                        let bytes = content.map(|window| self.window(&window)).transpose()?;
                        let bytes = bytes.unwrap_or_default();
                        let bytes = &bytes[..bytes.len().min(len as usize)];
                        shared.map(part, prot, bytes, shown)?;
                    }
                }
                // A file that is shared may show code that the guest generates.
                space.note(range.clone(), prot);
                space
                    .note_content(range, if is_private { fourth as i32 } else { libc::MAP_SHARED });
                result
            }
            MachineCall::Shmdt => {
                let shown = shared.at(address).map(|part| part.start..part.end);
                match shown.or_else(|| self.machine.common.begins(address)) {
                    Some(range) => {
                        shared.cut(&range);
                        space.unmap(range.start, range.end - range.start)
                    }
                    None => result,
                }
            }
            MachineCall::Mmap => {
                shared.cut(&(result as u64..(result as u64).saturating_add(memory::page_up(len))));
                self.map_again(result as u64, len, (third as i32, fourth as i32), content)?;
                let range = result as u64..(result as u64).saturating_add(memory::page_up(len));
                space.note(range.clone(), third as i32);
                space.note_content(range, call.arguments()[3] as i32);
                result
            }
            MachineCall::Munmap => {
                files.replaced(&range);
                shared.cut(&range);
                space.unmap(address, len)
            }
            MachineCall::Mprotect => {
                let prot = third as i32;
                let result = match self.parts_for_kernel(*call.arguments()) {
                    Some(parts) => space.protect_parts(&parts, prot),
                    None => space.protect(address, len, prot),
                };
                files.hide(&range, third as i32);
                result
            }
            MachineCall::Mremap => {
                let (len, new_len) = (memory::page_up(len), memory::page_up(third));
                let to = result as u64..(result as u64).saturating_add(new_len);
                let repeated = files.moved(range.clone(), to.clone(), || {
                    space.remap_to([address, len, new_len, fourth], result as u64)
                });
                let kept = fourth as i32 & libc::MREMAP_DONTUNMAP != 0 || len == 0;
                shared.remap(range, to, kept);
                repeated
            }
            MachineCall::Brk if result as u64 == address => space.brk(address),
            // Refused, by a limit that a replay does not have; or the program asks where the break is.
            MachineCall::Brk => space.program_break() as i64,
            MachineCall::Madvise => {
                space.advise_again(range, third);
                result
            }
            _ => result,
        })
    }

    /// What a window shows.
    fn window(&self, window: &Window) -> Result<Vec<u8>, Halt> {
        let blob = self.machine.trace.blob(window.blob)?;
        let end = window.offset.saturating_add(window.len).min(blob.len() as u64);
        Ok(blob.get(window.offset as usize..end as usize).unwrap_or(&[]).to_vec())
    }

    /// Stores what a mapping shows in a place, whether the guest may write there or not.
    fn store_content(&self, write: &Write) -> Result<(), Halt> {
        let Write { address, bytes } = write;
        if self.machine.shared.change(*address, bytes) {
            return Ok(());
        }
        let (start, end) = (memory::page_down(*address), *address + bytes.len() as u64);
        let range = start..memory::page_up(end);
        if !memory::guest_may_map(&range) {
            return Err(outside(start).into());
        }
        let len = range.end - range.start;
        let mut space = memory::AddressSpace::new();
        space.protect(start, len, libc::PROT_READ | libc::PROT_WRITE);
        store(*address, bytes.len() as u64, bytes)?;
        space.protect(start, len, libc::PROT_READ);
        Ok(())
    }

    /// Maps private memory with the recorded content; files are not needed any more.
    fn map_again(
        &self,
        address: u64,
        len: u64,
        (prot, flags): (i32, i32),
        content: Option<Window>,
    ) -> Result<(), Halt> {
        let len = memory::page_up(len);
        if !memory::guest_may_map(&(address..address.saturating_add(len))) {
            return Err(outside(address).into());
        }
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        memory::map_fixed(MapRequest {
            address,
            len,
            prot: if content.is_some() { writable } else { prot },
            flags: libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_NORESERVE
                | flags & libc::MAP_GROWSDOWN,
            fd: -1,
            offset: 0,
        })
        .map_err(Error::host("mapping guest memory"))?;
        let range = address..address + len;
        self.machine.mapped_files.replaced(&range);
        let Some(window) = content else {
            return Ok(());
        };
        let window = Window { len: window.len.min(len), ..window };
        let (files, trace) = (&self.machine.mapped_files, &self.machine.trace);
        if !files.map(address, prot, &window)? && !files.store(trace, address, prot, &window)? {
            store(address, len, &self.window(&window)?)?;
        }
        memory::AddressSpace::new().protect(address, len, prot);
        self.machine.mapped_files.hide(&range, prot);
        Ok(())
    }
}

fn outside(address: u64) -> Error {
    Error::Unsupported(format!("a trace that maps {address:#x}, outside the guest's address space"))
}
