//! Text in lines of a terminal's width.

use crate::output::Style;

/// Text after an empty line.
pub(crate) fn paragraph(text: &str, style: Style) -> String {
    let lines = wrap(text, usize::from(style.width));
    format!("\n{}\n", lines.join("\n"))
}

/// Breaks text between words; longer words than a line are cut.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let indent = text.len() - text.trim_start().len();
    let mut lines: Vec<String> = Vec::new();
    let mut line = " ".repeat(indent);
    let mut empty = true;
    for word in text.split_whitespace() {
        let word = cut(word, width);
        let long = line.chars().count() + usize::from(!empty) + word.chars().count() > width;
        if long && !empty {
            lines.push(std::mem::take(&mut line));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += &word;
        empty = false;
    }
    lines.push(line);
    lines
}

/// At most so many characters.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}
