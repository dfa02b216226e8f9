//! Writes and reads stamps on a block device, past every cache (O_DIRECT): the witness of the
//! scenarios.
//!
//! A stamp is one 4096-byte block with its writer, the number of the write, and the time. Each
//! writer thread has its own block and at most one write in flight, so a block shows exactly which
//! write landed last.
//!
//! What must never happen here: a write counted before the kernel has reported it as done; an error
//! that is not printed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

const BLOCK: usize = 4096;
const MAGIC: &[u8; 8] = b"MOORSTMP";
/// Pause between two reads of a watcher: gaps are known up to it. Reads without a pause take all of
/// an emulated target's processor.
const WATCH_PAUSE: Duration = Duration::from_millis(5);

/// Writes and reads stamps on a block device, past every cache
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write stamps as fast as the device takes them; prints a JSON line twice a second and one at
    /// the end
    Write {
        /// The block device
        device: PathBuf,
        /// Writer threads: writes in flight
        #[arg(long, default_value_t = 8)]
        threads: u64,
        /// Stop after so many seconds
        #[arg(long, default_value_t = 3600)]
        seconds: u64,
        /// Stop after this many seconds
        #[arg(long)]
        stop_on_error: bool,
        /// Begin writes only when the clock shows a multiple of this many milliseconds, all writers
        /// of a machine together
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        every_ms: Option<u64>,
        /// Count a write as done only when it survives a power cut (O_DSYNC)
        #[arg(long)]
        durable: bool,
    },
    /// Read all stamps once, as JSON
    Read {
        /// The block device
        device: PathBuf,
        /// Number of blocks
        #[arg(long, default_value_t = 8)]
        threads: u64,
    },
    /// Read one stamp again and again; prints a JSON line twice a second and one at the end
    Watch {
        /// The block device
        device: PathBuf,
        /// Stop after this many seconds
        #[arg(long, default_value_t = 3600)]
        seconds: u64,
    },
}

/// Content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    thread: u64,
    /// Number of the write; 0: no stamp was ever written here.
    sequence: u64,
    /// Microseconds since 1970, by the writer's clock.
    written_us: u64,
}

/// Counters so far.
#[derive(Debug, Serialize)]
struct Progress {
    done: u64,
    errors: u64,
    last_errno: i32,
    /// Longest time between two successive successes, of all threads together, in milliseconds.
    longest_gap_ms: u64,
    ended: bool,
}

struct Tally {
    done: AtomicU64,
    errors: AtomicU64,
    last_errno: AtomicU64,
    gaps: Mutex<(Instant, Duration)>,
    stop: AtomicBool,
}

impl Tally {
    fn new() -> Self {
        Self {
            done: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            last_errno: AtomicU64::new(0),
            gaps: Mutex::new((Instant::now(), Duration::ZERO)),
            stop: AtomicBool::new(false),
        }
    }

    fn success(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut gaps) = self.gaps.lock() {
            let gap = gaps.0.elapsed();
            *gaps = (Instant::now(), gaps.1.max(gap));
        }
    }

    fn failure(&self, error: &io::Error) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.last_errno.store(u64::from(error.raw_os_error().unwrap_or(0).unsigned_abs()), Ordering::Relaxed);
    }

    fn print(&self, ended: bool) {
        let gap = self
            .gaps
            .lock()
            .map_or(Duration::ZERO, |gaps| if ended { gaps.1 } else { gaps.1.max(gaps.0.elapsed()) });
        let progress = Progress {
            done: self.done.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            last_errno: i32::try_from(self.last_errno.load(Ordering::Relaxed)).unwrap_or(0),
            longest_gap_ms: u64::try_from(gap.as_millis()).unwrap_or(u64::MAX),
            ended,
        };
        match serde_json::to_string(&progress) {
            Ok(line) => println!("{line}"),
            Err(error) => eprintln!("cannot print: {error}"),
        }
    }
}

/// A block at an address that O_DIRECT accepts.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Self {
        let bytes = vec![0; BLOCK * 2];
        let start = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        Self { bytes, start }
    }

    fn block(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + BLOCK]
    }
}

