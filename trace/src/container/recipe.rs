//! Files for fuzzing.

use super::body::{Label, Packer};
use super::format::{self, ChunkKind};

/// A file made of chunks that `recipe` describes, for fuzzing: checksums are right, so that what
/// is behind them is reached. The first chunk is an empty header.
pub fn chunks_from(recipe: &[u8]) -> Vec<u8> {
    let mut packer = Packer::new().expect("zstd can be set up");
    let mut file = format::preamble().to_vec();
    let mut chunk = Vec::new();
    let mut put = |file: &mut Vec<u8>, label: Label, body: &[u8]| {
        if packer.pack(label, body, &mut chunk).is_ok() {
            file.extend_from_slice(&chunk);
        }
    };
    let header = postcard::to_stdvec(&crate::Header::default()).expect("plain data");
    put(&mut file, Label::single(ChunkKind::Header), &header);
    let mut rest = recipe;
    while let [kind, id, count, first, len, tail @ ..] = rest {
        let (body, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = tail;
        let kind = ChunkKind::from_code(kind % 14).unwrap_or(ChunkKind::Events);
        let (id, count, first) = (u32::from(*id), u32::from(*count), u64::from(*first));
        put(&mut file, Label { kind, id, count, first }, body);
    }
    file
}
