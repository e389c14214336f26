//! Tables in Markdown, aligned so that they also read well as plain text.

/// Renders rows below a header; columns of numbers are aligned to the right.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let cell =
        |row: &[String], column: usize| row.get(column).map_or("", String::as_str).to_owned();
    let header: Vec<String> = header.iter().map(|&title| title.to_owned()).collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().map(|row| cell(row, column)).chain([header[column].clone()]);
            cells.map(|text| text.chars().count()).max().unwrap_or(0).max(3)
        })
        .collect();
    let is_number =
        |text: String| text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit());
    let right: Vec<bool> = (0..header.len())
        .map(|column| rows.iter().all(|row| is_number(cell(row, column))))
        .collect();
    let line = |row: &[String]| {
        let cells = widths.iter().enumerate().map(|(column, &width)| {
            let text = cell(row, column);
            if !right[column] { format!("{text:<width$}") } else { format!("{text:>width$}") }
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule: Vec<String> = widths
        .iter()
        .enumerate()
        .map(|(column, &width)| match right[column] {
            false => "-".repeat(width),
            true => format!("{}:", "-".repeat(width - 1)),
        })
        .collect();
    let mut text = line(&header) + &line(&rule);
    for row in rows {
        text += &line(row);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["fib".to_owned(), "1.50×".to_owned()], vec!["x".to_owned()]];
        assert_eq!(
            render(&["program", "ratio"], &rows),
            "| program | ratio |\n| ------- | ----: |\n| fib     | 1.50× |\n| x       |       |\n"
        );
    }
}
