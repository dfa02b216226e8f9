//! Conditions of a measurement: a number is worth nothing without them.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::figures::Figures;

/// Time that one appended page needs to be durable: the floor of every change.
pub fn disk(folder: &Path, times: u32) -> Result<Figures> {
    let path = folder.join("disk");
    let mut file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    let mut samples = Vec::new();
    for _ in 0..times {
        let began = Instant::now();
        file.write_all(&[0x5a; 4096])?;
        file.sync_data()?;
        samples.push(u64::try_from(began.elapsed().as_micros())?);
    }
    drop(file);
    fs::remove_file(&path)?;
    Ok(Figures::of("fdatasync", samples))
}

/// The machine's load, in the kernel's words.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Prints cores, kernel, disk and load.
pub fn print(folder: &Path) -> Result<()> {
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let disk = disk(folder, 500)?;
    println!(
        "{cores} cores, kernel {}, load {} at the start\na page appended and synced (fdatasync) in {}: p50 {} us, p99 {} us",
        kernel.trim(),
        load(),
        folder.display(),
        disk.p50_us,
        disk.p99_us
    );
    Ok(())
}
