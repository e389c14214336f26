//! What a child process tells its parent that waits for it.

use crate::Hidden;
use crate::host::Guest;
use std::io::Write;

/// Of the parent's stack, how much a child may write for it to read.
const SHARED_STACK: usize = 16 << 10;

/// What a child process keeps for its parent that waits for it.
pub(crate) struct Waiting {
    parent: Hidden,
    address: u64,
    before: Vec<u8>,
}

impl Waiting {
    /// What the parent's stack is above `sp`, before the child runs.
    pub(super) fn new(parent: Hidden, sp: u64) -> Waiting {
        Waiting { parent, address: sp, before: Guest.read_prefix(sp, SHARED_STACK) }
    }

    /// Tells the parent what has changed, word by word.
    pub(crate) fn tell(self) {
        let after = Guest.read_prefix(self.address, self.before.len());
        let changed = after.chunks_exact(8).zip(self.before.chunks_exact(8)).enumerate();
        let mut message = Vec::new();
        for (i, (new, _)) in changed.filter(|(_, (new, old))| new != old) {
            message.extend((self.address + 8 * i as u64).to_le_bytes());
            message.extend(new);
        }
        // A parent that is gone needs nothing.
        let _ = self.parent.file().write_all(&message);
    }
}
