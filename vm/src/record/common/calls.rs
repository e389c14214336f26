//! System calls that read and write memory in common with other processes.

use crate::common::{self, Copies};
use crate::elsewhere::{self, alias, is_any};
use crate::host::Guest;
use crate::layout::PAGE;
use crate::order::Span;
use crate::record::thread::GuestThread;
use crate::syscall::{Action, Call, Nested};
use refrain_trace::common as numbers;
use refrain_trace::payload::Write;
use std::ops::Range;

impl GuestThread {
    /// Before a system call: what it reads of such memory. The replay is told, and so is this thread,
    /// until [`elsewhere::show`] ends that.
    pub(crate) fn show_common(&mut self, call: &Call) -> bool {
        if !is_any() || !matches!(call.action(), Action::Pass) {
            return false;
        }
        let ranges = [call.reads(&Guest), call.sent_at_most(&Guest)].concat();
        let in_common = |range: &Range<u64>| {
            let span = Span { start: range.start, len: range.end - range.start, write: false };
            Copies::words(span).step_by(PAGE as usize / 8).any(|word| alias(word).is_some())
                || range.end > range.start && alias(range.end - 1).is_some()
        };
        let shown: Vec<Write> = ranges
            .into_iter()
            .filter(in_common)
            .filter_map(|Range { start, end }| {
                let bytes = Guest.read(start, (end - start) as usize)?;
                Some(Write { address: start, bytes })
            })
            .collect();
        if shown.is_empty() {
            return false;
        }
        self.append_common(numbers::CALL, 0, shown.clone());
        elsewhere::show(shown);
        true
    }

    /// The arguments with which a call is issued, so that the kernel reads what the replay is told, and
    /// writes to the memory itself. What they point to is kept as long as the result.
    pub(crate) fn with_common(&self, call: &Call, args: &mut [u64; 6]) -> Vec<Box<[u64]>> {
        let mut kept = Vec::new();
        if !is_any() {
            return kept;
        }
        let mut elsewhere = |address: u64, kept: &mut Vec<Box<[u64]>>| {
            let Some(alias) = alias(address) else { return address };
            match elsewhere::shown(address, usize::MAX).filter(|_| call.sends()) {
                Some(bytes) => keep(kept, &bytes),
                None => alias,
            }
        };
        match call.nested(args) {
            Some(Nested::Vectors { at, count }) => {
                vectors_elsewhere(&mut args[at], count, &mut elsewhere, &mut kept);
            }
            Some(Nested::Message { at }) => {
                let Some([name, name_len, mut vectors, count, control, control_len, flags]) =
                    Guest.words::<7>(args[at])
                else {
                    return kept;
                };
                vectors_elsewhere(&mut vectors, count, &mut elsewhere, &mut kept);
                let name = elsewhere(name, &mut kept);
                let control = elsewhere(control, &mut kept);
                let message = [name, name_len, vectors, count, control, control_len, flags];
                kept.push(Box::new(message));
                args[at] = kept.last().map_or(0, |kept| kept.as_ptr().expose_provenance() as u64);
            }
            None => {}
        }
        for at in call.pointers() {
            args[at] = elsewhere(args[at], &mut kept);
        }
        kept
    }

    /// After a call that was issued so: what the kernel has written into a message that was the recorder's.
    pub(crate) fn message_back(&self, call: &Call, issued: &[u64; 6]) {
        let args = call.arguments();
        if let Some(Nested::Message { at }) = call.nested(args)
            && issued[at] != args[at]
            && let Some(words) = Guest.words::<7>(issued[at])
        {
            for word in [1, 5, 6] {
                Guest.write(args[at] + 8 * word as u64, &words[word].to_le_bytes());
            }
        }
    }
}

/// Keeps bytes; where.
fn keep(kept: &mut Vec<Box<[u64]>>, bytes: &[u8]) -> u64 {
    let span = Span { start: 0, len: bytes.len() as u64, write: false };
    let words = common::words_of(span, bytes).into_boxed_slice();
    let at = words.as_ptr().expose_provenance() as u64;
    kept.push(words);
    at
}

/// Has an argument point to vectors that point elsewhere.
fn vectors_elsewhere(
    argument: &mut u64,
    count: u64,
    elsewhere: &mut impl FnMut(u64, &mut Vec<Box<[u64]>>) -> u64,
    kept: &mut Vec<Box<[u64]>>,
) {
    let len = count.min(libc::UIO_MAXIOV as u64) as usize * 16;
    let Some(bytes) = Guest.read(*argument, len) else { return };
    let span = Span { start: 0, len: len as u64, write: false };
    let mut words = common::words_of(span, &bytes);
    for vector in words.chunks_exact_mut(2) {
        vector[0] = elsewhere(vector[0], kept);
    }
    let words = words.into_boxed_slice();
    *argument = words.as_ptr().expose_provenance() as u64;
    kept.push(words);
}
