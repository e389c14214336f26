//! The program's code as its file has it, whether or not it was executed.

use refrain_trace::{BlobId, Mapping, Trace};
use refrain_vm::layout::PAGE;
use rustix::mm::ProtFlags;
use std::collections::BTreeMap;

/// Bytes of code that are shown at once, at most.
const SHOWN: usize = 1024;

/// What the program's executable memory shows when the program begins, its dynamic linker included.
pub(super) struct Text {
    /// Pages that the trace has, by their addresses.
    pages: BTreeMap<u64, Vec<u8>>,
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
        let mut text = Text { pages: BTreeMap::new() };
        for (content, mappings) in of_files {
            let mut visit = |offset: u64, bytes: &[u8]| {
                let pages = (offset..).step_by(PAGE as usize).zip(bytes.chunks(PAGE as usize));
                for (offset, page) in pages {
                    mappings.iter().for_each(|mapping| text.show(mapping, offset, page));
                }
            };
            match trace.file(content)? {
                Some(_) => trace.pages(content, visit)?,
                None => visit(0, &trace.blob(content)?),
            }
        }
        Ok(text)
    }

    /// A page of the mapping's content.
    fn show(&mut self, mapping: &Mapping, offset: u64, page: &[u8]) {
        let shown = mapping.offset..mapping.offset.saturating_add(mapping.len);
        if shown.contains(&offset) {
            let address = mapping.address.wrapping_add(offset - mapping.offset);
            self.pages.insert(address, page.to_vec());
        }
    }

    /// The code from an address on, as far as the trace has it, and a part of it if there is much.
    pub(super) fn at(&self, pc: u64) -> Option<Vec<u8>> {
        let mut code = Vec::new();
        let mut at = pc;
        while code.len() < SHOWN
            && let Some(page) = self.pages.get(&(at / PAGE * PAGE))
            && let Some(rest) = page.get((at % PAGE) as usize..)
        {
            code.extend(rest.iter().take(SHOWN - code.len()));
            at = (at / PAGE + 1) * PAGE;
        }
        (!code.is_empty()).then_some(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trace::{Header, Writer};

    #[test]
    fn code_is_where_the_program_begins() {
        let code = vec![0x90; 2 * PAGE as usize + 8];
        let mapping = |address, prot: ProtFlags, len, offset| Mapping {
            address,
            len,
            prot: prot.bits(),
            content: Some(BlobId(7)),
            offset,
        };
        let header = Header {
            mappings: vec![
                mapping(0x1_0000, ProtFlags::READ, PAGE, 0),
                mapping(0x1_1000, ProtFlags::READ | ProtFlags::EXEC, 2 * PAGE, PAGE),
            ],
            ..Header::default()
        };
        let mut writer = Writer::new(Vec::new(), &header).expect("is in memory");
        writer.blob(BlobId(7), &code).expect("is in memory");
        let trace = Trace::from_bytes(writer.abandon()).expect("can be read");
        let text = Text::of(&trace).expect("can be read");
        let len = |pc| text.at(pc).map(|code| code.len());
        assert_eq!((len(0x1_1000), len(0x1_2000)), (Some(SHOWN), Some(8)), "the file ends there");
        assert_eq!(len(0x1_1ffe), Some(10), "two pages");
        assert_eq!((len(0x1_0000), len(0x1_2008), len(0x1_3000)), (None, None, None));
    }
}
