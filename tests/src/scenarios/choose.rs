//! The choice of scenarios in a run of the check.
//!
//! What must never happen here: a scenario that is left out without its name printed, or counted as
//! passed or skipped; a repository with an unreadable history that leaves anything out.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{Scenario, Tier};

/// Number of runs that together take the whole rotation.
const TURNS: usize = 3;
/// Age in seconds before the time of HEAD up to which a change of a subject counts.
const RECENT: i64 = 6 * 60 * 60;
/// Usual seconds of all scenarios of one run together, over which no changed one is added: 18
/// minutes in two lanes, so that a cold run of the check ends within half an hour.
const BUDGET: u16 = 2200;

/// Folders and files that every scenario uses.
pub(super) const SHARED: &[&str] = &[
    ".cargo",
    "Cargo.lock",
    "Cargo.toml",
    "api",
    "host",
    "model",
    "rust-toolchain.toml",
    "tests/guest",
    "tests/rig",
    "tests/src/control.rs",
    "tests/src/evidence.rs",
    "tests/src/site.rs",
];

/// The scenarios that a run takes, and the reasons.
pub struct Choice {
    /// The scenarios that run.
    pub taken: Vec<&'static Scenario>,
    left_out: Vec<&'static str>,
    /// The rotation's turn, from 1; `None` if the history is unknown, and then all run but those of
    /// the full check.
    turn: Option<usize>,
    changed: Vec<&'static str>,
    /// Changed scenarios that are left out because the run would exceed [`BUDGET`].
    no_time: Vec<&'static str>,
}

impl Display for Choice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(turn) = self.turn else {
            let left = self.left_out.join(", ");
            return write!(
                f,
                "rotation unknown (no history of commits): every scenario runs; left out: {left}"
            );
        };
        let list =
            |names: &[&'static str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        write!(f, "rotation {turn} of {TURNS}; ")?;
        write!(f, "beside it, changed lately: {}; left out: {}", list(&self.changed), list(&self.left_out))?;
        if !self.no_time.is_empty() {
            let names = list(&self.no_time);
            write!(
                f,
                "; changed too, for which a run has no time (the next turns or --full take them): {names}"
            )?;
        }
        Ok(())
    }
}

/// Git's knowledge of this tree.
#[derive(Debug, PartialEq, Eq)]
struct History {
    /// Commits on HEAD.
    commits: usize,
    /// Files that differ from the newest commit that is [`RECENT`] older than HEAD.
    changed: Vec<String>,
}

/// Chooses for this tree: the core, one third of the rotation by the number of commits, and as many
/// of the scenarios that changed lately as the run has time for.
pub fn choose(all: &'static [Scenario], root: &Path) -> Choice {
    match History::read(root) {
        Ok(history) => of(all, &history),
        Err(error) => {
            println!("cannot read the history of commits: {error:#}");
            let (left_out, taken): (Vec<_>, _) =
                all.iter().partition(|one| matches!(one.tier, Tier::Full(_)));
            let left_out = by_length(left_out).into_iter().map(|one| one.name).collect();
            Choice { taken: by_length(taken), left_out, turn: None, changed: Vec::new(), no_time: Vec::new() }
        }
    }
}

