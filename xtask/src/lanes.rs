//! Runs VM scenarios side by side: under emulation one alone leaves a third of two processors idle.
//! Each runs in a process of its own; its output is printed when it has ended.
//!
//! What must never happen here: a scenario that is not counted; VMs that survive this process; a
//! second try of anything but a wait that ran out.

use std::fs;
use std::io::{self, Read, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use mooring_tests::scenarios::{self, Scenario, Verdict};

use crate::test::tested;

/// Scenarios at once. The rig is made for two processors; with three, each would exceed the
/// scenarios' time limits.
const LANES: usize = 2;

/// Exit status of a scenario that could not run.
const SKIPPED: u8 = 77;
/// Exit status of a scenario that ended because a wait ran out.
const RAN_OUT: u8 = 78;

/// Options of `cargo xtask scenario`.
#[derive(Debug, Args)]
pub(crate) struct ScenarioArgs {
    name: String,
}

/// Runs one scenario in this process, with the programs that are already built; the exit status is
/// its verdict.
pub(crate) fn scenario(args: &ScenarioArgs, root: &Path) -> Result<ExitCode> {
    let found = scenarios::ALL.iter().find(|scenario| scenario.name == args.name);
    let found = found.with_context(|| format!("there is no scenario {}", args.name))?;
    Ok(match scenarios::run(found, &tested(root)) {
        Verdict::Passed => ExitCode::SUCCESS,
        Verdict::Failed(_) => ExitCode::FAILURE,
        Verdict::Skipped(_) => ExitCode::from(SKIPPED),
        Verdict::RanOut(_) => ExitCode::from(RAN_OUT),
    })
}

/// The result of a scenario, after a second try if a wait ran out in the first.
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    /// `true`: it passed only the second time.
    pub(crate) slow: bool,
    /// The scenario's own timing, such as "boot 5.0, install 1.2, ...".
    pub(crate) phases: String,
    pub(crate) took: Duration,
}

