//! `cargo xtask sim`: runs many seeds of the simulation (docs/simulation.md), or one with its
//! trace.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use clap::Args;

use crate::stages::{Build, Count, one};

/// Seeds of `cargo xtask test`: under a minute on two idle cores. `--seeds` runs more.
const SEEDS_IN_CI: &str = "0..300";
const EVENTS_IN_CI: u32 = 30;

/// Options of `cargo xtask sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// The seeds, from A up to but without B
    #[arg(long, value_name = "A..B", default_value = SEEDS_IN_CI)]
    seeds: String,
    /// Events of a run, before everything heals
    #[arg(long, default_value_t = EVENTS_IN_CI)]
    events: u32,
    /// Only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Print the events also of a good run
    #[arg(long)]
    trace: bool,
    /// Print what the controller and the agents log
    #[arg(long)]
    log: bool,
}

impl Default for SimArgs {
    fn default() -> Self {
        Self { seeds: SEEDS_IN_CI.to_owned(), events: EVENTS_IN_CI, seed: None, trace: false, log: false }
    }
}

/// Builds the program with `build` and runs the seeds, which count as one test.
pub(crate) fn run(args: &SimArgs, root: &Path, build: Build) -> Result<Count> {
    const PROGRAM: &str = "mooring-sim";
    let mut command = Command::new(build(root, &[PROGRAM])?.join(PROGRAM));
    command.args(["--seeds", &args.seeds, "--events", &args.events.to_string()]).stdin(Stdio::null());
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    command.args(args.trace.then_some("--trace")).args(args.log.then_some("--log"));
    one(command).context("a seed is bad; its trace and how to run it again stand above")
}
