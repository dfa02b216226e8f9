//! Fills an agent's store with volumes and exports, as if a client had sent them one by one. The
//! agent's own code writes it on the machine that runs the benchmark, because thousands of changes
//! and their syncs take minutes in a VM.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use clap::Parser;
use mooring_agent::store::{Kind, Store, StoredContent};
use mooring_api::Message;
use mooring_bench::spec::{export_spec, volume, volume_spec};
use mooring_model::{ClusterId, Generation, Stamp};

/// Number of threads that share commits.
const THREADS: usize = 32;

/// Writes an agent's store
#[derive(Debug, Parser)]
struct Args {
    /// The state folder
    #[arg(long)]
    folder: PathBuf,
    /// The volume group
    #[arg(long, default_value = "vg0")]
    group: String,
    /// Bytes of each volume
    #[arg(long, default_value_t = 4 << 20)]
    size: u64,
    /// Number of volumes, from number 0
    #[arg(long)]
    volumes: u32,
    /// Number of exported volumes, the first ones
    #[arg(long)]
    exports: u32,
    /// Number of hosts of each export
    #[arg(long)]
    hosts: usize,
}

fn keep(store: &Store, kind: Kind, number: u32, spec: &impl Message) -> Result<()> {
    let generation = Generation { epoch: 1, counter: 1 };
    let stamp = Stamp { generation, digest: mooring_api::digest(spec, &[]) };
    store.put_spec(kind, volume(number), &stamp, &StoredContent::Spec(spec.encode_to_vec()), &[], &[])?;
    Ok(())
}

fn fill(args: &Args, store: &Store, next: &AtomicU32) -> Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= args.volumes {
            return Ok(());
        }
        keep(store, Kind::Volume, number, &volume_spec(&args.group, args.size))?;
        if number < args.exports {
            keep(store, Kind::Export, number, &export_spec(args.hosts))?;
        }
    }
}

fn run(args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.folder)?;
    let store = Store::open(&args.folder)?;
    store.pin(ClusterId::STANDALONE)?;
    let next = AtomicU32::new(0);
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| fill(args, &store, &next))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    store.checkpoint()?;
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-store-fill: {error:#}");
            ExitCode::FAILURE
        }
    }
}
