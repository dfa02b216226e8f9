//! Lists of what a rule still finds. A list only shrinks: a line that the rule no longer finds is an error, too.

use std::collections::BTreeSet;

use super::root;

/// Compares what a rule found with its list in `tests/tests/arch/allowed/`: one finding a line, `#` begins a reason.
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

#[test]
fn a_list_only_shrinks() {
    let found = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    assert_eq!(differences("x", "# why\n a # because\nb\n", &found), Vec::<String>::new());
    assert_eq!(differences("x", "a\n", &found), ["new: b"]);
    let gone = differences("x", "a\nb\nc\n", &found);
    assert!(gone.len() == 1 && gone[0].starts_with("true no longer") && gone[0].ends_with(": c"), "{gone:?}");
}
