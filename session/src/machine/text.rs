//! The program's code as its file has it, whether or not it was executed.

use refrain_trace::{BlobId, Mapping, Trace};
use rustix::mm::ProtFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const PAGE: u64 = 4096;

/// What the program's executable memory shows when the program begins, its dynamic linker included.
pub(super) struct Text {
    parts: Vec<Part>,
}

struct Part {
    range: Range<u64>,
    bytes: Vec<u8>,
    /// Pages that the trace has, by their addresses.
    pages: BTreeSet<u64>,
}

impl Text {
    pub(super) fn of(trace: &Trace) -> crate::Result<Text> {
        let is_code = |it: &&Mapping| it.prot & ProtFlags::EXEC.bits() != 0;
        let mut of_files: BTreeMap<BlobId, Vec<&Mapping>> = BTreeMap::new();
        for mapping in trace.header().mappings.iter().filter(is_code) {
            if let Some(content) = mapping.content {
                of_files.entry(content).or_default().push(mapping);
            }
        }
        let mut parts = Vec::new();
        for (content, mappings) in of_files {
            let mut shown: Vec<_> = mappings.iter().map(|it| Part::new(it)).collect();
            let mut visit = |offset: u64, bytes: &[u8]| {
                for (part, mapping) in shown.iter_mut().zip(&mappings) {
                    part.fill(mapping, offset, bytes);
                }
            };
            match trace.file(content)? {
                Some(_) => trace.pages(content, visit)?,
                None => visit(0, &trace.blob(content)?),
            }
            parts.append(&mut shown);
        }
        Ok(Text { parts })
    }

    /// The code from an address on, as far as the trace has it.
    pub(super) fn at(&self, pc: u64) -> Option<&[u8]> {
        let part = self.parts.iter().find(|part| part.range.contains(&pc))?;
        let page = pc / PAGE * PAGE;
        let pages = (page..).step_by(PAGE as usize).take_while(|page| part.pages.contains(page));
        let end = (page + pages.count() as u64 * PAGE).min(part.range.end);
        let start = part.range.start;
        (pc < end).then(|| &part.bytes[(pc - start) as usize..(end - start) as usize])
    }
}

impl Part {
    fn new(mapping: &Mapping) -> Part {
        let range = mapping.address..mapping.address.saturating_add(mapping.len);
        Part { bytes: vec![0; mapping.len as usize], range, pages: BTreeSet::new() }
    }

    /// Takes what the mapping shows of these bytes of its content.
    fn fill(&mut self, mapping: &Mapping, offset: u64, bytes: &[u8]) {
        let shown = mapping.offset..mapping.offset.saturating_add(mapping.len);
        let (start, end) = (offset.max(shown.start), (offset + bytes.len() as u64).min(shown.end));
        if start >= end {
            return;
        }
        let to = (start - shown.start) as usize..(end - shown.start) as usize;
        let from = (start - offset) as usize..(end - offset) as usize;
        let pages =
            (to.start as u64 / PAGE..(to.end as u64).div_ceil(PAGE)).map(|page| page * PAGE);
        self.pages.extend(pages.map(|page| self.range.start + page));
        self.bytes[to].copy_from_slice(&bytes[from]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trace::{Header, Writer};

    #[test]
    fn code_is_where_the_program_begins() {
        let code = vec![0x90; 2 * PAGE as usize];
        let mapping = |address, prot: ProtFlags, offset| Mapping {
            address,
            len: PAGE,
            prot: prot.bits(),
            content: Some(BlobId(7)),
            offset,
        };
        let header = Header {
            mappings: vec![
                mapping(0x1_0000, ProtFlags::READ, 0),
                mapping(0x1_1000, ProtFlags::READ | ProtFlags::EXEC, PAGE),
            ],
            ..Header::default()
        };
        let mut writer = Writer::new(Vec::new(), &header).expect("is in memory");
        writer.blob(BlobId(7), &code[..PAGE as usize + 8]).expect("is in memory");
        let trace = Trace::from_bytes(writer.abandon()).expect("can be read");
        let text = Text::of(&trace).expect("can be read");
        let first = text.at(0x1_1000).map(|code| (code[7], code[8], code.len()));
        assert_eq!(first, Some((0x90, 0, PAGE as usize)), "the file ends there");
        assert_eq!(text.at(0x1_1ffe).map(<[u8]>::len), Some(2));
        assert_eq!((text.at(0x1_0000), text.at(0x1_2000)), (None, None), "data, and nothing");
    }
}
