//! `refrain dump`: the events or the code of a trace as text, and what replaces the locks of a
//! transformed one.

use crate::args::Dump;
use crate::failure::Outcome;
use crate::report::topology as dot;
use anyhow::{Context, anyhow, bail};
use refrain_session::symbols::{Code, Symbols};
use refrain_session::trace_file::{self, advise};
use refrain_session::{Purpose, Session};
use refrain_trace::payload::SyscallRecord;
use refrain_trace::text::{EventLine, TransformedText};
use refrain_trace::{EventId, ThreadId, Trace};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write, stdout};
use std::ops::Range;

/// Bytes of one write of a system call that are shown, unless all are asked for.
const SHOWN: usize = 16;

/// Prints the events in the trace's text form, one per line, or the code.
pub(crate) fn run(args: &Dump, session: &Session) -> Outcome {
    let symbols = args.sites || args.instructions;
    session.confine(&Purpose::Read { trace: &args.trace, symbols })?;
    let trace = trace_file::read(&args.trace)?;
    let mut out = BufWriter::new(stdout().lock());
    if args.topology || args.dot {
        topology(&trace, args, &mut out)?;
    } else if args.instructions {
        super::disassembly::print(&trace, &mut out)?;
    } else {
        let range = args.events.clone().unwrap_or(0..u64::MAX);
        let mut symbols = args.sites.then(|| Symbols::new(trace.modules()));
        let threads = threads(&trace, &args.thread)?;
        for &thread in &threads {
            dump(&trace, thread, &range, args.full, symbols.as_mut(), &mut out).map_err(
                |error| match error.downcast() {
                    Ok(error) => advise(&args.trace, error).into(),
                    Err(error) => error,
                },
            )?;
        }
        let most = threads.iter().map(|&thread| trace.events_of(thread)).max().unwrap_or(0);
        if range.start >= most.max(1) {
            let first = range.start;
            Err(anyhow!("there is no e{first}: these threads have {most} events at most"))?;
        }
    }
    out.flush().context("cannot print")?;
    Ok(0)
}

/// What replaces the freed locks of a transformed trace, as text or as a graph.
fn topology(trace: &Trace, args: &Dump, out: &mut impl Write) -> anyhow::Result<()> {
    let shown = args.trace.display();
    let record = trace.transformed().map_err(|error| advise(&args.trace, error))?;
    let Some(record) = record else {
        bail!("{shown} is no transformed trace: refrain transform {shown} -o FILE makes one");
    };
    if args.topology {
        return write!(out, "{}", TransformedText(&record)).context("cannot print");
    }
    let mut symbols = args.sites.then(|| Symbols::new(trace.modules()));
    let mut sites = BTreeMap::new();
    if let Some(symbols) = symbols.as_mut() {
        for section in dot::drawn(&record) {
            let section = &record.sections[section as usize];
            let place = (section.thread, section.acquire);
            let mut cursor = trace.cursor_at(section.thread(), EventId(section.acquire.into()));
            if let Some(event) = cursor.next()? {
                sites.insert(place, symbols.place(Code::After(event.pc)).short());
            }
        }
    }
    out.write_all(dot::render(&record, &sites).as_bytes()).context("cannot print")
}

/// The threads asked for, all by default.
fn threads(trace: &Trace, wanted: &[ThreadId]) -> anyhow::Result<Vec<ThreadId>> {
    trace_file::must_have(trace, wanted)?;
    let all = (0..trace.threads()).map(ThreadId);
    Ok(all.filter(|thread| wanted.is_empty() || wanted.contains(thread)).collect())
}

/// Prints one thread's events.
fn dump(
    trace: &Trace,
    thread: ThreadId,
    range: &Range<u64>,
    full: bool,
    mut symbols: Option<&mut Symbols>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    // One event earlier, whose end the first line's time is relative to.
    let mut cursor = trace.cursor_at(thread, EventId(range.start.saturating_sub(1)));
    let mut previous_end = 0;
    while cursor.position().0 < range.end {
        let id = cursor.position();
        let Some(event) = cursor.next()? else { break };
        if id.0 >= range.start {
            let mut payload = cursor.payload()?;
            let mut comments = Vec::new();
            if let Some(record) = payload.as_mut().filter(|_| !full) {
                comments.extend(shorten(record));
            }
            if let Some(symbols) = symbols.as_deref_mut() {
                comments.push(symbols.place(Code::of(&event)).short());
            }
            let payload = payload.as_ref();
            let line = EventLine { thread, id, event: &event, payload, previous_end };
            write!(out, "{line}").context("cannot print")?;
            for (index, comment) in comments.iter().enumerate() {
                write!(out, "{}{comment}", if index == 0 { " # " } else { "; " })
                    .context("cannot print")?;
            }
            writeln!(out).context("cannot print")?;
        }
        previous_end = event.end;
    }
    Ok(())
}

/// Cuts long writes; says so if there were any.
fn shorten(record: &mut SyscallRecord) -> Option<String> {
    let mut dropped = 0;
    for write in &mut record.writes {
        dropped += write.bytes.len().saturating_sub(SHOWN);
        write.bytes.truncate(SHOWN);
    }
    (dropped > 0).then(|| format!("{dropped} bytes not shown, --full shows them"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trace::OwnedTrace;

    fn trace() -> Trace {
        let text = "
            t0 start
            t0 mutex.lock obj=0x1000 pc=0x10001000 ticket=0 at=+50+3
            t0 mutex.unlock obj=0x1000 ticket=1 at=+10
            t0 syscall nr=0 value=0x20 args=0,0x3000,0x20 \
                write=0x3000:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
            t0 exit
            t1 start
            end exited=0
        ";
        let owned: OwnedTrace = text.replace("\\\n", "").parse().expect("the text is a trace");
        Trace::from_bytes(owned.to_bytes().expect("can be written")).expect("can be read")
    }

    fn dumped(range: Range<u64>, full: bool) -> String {
        let mut out = Vec::new();
        dump(&trace(), ThreadId(0), &range, full, None, &mut out).expect("can be printed");
        String::from_utf8(out).expect("is text")
    }

    #[test]
    fn events_are_lines() {
        let text = dumped(1..3, false);
        assert_eq!(
            text,
            "t0 e1 mutex.lock obj=0x1000 pc=0x10001000 ticket=0 at=+50+3\n\
             t0 e2 mutex.unlock obj=0x1000 ticket=1 at=+10\n"
        );
        assert!(dumped(5..9, false).is_empty());
    }

    #[test]
    fn long_writes_are_shortened_unless_asked_for() {
        assert!(dumped(3..4, false).ends_with("0f # 16 bytes not shown, --full shows them\n"));
        assert!(dumped(3..4, true).ends_with("1f\n"));
    }

    #[test]
    fn a_missing_thread_is_named() {
        assert_eq!(threads(&trace(), &[]).expect("all"), [ThreadId(0), ThreadId(1)]);
        let error = threads(&trace(), &[ThreadId(7)]).expect_err("is missing");
        assert!(error.to_string().contains("no t7"), "{error}");
    }
}
