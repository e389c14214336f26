//! Text-like data for compressors and sorters: the same bytes on every machine.

use anyhow::Context;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
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
    let mut random = Random::new(0x5eed);
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

/// A generator that means the same by a seed on every machine.
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(SplitMix64::seed_from_u64(seed))
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.0.next_u64() % limit as u64) as usize
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
