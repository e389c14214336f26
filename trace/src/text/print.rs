//! Printing the text form.
//!
//! Records are taken apart field by field, so that a new field is a compile error here and not a
//! silent loss.

use crate::container::MAX_THREADS;
use crate::payload::{Effect, SyscallRecord, Window};
use crate::{
    CausalEdge, CodeBlock, Ending, Entry, Event, EventId, EventKind, Footer, FreedSection,
    HAS_PAYLOAD, Header, Latencies, Locking, Machine, MappedFile, Mapping, Module, NO_TICKET,
    Order, OwnedTrace, ThreadId, Transformed, UNFINISHED, order,
};
use std::fmt::{Formatter, Result, Write};

/// Prints a whole trace.
pub fn print(trace: &OwnedTrace, f: &mut Formatter<'_>) -> Result {
    let OwnedTrace { header, modules, blobs, files, blocks, threads, transformed, footer } = trace;
    print_header(header, f)?;
    for module in modules {
        print_module(module, f)?;
    }
    for (id, bytes) in blobs {
        if bytes.is_empty() {
            writeln!(f, "{id}")?;
        }
        for line in bytes.chunks(32) {
            writeln!(f, "{id} {}", Hex(line))?;
        }
    }
    for (id, (MappedFile { path, len, modified_ns }, pages)) in files {
        writeln!(f, "file {id} {path:?} len={len} modified_ns={modified_ns}")?;
        for (offset, bytes) in pages {
            for line in bytes.chunks(32) {
                writeln!(f, "page {id} {offset:#x} {}", Hex(line))?;
            }
        }
    }
    for (n, CodeBlock { pc, code, loads }) in blocks.iter().enumerate() {
        write!(f, "blk{n} {pc:#x} {}", Hex(code))?;
        for offset in loads {
            write!(f, " load={offset}")?;
        }
        writeln!(f)?;
    }
    for (t, events) in threads.iter().enumerate() {
        let mut previous_end = 0;
        for (e, owned) in events.iter().enumerate() {
            let (thread, id) = (ThreadId(t as u32), EventId(e as u64));
            let (event, payload) = (&owned.event, owned.payload.as_ref());
            writeln!(f, "{}", EventLine { thread, id, event, payload, previous_end })?;
            previous_end = event.end;
        }
    }
    if let Some(transformed) = transformed {
        write!(f, "{}", TransformedText(transformed))?;
    }
    let counts: Vec<u64> = threads.iter().map(|events| events.len() as u64).collect();
    footer.as_ref().map_or(Ok(()), |footer| print_footer(footer, &counts, f))
}

