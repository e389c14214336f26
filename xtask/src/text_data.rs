//! Text-like data for compressors and sorters: the same bytes on every machine.

use anyhow::Context;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Words of the language.
const VOCABULARY: usize = 8192;

/// Writes a file of `bytes` bytes, unless it is there from an earlier run.
pub(crate) fn file(directory: &Path, bytes: u64) -> anyhow::Result<PathBuf> {
    let path = directory.join(format!("text-{bytes}.txt"));
    if std::fs::metadata(&path).is_ok_and(|there| there.len() == bytes) {
        return Ok(path);
    }
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut out = BufWriter::new(file);
    write(&mut out, bytes)?;
    out.flush()?;
    Ok(path)
}

/// Lines of words; frequent words are short, as in real text.
fn write(out: &mut impl Write, bytes: u64) -> std::io::Result<()> {
    let mut random = Random(0x5eed);
    let vocabulary: Vec<String> = (0..VOCABULARY).map(|rank| word(rank, &mut random)).collect();
    let mut left = bytes as usize;
    let mut column = 0;
    while left > 0 {
        let word = &vocabulary[random.rank()];
        let end = if column + word.len() > 72 { "\n" } else { " " };
        column = if end == "\n" { 0 } else { column + word.len() + 1 };
        let text = [word.as_bytes(), end.as_bytes()].concat();
        let taken = text.len().min(left);
        out.write_all(&text[..taken])?;
        left -= taken;
    }
    Ok(())
}

fn word(rank: usize, random: &mut Random) -> String {
    let length = 2 + (rank + 1).ilog2().min(12) as usize / 2 + random.below(3);
    (0..length).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
}

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// A rank of the vocabulary: each doubling of the rank is about as frequent as the last.
    fn rank(&mut self) -> usize {
        let octave = self.below(VOCABULARY.ilog2() as usize);
        (1 << octave) + self.below(1 << octave)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_is_the_same_everywhere() {
        let mut data = Vec::new();
        write(&mut data, 10_000).expect("a vector takes it");
        assert_eq!(data.len(), 10_000);
        let sum = data.iter().fold(0u32, |sum, &b| sum.wrapping_mul(31).wrapping_add(b.into()));
        assert_eq!(sum, 3_808_429_667);
        assert!(data.split(|&b| b == b'\n').all(|line| line.len() < 90));
    }
}
