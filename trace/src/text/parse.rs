//! Parsing the text form.

use super::lex::{
    self, Result, field, hex, id, list, number, pair, shortened, signed, string, unknown,
};
use super::parse_event::EventParser;
use crate::container::{MAX_MODULES, MAX_THREADS, PAGE};
use crate::{
    BlobId, CausalEdge, CodeBlock, Ending, Error, Footer, FreedSection, Header, Latencies, Locking,
    MappedFile, Mapping, Module, Order, OwnedTrace, Transformed,
};

/// Parses a trace. Errors name the line.
pub fn parse(text: &str) -> crate::Result<OwnedTrace> {
    let mut parser = Parser::default();
    for (n, line) in text.lines().enumerate() {
        parser.line(line).map_err(|message| Error::Text { line: n + 1, message })?;
    }
    Ok(parser.finish())
}

#[derive(Default)]
struct Parser {
    trace: OwnedTrace,
    events: EventParser,
    /// The footer stands without `events=`.
    count_events: bool,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<()> {
        let words = lex::words(line)?;
        let Some((&first, rest)) = words.split_first() else { return Ok(()) };
        let header = &mut self.trace.header;
        match first {
            "argv" => header.argv = rest.iter().map(|w| string(w)).collect::<Result<_>>()?,
            "program" => header.program = string(single(rest)?)?,
            "cwd" => header.cwd = string(single(rest)?)?,
            "recorder" => header.recorder = string(single(rest)?)?,
            "processor" => {
                header.processor = rest.iter().map(|w| string(w)).collect::<Result<_>>()?
            }
            "order" => {
                let name = single(rest)?;
                header.order =
                    Order::from_name(name).ok_or_else(|| format!("`{name}` is no order"))?;
            }
            "machine" | "clock" | "entry" => self.header_fields(rest)?,
            "map" => self.mapping(rest)?,
            "module" => self.module(rest)?,
            "end" => self.footer(rest)?,
            "file" => self.file(rest)?,
            "page" => self.page(rest)?,
            "transformed" => self.transformed().locks.extend(numbers(rest)?),
            "bytes" => {
                let pairs = rest.iter().map(|word| range(word)).collect::<Result<_>>()?;
                self.transformed().sets.push(pairs);
            }
            "section" => self.section(rest)?,
            "state" => self.transformed().state = Some(number(single(rest)?)?),
            "edge" => {
                let [source, target] = rest else { return Err("an edge has two ends".into()) };
                let edge = CausalEdge { target: id(target, "cs")?, source: id(source, "cs")? };
                self.transformed().edges.push(edge);
            }
            _ if first.starts_with("blob") => self.blob(first, rest)?,
            _ if first.starts_with("blk") => self.block(first, rest)?,
            _ if first.starts_with('t') => self.event(first, rest)?,
            _ => return Err(format!("unknown statement {:?}", shortened(first))),
        }
        Ok(())
    }

    fn header_fields(&mut self, words: &[&str]) -> Result<()> {
        let header = &mut self.trace.header;
        for word in words {
            let (name, value) = field(word)?;
            match name {
                "cpu" => header.machine.cpu = string(value)?,
                "cores" => header.machine.cores = number(value)?,
                "kernel" => header.machine.kernel = string(value)?,
                "handoff_ns" => latencies(header).handoff_ns = number(value)?,
                "wake_ns" => latencies(header).wake_ns = number(value)?,
                "native_ns" => locking(header).native_ns = number(value)?,
                "held_ns" => locking(header).held_ns = number(value)?,
                "free_ns" => locking(header).free_ns = number(value)?,
                "hz" => header.tsc_hz = number(value)?,
                "start" => header.tsc_start = number(value)?,
                "unix_ns" => header.started_unix_ns = number(value)?,
                "rip" => header.entry.rip = number(value)?,
                "rsp" => header.entry.rsp = number(value)?,
                "brk" => header.entry.brk = number(value)?,
                _ => return Err(unknown(name)),
            }
        }
        Ok(())
    }

