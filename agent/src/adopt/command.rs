//! `mooring-agent adopt`, from its arguments to its output.
//!
//! What must never happen here: a change by `--plan`; `--apply` beside a running agent.

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use mooring_host::{LockError, LockFile};
use serde::Serialize;

use super::{Candidate, Done, Error, Kept, Only, Shown, apply, show, survey};
use crate::config::Config;
use crate::machine::Machine;
use crate::run::{lock_state, open_store};
use crate::store::FILE_NAME;

/// Mode of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Shows what would be done.
    Plan,
    /// Adopts.
    Apply,
}

#[derive(Serialize)]
struct Answer {
    candidates: Vec<Shown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adopted: Option<Vec<Adopted>>,
}

#[derive(Serialize)]
struct Adopted {
    target: String,
    volume: String,
}

/// Runs the command, and prints its result.
pub fn run(
    machine: &Machine,
    config: &Config,
    what: What,
    only: &[Only],
    json: bool,
    out: &mut dyn Write,
) -> Result<()> {
    if config.groups.is_empty() {
        bail!("no volume group is listed under [[groups]] in the configuration: nothing can be adopted");
    }
    let answer = match what {
        What::Plan => Answer { candidates: shown(&plan(machine, config)?, only)?, adopted: None },
        What::Apply => {
            let (_only_one, _) =
                lock_state(&config.state_dir).context("stop the agent first: no session ends by that")?;
            let store = open_store(config)?;
            let candidates = survey(machine, config, Some(&Kept::read(&store, config)?))?;
            let shown = shown(&candidates, only)?;
            let done = apply(machine, &store, &candidates, only, &mut |_| ControlFlow::Continue(()))?;
            let adopted = |Done { target, volume }| Adopted { target, volume: volume.to_string() };
            Answer { candidates: shown, adopted: Some(done.into_iter().map(adopted).collect()) }
        }
    };
    print(&answer, json, out).context("write the answer")
}

/// Surveys without a change. While the agent runs, its store is its own, and the tags say what was
/// adopted.
fn plan(machine: &Machine, config: &Config) -> Result<Vec<Candidate>> {
    if !config.state_dir.join(FILE_NAME).exists() {
        return Ok(survey(machine, config, Some(&Kept::default()))?);
    }
    match LockFile::acquire(config.state_dir.join("agent.lock")) {
        Ok(_only_one) => {
            let kept = Kept::read(&open_store(config)?, config)?;
            Ok(survey(machine, config, Some(&kept))?)
        }
        Err(LockError::Held { .. }) => Ok(survey(machine, config, None)?),
        Err(error) => Err(error.into()),
    }
}

fn shown(candidates: &[Candidate], only: &[Only]) -> Result<Vec<Shown>> {
    if let Some(unknown) = only.iter().find(|only| !candidates.iter().any(|candidate| only.is(candidate))) {
        bail!(Error::Unknown(unknown.0.clone()));
    }
    let chosen = |candidate: &&Candidate| only.is_empty() || only.iter().any(|only| only.is(candidate));
    Ok(candidates.iter().filter(chosen).map(show).collect())
}

fn print(answer: &Answer, json: bool, out: &mut dyn Write) -> Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, answer)?;
        return Ok(writeln!(out)?);
    }
    for shown in &answer.candidates {
        writeln!(out, "{shown}")?;
    }
    if answer.candidates.is_empty() {
        writeln!(out, "no target was found that Mooring did not make")?;
    }
    match &answer.adopted {
        None => {
            let can = answer.candidates.iter().filter(|shown| shown.recorded.is_some()).count();
            writeln!(out, "{can} of {} can be adopted. Nothing was changed.", answer.candidates.len())?;
        }
        Some(adopted) => {
            for Adopted { target, volume } in adopted {
                writeln!(out, "adopted {target} as volume {volume}")?;
            }
            writeln!(out, "{} adopted. Start the agent now: it serves them from here on.", adopted.len())?;
        }
    }
    Ok(())
}