/// Runs scenarios side by side, and calls `ended` for each.
pub(crate) fn run(chosen: &[&'static Scenario], root: &Path, ended: impl Fn(&Ended) + Sync) -> Vec<Ended> {
    let next = AtomicUsize::new(0);
    let lane = || {
        let mut all = Vec::new();
        while let Some(scenario) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = twice_if_slow(scenario.name, &kept(root), &mut |name| {
                println!("-- {name} begins");
                apart(name)
            });
            ended(&one);
            all.push(one);
        }
        all
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        // A lane that panicked has lost its verdicts, so the whole run must panic.
        lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// The folder for the outputs of scenarios that ran twice.
fn kept(root: &Path) -> PathBuf {
    mooring_rig::image::rig_dir(root).join("slow")
}

/// One run of a scenario.
struct Run {
    verdict: Verdict,
    text: String,
    took: Duration,
}

/// Runs a scenario, and once more if a wait ran out; nothing else is retried. Both outputs are then
/// stored in `folder`.
fn twice_if_slow(
    name: &'static str,
    folder: &Path,
    run: &mut dyn FnMut(&'static str) -> Result<Run>,
) -> Ended {
    let mut once = || {
        run(name).unwrap_or_else(|error| {
            println!("-- {name}: {error:#}");
            Run { verdict: Verdict::Failed(format!("{error:#}")), text: String::new(), took: Duration::ZERO }
        })
    };
    let first = once();
    let Verdict::RanOut(why) = &first.verdict else { return first.ended(name, false) };
    println!("-- {name}: a wait ran out ({why}): once more");
    let second = once();
    for (number, run) in [(1, &first), (2, &second)] {
        let path = folder.join(format!("{name}.{number}"));
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, &run.text));
        match written {
            Ok(()) => println!("-- {name}: what it said is kept in {}", path.display()),
            Err(error) => println!("-- {name}: cannot keep what it said in {}: {error}", path.display()),
        }
    }
    let slow = second.verdict == Verdict::Passed;
    second.ended(name, slow)
}

impl Run {
    fn ended(self, name: &'static str, slow: bool) -> Ended {
        let verdict = match self.verdict {
            Verdict::RanOut(why) => Verdict::Failed(format!("twice: {why}")),
            other => other,
        };
        let line = self.text.lines().rev().find(|line| line.starts_with(&format!("-- {name} took ")));
        let phases = line.and_then(|line| line.split_once(" s: ")).map(|(_, phases)| phases.to_owned());
        Ended { name, verdict, slow, phases: phases.unwrap_or_default(), took: self.took }
    }
}

/// Runs a scenario in a process of its own.
fn apart(name: &str) -> Result<Run> {
    let began = Instant::now();
    let (mut said, tell) = io::pipe().context("make a pipe")?;
    // setpriv ends the child when this process ends for any reason; the child then ends its VMs.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(crate::program()?);
    command.args(["scenario", name]).stdin(Stdio::null());
    command.stdout(tell.try_clone().context("duplicate a pipe")?).stderr(tell);
    let mut child = command.spawn().with_context(|| format!("run {command:?}"))?;
    // Close our ends of the pipe, or reading would never end.
    drop(command);
    let mut text = Vec::new();
    said.read_to_end(&mut text).with_context(|| format!("read what {name} says"))?;
    let status = child.wait().with_context(|| format!("wait for {name}"))?;
    io::stdout().lock().write_all(&text).context("pass on what a scenario says")?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let verdict = match status.code() {
        Some(0) => Verdict::Passed,
        Some(1) => Verdict::Failed(why(name, &text)),
        Some(code) if code == i32::from(SKIPPED) => Verdict::Skipped(why(name, &text)),
        Some(code) if code == i32::from(RAN_OUT) => Verdict::RanOut(why(name, &text)),
        Some(_) | None => bail!("it did not come to its end: {status}"),
    };
    Ok(Run { verdict, text, took: began.elapsed() })
}

/// The scenario's own last words, without its name and time, which are printed already.
fn why(name: &str, text: &str) -> String {
    let own = text.lines().rev().find(|line| line.starts_with(&format!("-- {name} ")));
    let why = own.and_then(|line| line.split_once(" s: ")).map(|(_, why)| why);
    why.unwrap_or("it has not said why").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_scenario_failed_is_what_it_said_last() {
        let text = "-- boot: many exports\n-- boot Failed after 3.1 s: waited 60 s: in vain\n";
        assert_eq!(why("boot", text), "waited 60 s: in vain");
        assert_eq!(why("images", text), "it has not said why");
    }

    fn tries(verdicts: &[Verdict]) -> (Ended, usize, usize) {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = 0;
        let ended = twice_if_slow("boot", folder.path(), &mut |_| {
            let verdict = verdicts[runs].clone();
            runs += 1;
            let text = "-- boot took 9.0 s: boot 5.0, install 1.0, work 2.0, end 1.0\n".to_owned();
            Ok(Run { verdict, text, took: Duration::from_secs(9) })
        });
        let kept = fs::read_dir(folder.path()).unwrap().count();
        (ended, runs, kept)
    }

    #[test]
    fn only_a_wait_that_ran_out_is_tried_again_and_once() {
        let ran_out = || Verdict::RanOut("waited 90 s in vain for the disk".to_owned());
        for once in
            [Verdict::Passed, Verdict::Failed("3 stamps landed".to_owned()), Verdict::Skipped(String::new())]
        {
            let (ended, runs, kept) = tries(&[once.clone(), Verdict::Passed]);
            assert_eq!((ended.verdict, ended.slow, runs, kept), (once, false, 1, 0));
        }
        let (ended, runs, kept) = tries(&[ran_out(), Verdict::Passed]);
        assert_eq!((ended.verdict, ended.slow, runs, kept), (Verdict::Passed, true, 2, 2));
        assert_eq!(ended.phases, "boot 5.0, install 1.0, work 2.0, end 1.0");
        let (ended, runs, _) = tries(&[ran_out(), ran_out(), Verdict::Passed]);
        assert_eq!(
            (ended.verdict, ended.slow, runs),
            (Verdict::Failed("twice: waited 90 s in vain for the disk".to_owned()), false, 2)
        );
        let (ended, ..) = tries(&[ran_out(), Verdict::Failed("3 stamps landed".to_owned())]);
        assert_eq!(ended.verdict, Verdict::Failed("3 stamps landed".to_owned()));
    }
}
