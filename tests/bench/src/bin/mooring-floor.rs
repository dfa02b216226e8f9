//! The floor of a grant and of a revoke: their bare system calls in a loop. Every program must
//! spend this.
//!
//! The calls are those of the agent's plan for one portal, CHAP and a read-write grant, in the same
//! order, listed in `mooring_bench::floor`. The loop does nothing else: it prints the share of its
//! time that was spent inside them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use mooring_bench::Figures;
use mooring_bench::floor::{Clock, Export};
use serde::Serialize;

/// Times the bare system calls of grants and revokes
#[derive(Debug, Parser)]
struct Args {
    /// LIO's folder
    #[arg(long, default_value = "/sys/kernel/config/target")]
    root: PathBuf,
    /// Unused block devices, one for each round
    #[arg(required = true)]
    devices: Vec<PathBuf>,
    /// ADDRESS:PORT of the portal
    #[arg(long)]
    portal: String,
    /// Folder on the file system of the agent's store, for the cost of one fsync
    #[arg(long)]
    fsync_in: PathBuf,
}

/// The output.
#[derive(Serialize)]
struct Floor {
    figures: Vec<Figures>,
    inside_percent: u64,
}

fn run(args: &Args) -> Result<Floor> {
    let mut clock = Clock::default();
    let (mut first, mut further, mut revoke, mut sync) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, device) in args.devices.iter().enumerate() {
        let export = Export::new(&args.root, number, &args.portal);
        // The HBA folder usually exists before a volume's first grant: 256 of them serve all
        // volumes.
        if let Some(hba) = export.backstore.parent() {
            drop(fs::create_dir(hba));
        }
        first.push(clock.run(&export.first(device))?);
        further.push(clock.run(&export.further(1))?);
        revoke.push(clock.run(&export.revoke(1))?);
        for call in export.remove() {
            call.make().with_context(|| call.object().display().to_string())?;
        }
        if let Some(hba) = export.backstore.parent() {
            drop(fs::remove_dir(hba));
        }
        sync.push(one_fsync(&args.fsync_in)?);
    }
    let percent = clock.inside.as_micros() * 100 / clock.whole.as_micros().max(1);
    Ok(Floor {
        figures: vec![
            Figures::of("first grant", first),
            Figures::of("further grant", further),
            Figures::of("revoke", revoke),
            Figures::of("fsync", sync),
        ],
        inside_percent: u64::try_from(percent).unwrap_or(0),
    })
}

/// Appends a page to a file and syncs it, as a log does.
fn one_fsync(folder: &Path) -> Result<u64> {
    let path = folder.join("floor.fsync");
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    let began = Instant::now();
    file.write_all(&[0; 4096])?;
    file.sync_data()?;
    let took = began.elapsed();
    Ok(u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}

fn main() -> ExitCode {
    match run(&Args::parse()).and_then(|floor| Ok(serde_json::to_string(&floor)?)) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mooring-floor: {error:#}");
            ExitCode::FAILURE
        }
    }
}
