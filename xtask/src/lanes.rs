//! VM scenarios side by side: under emulation one alone leaves a third of two processors idle. Each is a process of its own, and
//! what it says is printed when it has ended.
//!
//! What must never happen: a scenario that is not counted; VMs that stay when this process ends.

use std::io::{self, Read, Write};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;
use mooring_tests::scenarios::{self, Scenario, Verdict};

use crate::test::tested;

/// How many at once: the rig is made for two processors, and three would be slower for each than the scenarios' time limits want.
const LANES: usize = 2;

/// Exit status of a scenario that could not run.
const SKIPPED: u8 = 77;

/// Which scenario.
#[derive(Debug, Args)]
pub(crate) struct ScenarioArgs {
    name: String,
}

/// Runs one scenario in this process, with the programs that are there; its verdict is the exit status.
pub(crate) fn scenario(args: &ScenarioArgs, root: &Path) -> Result<ExitCode> {
    let found = scenarios::ALL.iter().find(|scenario| scenario.name == args.name);
    let found = found.with_context(|| format!("there is no scenario {}", args.name))?;
    Ok(match scenarios::run(found, &tested(root)) {
        Verdict::Passed => ExitCode::SUCCESS,
        Verdict::Failed(_) => ExitCode::FAILURE,
        Verdict::Skipped(_) => ExitCode::from(SKIPPED),
    })
}

/// Runs scenarios, and says how each has ended.
pub(crate) fn run(chosen: &[&'static Scenario]) -> Vec<(&'static str, Verdict)> {
    let next = AtomicUsize::new(0);
    let lane = || {
        let mut ended = Vec::new();
        while let Some(scenario) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            println!("-- {} begins", scenario.name);
            let verdict = apart(scenario.name).unwrap_or_else(|error| {
                println!("-- {}: {error:#}", scenario.name);
                Verdict::Failed(format!("{error:#}"))
            });
            ended.push((scenario.name, verdict));
        }
        ended
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        // A lane that panicked takes its verdicts with it: so does this.
        lanes.into_iter().flat_map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Runs a scenario in a process of its own.
fn apart(name: &str) -> Result<Verdict> {
    let (mut said, tell) = io::pipe().context("make a pipe")?;
    // setpriv tells it to end when this process ends, whatever ends it; it ends its VMs then.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(std::env::current_exe().context("find this program")?);
    command.args(["scenario", name]).stdin(Stdio::null());
    command.stdout(tell.try_clone().context("duplicate a pipe")?).stderr(tell);
    let mut child = command.spawn().with_context(|| format!("run {command:?}"))?;
    // Our ends of the pipe: it would never end.
    drop(command);
    let mut text = Vec::new();
    said.read_to_end(&mut text).with_context(|| format!("read what {name} says"))?;
    let status = child.wait().with_context(|| format!("wait for {name}"))?;
    io::stdout().lock().write_all(&text).context("pass on what a scenario says")?;
    let text = String::from_utf8_lossy(&text);
    match status.code() {
        Some(0) => Ok(Verdict::Passed),
        Some(1) => Ok(Verdict::Failed(why(name, &text))),
        Some(code) if code == i32::from(SKIPPED) => Ok(Verdict::Skipped(why(name, &text))),
        Some(_) | None => bail!("it did not come to its end: {status}"),
    }
}

/// What a scenario says of itself at its end, without its name and time: they are said already.
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
}