fn open(device: &Path, write: bool, more: OFlag) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags((OFlag::O_DIRECT | more).bits())
        .open(device)
        .with_context(|| format!("open {}", device.display()))
}

fn number(block: &[u8], index: usize) -> u64 {
    let at = 8 + index * 8;
    block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn read_stamp(file: &File, thread: u64, buffer: &mut Aligned) -> io::Result<Stamp> {
    file.read_exact_at(buffer.block(), thread * BLOCK as u64)?;
    let block = &*buffer.block();
    if !block.starts_with(MAGIC) || number(block, 0) != thread {
        return Ok(Stamp { thread, sequence: 0, written_us: 0 });
    }
    Ok(Stamp { thread, sequence: number(block, 1), written_us: number(block, 2) })
}

fn write_stamp(file: &File, stamp: Stamp, buffer: &mut Aligned) -> io::Result<()> {
    let block = buffer.block();
    block[..8].copy_from_slice(MAGIC);
    for (index, number) in [stamp.thread, stamp.sequence, stamp.written_us].into_iter().enumerate() {
        block[8 + index * 8..16 + index * 8].copy_from_slice(&number.to_le_bytes());
    }
    file.write_all_at(buffer.block(), stamp.thread * BLOCK as u64)
}

fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
}

/// Waits for the next multiple of this many milliseconds since 1970.
fn wait_for_tick(every_ms: u64) {
    let every_us = every_ms.saturating_mul(1000);
    std::thread::sleep(Duration::from_micros(every_us - now_us() % every_us));
}

fn write_thread(file: &File, thread: u64, tally: &Tally, stop_on_error: bool, every_ms: Option<u64>) {
    let mut buffer = Aligned::new();
    // Continue where an earlier run of this writer ended: sequences never go back.
    let mut sequence = read_stamp(file, thread, &mut buffer).map_or(0, |stamp| stamp.sequence);
    while !tally.stop.load(Ordering::Relaxed) {
        if let Some(every_ms) = every_ms {
            wait_for_tick(every_ms);
        }
        sequence += 1;
        match write_stamp(file, Stamp { thread, sequence, written_us: now_us() }, &mut buffer) {
            Ok(()) => tally.success(),
            Err(error) => {
                tally.failure(&error);
                if stop_on_error {
                    tally.stop.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn watch_thread(file: &File, tally: &Tally) {
    let mut buffer = Aligned::new();
    while !tally.stop.load(Ordering::Relaxed) {
        match read_stamp(file, 0, &mut buffer) {
            Ok(_) => {
                tally.success();
                std::thread::sleep(WATCH_PAUSE);
            }
            Err(error) => {
                tally.failure(&error);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn run_for(tally: &Tally, seconds: u64) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) && !tally.stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(500));
        tally.print(false);
    }
    tally.stop.store(true, Ordering::Relaxed);
}

fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Read { device, threads } => {
            let file = open(&device, false, OFlag::empty())?;
            let mut buffer = Aligned::new();
            let stamps = (0..threads)
                .map(|thread| read_stamp(&file, thread, &mut buffer))
                .collect::<io::Result<Vec<_>>>();
            println!(
                "{}",
                serde_json::to_string(&stamps.with_context(|| format!("read {}", device.display()))?)?
            );
        }
        Verb::Write { device, threads, seconds, stop_on_error, every_ms, durable } => {
            if threads == 0 {
                bail!("--threads must be at least 1");
            }
            let more = if durable { OFlag::O_DSYNC } else { OFlag::empty() };
            let (file, tally) = (open(&device, true, more)?, Tally::new());
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let (file, tally) = (&file, &tally);
                    scope.spawn(move || write_thread(file, thread, tally, stop_on_error, every_ms));
                }
                run_for(&tally, seconds);
            });
            tally.print(true);
        }
        Verb::Watch { device, seconds } => {
            let (file, tally) = (open(&device, false, OFlag::empty())?, Tally::new());
            std::thread::scope(|scope| {
                scope.spawn(|| watch_thread(&file, &tally));
                run_for(&tally, seconds);
            });
            tally.print(true);
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(Args::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mooring-stamp: {error:#}");
            ExitCode::FAILURE
        }
    }
}