fn print_header(header: &Header, f: &mut Formatter<'_>) -> Result {
    let Header {
        argv,
        program,
        cwd,
        recorder,
        machine: Machine { cpu, cores, kernel, latencies, locking },
        processor,
        tsc_hz,
        tsc_start,
        started_unix_ns,
        entry: Entry { rip, rsp, brk },
        mappings,
        order,
    } = header;
    f.write_str("argv")?;
    for arg in argv {
        write!(f, " {arg:?}")?;
    }
    writeln!(f, "\nprogram {program:?}\ncwd {cwd:?}\nrecorder {recorder:?}")?;
    write!(f, "machine cpu={cpu:?} cores={cores} kernel={kernel:?}")?;
    if let Some(Latencies { handoff_ns, wake_ns }) = latencies {
        write!(f, " handoff_ns={handoff_ns} wake_ns={wake_ns}")?;
    }
    if let Some(Locking { native_ns, held_ns, free_ns }) = locking {
        write!(f, " native_ns={native_ns} held_ns={held_ns} free_ns={free_ns}")?;
    }
    writeln!(f)?;
    if !processor.is_empty() {
        f.write_str("processor")?;
        for feature in processor {
            write!(f, " {feature:?}")?;
        }
        writeln!(f)?;
    }
    if *order != Order::default() {
        writeln!(f, "order {}", order.name())?;
    }
    writeln!(f, "clock hz={tsc_hz} start={tsc_start} unix_ns={started_unix_ns}")?;
    writeln!(f, "entry rip={rip:#x} rsp={rsp:#x} brk={brk:#x}")?;
    for Mapping { address, len, prot, content, offset } in mappings {
        write!(f, "map {address:#x} len={len:#x} prot={prot}")?;
        if let Some(blob) = content {
            write!(f, " content={blob}")?;
        }
        if *offset != 0 {
            write!(f, " offset={offset:#x}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn print_module(module: &Module, f: &mut Formatter<'_>) -> Result {
    let Module { path, build_id, bias, start, end, hooks, constant } = module;
    write!(f, "module {path:?} bias={bias:#x} start={start:#x} end={end:#x}")?;
    if let Some(id) = build_id {
        write!(f, " build_id={id:?}")?;
    }
    for (address, name) in hooks {
        write!(f, " hook={address:#x}:{name:?}")?;
    }
    for (start, end) in constant {
        write!(f, " constant={start:#x}:{end:#x}")?;
    }
    writeln!(f)
}

fn print_footer(footer: &Footer, counts: &[u64], f: &mut Formatter<'_>) -> Result {
    let Footer { ending, tsc_end, events, cpu_ns, output_bytes } = footer;
    match ending {
        Ending::Exited(status) => write!(f, "end exited={status}")?,
        Ending::Signaled(signal) => write!(f, "end signaled={signal}")?,
        Ending::Stopped(signal) => write!(f, "end stopped={signal}")?,
        Ending::Lost => f.write_str("end lost=0")?,
    }
    write!(f, " tsc={tsc_end} cpu_ns={cpu_ns} output={output_bytes}")?;
    if events != counts {
        write!(f, " events=")?;
        list(events, f)?;
    }
    writeln!(f)
}

/// Displays a transformation in the text form.
#[derive(Clone, Copy, Debug)]
pub struct TransformedText<'a>(pub &'a Transformed);

impl std::fmt::Display for TransformedText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Transformed { locks, sets, sections, edges, state } = self.0;
        f.write_str("transformed")?;
        for lock in locks {
            write!(f, " {lock:#x}")?;
        }
        writeln!(f)?;
        for set in sets {
            f.write_str("bytes")?;
            for (start, end) in set {
                write!(f, " {start:#x}:{end:#x}")?;
            }
            writeln!(f)?;
        }
        let locksets = self.0.sources();
        for (n, section) in sections.iter().enumerate() {
            let &FreedSection { lock, acquire, release, reads, writes, shared, .. } = section;
            write!(f, "section cs{n} lock={lock} thread={} events={acquire}", section.thread())?;
            write!(f, ":{release}")?;
            if (reads, writes) != (0, 0) {
                write!(f, " reads={reads} writes={writes}")?;
            }
            f.write_str(if shared { " shared" } else { "" })?;
            f.write_str(if section.after_wait { " after_wait" } else { "" })?;
            for (at, lock) in self.0.lockset(n as u32, &locksets).iter().enumerate() {
                write!(f, "{}{lock}", if at == 0 { " # " } else { " " })?;
            }
            writeln!(f)?;
        }
        for CausalEdge { target, source } in edges {
            writeln!(f, "edge cs{source} cs{target}")?;
        }
        if let Some(state) = state {
            writeln!(f, "state {state:#x}")?;
        }
        Ok(())
    }
}

fn list(numbers: &[u64], f: &mut Formatter<'_>) -> Result {
    for (i, n) in numbers.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        write!(f, "{comma}{n}")?;
    }
    Ok(())
}

/// Displays one event as a line of the text form, without the newline.
#[derive(Clone, Copy, Debug)]
pub struct EventLine<'a> {
    /// Its thread.
    pub thread: ThreadId,
    /// Its id.
    pub id: EventId,
    /// The event, of a known kind.
    pub event: &'a Event,
    /// Its payload.
    pub payload: Option<&'a SyscallRecord>,
    /// When the thread's previous event ended, 0 for the first.
    pub previous_end: u64,
}

