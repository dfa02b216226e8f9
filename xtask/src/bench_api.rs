//! `cargo xtask bench api`: builds the programs as they are shipped, and runs `mooring-api-bench`,
//! which measures them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::stages::{cargo, one};

/// Options of `cargo xtask bench api`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Builds the programs as they are shipped. Runs a controller, an agent on a fake host and a client as processes of their own on
loopback: first on SQLite, then on a private PostgreSQL (skipped with a notice if it is not installed), both at full durability.
Prints cycles per second beside their bars, syncs per cycle, and the cost of each process. Then writes a world of 100,000
volumes and 250,000 attachments with 1,000 agents, and reads from it. All of it takes some six minutes.

The numbers depend on the machine: run it while nothing else runs, on the disk to be measured (--folder). The cost of a sync of
that disk is printed first: with one client a cycle waits for seven of them, one after the other.

Examples:
  cargo xtask bench api --quick            does everything work?
  cargo xtask bench api --only sqlite      only the cycles, on SQLite
  cargo xtask bench api --folder /mnt/ssd  on another disk

Explanation and results: docs/benchmarks.md")]
pub(crate) struct ApiArgs {
    /// Take few seconds and a small world: shows that it works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// Only the parts whose names contain this: sqlite, postgresql, large
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Folder of the databases, on the disk to be measured [default: the target folder]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Builds and measures.
pub(crate) fn run(args: &ApiArgs, root: &Path) -> Result<()> {
    // Build each as it is shipped: another package's features must not reach it.
    let programs = [
        ("mooring-controller", "mooring-controller"),
        ("mooring-fleet", "mooring-fleet-agent"),
        ("mooring-api-bench", "*"),
    ];
    for (package, program) in programs {
        one(cargo(root, &["build", "--release", "-p", package, "--bin", program]))?;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = root.join(target);
    let programs = target.join("release");
    let folder = args.folder.clone().unwrap_or_else(|| target.join("bench-api"));
    let folder = std::path::absolute(&folder).with_context(|| format!("find {}", folder.display()))?;
    let mut command = Command::new(programs.join("mooring-api-bench"));
    command.arg("--programs").arg(&programs).arg("--folder").arg(folder).args(["--only", &args.only]);
    command.args(args.quick.then_some("--quick"));
    one(command).map(drop)
}
