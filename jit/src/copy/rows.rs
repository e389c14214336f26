//! Numbers of 32 bits side by side, as files have them.

/// Bytes of a number.
pub(super) const WORD: usize = size_of::<u32>();

/// Numbers side by side, behind others that are bytes already.
pub(super) fn bytes<const N: usize>(before: &[u8], rows: &[[u32; N]]) -> Vec<u8> {
    let words = rows.as_flattened();
    let mut bytes = vec![0; before.len() + words.len() * WORD];
    let (first, rest) = bytes.split_at_mut(before.len());
    first.copy_from_slice(before);
    for (place, word) in rest.chunks_exact_mut(WORD).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The reverse of [`bytes`].
pub(super) fn rows<const N: usize>(bytes: &[u8]) -> impl ExactSizeIterator<Item = [u32; N]> {
    let (words, _) = bytes.as_chunks();
    words.chunks_exact(N).map(|row| std::array::from_fn(|n| u32::from_le_bytes(row[n])))
}

/// One of [`rows`].
pub(super) fn row<const N: usize>(bytes: &[u8], number: usize) -> Option<[u32; N]> {
    rows(bytes.get(number * N * WORD..(number + 1) * N * WORD)?).next()
}
