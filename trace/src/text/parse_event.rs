//! Parsing events, and the tickets and times that a line leaves out.

use super::lex::{Result, field, hex, id, list, number, pair, shortened, signed, unknown};
use super::print::default_object;
use crate::order::{self, SYSCALL_SLOT};
use crate::payload::{Effect, SyscallRecord, Window, Write};
use crate::{BlobId, Event, EventKind, NO_TICKET, OwnedEvent, ThreadId, UNFINISHED};
use std::collections::BTreeMap;

/// What lines so far say about tickets.
#[derive(Default)]
pub(super) struct EventParser {
    /// By slot: the ticket that comes next.
    next: BTreeMap<usize, u64>,
}

/// What a line says; the rest is filled in at its end, when the event's slot is known.
#[derive(Default)]
struct Line {
    event: Event,
    payload: Option<SyscallRecord>,
    ticket: Option<u64>,
    aux: Option<u64>,
}

impl EventParser {
    /// Parses what follows the thread's name; `before` are the thread's events so far.
    pub(super) fn parse(
        &mut self,
        thread: ThreadId,
        before: &[OwnedEvent],
        words: &[&str],
    ) -> Result<OwnedEvent> {
        let (kind, fields) = kind(words, before.len() as u64)?;
        let previous_end = before.last().map_or(0, |last| last.event.end);
        let mut line = Line::default();
        line.event.code = kind as u8;
        line.event.object = default_object(thread, kind);
        (line.event.begin, line.event.end) = (previous_end, previous_end);
        for word in fields {
            line.field(word, previous_end)?;
        }
        Ok(self.complete(line))
    }

    fn complete(&mut self, line: Line) -> OwnedEvent {
        let Line { mut event, payload, ticket, aux } = line;
        event.ticket = ticket.unwrap_or_else(|| match event.kind() {
            EventKind::SyncLoad | EventKind::Takeover if event.has_ticket() => {
                self.next(order::slot(event.object))
            }
            _ => order::slot_of(&event, payload.as_ref()).map_or(0, |slot| self.next(slot)),
        });
        if let Some(slot) = order::slot_of(&event, payload.as_ref()) {
            let next = event.ticket.saturating_add(1).max(self.next(slot));
            self.next.insert(slot, next);
        }
        event.aux = aux.unwrap_or_else(|| match event.kind() {
            EventKind::CondWaitEnd => self.next(order::slot(event.value)),
            EventKind::Syscall if event.has_ticket() => self.next(SYSCALL_SLOT),
            _ => 0,
        });
        OwnedEvent::new(event, payload)
    }

    fn next(&self, slot: usize) -> u64 {
        *self.next.get(&slot).unwrap_or(&0)
    }
}

/// The kind, after an optional event id, and the words behind it.
fn kind<'a, 'b>(words: &'a [&'b str], next: u64) -> Result<(EventKind, &'a [&'b str])> {
    let (mut name, mut rest) = words.split_first().ok_or("what did the thread do?")?;
    if let Ok(given) = id::<u64>(name, "e") {
        if given != next {
            return Err(format!("e{given} out of order, e{next} comes next"));
        }
        (name, rest) = rest.split_first().ok_or("what did the thread do?")?;
    }
    let kind = EventKind::ALL.iter().find(|k| k.name() == *name);
    Ok((*kind.ok_or_else(|| format!("unknown event {:?}", shortened(name)))?, rest))
}

impl Line {
    fn field(&mut self, word: &str, previous_end: u64) -> Result<()> {
        match word {
            "noticket" => self.event.flags |= NO_TICKET,
            "unfinished" => self.event.flags |= UNFINISHED,
            "payload" => drop(self.payload()),
            "memory" => self.payload().effect = Effect::Memory { content: None },
            _ => {
                let (name, value) = field(word)?;
                match name {
                    "args" | "write" | "output" | "memory" | "clone" | "exec" => {
                        self.effect(name, value)?
                    }
                    _ => self.number(name, value, previous_end)?,
                }
            }
        }
        Ok(())
    }

    fn number(&mut self, name: &str, value: &str, previous_end: u64) -> Result<()> {
        let event = &mut self.event;
        match name {
            "obj" => event.object = object(value)?,
            "pc" => event.pc = number(value)?,
            "sp" => event.sp = number(value)?,
            "ticket" => self.ticket = Some(number(value)?),
            "nr" => event.nr = number(value)?,
            "result" => event.result = signed(value)?,
            "value" => event.value = number(value)?,
            "aux" => self.aux = Some(number(value)?),
            "overhead" => event.overhead = number(value)?,
            "busy" => event.busy = number(value)?,
            "unrecorded" => event.unrecorded = number(value)?,
            "at" => (event.begin, event.end) = times(value, previous_end)?,
            "flags" => event.flags |= number::<u8>(value)?,
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    fn payload(&mut self) -> &mut SyscallRecord {
        self.payload.get_or_insert_default()
    }

    fn effect(&mut self, name: &str, value: &str) -> Result<()> {
        let record = self.payload();
        match name {
            "args" => {
                let args: Vec<u64> = list(value)?;
                let used = record.args.get_mut(..args.len()).ok_or("more than six arguments")?;
                used.copy_from_slice(&args);
            }
            "write" => {
                let (address, bytes) = pair(value)?;
                record.writes.push(Write { address: number(address)?, bytes: hex(bytes)? });
            }
            "output" => {
                let (numbers, raced) = match value.match_indices(',').nth(2) {
                    Some((at, _)) => (&value[..at], hex(&value[at + 1..])?),
                    None => (value, Vec::new()),
                };
                let [fd, len, crc] = three(numbers)?;
                let (fd, len, crc) = (signed(fd)?, number(len)?, number(crc)?);
                record.effect = Effect::Output { fd, len, crc, raced };
            }
            "memory" => {
                let [blob, offset, len] = three(value)?;
                let blob = BlobId(id(blob, "blob")?);
                let window = Window { blob, offset: number(offset)?, len: number(len)? };
                record.effect = Effect::Memory { content: Some(window) };
            }
            "exec" => record.effect = Effect::Exec { image: BlobId(id(value, "blob")?) },
            _ => record.effect = Effect::Clone { child: ThreadId(id(value, "t")?) },
        }
        Ok(())
    }
}

fn three(value: &str) -> Result<[&str; 3]> {
    let parts: Vec<&str> = value.split(',').collect();
    parts.try_into().map_err(|_| format!("{:?} is not of the form a,b,c", shortened(value)))
}

fn object(value: &str) -> Result<u64> {
    match id(value, "t") {
        Ok(thread) => Ok(order::thread_object(ThreadId(thread))),
        Err(_) => number(value),
    }
}

/// `BEGIN`, `BEGIN..END` or `BEGIN+SPAN`, where `BEGIN` may be `+N`.
fn times(value: &str, previous_end: u64) -> Result<(u64, u64)> {
    let late = |t: Option<u64>| t.ok_or_else(|| format!("{value} is beyond the end of time"));
    let (relative, rest) = match value.strip_prefix('+') {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let begin = |word: &str| {
        let n = number(word)?;
        if relative { late(previous_end.checked_add(n)) } else { Ok(n) }
    };
    if let Some((first, end)) = rest.split_once("..") {
        Ok((begin(first)?, number(end)?))
    } else if let Some((first, span)) = rest.split_once('+') {
        let begin = begin(first)?;
        Ok((begin, late(begin.checked_add(number(span)?))?))
    } else {
        let begin = begin(rest)?;
        Ok((begin, begin))
    }
}
