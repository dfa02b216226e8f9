//! `mooring-fleet-serve`: a fleet for clients that are programs of their own. Prints its address
//! and credentials as one line of JSON, and serves until its standard input ends, so that it ends
//! together with its caller.

use std::io::{Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use mooring_fleet::{Client, Fleet};
use serde_json::json;

/// Serves the Block Storage API with a real controller, real agents and fake kernels, on loopback
#[derive(Debug, Parser)]
#[command(
    name = "mooring-fleet-serve",
    after_help = "Example:\n  mooring-fleet-serve --storages 2 --no-auth"
)]
struct Args {
    /// Storage nodes, each with one pool
    #[arg(long, default_value_t = 1)]
    storages: u8,
    /// GiB of each pool
    #[arg(long, default_value_t = 100)]
    gib: u64,
    /// GiB of the thin pool of one further storage node; 0: there is none
    #[arg(long, default_value_t = 0)]
    thin: u64,
    /// Hosts that attach natively
    #[arg(long, default_value_t = 0)]
    hosts: u8,
    /// Authenticate nobody
    #[arg(long)]
    no_auth: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-fleet-serve: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    ensure!(args.storages > 0, "--storages 0: without a pool no volume can be made");
    let mut plan = Fleet::builder();
    for n in 1..=args.storages {
        plan = plan.storage(&format!("s{n}"), &[("vg0", args.gib)]);
    }
    if args.thin > 0 {
        // The group is only as large as its pool needs, so that thick volumes go elsewhere.
        plan = plan.storage_with_thin("t1", &[("vg0", args.thin + 1)], args.thin);
    }
    for n in 1..=args.hosts {
        plan = plan.host(&format!("h{n}"));
    }
    let fleet = if args.no_auth { plan.no_auth() } else { plan }.start();
    let account = |client: &Client| json!({ "project": client.project(), "token": client.token() });
    let how = json!({
        "url": fleet.control().url(),
        "accounts": {
            "admin": account(&fleet.admin()),
            "member": account(&fleet.member()),
            "service": account(&fleet.service()),
            "stranger": account(&fleet.stranger()),
        },
    });
    let mut out = std::io::stdout();
    writeln!(out, "{how}").and_then(|()| out.flush()).context("say how to reach the fleet")?;
    std::io::stdin().read_to_end(&mut Vec::new()).context("wait for the end of the input")?;
    Ok(())
}
