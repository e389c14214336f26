//! What tests of reports are made of.

use refrain_session::symbols::{Frame, Place};

/// A place as a test wants it.
pub(crate) fn place(function: &str, file: &str, line: u32) -> Place {
    let frame = Frame { function: function.into(), file: Some(file.into()), line: Some(line) };
    Place {
        pc: 0x1000_0000 + u64::from(line),
        module: Some("/usr/bin/example".into()),
        in_module: u64::from(line),
        in_function: Some(4),
        frames: vec![frame],
    }
}
