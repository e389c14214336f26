//! The look of all tables: no frames, a rule below the header, some space between.

use crate::output::Style;
use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table,
    TableStyle,
};

/// A rule below the header, and nothing else but space.
const LOOK: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// How a column stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Column {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Renders rows below a header; the last column gets what the others leave.
pub(crate) fn render(header: &[(&str, Column)], rows: Vec<Vec<String>>, style: Style) -> String {
    let rows = rows.into_iter().map(|row| row.into_iter().map(cell));
    let mut table = Table::new();
    table
        .load_style(LOOK)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(style.width)
        .set_header(header.iter().map(|&(title, _)| heading(title, style)))
        .add_rows(rows);
    if style.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    for (index, &(_, column)) in header.iter().enumerate() {
        let Some(settings) = table.column_mut(index) else { continue };
        let left = u16::from(index > 0);
        settings.set_padding((left, 0));
        if column == Column::Right {
            settings.set_cell_alignment(CellAlignment::Right);
        }
        if index + 1 < header.len() {
            settings.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// A cell may have lines, and nothing else that is not plain.
fn cell(text: String) -> String {
    text.split('\n').map(refrain_trace::harmless::escape).collect::<Vec<_>>().join("\n")
}

fn heading(title: &str, style: Style) -> Cell {
    let cell = Cell::new(title);
    if style.colour { cell.add_attribute(Attribute::Bold) } else { cell }
}

/// Renders names and values, one pair per line, the values aligned.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    pairs
        .iter()
        .map(|(name, value)| format!("{name:width$}  {}\n", refrain_trace::harmless::escape(value)))
        .collect()
}
