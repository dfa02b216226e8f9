//! Stages of a long chore: each is timed and counted, and the last line shows how many passed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Counts of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// Failures, one line each. They are repeated at the end, where a reader of a long output looks
    /// first.
    pub(crate) failures: Vec<String>,
}

impl Count {
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0, failures: Vec::new() };

    pub(crate) fn failed(why: String) -> Self {
        Self { failed: 1, failures: vec![why], ..Self::default() }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }
}

/// The stages so far.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    done: Vec<(String, Duration, Count)>,
    notes: Vec<String>,
}

impl Stages {
    /// Runs a stage. An error counts as one failure, and later stages still run. Returns `true` if
    /// nothing failed.
    pub(crate) fn run(&mut self, name: &str, stage: impl FnOnce() -> Result<Count>) -> bool {
        println!("== {name}");
        let began = Instant::now();
        let count = stage().unwrap_or_else(|error| {
            println!("FAILED {name}: {error:#}");
            Count::failed(format!("{error:#}"))
        });
        println!(
            "== {name}: {:.1} s, {} passed, {} failed, {} skipped",
            began.elapsed().as_secs_f64(),
            count.passed,
            count.failed,
            count.skipped
        );
        let good = count.failed == 0;
        self.done.push((name.to_owned(), began.elapsed(), count));
        good
    }

    /// Adds a stage that ran beside the others.
    pub(crate) fn add(&mut self, name: &str, took: Duration, count: Count) {
        self.done.push((name.to_owned(), took, count));
    }

    /// Adds a line to print at the end, before the failures.
    pub(crate) fn note(&mut self, line: String) {
        self.notes.push(line);
    }

    /// Counts one more failure that no stage has found by itself.
    pub(crate) fn fail(&mut self, name: &str, why: String) {
        self.done.push((name.to_owned(), Duration::ZERO, Count::failed(why)));
    }

    /// Seconds of each stage so far.
    pub(crate) fn times(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.done.iter().map(|(name, took, _)| (name.as_str(), *took))
    }

    /// Prints the time of each stage, the failures, and as the last line the sum. Returns `true` if
    /// nothing failed.
    pub(crate) fn finish(self) -> bool {
        let mut sum = Count::default();
        println!("\n{:<28} {:>9}  {:>7} {:>7} {:>7}", "stage", "seconds", "passed", "failed", "skipped");
        for (name, took, count) in &self.done {
            println!(
                "{name:<28} {:>9.1}  {:>7} {:>7} {:>7}",
                took.as_secs_f64(),
                count.passed,
                count.failed,
                count.skipped
            );
            sum.add(count.clone());
        }
        self.notes.iter().for_each(|note| println!("{note}"));
        for (name, _, count) in &self.done {
            for why in &count.failures {
                println!("FAILED {name}: {}", one_line(why));
            }
        }
        println!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
        sum.failed == 0
    }
}

/// Shortens a long text to its beginning and its end: the failed step and the innermost cause.
fn one_line(why: &str) -> String {
    const EACH: usize = 200;
    let words = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = words.chars().count();
    if count <= 2 * EACH {
        return words;
    }
    let begins: String = words.chars().take(EACH).collect();
    let ends: String = words.chars().skip(count - EACH).collect();
    format!("{begins} […] {ends}")
}

/// Cargo's build folder.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// A function that builds the programs that tests run, with all features, and returns their folder.
pub(crate) type Build = fn(&Path, &[&str]) -> Result<PathBuf>;

/// Builds only these programs.
pub(crate) fn test_programs(root: &Path, names: &[&str]) -> Result<PathBuf> {
    build(root, &["build", "--workspace", "--all-features"], names)
}

/// Uses the programs of the check's build, which has made all.
pub(crate) fn built(root: &Path, names: &[&str]) -> Result<PathBuf> {
    let folder = target(root).join("debug");
    match names.iter().find(|name| !folder.join(name).exists()) {
        Some(name) => bail!("{} was not built", folder.join(name).display()),
        None => Ok(folder),
    }
}

fn build(root: &Path, how: &[&str], names: &[&str]) -> Result<PathBuf> {
    let mut command = cargo(root, how);
    for name in names {
        command.args(["--bin", name]);
    }
    one(command)?;
    Ok(target(root).join("debug"))
}

/// Makes a cargo command in the workspace's root, without a terminal.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root).stdin(Stdio::null());
    // Remove the variables that `cargo run` sets for this package. Build scripts of others read
    // some of them, and everything above those would be rebuilt each time.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command to its end; counts as one test.
pub(crate) fn one(mut command: Command) -> Result<Count> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(Count::PASSED)
}