    fn mapping(&mut self, words: &[&str]) -> Result<()> {
        let (address, rest) = words.split_first().ok_or("a mapping needs an address")?;
        let mut mapping = Mapping { address: number(address)?, ..Mapping::default() };
        for word in rest {
            let (name, value) = field(word)?;
            match name {
                "len" => mapping.len = number(value)?,
                "prot" => mapping.prot = number(value)?,
                "offset" => mapping.offset = number(value)?,
                "content" => mapping.content = Some(BlobId(id(value, "blob")?)),
                _ => return Err(unknown(name)),
            }
        }
        self.trace.header.mappings.push(mapping);
        Ok(())
    }

    fn module(&mut self, words: &[&str]) -> Result<()> {
        if self.trace.modules.len() == MAX_MODULES {
            return Err(format!("more than {MAX_MODULES} modules"));
        }
        let (path, rest) = words.split_first().ok_or("a module needs a path")?;
        let mut module = Module { path: string(path)?, ..Module::default() };
        for word in rest {
            let (name, value) = field(word)?;
            match name {
                "build_id" => module.build_id = Some(string(value)?),
                "bias" => module.bias = number(value)?,
                "start" => module.start = number(value)?,
                "end" => module.end = number(value)?,
                "hook" => {
                    let (address, name) = pair(value)?;
                    module.hooks.push((number(address)?, string(name)?));
                }
                "constant" => {
                    let (start, end) = pair(value)?;
                    module.constant.push((number(start)?, number(end)?));
                }
                _ => return Err(unknown(name)),
            }
        }
        self.trace.modules.push(module);
        Ok(())
    }

    fn blob(&mut self, name: &str, words: &[&str]) -> Result<()> {
        let bytes = self.trace.blobs.entry(BlobId(id(name, "blob")?)).or_default();
        for word in words {
            bytes.append(&mut hex(word)?);
        }
        Ok(())
    }

    fn file(&mut self, words: &[&str]) -> Result<()> {
        let [name, path, rest @ ..] = words else {
            return Err("a file needs a blob and a path".into());
        };
        let mut file = MappedFile { path: string(path)?, ..MappedFile::default() };
        for word in rest {
            let (name, value) = field(word)?;
            match name {
                "len" => file.len = number(value)?,
                "modified_ns" => file.modified_ns = number(value)?,
                _ => return Err(unknown(name)),
            }
        }
        self.trace.files.entry(BlobId(id(name, "blob")?)).or_default().0 = file;
        Ok(())
    }

    fn page(&mut self, words: &[&str]) -> Result<()> {
        let [name, offset, bytes] = words else {
            return Err("a page needs a blob, an offset and bytes".into());
        };
        let offset: u64 = number(offset)?;
        if !offset.is_multiple_of(PAGE as u64) {
            return Err(format!("a page cannot begin at {offset:#x}"));
        }
        let file = self.trace.files.entry(BlobId(id(name, "blob")?)).or_default();
        file.1.entry(offset).or_default().append(&mut hex(bytes)?);
        Ok(())
    }

    fn block(&mut self, name: &str, words: &[&str]) -> Result<()> {
        let next = self.trace.blocks.len();
        if id::<usize>(name, "blk")? != next {
            return Err(format!("{} out of order, blk{next} comes next", shortened(name)));
        }
        let (pc, code) = words.split_first().ok_or("a block needs an address")?;
        let is_load = |word: &&&str| word.starts_with("load=");
        let (code, loads) =
            code.split_at(code.len() - code.iter().rev().take_while(is_load).count());
        let code = if code.is_empty() { Vec::new() } else { hex(single(code)?)? };
        let loads =
            loads.iter().map(|word| number(&word["load=".len()..])).collect::<Result<_>>()?;
        self.trace.blocks.push(CodeBlock { pc: number(pc)?, code, loads });
        Ok(())
    }

