//! Texts and times: from the wire's form to the form that answers show.
//!
//! What must never happen here: a character of a stranger that controls the terminal.

use jiff::Timestamp;
use mooring_api::v1;

/// Cleans a text for a terminal. Names and messages come from others: characters that could control
/// the terminal are replaced.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Decodes a text of the wire; an empty one means "unknown" and gives `None`.
pub(crate) fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub(crate) fn time(micros: i64) -> Option<String> {
    Timestamp::from_microsecond(micros).ok().filter(|_| micros != 0).map(rfc3339)
}

/// Formats a time with six digits after the point: times in a column line up and sort as text.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    format!("{time:.6}")
}

pub(crate) fn list<T, U>(items: &[T], convert: impl Fn(&T) -> U) -> Vec<U> {
    items.iter().map(convert).collect()
}

pub(crate) fn mode(mode: v1::Mode) -> Option<&'static str> {
    match mode {
        v1::Mode::ReadOnly => Some("ro"),
        v1::Mode::ReadWrite => Some("rw"),
        v1::Mode::Unspecified => None,
    }
}
