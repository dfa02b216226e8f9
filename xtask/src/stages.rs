//! Stages of a long chore: each is timed and counted, and the last line says how many passed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What a stage has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Count {
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Stages so far.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    done: Vec<(String, Duration, Count)>,
}

impl Stages {
    /// Runs a stage. An error counts as one failure and does not stop the stages behind it. Says whether nothing has failed.
    pub(crate) fn run(&mut self, name: &str, stage: impl FnOnce() -> Result<Count>) -> bool {
        println!("== {name}");
        let began = Instant::now();
        let count = stage().unwrap_or_else(|error| {
            println!("FAILED {name}: {error:#}");
            Count::FAILED
        });
        println!(
            "== {name}: {:.1} s, {} passed, {} failed, {} skipped",
            began.elapsed().as_secs_f64(),
            count.passed,
            count.failed,
            count.skipped
        );
        self.done.push((name.to_owned(), began.elapsed(), count));
        count.failed == 0
    }

    /// Prints what each stage took, and as the last line the sum. Says whether nothing has failed.
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
            sum.add(*count);
        }
        println!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
        sum.failed == 0
    }
}

/// A cargo command in the workspace's root, without a terminal.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root).stdin(Stdio::null());
    command
}

/// Runs a command to its end; counts one.
pub(crate) fn one(mut command: Command) -> Result<Count> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(Count::PASSED)
}

/// Runs a command to its end, passing on what it prints; its output for counting.
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

/// The number in front of `word` in a text such as `12 passed`.
fn before(text: &str, word: &str) -> Option<usize> {
    let (head, _) = text.split_once(word)?;
    head.trim_end().rsplit([' ', ':', ';', ',', '.']).next()?.parse().ok()
}

/// Counts what cargo-nextest says in its summary line.
pub(crate) fn count_nextest(text: &str) -> Option<Count> {
    let line = text.lines().rev().find(|line| line.trim_start().starts_with("Summary ["))?;
    let passed = before(line, " passed")?;
    let failed = before(line, " failed").unwrap_or(0) + before(line, " timed out").unwrap_or(0);
    Some(Count { passed, failed, skipped: before(line, " skipped").unwrap_or(0) })
}

/// Counts what `cargo test` says in its result lines.
pub(crate) fn count_libtest(text: &str) -> Option<Count> {
    let mut sum = None;
    for line in text.lines().filter(|line| line.starts_with("test result:")) {
        let count = Count {
            passed: before(line, " passed").unwrap_or(0),
            failed: before(line, " failed").unwrap_or(0),
            skipped: before(line, " ignored").unwrap_or(0),
        };
        sum.get_or_insert_with(Count::default).add(count);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_counted() {
        let nextest = "x\n     Summary [   1.234s] 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 3 skipped\n";
        assert_eq!(count_nextest(nextest), Some(Count { passed: 10, failed: 2, skipped: 3 }));
        let libtest = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\ntest result: FAILED. 1 passed; 2 failed; 0 ignored;\n";
        assert_eq!(count_libtest(libtest), Some(Count { passed: 4, failed: 2, skipped: 1 }));
        assert_eq!((count_nextest("nothing"), count_libtest("nothing")), (None, None));
    }
}