fn of(all: &'static [Scenario], history: &History) -> Choice {
    let turn = history.commits % TURNS;
    let (mut taken, mut left_out) = (Vec::new(), Vec::new());
    // Changed ones of other turns: by their own file, by their subject, by a part that all share.
    let (mut by_file, mut by_subject, mut by_shared) = (Vec::new(), Vec::new(), Vec::new());
    let mut place = 0;
    // Sort by length, so that each turn takes about as long as the others.
    for scenario in by_length(all.iter().collect()) {
        let subject = match scenario.tier {
            Tier::Rotation { subject } => subject,
            Tier::Core => {
                taken.push(scenario);
                continue;
            }
            Tier::Full(_) => {
                left_out.push(scenario.name);
                continue;
            }
        };
        let its_turn = place % TURNS == turn;
        place += 1;
        let own = format!("tests/src/scenarios/{}", scenario.name.replace('-', "_"));
        let changed =
            |parts: &[&str]| history.changed.iter().any(|file| parts.iter().any(|part| is_below(file, part)));
        if its_turn {
            taken.push(scenario);
        } else if history.changed.iter().any(|file| file.starts_with(&own)) {
            by_file.push(scenario);
        } else if changed(subject) {
            by_subject.push(scenario);
        } else if changed(SHARED) {
            by_shared.push(scenario);
        } else {
            left_out.push(scenario.name);
        }
    }
    let (mut changed, mut no_time) = (Vec::new(), Vec::new());
    let mut sum: u16 = taken.iter().map(|scenario| scenario.usual).sum();
    // The shortest first: as many as there is time for.
    let in_order = [by_file, by_subject, by_shared].into_iter().flat_map(|group| group.into_iter().rev());
    for scenario in in_order {
        if sum + scenario.usual > BUDGET {
            no_time.push(scenario.name);
            continue;
        }
        sum += scenario.usual;
        changed.push(scenario.name);
        taken.push(scenario);
    }
    Choice { taken: by_length(taken), left_out, turn: Some(turn + 1), changed, no_time }
}

