//! Words: the beginning of a doc block, the width of comments, and the length of a function's name.

use std::collections::{BTreeMap, BTreeSet};

use super::{allowed, sources};

/// No doc block begins with one of these: its subject stands nowhere (docs/contributing/style.md).
const NO_SUBJECT: [&str; 9] =
    ["What ", "Its ", "It ", "Of ", "Who ", "Whose ", "Whether ", "The same ", "The same."];

/// The fixed line that says what a module must never do.
const FIXED: &str = "What must never happen here";

/// Longest name of a function, in characters.
const NAME_MAX: usize = 70;

/// Lines of the first line of each doc block without a subject, from 1.
fn without_subject(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut before = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let marks = ["//! ", "/// "];
        let doc = marks.iter().find_map(|mark| Some((*mark, line.strip_prefix(mark)?)));
        let first = doc.filter(|(mark, _)| !before.starts_with(mark.trim_end()));
        if first.is_some_and(|(_, words)| {
            !words.starts_with(FIXED) && NO_SUBJECT.iter().any(|none| words.starts_with(none))
        }) {
            found.push(index + 1);
        }
        before = line;
    }
    found
}

#[test]
fn a_doc_block_begins_with_its_subject() {
    let found: BTreeMap<_, _> = sources()
        .into_iter()
        .map(|(path, text)| (path, without_subject(&text)))
        .filter(|(_, lines)| !lines.is_empty())
        .collect();
    let files = found.keys().cloned().collect();
    let wrong = allowed::compare("doc-lines.txt", &files);
    let places: Vec<_> = found.iter().filter(|(path, _)| wrong.contains(&format!("new: {path}"))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}; lines: {places:?}");
    // The control.
    let text = "/// What it is.\n/// Its end.\nfn a() {}\n\n    /// Number of a.\n    /// Whose it is.\n    b: u8,\n\
                //! What must never happen here: x.\n/// Of b.\n";
    assert_eq!(without_subject(text), [1, 9]);
}

/// Names of the functions of a file that are too long.
fn long_names(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let (before, after) = line.split_once("fn ")?;
        let words = ["", "pub", "async", "const", "unsafe", "extern"];
        let only_words = before.split_whitespace().all(|word| {
            words.contains(&word) || word.starts_with("pub(") || word.starts_with('"') || word.ends_with(')')
        });
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        (only_words && name.chars().count() > NAME_MAX).then_some(name)
    };
    text.lines().filter_map(|line| name(line.trim_start())).collect()
}

#[test]
fn names_of_functions_are_short() {
    let found: BTreeSet<_> = sources()
        .into_iter()
        .flat_map(|(path, text)| long_names(&text).into_iter().map(move |name| format!("{path} {name}")))
        .collect();
    assert_eq!(allowed::compare("names.txt", &found), Vec::<String>::new());
    let long = "a".repeat(NAME_MAX + 1);
    assert_eq!(long_names(&format!("    pub(crate) async fn {long}(x: u8)")), std::slice::from_ref(&long));
    assert_eq!(long_names(&format!("// a fn {long}\nfn {}()", &long[1..])), Vec::<String>::new());
}

/// Longest line of a comment, in characters. rustfmt does not wrap comments.
const COMMENT_MAX: usize = 100;

/// Lines of comments that are too long, from 1. Code, tables and addresses cannot be wrapped.
fn long_comments(text: &str) -> Vec<usize> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("//") else {
            fenced = false;
            continue;
        };
        let words = rest.trim_start_matches(['/', '!']).trim_start();
        fenced ^= words.starts_with("```");
        let is_free = fenced || words.starts_with('|') || words.contains("://") || !words.contains(' ');
        if !is_free && line.chars().count() > COMMENT_MAX {
            found.push(index + 1);
        }
    }
    found
}

#[test]
fn comments_are_wrapped() {
    let found: BTreeSet<_> = sources()
        .into_iter()
        .flat_map(|(path, text)| {
            long_comments(&text).into_iter().map(move |line| format!("{path} line {line}"))
        })
        .collect();
    assert_eq!(found, BTreeSet::new(), "at most {COMMENT_MAX} columns");
    let (fits, long) = ("a ".repeat(48), "a ".repeat(50));
    let text = format!("/// {fits}\n//! {long}\n    // {long}\nlet long = 1; // {long}\n");
    assert_eq!(long_comments(&text), [2, 3]);
    let free = format!("/// | {long}\n/// https://x {long}\n/// ```\n/// {long}\n/// ```\n");
    assert_eq!(long_comments(&free), Vec::<usize>::new());
}
