//! Texts and times: from the wire's form to the form that answers show.
//!
//! What must never happen here: a character of a stranger that controls the terminal, or a line of
//! a stranger that looks like one of this program.

use jiff::Timestamp;
use mooring_api::v1;

/// Returns `false` for a character that controls the terminal, changes the direction of the text
/// around it, or takes no room: two names that differ look alike.
///
/// Beside the controls these are the separators of lines and paragraphs, the marks of annotations,
/// and all that Unicode calls default-ignorable (`DerivedCoreProperties.txt`): bidirectional
/// formatting, spaces of no width, joiners, fillers, tags. Two kinds of those stay: the variation
/// selectors U+FE00 to U+FE0F, which ordinary emoji have, and the Mongolian ones. Letters of every
/// script stay, in both directions, with their combining marks. An emoji that is joined of several
/// falls into its parts: the joiner itself cannot be seen.
fn shows(c: char) -> bool {
    let hides = matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !hides && !c.is_control()
}

fn replaced(text: &str, stays: impl Fn(char) -> bool) -> String {
    text.chars().map(|c| if stays(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Cleans a whole answer for a terminal. Line feeds stay: this program made them. A text of
/// somebody else in the answer goes through [`one_line`] first.
pub(crate) fn plain(text: &str) -> String {
    replaced(text, |c| c == '\n' || shows(c))
}

/// Cleans a name, or another text of somebody else, for a place within a line. A line feed is
/// replaced too: with it the text would make lines that look like this program's own.
pub(crate) fn one_line(text: &str) -> String {
    replaced(text, shows)
}

/// Returns `true` if [`one_line`] leaves the text as it is.
pub(crate) fn is_one_line(text: &str) -> bool {
    text.chars().all(shows)
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

#[cfg(test)]
pub(crate) mod tests {
    use std::ops::RangeInclusive;

    use super::*;

    /// Characters that no terminal gets, by their names in Unicode, written down once more.
    pub(crate) const HIDDEN: [RangeInclusive<char>; 25] = [
        // C0, then DEL and C1.
        '\u{0}'..='\u{1f}',
        '\u{7f}'..='\u{9f}',
        // Soft hyphen, combining grapheme joiner, Arabic letter mark.
        '\u{ad}'..='\u{ad}',
        '\u{34f}'..='\u{34f}',
        '\u{61c}'..='\u{61c}',
        // Fillers of Hangul, inherent vowels of Khmer, vowel separator of Mongolian.
        '\u{115f}'..='\u{1160}',
        '\u{17b4}'..='\u{17b5}',
        '\u{180e}'..='\u{180e}',
        // Zero width space, non-joiner, joiner; left-to-right and right-to-left marks.
        '\u{200b}'..='\u{200d}',
        '\u{200e}'..='\u{200f}',
        // Separators of lines and paragraphs; embeddings, overrides and their end.
        '\u{2028}'..='\u{2029}',
        '\u{202a}'..='\u{202e}',
        // Word joiner and invisible operators; isolates and their end; deprecated formatting.
        '\u{2060}'..='\u{2065}',
        '\u{2066}'..='\u{2069}',
        '\u{206a}'..='\u{206f}',
        // Hangul filler, byte order mark, halfwidth Hangul filler.
        '\u{3164}'..='\u{3164}',
        '\u{feff}'..='\u{feff}',
        '\u{ffa0}'..='\u{ffa0}',
        // Unassigned and ignorable; marks of annotations.
        '\u{fff0}'..='\u{fff8}',
        '\u{fff9}'..='\u{fffb}',
        // Formatting of shorthand and of music.
        '\u{1bca0}'..='\u{1bca3}',
        '\u{1d173}'..='\u{1d17a}',
        // Tags; variation selectors of ideographs; the rest of what is ignorable there.
        '\u{e0000}'..='\u{e007f}',
        '\u{e0080}'..='\u{e01ef}',
        '\u{e01f0}'..='\u{e0fff}',
    ];

    pub(crate) fn is_hidden(c: char) -> bool {
        HIDDEN.iter().any(|range| range.contains(&c))
    }

    #[test]
    fn every_character_is_replaced_or_stays() {
        for c in '\0'..=char::MAX {
            let (text, hidden) = (String::from(c), is_hidden(c));
            let shown = if hidden { "\u{fffd}" } else { text.as_str() };
            assert_eq!(one_line(&text), shown, "U+{:04X}", u32::from(c));
            assert_eq!(is_one_line(&text), !hidden, "U+{:04X}", u32::from(c));
            let whole = if c == '\n' { "\n" } else { shown };
            assert_eq!(plain(&text), whole, "U+{:04X}", u32::from(c));
        }
    }

    /// Letters of any script, marks that combine, emoji with their selectors, colours and flags.
    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in [
            "data-1_a.b/c",
            "größe µ ½",
            "e\u{301}tude",
            "日本語",
            "한국어",
            "हिन्दी",
            "ไทย",
            "\u{5e9}\u{5dc}\u{5d5}\u{5dd}",
            "\u{645}\u{631}\u{62d}\u{628}\u{627}\u{64b}",
            "\u{26a0}\u{fe0f}",
            "\u{1f44d}\u{1f3fd}",
            "\u{1f1e9}\u{1f1ea}",
            "a\u{a0}b",
            "\u{fffd}",
        ] {
            assert_eq!((one_line(name).as_str(), plain(name).as_str()), (name, name));
        }
        // An emoji of several falls into its parts.
        assert_eq!(one_line("\u{1f469}\u{200d}\u{1f4bb}"), "\u{1f469}\u{fffd}\u{1f4bb}");
    }
}