/// The longest first, so that the last lane has little left.
pub fn by_length(mut scenarios: Vec<&'static Scenario>) -> Vec<&'static Scenario> {
    scenarios.sort_by_key(|scenario| std::cmp::Reverse(scenario.usual));
    scenarios
}

fn is_below(file: &str, part: &str) -> bool {
    file.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl History {
    fn read(root: &Path) -> Result<Self> {
        if git(root, &["rev-parse", "--is-shallow-repository"])?.trim() == "true" {
            bail!("the clone is shallow");
        }
        let commits = git(root, &["rev-list", "--count", "HEAD"])?;
        let commits = commits.trim().parse().with_context(|| format!("a number of commits: {commits}"))?;
        let time = git(root, &["log", "-1", "--format=%ct", "HEAD"])?;
        let time: i64 = time.trim().parse().with_context(|| format!("a time of a commit: {time}"))?;
        let before = format!("--before={}", time - RECENT);
        let base = git(root, &["rev-list", "-1", &before, "HEAD"])?;
        let base = base.trim();
        if base.is_empty() {
            bail!("no commit is six hours older than HEAD");
        }
        // Uncommitted changes count as well: they are what runs.
        let mut changed = git(root, &["diff", "--name-only", base, "--"])?;
        changed.push_str(&git(root, &["ls-files", "--others", "--exclude-standard"])?);
        Ok(Self { commits, changed: changed.lines().map(str::to_owned).collect() })
    }
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    let out = Command::new("git")
        // Also read another user's clone, as in CI: nothing in it is run.
        .args(["-c", "safe.directory=*", "-c", "core.quotePath=false"])
        .args(args)
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .context("start git")?;
    if !out.status.success() {
        bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::ALL;

    fn history(commits: usize, changed: &[&str]) -> History {
        History { commits, changed: changed.iter().map(|&file| file.to_owned()).collect() }
    }

    /// Scenarios of the full check alone, the longest first.
    fn full() -> Vec<&'static str> {
        let full = ALL.iter().filter(|one| matches!(one.tier, Tier::Full(_))).collect();
        by_length(full).into_iter().map(|one| one.name).collect()
    }

    fn names(choice: &Choice) -> Vec<&'static str> {
        choice.taken.iter().map(|scenario| scenario.name).collect()
    }

    #[test]
    fn three_runs_in_a_row_take_every_scenario_and_each_the_core() {
        let core: Vec<_> = ALL.iter().filter(|one| one.tier == Tier::Core).map(|one| one.name).collect();
        assert!(core.contains(&"main-job"));
        let mut seen = Vec::new();
        for commits in 7..10 {
            let choice = of(ALL, &history(commits, &["docs/rig.md"]));
            assert!(core.iter().all(|name| names(&choice).contains(name)));
            assert_eq!(choice.taken.len() + choice.left_out.len(), ALL.len());
            assert!(choice.taken.len() < ALL.len());
            seen.extend(names(&choice));
        }
        assert!(ALL.iter().all(|one| seen.contains(&one.name) != matches!(one.tier, Tier::Full(_))));
    }

    /// Usual seconds of what a run takes.
    fn seconds(choice: &Choice) -> u16 {
        choice.taken.iter().map(|scenario| scenario.usual).sum()
    }

    #[test]
    fn a_scenario_runs_when_its_subject_changed() {
        for commits in 0..TURNS {
            let choice = of(ALL, &history(commits, &["agent/src/images/qcow2.rs"]));
            assert!(names(&choice).contains(&"images"));
            let own = of(ALL, &history(commits, &["tests/src/scenarios/reservations.rs"]));
            assert!(names(&own).contains(&"reservations"));
            // A folder whose name only has the same prefix is another one.
            let other = of(ALL, &history(commits, &["hosting/x", "agent/src/images.md"]));
            assert!(other.left_out.len() > full().len());
            assert_eq!((other.changed.len(), other.no_time.len()), (0, 0));
        }
    }

    #[test]
    fn changed_scenarios_are_added_while_a_run_has_time_own_files_first() {
        for commits in 0..TURNS {
            let turn = of(ALL, &history(commits, &[]));
            assert!(seconds(&turn) <= BUDGET, "a turn and the core: {} s", seconds(&turn));
            let shared = of(ALL, &history(commits, &["Cargo.lock"]));
            assert_eq!(shared.left_out, full());
            assert!(!shared.changed.is_empty() && !shared.no_time.is_empty());
            assert!(seconds(&shared) <= BUDGET);
            // Each is taken or named, and nothing twice.
            let mut all = [names(&shared), shared.left_out.clone(), shared.no_time.clone()].concat();
            all.sort_unstable();
            let mut every: Vec<_> = ALL.iter().map(|one| one.name).collect();
            every.sort_unstable();
            assert_eq!(all, every);
            let text = shared.to_string();
            assert!(shared.no_time.iter().all(|name| text.contains(name)), "{text}");
            let both = of(ALL, &history(commits, &["Cargo.lock", "tests/src/scenarios/installed.rs"]));
            assert!(names(&both).contains(&"installed"), "the longest: its own change goes first");
        }
    }

    #[test]
    fn the_choice_names_what_is_left_out() {
        let choice = of(ALL, &history(4, &[]));
        let text = choice.to_string();
        assert!(text.starts_with("rotation 2 of 3; beside it, changed lately: none; left out: "), "{text}");
        assert!(choice.left_out.iter().all(|name| text.contains(name)));
    }

    #[test]
    fn every_subject_exists() {
        let root = mooring_rig::options::workspace_root();
        let subjects = ALL.iter().flat_map(|scenario| match scenario.tier {
            Tier::Core | Tier::Full(_) => &[],
            Tier::Rotation { subject } => subject,
        });
        for part in SHARED.iter().chain(subjects) {
            assert!(root.join(part).exists(), "{part}");
        }
    }

    #[test]
    fn a_folder_without_history_takes_all_but_the_full_check() {
        let dir = tempfile::tempdir().unwrap();
        let choice = choose(ALL, dir.path());
        assert_eq!((choice.taken.len(), &choice.left_out), (ALL.len() - full().len(), &full()));
        assert!(full().iter().all(|name| choice.to_string().contains(name)));
    }

    #[test]
    fn history_is_what_changed_since_six_hours_before_head() {
        let dir = tempfile::tempdir().unwrap();
        let commit = |file: &str, at: &str| {
            std::fs::write(dir.path().join(file), at).unwrap();
            let script = "git add -A && git -c user.name=t -c user.email=t@t commit -qm x";
            let mut sh = Command::new("sh");
            sh.args(["-ec", script]).current_dir(dir.path());
            assert!(sh.env("GIT_COMMITTER_DATE", at).env("GIT_AUTHOR_DATE", at).status().unwrap().success());
        };
        git(dir.path(), &["init", "-q"]).unwrap();
        commit("old", "2026-01-01T00:00:00Z");
        assert!(History::read(dir.path()).is_err(), "nothing is six hours older");
        commit("yesterday", "2026-01-01T12:00:00Z");
        commit("now", "2026-01-01T19:00:00Z");
        std::fs::write(dir.path().join("not-yet"), "").unwrap();
        assert_eq!(History::read(dir.path()).unwrap(), history(3, &["now", "not-yet"]));
    }
}