impl std::fmt::Display for EventLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let event = self.event;
        let kind = event.kind();
        let &Event { code: _, flags, nr, result, pc, sp, object, ticket, value, aux, .. } = event;
        write!(f, "{} {} {}", self.thread, self.id, kind.name())?;
        print_object(self.thread, kind, object, f)?;
        let mut hex = |name: &str, value: u64| {
            if value == 0 { Ok(()) } else { write!(f, " {name}={value:#x}") }
        };
        hex("pc", pc)?;
        hex("sp", sp)?;
        if flags & NO_TICKET != 0 {
            f.write_str(" noticket")?;
        }
        if event.has_ticket() || ticket != 0 {
            write!(f, " ticket={ticket}")?;
        }
        if nr != 0 {
            write!(f, " nr={nr}")?;
        }
        if result != 0 {
            write!(f, " result={result}")?;
        }
        if value != 0 {
            write!(f, " value={value:#x}")?;
        }
        let counted = kind == EventKind::CondWaitEnd || kind == EventKind::Syscall;
        if aux != 0 || counted {
            write!(f, " aux={aux}")?;
        }
        self.print_times(f)?;
        if flags & UNFINISHED != 0 {
            f.write_str(" unfinished")?;
        }
        if flags & !(HAS_PAYLOAD | NO_TICKET | UNFINISHED) != 0 {
            write!(f, " flags={:#x}", flags & !(HAS_PAYLOAD | NO_TICKET | UNFINISHED))?;
        }
        self.payload.map_or(Ok(()), |record| print_payload(record, f))
    }
}

impl EventLine<'_> {
    fn print_times(&self, f: &mut Formatter<'_>) -> Result {
        let &Event { begin, end, overhead, busy, unrecorded, .. } = self.event;
        if (begin, end) != (self.previous_end, self.previous_end) {
            match begin.checked_sub(self.previous_end) {
                Some(wait) => write!(f, " at=+{wait}")?,
                None => write!(f, " at={begin}")?,
            }
            match end.checked_sub(begin) {
                Some(0) => {}
                Some(span) => write!(f, "+{span}")?,
                None => write!(f, "..{end}")?,
            }
        }
        if overhead != 0 {
            write!(f, " overhead={overhead}")?;
        }
        if busy != 0 {
            write!(f, " busy={busy}")?;
        }
        if unrecorded != 0 {
            write!(f, " unrecorded={unrecorded}")?;
        }
        Ok(())
    }
}

fn print_object(thread: ThreadId, kind: EventKind, object: u64, f: &mut Formatter<'_>) -> Result {
    if object == default_object(thread, kind) {
        return Ok(());
    }
    let other = object.checked_sub(1).and_then(|t| u32::try_from(t).ok());
    match other {
        Some(t) if kind <= EventKind::ThreadDetach && t < MAX_THREADS => write!(f, " obj=t{t}"),
        _ => write!(f, " obj={object:#x}"),
    }
}

/// The object of an event whose line names none.
pub(super) fn default_object(thread: ThreadId, kind: EventKind) -> u64 {
    match kind {
        EventKind::ThreadStart | EventKind::ThreadExit => order::thread_object(thread),
        EventKind::ThreadCreate => order::THREADS,
        _ => 0,
    }
}

fn print_payload(record: &SyscallRecord, f: &mut Formatter<'_>) -> Result {
    if *record == SyscallRecord::default() {
        return f.write_str(" payload");
    }
    let SyscallRecord { args, writes, effect } = record;
    let used = args.iter().rposition(|&a| a != 0).map_or(0, |last| last + 1);
    for (i, arg) in args[..used].iter().enumerate() {
        let before = if i == 0 { " args=" } else { "," };
        write!(f, "{before}{arg:#x}")?;
    }
    for write in writes {
        write!(f, " write={:#x}:{}", write.address, Hex(&write.bytes))?;
    }
    match effect {
        Effect::None => Ok(()),
        Effect::Output { fd, len, crc, raced } => {
            write!(f, " output={fd},{len},{crc:#x}")?;
            if raced.is_empty() { Ok(()) } else { write!(f, ",{}", Hex(raced)) }
        }
        Effect::Memory { content: None } => f.write_str(" memory"),
        Effect::Memory { content: Some(Window { blob, offset, len }) } => {
            write!(f, " memory={blob},{offset:#x},{len:#x}")
        }
        Effect::Clone { child } => write!(f, " clone={child}"),
        Effect::Exec { image } => write!(f, " exec={image}"),
    }
}

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for byte in self.0 {
            f.write_char(DIGITS[usize::from(byte >> 4)].into())?;
            f.write_char(DIGITS[usize::from(byte & 15)].into())?;
        }
        Ok(())
    }
}
