//! `docs/requirements.md` agrees with the tests of this folder.
//!
//! What must never happen here: a row that names a missing test, or a requirement without a row.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The numbers of the requirements.
const NUMBERS: std::ops::RangeInclusive<u32> = 1..=62;

/// Requirements at which the specification's own implementation falls short.
const SHORTFALLS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A row of a table: its first cell (`S32`), and its last.
struct Row {
    names: Vec<String>,
    held_by: String,
}

fn rows(kind: char) -> Vec<Row> {
    let text = std::fs::read_to_string(root().join("docs/requirements.md")).unwrap();
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<_> =
            line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").map(str::trim).collect();
        let names: Vec<_> = cells.first()?.split(", ").map(str::to_owned).collect();
        let numbered = |name: &String| {
            name.strip_prefix(kind).is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let whole = names.iter().all(numbered) && cells.len() == 3;
        whole.then(|| Row { names, held_by: cells[2].to_owned() })
    });
    rows.collect()
}

fn number(name: &str) -> u32 {
    name[1..].parse().unwrap()
}

/// The texts between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The number in the name of a test, as `s18_second_attach`.
fn number_of_test(name: &str) -> Option<u32> {
    let (number, what) = name.strip_prefix('s')?.split_once('_')?;
    let whole = number.len() == 2 && !what.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    whole.then(|| number.parse().ok())?
}

/// The tests of this folder, by their numbers.
fn tests() -> BTreeMap<u32, BTreeSet<String>> {
    let mut tests: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("tests/fleet/tests/requirements")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let name = (line == "#[test]").then(|| lines.next()?.strip_prefix("fn ")?.strip_suffix("() {"));
            if let Some((number, name)) = name.flatten().and_then(|name| Some((number_of_test(name)?, name)))
            {
                tests.entry(number).or_default().insert(name.to_owned());
            }
        }
    }
    tests
}

#[test]
fn every_number_has_one_row() {
    let mut numbers: Vec<_> = rows('S').iter().flat_map(|row| &row.names).map(|name| number(name)).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, NUMBERS.collect::<Vec<_>>());
    let shortfalls: Vec<_> = rows('G').iter().flat_map(|row| &row.names).map(|name| number(name)).collect();
    assert_eq!(shortfalls, SHORTFALLS);
}

#[test]
fn every_row_with_a_test_has_one_of_its_number() {
    let tests = tests();
    for row in rows('S') {
        let numbers: Vec<_> = row.names.iter().map(|name| number(name)).collect();
        let named: Vec<_> = quoted(&row.held_by).filter(|name| number_of_test(name).is_some()).collect();
        for name in &named {
            let own = number_of_test(name).filter(|number| numbers.contains(number));
            let known = own.and_then(|number| tests.get(&number)).is_some_and(|tests| tests.contains(*name));
            assert!(known, "{:?}: {name} is no test of this number", row.names);
        }
        for number in numbers {
            let tested = tests.contains_key(&number);
            let says = named.iter().any(|name| number_of_test(name) == Some(number));
            let plain = row.held_by.split(|c: char| !c.is_alphabetic()).any(|word| word == "test");
            assert_eq!(says, tested, "S{number}: the row names a test, and there is one, or neither");
            assert!(says || !plain, "S{number}: which test?");
            assert!(!row.held_by.is_empty(), "S{number}: held by nobody");
        }
    }
    let rows: BTreeSet<_> = NUMBERS.collect();
    assert!(tests.keys().all(|number| rows.contains(number)), "{:?}", tests.keys());
}

#[test]
fn every_shortfall_leads_to_a_test() {
    let tests = tests();
    for row in rows('G') {
        let words = row.held_by.split(|c: char| !c.is_ascii_alphanumeric());
        let numbers: Vec<u32> = words.filter_map(|word| word.strip_prefix('S')?.parse().ok()).collect();
        assert!(!numbers.is_empty(), "{:?} leads nowhere", row.names);
        assert!(numbers.iter().all(|number| tests.contains_key(number)), "{:?}: {numbers:?}", row.names);
    }
}

#[test]
fn every_file_that_is_named_is_there() {
    for row in rows('S').into_iter().chain(rows('G')) {
        for path in quoted(&row.held_by).filter(|text| text.contains('/')) {
            assert!(root().join(path).exists(), "{:?}: {path} is not there", row.names);
        }
    }
}