    fn event(&mut self, thread: &str, words: &[&str]) -> Result<()> {
        let thread: u32 = id(thread, "t")?;
        if thread >= MAX_THREADS {
            return Err(format!("t{thread} is over the limit of {MAX_THREADS} threads"));
        }
        let index = thread as usize;
        if self.trace.threads.len() <= index {
            self.trace.threads.resize(index + 1, Vec::new());
        }
        let events = &mut self.trace.threads[index];
        let event = self.events.parse(crate::ThreadId(thread), events, words)?;
        events.push(event);
        Ok(())
    }

    fn transformed(&mut self) -> &mut Transformed {
        self.trace.transformed.get_or_insert_default()
    }

    fn section(&mut self, words: &[&str]) -> Result<()> {
        let next = self.transformed().sections.len();
        let (name, rest) = words.split_first().ok_or("a section needs a number")?;
        if id::<usize>(name, "cs")? != next {
            return Err(format!("{} out of order, cs{next} comes next", shortened(name)));
        }
        let mut section = FreedSection::default();
        for word in rest {
            match *word {
                "shared" => section.shared = true,
                "after_wait" => section.after_wait = true,
                _ => {
                    let (name, value) = field(word)?;
                    match name {
                        "lock" => section.lock = number(value)?,
                        "thread" => section.thread = id(value, "t")?,
                        "reads" => section.reads = number(value)?,
                        "writes" => section.writes = number(value)?,
                        "events" => {
                            let (acquire, release) = pair(value)?;
                            (section.acquire, section.release) =
                                (number(acquire)?, number(release)?);
                        }
                        _ => return Err(unknown(name)),
                    }
                }
            }
        }
        self.transformed().sections.push(section);
        Ok(())
    }

    fn footer(&mut self, words: &[&str]) -> Result<()> {
        if self.trace.footer.is_some() {
            return Err("the trace has ended already".into());
        }
        let mut ending = None;
        let mut footer = Footer {
            ending: Ending::Exited(0),
            tsc_end: 0,
            events: Vec::new(),
            cpu_ns: 0,
            output_bytes: 0,
        };
        self.count_events = true;
        for word in words {
            let (name, value) = field(word)?;
            match name {
                "exited" => ending = Some(Ending::Exited(signed(value)?)),
                "signaled" => ending = Some(Ending::Signaled(signed(value)?)),
                "stopped" => ending = Some(Ending::Stopped(signed(value)?)),
                "lost" => ending = Some(Ending::Lost),
                "tsc" => footer.tsc_end = number(value)?,
                "cpu_ns" => footer.cpu_ns = number(value)?,
                "output" => footer.output_bytes = number(value)?,
                "events" => {
                    footer.events = list(value)?;
                    self.count_events = false;
                }
                _ => return Err(unknown(name)),
            }
        }
        footer.ending = ending.ok_or("how did it end? exited=, signaled=, stopped= or lost=")?;
        self.trace.footer = Some(footer);
        Ok(())
    }

    fn finish(mut self) -> OwnedTrace {
        if let Some(footer) = self.trace.footer.as_mut().filter(|_| self.count_events) {
            footer.events = self.trace.threads.iter().map(|events| events.len() as u64).collect();
        }
        self.trace
    }
}

fn numbers(words: &[&str]) -> Result<Vec<u64>> {
    words.iter().map(|word| number(word)).collect()
}

fn range(word: &str) -> Result<(u64, u64)> {
    let (start, end) = pair(word)?;
    Ok((number(start)?, number(end)?))
}

/// The only word.
fn single<'a>(words: &[&'a str]) -> Result<&'a str> {
    match words {
        [word] => Ok(word),
        _ => Err(format!("one value is expected, not {}", words.len())),
    }
}

/// The latencies of the header's machine, which it has from now on.
fn latencies(header: &mut Header) -> &mut Latencies {
    header.machine.latencies.get_or_insert_default()
}

/// What a lock takes on the header's machine, which is known from now on.
fn locking(header: &mut Header) -> &mut Locking {
    header.machine.locking.get_or_insert_default()
}
