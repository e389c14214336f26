//! Contents of files that the guest maps, unpacked before it runs.
//!
//! A recorded program maps its libraries from files that the kernel has in memory, so that a
//! mapping costs next to nothing, and a page of it something only when it is touched. A replay
//! has their contents in one file in memory, from which it maps them likewise.

use crate::layout::PAGE;
use crate::memory::{self, MapRequest};
use crate::{Error, Result, host};
use refrain_trace::payload::Window;
use refrain_trace::{BlobId, Trace};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;

/// Contents beyond so many bytes are unpacked when they are mapped.
const MOST: u64 = 256 << 20;

pub(crate) struct Contents {
    file: File,
    /// Where in the file each content begins (at a page), and its length.
    places: BTreeMap<BlobId, (u64, u64)>,
}

impl Contents {
    /// Those of the files that the guest maps itself.
    pub(crate) fn of(trace: &Trace) -> Result<Contents> {
        let mut file = host::memory_file().map_err(failed())?;
        let loaded: BTreeSet<_> =
            trace.header().mappings.iter().filter_map(|m| m.content).collect();
        let (mut places, mut end) = (BTreeMap::new(), 0);
        for blob in trace.blobs().filter(|blob| !loaded.contains(blob)) {
            let len = trace.blob_len(blob)?;
            if end + len > MOST {
                continue;
            }
            // Of one that is damaged, whoever maps it will be told.
            let Ok(bytes) = trace.blob(blob) else { continue };
            file.seek(SeekFrom::Start(end)).map_err(failed())?;
            file.write_all(&bytes).map_err(failed())?;
            places.insert(blob, (end, len));
            end = memory::page_up(end + len);
        }
        file.set_len(end).map_err(failed())?;
        Ok(Contents { file, places })
    }

    /// Maps what the window shows at `address`, over memory that is there; false if that content
    /// was not unpacked.
    pub(crate) fn map(&self, address: u64, prot: i32, window: &Window) -> Result<bool> {
        let Some(&(start, whole)) = self.places.get(&window.blob) else { return Ok(false) };
        let len = whole.saturating_sub(window.offset).min(window.len);
        if len == 0 || !window.offset.is_multiple_of(PAGE) {
            return Ok(false);
        }
        let (flags, fd) = (libc::MAP_PRIVATE, self.file.as_raw_fd());
        let offset = (start + window.offset) as i64;
        memory::map_fixed(MapRequest { address, len, prot, flags, fd, offset })
            .map_err(Error::host("mapping the content of a file"))?;
        Ok(true)
    }
}

fn failed() -> impl FnOnce(io::Error) -> Error {
    Error::host("keeping the contents of mapped files")
}
