//! `cargo xtask test --timings`: writes the durations of a check's parts as a table into
//! docs/contributing/testing.md.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::lanes::Ended;

const PAGE: &str = "docs/contributing/testing.md";
const BEGIN: &str = "<!-- timings: made by `cargo xtask test --timings` -->";
const END: &str = "<!-- end of timings -->";
/// Seconds below which a test is not listed.
const SLOW_TEST: f64 = 2.0;
/// Seconds of compilation below which a dependency is not listed.
const SLOW_DEPENDENCY: f64 = 10.0;

/// Durations in one check.
#[derive(Debug, Default)]
pub(crate) struct Timings {
    pub(crate) wanted: bool,
    tests: Vec<(String, f64)>,
    scenarios: Vec<[String; 3]>,
    dependencies: Vec<(String, f64)>,
}

/// One unit in cargo's own report.
#[derive(Deserialize)]
struct Unit {
    name: String,
    version: String,
    #[serde(default)]
    target: String,
    duration: f64,
}

impl Timings {
    pub(crate) fn new(wanted: bool) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Reads nextest's output: "PASS [   2.345s] (1/9) crate::binary name".
    pub(crate) fn tests(&mut self, text: &str) {
        let times = text.lines().filter_map(|line| {
            let (seconds, rest) = line.trim().strip_prefix("PASS [")?.split_once("s] ")?;
            let name = rest.split_once(") ").map_or(rest, |(_, name)| name);
            Some((name.trim().to_owned(), seconds.trim().parse::<f64>().ok()?))
        });
        self.tests.extend(times.filter(|(_, seconds)| *seconds >= SLOW_TEST));
    }

    pub(crate) fn scenarios(&mut self, ended: &[Ended]) {
        let row =
            |one: &Ended| [one.name.to_owned(), format!("{:.0}", one.took.as_secs_f64()), one.phases.clone()];
        self.scenarios.extend(ended.iter().map(row));
    }

    /// Reads the report of `cargo build --timings`.
    pub(crate) fn dependencies(&mut self, target: &Path) {
        if !self.wanted {
            return;
        }
        let page = fs::read_to_string(target.join("cargo-timings/cargo-timing.html")).unwrap_or_default();
        self.dependencies = dependencies(&page);
    }

    /// Writes the table into the page, if requested.
    pub(crate) fn write<'a>(
        &mut self,
        root: &Path,
        stages: impl Iterator<Item = (&'a str, Duration)>,
    ) -> Result<()> {
        if !self.wanted {
            return Ok(());
        }
        let path = root.join(PAGE);
        let page = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let page =
            put(&page, &self.table(stages)).with_context(|| format!("{PAGE} has no place for the table"))?;
        fs::write(&path, page).with_context(|| format!("write {}", path.display()))
    }

    fn table<'a>(&mut self, stages: impl Iterator<Item = (&'a str, Duration)>) -> String {
        let mut text = "\n| stage | seconds |\n|---|---|\n".to_owned();
        for (name, took) in stages {
            let _ = writeln!(text, "| {name} | {:.0} |", took.as_secs_f64()); // a String takes everything
        }
        text.push_str("\n| scenario | seconds | of these |\n|---|---|---|\n");
        self.scenarios.sort_by_key(|[_, took, _]| std::cmp::Reverse(took.parse::<u32>().unwrap_or_default()));
        for [name, took, phases] in &self.scenarios {
            let _ = writeln!(text, "| `{name}` | {took} | {phases} |");
        }
        for (head, list) in
            [("test over 2 s", &mut self.tests), ("unit of a build over 10 s", &mut self.dependencies)]
        {
            let _ = writeln!(text, "\n| {head} | seconds |\n|---|---|");
            list.sort_by(|a, b| b.1.total_cmp(&a.1));
            for (name, seconds) in list {
                let _ = writeln!(text, "| {name} | {seconds:.1} |");
            }
        }
        text.push('\n');
        text
    }
}

/// Returns the page with this table between its two marks; `None`: the marks are missing.
fn put(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}{END}{after}"))
}

fn dependencies(page: &str) -> Vec<(String, f64)> {
    let json = page.split_once("UNIT_DATA = ").and_then(|(_, rest)| rest.split_once("];\n"));
    let units: Vec<Unit> =
        json.and_then(|(json, _)| serde_json::from_str(&format!("{json}]")).ok()).unwrap_or_default();
    let slow = units.into_iter().filter(|unit| unit.duration >= SLOW_DEPENDENCY);
    slow.map(|Unit { name, version, target, duration }| (format!("{name} {version}{target}"), duration))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_over_two_seconds_are_read_from_nextest() {
        let mut timings = Timings::new(true);
        timings.tests(
            "        PASS [   2.345s] (   1/2014) mooring-agent::api crash::killed\n        PASS [   0.1s] (2/9) a b\n",
        );
        assert_eq!(timings.tests, [("mooring-agent::api crash::killed".to_owned(), 2.345)]);
    }

    #[test]
    fn dependencies_are_read_from_cargos_report() {
        let page = "x\nconst UNIT_DATA = [\n  {\n \"i\": 0, \"name\": \"ring\", \"version\": \"0.17.1\", \"mode\": \"todo\", \
                    \"target\": \" build-script\", \"duration\": 12.5 }, {\"name\": \"a\", \"version\": \"1\", \"duration\": 1.0}\n];\nmore";
        assert_eq!(dependencies(page), [("ring 0.17.1 build-script".to_owned(), 12.5)]);
    }

    #[test]
    fn the_table_stands_between_its_marks() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let mut timings = Timings::new(true);
        let table = timings.table([("unit", Duration::from_secs(3))].into_iter());
        let page = put(&page, &table).unwrap();
        assert!(page.contains("| unit | 3 |") && !page.contains("old") && page.ends_with("\nb\n"), "{page}");
        assert!(put("no marks", &table).is_none());
    }
}
