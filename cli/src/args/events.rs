//! Which events a command is about.

use refrain_trace::ThreadId;
use std::ops::Range;

/// `t2`, or just `2`.
pub(super) fn parse_thread(text: &str) -> Result<ThreadId, String> {
    let digits = text.strip_prefix('t').unwrap_or(text);
    digits.parse().map(ThreadId).map_err(|_| "a thread is written like t2".to_owned())
}

/// `100..200`, with either end left out.
pub(super) fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || "a range is written like 100..200, 100.. or ..200".to_owned();
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let bound = |text: &str, default| match text {
        "" => Ok(default),
        digits => digits.strip_prefix('e').unwrap_or(digits).parse().map_err(|_| wrong()),
    };
    let range = bound(start, 0)?..bound(end, u64::MAX)?;
    if range.start > range.end { Err("the range ends before it starts".into()) } else { Ok(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_parsed() {
        assert_eq!(parse_thread("t2"), Ok(ThreadId(2)));
        assert_eq!(parse_thread("7"), Ok(ThreadId(7)));
        assert!(parse_thread("x").is_err());
        assert_eq!(parse_range("100..200"), Ok(100..200));
        assert_eq!(parse_range("e5.."), Ok(5..u64::MAX));
        assert_eq!(parse_range("..9"), Ok(0..9));
        assert!(parse_range("9..1").is_err());
        assert!(parse_range("1-2").is_err());
    }
}
