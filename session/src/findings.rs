//! What recordings have found out about code, for later recordings of the same program: which accesses
//! of a function are watched is a function of code, and takes longer to find than the function to run.
//!
//! Each program has a file ([`crate::program_cache`]). What is odd in it is as if it were not there: then
//! all is found out again.

use crate::program_cache::Folder;
use refrain_vm::Finding;

/// Where findings are kept.
pub(crate) const FOUND: Folder = Folder { name: "found", programs: 64, bytes: 256 << 20 };
/// Bytes of a checksum.
const CHECK: usize = 4;

/// As a file has them.
pub(crate) fn encode(findings: &[Finding]) -> Vec<u8> {
    let mut bytes = postcard::to_stdvec(findings).expect("findings have no maps of unknown length");
    let check = crc32fast::hash(&bytes);
    bytes.extend(check.to_le_bytes());
    bytes
}

/// The findings of a file.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Finding>> {
    let (bytes, check) = bytes.split_at_checked(bytes.len().checked_sub(CHECK)?)?;
    if crc32fast::hash(bytes).to_le_bytes() != check {
        return None;
    }
    let (findings, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        let finding = |start| Finding {
            around: 1,
            start,
            code: 3,
            len: 7,
            polls: [4].into(),
            sites: [5, 6].into(),
            checks: [6].into(),
        };
        vec![finding(2), finding(3)]
    }

    #[test]
    fn what_is_odd_is_not_there() {
        let bytes = encode(&findings());
        assert_eq!(decode(&bytes), Some(findings()));
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "the first {len} bytes");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(decode(&other), None, "with byte {at} changed");
        }
    }
}
