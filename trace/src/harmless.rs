//! Makes text harmless that comes out of a trace, or is found by names in it: it may be made to deceive
//! those who read it on a terminal.

/// Whether a character only stands where it is put: it moves no cursor, begins no escape sequence,
/// hides or reorders no other character and ends no line.
pub fn is_plain(c: char) -> bool {
    let reorders = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || ('\u{202a}'..='\u{202e}').contains(&c)
        || ('\u{2066}'..='\u{2069}').contains(&c);
    let hides = matches!(c, '\u{ad}' | '\u{180e}' | '\u{feff}')
        || ('\u{200b}'..='\u{200d}').contains(&c)
        || ('\u{2060}'..='\u{2064}').contains(&c)
        || ('\u{fff9}'..='\u{fffb}').contains(&c)
        || ('\u{e0000}'..='\u{e007f}').contains(&c);
    let ends_lines = matches!(c, '\u{2028}' | '\u{2029}');
    !(c.is_control() || reorders || hides || ends_lines)
}

/// Text of a trace as it may be shown: what is not plain is written as in Rust's literals.
pub fn escape(text: &str) -> String {
    escape_but(text, |_| false)
}

/// The same, but for characters that the reader wants as they are.
pub fn escape_but(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) || keep(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "a\x1b]0;title\x07b\nc\u{9b}31m\u{202e}d\u{2028}\u{200b}\x7fé→";

    #[test]
    fn what_is_not_plain_is_escaped() {
        let shown = escape(EVIL);
        assert!(shown.chars().all(is_plain), "{shown:?}");
        assert!(
            shown.contains("\\u{1b}]0;title") && shown.contains("\\n") && shown.ends_with("é→")
        );
        assert_eq!(escape("plain — ─ 語 µs"), "plain — ─ 語 µs");
    }
}
