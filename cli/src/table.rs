//! Plain tables and the cells in them: no colours, identical with and without a terminal.
//!
//! What must never happen here: a cell that is more than one line.

use comfy_table::{Table, presets};
use mooring_model::ByteSize;

use crate::text::one_line;

pub(crate) const NONE: &str = "-";

pub(crate) fn table<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads);
    table.add_rows(rows.into_iter().map(|row| row.map(|cell| one_line(&cell))));
    trimmed(&mut table)
}

/// `NAME value` lines, aligned.
pub(crate) fn facts(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.add_rows(rows.into_iter().map(|(name, value)| [name.to_owned(), one_line(&value)]));
    trimmed(&mut table)
}

fn trimmed(table: &mut Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

pub(crate) fn or_none(text: Option<&str>) -> String {
    text.map_or_else(|| NONE.to_owned(), one_line)
}

pub(crate) fn joined(texts: &[String]) -> String {
    if texts.is_empty() { NONE.to_owned() } else { one_line(&texts.join(" ")) }
}

pub(crate) fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

pub(crate) fn named(name: Option<&str>, id: &str) -> String {
    one_line(&name.map_or_else(|| id.to_owned(), |name| format!("{name} ({id})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::{HIDDEN, is_hidden};

    /// Each character that no terminal gets, at the beginning, within and at the end of a cell.
    fn cells() -> Vec<String> {
        let all = HIDDEN.iter().cloned().flatten();
        all.flat_map(|c| [format!("{c}name"), format!("na{c}me"), format!("name{c}")]).collect()
    }

    #[track_caller]
    fn is_clean(text: &str, lines: usize) {
        assert_eq!(text.split('\n').count(), lines, "{text:?}");
        assert!(text.chars().all(|c| c == '\n' || !is_hidden(c)), "{text:?}");
    }

    #[test]
    fn a_row_is_one_line_whatever_its_cells_hold() {
        let cells = cells();
        let rows = cells.iter().map(|cell| [cell.clone(), "next".to_owned()]);
        is_clean(&table(["NAME", "NEXT"], rows), cells.len() + 1);
        let rows = cells.iter().map(|cell| ("NAME", cell.clone()));
        is_clean(&facts(rows), cells.len());
        // Control: ordinary cells come out as they are, in line with the head.
        let row = ["größe".to_owned(), "日本語".to_owned()];
        assert_eq!(table(["NAME", "NEXT"], [row]), "NAME   NEXT\ngröße  日本語");
        assert_eq!(facts([("NAME", "a b".to_owned()), ("ID", "7".to_owned())]), "NAME  a b\nID    7");
    }

    #[test]
    fn names_within_a_sentence_are_one_line() {
        for cell in cells() {
            for text in [
                named(Some(&cell), "id"),
                named(None, &cell),
                or_none(Some(&cell)),
                joined(&[cell.clone(), "next".to_owned()]),
            ] {
                is_clean(&text, 1);
                assert!(text.contains('\u{fffd}'), "{text:?}");
            }
        }
        assert_eq!(named(Some("größe"), "7"), "größe (7)");
        assert_eq!((or_none(None), joined(&[])), (NONE.to_owned(), NONE.to_owned()));
    }
}
