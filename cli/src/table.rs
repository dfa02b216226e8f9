//! Plain tables and the cells in them: no colours, identical with and without a terminal.

use comfy_table::{Table, presets};
use mooring_model::ByteSize;

pub(crate) const NONE: &str = "-";

pub(crate) fn table<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads);
    table.add_rows(rows);
    trimmed(&mut table)
}

/// `NAME value` lines, aligned.
pub(crate) fn facts(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.add_rows(rows.into_iter().map(|(name, value)| [name.to_owned(), value]));
    trimmed(&mut table)
}

fn trimmed(table: &mut Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

pub(crate) fn or_none(text: Option<&str>) -> String {
    text.unwrap_or(NONE).to_owned()
}

pub(crate) fn joined(texts: &[String]) -> String {
    if texts.is_empty() { NONE.to_owned() } else { texts.join(" ") }
}

pub(crate) fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

pub(crate) fn named(name: Option<&str>, id: &str) -> String {
    name.map_or_else(|| id.to_owned(), |name| format!("{name} ({id})"))
}
