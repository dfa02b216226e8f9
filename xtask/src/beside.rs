//! Stages that run beside the tests at the lowest priority: lints, pages, the checks of `vagrant/`
//! and of the packages. Most tests wait for clocks and leave processors idle. VM images are made
//! beside the build.
//!
//! What must never happen here: a result that is not counted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::stages::{self, Count, cargo, quietly};

/// Makes one stage's cargo command.
type Make = fn(&Path) -> Command;

/// Stages that run beside the others, in this order. The first three, and for a moment the last,
/// take cargo's lock on the build folder.
const ALL: [(&str, Make); 5] = [
    ("clippy", clippy),
    ("docs", docs),
    ("doc tests", doc_tests),
    ("vagrant", vagrant),
    ("lintian", lintian),
];

fn clippy(root: &Path) -> Command {
    let words =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"];
    cargo(root, &words)
}

fn docs(root: &Path) -> Command {
    let mut command = cargo(root, &["doc", "--workspace", "--no-deps", "--all-features", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

fn doc_tests(root: &Path) -> Command {
    cargo(root, &["test", "--workspace", "--doc", "--all-features", "--color", "never"])
}

/// `cargo xtask vagrant`.
fn vagrant(root: &Path) -> Command {
    chore(root, &["vagrant"])
}

/// Packages the tests' programs and checks them with lintian: scripts, folders and pages are the
/// shipped ones.
fn lintian(root: &Path) -> Command {
    chore(root, &["package", "--debug", "--lint"])
}

/// A chore of this program in a process of its own; it hardly uses cargo.
fn chore(root: &Path, words: &[&str]) -> Command {
    let Ok(program) = crate::program() else { return cargo(root, &[&["xtask"], words].concat()) };
    let mut command = Command::new(program);
    command.args(words).current_dir(root);
    command
}

/// Makes the VMs' images before they are needed. The stage that needs them waits for this lock,
/// makes missing ones, and reports failures. It runs at normal priority, because the scenarios
/// would wait for it.
pub(crate) fn warm_images() {
    let Ok(program) = crate::program() else { return };
    thread::spawn(move || {
        for kernel in mooring_rig::Kernel::ALL.map(mooring_rig::Kernel::name) {
            let mut build = Command::new(program);
            let _ = quietly(build.args(["vm", "build", "--kernel", kernel]));
        }
    });
}

/// The result of a stage.
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    pub(crate) count: Count,
}

/// Stages that are running.
pub(crate) struct Beside {
    thread: thread::JoinHandle<Vec<Ended>>,
}

/// Starts the stages whose names are selected.
pub(crate) fn start(root: &Path, wanted: impl Fn(&str) -> bool) -> Beside {
    let root: PathBuf = root.to_owned();
    let stages: Vec<_> = ALL.into_iter().filter(|(name, _)| wanted(name)).collect();
    let thread =
        thread::spawn(move || stages.into_iter().map(|(name, make)| run(name, &make(&root))).collect());
    Beside { thread }
}

impl Beside {
    /// Waits until all stages have ended.
    pub(crate) fn wait(self) -> Vec<Ended> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn run(name: &'static str, command: &Command) -> Ended {
    let began = Instant::now();
    let count = quietly(&mut politely(command)).map_or_else(
        |error| Count::failed(format!("{error:#}")),
        |(ok, text)| {
            let counted = stages::count_libtest(&text).filter(|count| ok || count.failed > 0);
            let said = if ok && counted.is_none() { String::new() } else { format!("\n{}", text.trim_end()) };
            println!("== {name}, beside the others: {:.1} s{said}", began.elapsed().as_secs_f64());
            match counted {
                Some(count) => count,
                None if ok => Count::PASSED,
                None => Count::failed("see what it printed above".to_owned()),
            }
        },
    );
    Ended { name, took: began.elapsed(), count }
}

/// Runs a command at the lowest priority.
fn politely(command: &Command) -> Command {
    let mut polite = Command::new("nice");
    polite
        .args(["-n", "19"])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(std::process::Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => polite.env(name, value),
            None => polite.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        polite.current_dir(folder);
    }
    polite
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("WORD", "set");
        run("lint", &command)
    }

    #[test]
    fn a_stage_beside_counts_as_what_it_said() {
        assert_eq!(sh("test $WORD = set").count, Count::PASSED);
        assert_eq!(sh("echo warning: unused; exit 1").count.failed, 1);
        let tests = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'";
        assert_eq!((sh(tests).count.passed, sh(tests).count.skipped), (3, 1));
        let bad = "echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101";
        assert_eq!((sh(bad).count.passed, sh(bad).count.failed), (2, 1));
        assert_eq!(sh("echo 'test result: ok. 3 passed; 0 failed; 0 ignored'; exit 1").count.failed, 1);
    }
}
