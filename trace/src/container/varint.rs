//! Variable-length integers: seven bits a byte, least significant first.

/// Bytes of the longest integer.
const LONGEST: usize = 10;

/// Appends `value`.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `values`. Up to two bytes take no branch: times between events take now one byte, now
/// two, in no order that a processor could learn.
pub(crate) fn put_all(out: &mut Vec<u8>, values: &[u64]) {
    if values.iter().fold(0, |all, value| all | value) < 0x80 {
        out.extend(values.iter().map(|&value| value as u8));
        return;
    }
    let start = out.len();
    out.resize(start + values.len() * LONGEST, 0);
    let space = &mut out[start..];
    let mut at = 0;
    for &value in values {
        if value < 1 << 14 {
            let more = value >= 0x80;
            space[at] = value as u8 & 0x7f | u8::from(more) << 7;
            space[at + 1] = (value >> 7) as u8;
            at += 1 + usize::from(more);
        } else {
            let mut rest = value;
            while rest >= 0x80 {
                space[at] = rest as u8 | 0x80;
                rest >>= 7;
                at += 1;
            }
            space[at] = rest as u8;
            at += 1;
        }
    }
    out.truncate(start + at);
}

/// The signed distance `to - from` as a number, so that short distances of both signs are short.
#[inline]
pub(crate) fn zigzag(from: u64, to: u64) -> u64 {
    let delta = to.wrapping_sub(from) as i64;
    ((delta << 1) ^ (delta >> 63)) as u64
}

/// Appends the distance of [`zigzag`].
#[inline]
pub(crate) fn put_delta(out: &mut Vec<u8>, from: u64, to: u64) {
    put(out, zigzag(from, to));
}

/// A run of integers to read from the front.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Column<'a> {
    rest: &'a [u8],
}

impl<'a> Column<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Column { rest: bytes }
    }

    /// Splits `len` bytes off the front.
    pub(crate) fn split(&mut self, len: usize) -> Option<Column<'a>> {
        let (front, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(Column { rest: front })
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next integer; `None` at the end, or if it has more than 64 bits.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u64> {
        let (&first, rest) = self.rest.split_first()?;
        if first < 0x80 {
            self.rest = rest;
            return Some(u64::from(first));
        }
        self.next_long()
    }

    #[inline]
    fn next_long(&mut self) -> Option<u64> {
        let mut value = 0;
        for (i, &byte) in self.rest.iter().enumerate().take(LONGEST) {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.rest = &self.rest[i + 1..];
                return (i < 9 || byte <= 1).then_some(value);
            }
        }
        None
    }

    /// The next distance of [`put_delta`], applied to `from`.
    #[inline]
    pub(crate) fn next_delta(&mut self, from: u64) -> Option<u64> {
        let zigzag = self.next()?;
        Some(from.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg()))
    }

    /// The next four bytes.
    #[inline]
    pub(crate) fn next_word(&mut self) -> Option<[u8; 4]> {
        let (word, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_length_come_back() {
        let values: Vec<u64> =
            (0..64).flat_map(|b| [1 << b, (1 << b) - 1, !(1 << b)]).chain([u64::MAX]).collect();
        let mut bytes = Vec::new();
        for &v in &values {
            put(&mut bytes, v);
            put_delta(&mut bytes, 77, v);
        }
        put_all(&mut bytes, &values);
        let mut column = Column::new(&bytes);
        for &v in &values {
            assert_eq!(column.next(), Some(v));
            assert_eq!(column.next_delta(77), Some(v));
        }
        for &v in &values {
            assert_eq!(column.next(), Some(v));
        }
        assert_eq!(column.next(), None);
    }

    #[test]
    fn overlong_and_cut_integers_are_refused() {
        assert_eq!(Column::new(&[0xff; 11]).next(), None);
        assert_eq!(Column::new(&[0x80]).next(), None);
        let mut two_to_64 = [0x80; 10];
        two_to_64[9] = 2;
        assert_eq!(Column::new(&two_to_64).next(), None);
    }
}
