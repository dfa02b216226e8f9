//! Lists of what a rule still finds. A list only shrinks: a line that the rule no longer finds is
//! an error, too.

use std::collections::BTreeSet;

use super::root;

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

fn differences(list: &str, text: &str, found: &BTreeSet<String>) -> Vec<String> {
    let allowed: BTreeSet<String> =
        text.lines().map(finding).filter(|line| !line.is_empty()).map(str::to_owned).collect();
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

#[test]
fn each_line_of_a_list_has_its_reason() {
    for entry in std::fs::read_dir(root().join("tests/tests/arch/allowed")).expect("the lists") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a list");
        // The first line says what the list is of, and is no reason.
        let lines = text.split_once('\n').map_or("", |(_, lines)| lines);
        assert_eq!(without_reason(lines), Vec::<String>::new(), "{}: say why, behind `#`", path.display());
    }
    assert_eq!(without_reason("a # why\nb\n# why\nc\nd\n\ne\n"), ["b", "e"]);
}

#[test]
fn a_list_only_shrinks() {
    let found = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    assert_eq!(differences("x", "# why\n a # because\nb\n", &found), Vec::<String>::new());
    assert_eq!(differences("x", "a\n", &found), ["new: b"]);
    let gone = differences("x", "a\nb\nc\n", &found);
    assert!(gone.len() == 1 && gone[0].starts_with("true no longer") && gone[0].ends_with(": c"), "{gone:?}");
}