/// Runs a command to its end and returns its output, for a stage that runs beside others.
pub(crate) fn quietly(command: &mut Command) -> Result<(bool, String)> {
    let out = command.output().with_context(|| format!("run {command:?}"))?;
    let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&out.stderr));
    Ok((out.status.success(), text))
}

/// Runs a command to its end, passes its output on, and also returns it for counting.
pub(crate) fn tee(mut command: Command) -> Result<(bool, String)> {
    use std::io::{BufRead, BufReader};
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {command:?}"))?;
    let (out, err) = (child.stdout.take().context("stdout")?, child.stderr.take().context("stderr")?);
    let pass_on = |reader: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut all = String::new();
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                println!("{line}");
                all.push_str(&line);
                all.push('\n');
            }
            all
        })
    };
    let (out, err) = (pass_on(Box::new(out)), pass_on(Box::new(err)));
    let status = child.wait().context("wait for cargo")?;
    let mut text = out.join().unwrap_or_default();
    text.push_str(&err.join().unwrap_or_default());
    Ok((status.success(), text))
}

/// The number before `word` in a text such as `12 passed`.
fn before(text: &str, word: &str) -> Option<usize> {
    let (head, _) = text.split_once(word)?;
    head.trim_end().rsplit([' ', ':', ';', ',', '.']).next()?.parse().ok()
}

/// Reads the counts in cargo-nextest's summary line; `None`: there is no such line.
pub(crate) fn count_nextest(text: &str) -> Option<Count> {
    let line = text.lines().rev().find(|line| line.trim_start().starts_with("Summary ["))?;
    let passed = before(line, " passed")?;
    let failed = before(line, " failed").unwrap_or(0) + before(line, " timed out").unwrap_or(0);
    // A line such as "FAIL [   0.123s] package test_name", or its kin for signals and time-outs.
    // Each appears at once and again at the end.
    let ended_badly = |line: &&str| {
        ["FAIL", "TIMEOUT", "SIG", "ABORT"].iter().any(|word| line.starts_with(word)) && line.contains("s] ")
    };
    let mut failures: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim).filter(ended_badly) {
        let name = line.split_once("s] ").map_or(line, |(_, name)| name).trim();
        if !failures.iter().any(|known| known == name) {
            failures.push(name.to_owned());
        }
    }
    Some(Count { passed, failed, skipped: before(line, " skipped").unwrap_or(0), failures })
}

/// Reads the counts in `cargo test`'s result lines; `None`: there are none.
pub(crate) fn count_libtest(text: &str) -> Option<Count> {
    let mut sum = None;
    for line in text.lines().filter(|line| line.starts_with("test result:")) {
        let count = Count {
            passed: before(line, " passed").unwrap_or(0),
            failed: before(line, " failed").unwrap_or(0),
            skipped: before(line, " ignored").unwrap_or(0),
            failures: Vec::new(),
        };
        sum.get_or_insert_with(Count::default).add(count);
    }
    let failed = text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let failures = failed.map(str::to_owned).collect();
    sum.map(|count| Count { failures, ..count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(passed: usize, failed: usize, skipped: usize, failures: &[&str]) -> Count {
        let failures = failures.iter().map(|&name| name.to_owned()).collect();
        Count { passed, failed, skipped, failures }
    }

    #[test]
    fn a_long_failure_keeps_its_beginning_and_its_cause() {
        assert_eq!(one_line("boot: a\n  b"), "boot: a b");
        let long = format!("boot: {}\nno such file", "fault point\n".repeat(100));
        let line = one_line(&long);
        assert!(
            line.starts_with("boot: fault point fault") && line.ends_with("point no such file"),
            "{line}"
        );
        assert_eq!(line.chars().count(), 405);
    }

    #[test]
    fn summaries_are_counted_and_failures_named_once() {
        let nextest = "x
        FAIL [   0.010s] ( 3/12) mooring-agent::rebuild comes_back
     Summary [   1.234s] 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 3 skipped
        FAIL [   0.010s] ( 3/12) mooring-agent::rebuild comes_back
     TIMEOUT [  90.001s] ( 9/12) mooring-agent::rebuild waits\n";
        let failures = ["( 3/12) mooring-agent::rebuild comes_back", "( 9/12) mooring-agent::rebuild waits"];
        assert_eq!(count_nextest(nextest), Some(count(10, 2, 3, &failures)));
        let libtest = "test a::b ... ok
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured
test a::c ... FAILED
test result: FAILED. 1 passed; 2 failed; 0 ignored;\n";
        assert_eq!(count_libtest(libtest), Some(count(4, 2, 1, &["a::c"])));
        assert_eq!((count_nextest("nothing"), count_libtest("nothing")), (None, None));
    }
}
