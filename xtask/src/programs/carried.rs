//! What the page says of programs of which this checkout has kept no result: results are files below
//! `target`, and a page that is written anew shall not lose what other checkouts have found.

use super::catalogue::Program;
use super::columns::{DEFAULT, EVERY, HEADER, escaped, path, verdicts};
use std::collections::BTreeMap;

/// The rows of a page, by the names of the programs as the page writes them.
#[derive(Default)]
pub(super) struct Carried {
    cells: BTreeMap<String, Vec<String>>,
    reasons: Vec<String>,
}

impl Carried {
    /// Reads the page that is there; none is an empty one.
    pub(super) fn read() -> Carried {
        Carried::parse(&std::fs::read_to_string(path()).unwrap_or_default())
    }

    pub(super) fn parse(text: &str) -> Carried {
        let mut carried = Carried::default();
        for line in text.lines() {
            if line.starts_with("- ") {
                carried.reasons.push(line.to_owned());
            }
            let cells = cells(line);
            if cells.len() == HEADER.len() {
                carried.cells.insert(cells[0].clone(), cells);
            }
        }
        carried
    }

    /// The cells of a program that was run.
    pub(super) fn cells(&self, program: &Program) -> Option<&Vec<String>> {
        let cells = self.cells.get(&escaped(&program.name))?;
        (verdicts(cells) != ["", ""]).then_some(cells)
    }

    /// The lines below the table that begin with the program's name.
    pub(super) fn reasons(&self, program: &Program) -> Vec<String> {
        let prefix = format!("- {}: ", escaped(&program.name));
        let of_program = self.reasons.iter().filter(|line| line.starts_with(&prefix));
        of_program.cloned().collect()
    }

    /// Whether the page says that recordings with both orders were exact.
    pub(super) fn is_exact(&self, program: &Program) -> Option<bool> {
        let cells = self.cells(program)?;
        Some([DEFAULT, EVERY].iter().all(|&column| cells[column].starts_with("exact")))
    }
}

/// The cells of a line of a table. Bars in cells have a backslash before them.
fn cells(line: &str) -> Vec<String> {
    let Some(line) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
        return Vec::new();
    };
    let mut cells = vec![String::new()];
    let mut before = ' ';
    for c in line.chars() {
        match cells.last_mut() {
            Some(_) if c == '|' && before != '\\' => cells.push(String::new()),
            Some(cell) => cell.push(c),
            None => {}
        }
        before = c;
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str) -> Program {
        toml::from_str(&format!("name = '{name}'\ncommand = 'a'\n")).expect("a program")
    }

    #[test]
    fn rows_and_reasons_are_found_again() {
        let row = "| a -j\\|2 | 3 | 1.00 s | 2.07 s | learned 2 | 3.00 s | exact | 2026 abc |";
        let text = format!("{row}\n| b | | | not run | | | | |\n\n- a -j\\|2: why\n- b: no\n");
        let carried = Carried::parse(&text);
        let cells = carried.cells(&program("a -j|2")).expect("a row");
        assert_eq!(verdicts(cells), ["learned", "exact"]);
        assert_eq!(cells[2], "1.00 s");
        assert_eq!(carried.reasons(&program("a -j|2")), ["- a -j\\|2: why"]);
        assert_eq!(carried.is_exact(&program("a -j|2")), Some(false));
        assert_eq!(carried.cells(&program("b")), None);
        assert_eq!(carried.is_exact(&program("c")), None);
    }
}
