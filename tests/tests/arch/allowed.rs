//! Lists of what a rule still finds. A list only shrinks: a line that the rule no longer finds is
//! an error, too, and the length of each list is a number here.

use std::collections::{BTreeMap, BTreeSet};

use super::root;

/// Number of findings in each list. A number goes down with its list; whoever puts one up says why
/// in the commit.
const LENGTHS: [(&str, usize); 8] = [
    ("arrows.txt", 6),
    ("clocks.txt", 0),
    ("commands.txt", 0),
    ("doc-lines.txt", 0),
    ("fields.txt", 109),
    ("machine.txt", 7),
    ("names.txt", 0),
    ("structs.txt", 7),
];

/// Compares what a rule found with its list in `tests/tests/arch/allowed/`: one finding a line, `#`
/// begins a reason.
///
/// Returns what is to be mended: new findings, and lines of the list that are true no longer.
pub(super) fn compare(list: &str, found: &BTreeSet<String>) -> Vec<String> {
    let path = root().join("tests/tests/arch/allowed").join(list);
    let mut text = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("ARCH_SHRINK").is_some() {
        text = shrink(&path, &text, found);
    }
    differences(list, &text, found)
}

fn finding(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// Findings of a list, without reasons.
fn findings(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(finding).filter(|line| !line.is_empty())
}

fn differences(list: &str, text: &str, found: &BTreeSet<String>) -> Vec<String> {
    let allowed: BTreeSet<String> = findings(text).map(str::to_owned).collect();
    let new = found.difference(&allowed).map(|one| format!("new: {one}"));
    let gone = allowed.difference(found).map(|one| {
        format!("true no longer, take it out of allowed/{list} (or run this test with ARCH_SHRINK=1): {one}")
    });
    new.chain(gone).collect()
}

/// Takes the lines out of a list that are true no longer, and returns what is left. Adds none.
fn shrink(path: &std::path::Path, text: &str, found: &BTreeSet<String>) -> String {
    let kept: String = text
        .lines()
        .filter(|line| finding(line).is_empty() || found.contains(finding(line)))
        .flat_map(|line| [line, "\n"])
        .collect();
    if kept != text {
        std::fs::write(path, &kept).expect("the list can be written");
    }
    kept
}

/// Lines of a list whose finding has no reason, neither behind it nor in a comment at the head of
/// its paragraph.
fn without_reason(text: &str) -> Vec<String> {
    let mut explained = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() {
            explained = false;
        } else if line.starts_with('#') {
            explained = true;
        } else if !explained && !line.contains('#') {
            found.push(line.to_owned());
        }
    }
    found
}

/// Names and texts of all lists.
fn lists() -> BTreeMap<String, String> {
    let folder = std::fs::read_dir(root().join("tests/tests/arch/allowed")).expect("the lists");
    let list = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("an entry");
        let text = std::fs::read_to_string(entry.path()).expect("a list");
        (entry.file_name().to_string_lossy().into_owned(), text)
    };
    folder.map(list).collect()
}

#[test]
fn each_line_of_a_list_has_its_reason() {
    for (list, text) in lists() {
        // The first line says what the list is of, and is no reason.
        let lines = text.split_once('\n').map_or("", |(_, lines)| lines);
        assert_eq!(without_reason(lines), Vec::<String>::new(), "{list}: say why, behind `#`");
    }
    assert_eq!(without_reason("a # why\nb\n# why\nc\nd\n\ne\n"), ["b", "e"]);
}

#[test]
fn each_list_is_as_long_as_its_number() {
    let long: BTreeMap<String, usize> =
        lists().into_iter().map(|(list, text)| (list, findings(&text).count())).collect();
    let allowed: BTreeMap<String, usize> = LENGTHS.map(|(list, length)| (list.to_owned(), length)).into();
    assert_eq!(
        allowed, long,
        "a list has grown: mend what is new; or it has shrunk: put its number in LENGTHS down"
    );
    assert_eq!(findings("# of\n\n# why\na\nb # why\n").collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_list_only_shrinks() {
    let found = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    assert_eq!(differences("x", "# why\n a # because\nb\n", &found), Vec::<String>::new());
    assert_eq!(differences("x", "a\n", &found), ["new: b"]);
    let gone = differences("x", "a\nb\nc\n", &found);
    assert!(gone.len() == 1 && gone[0].starts_with("true no longer") && gone[0].ends_with(": c"), "{gone:?}");
}
