//! `mooring-sim`: many seeds, two at a time, or one with its trace.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use mooring_sim::{Broken, Options, Outcome};

/// The real controller and agents on fake hosts, from seeds, in virtual time
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The seeds, from A up to but without B
    #[arg(long, value_name = "A..B", default_value = "0..1000", value_parser = seeds)]
    seeds: Range<u64>,
    /// Events of a run, before everything heals
    #[arg(long, default_value_t = 40)]
    events: u32,
    /// Only this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Print what happens, also in a good run
    #[arg(long)]
    trace: bool,
    /// Print what the controller and the agents log
    #[arg(long)]
    log: bool,
    /// Run each seed twice and compare the traces
    #[arg(long)]
    twice: bool,
    /// With a defect put in on purpose
    #[arg(long)]
    broken: Option<Broken>,
    /// Runs at the same time
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("want A..B")?;
    let number = |text: &str| text.parse().map_err(|error| format!("{text}: {error}"));
    Ok(number(from)?..number(to)?)
}

fn report(outcome: &Outcome, args: &Args) {
    if args.trace || !outcome.violations.is_empty() {
        for line in &outcome.trace {
            println!("{line}");
        }
    }
    for violation in &outcome.violations {
        println!("seed {}: VIOLATED: {violation}", outcome.seed);
    }
    if !outcome.violations.is_empty() {
        println!("again: mooring-sim --events {} --seed {} --trace", args.events, outcome.seed);
    }
}

/// Number of times that each kind of event happened, in all runs.
type Counts = BTreeMap<&'static str, u64>;

fn add(all: &mut Counts, more: Counts) {
    for (what, times) in more {
        *all.entry(what).or_default() += times;
    }
}

/// Runs one seed. `true` if the run is good.
fn one(seed: u64, args: &Args, counts: &mut Counts) -> Result<bool> {
    let options = Options { events: args.events, broken: args.broken };
    let outcome = mooring_sim::run(seed, options)?;
    report(&outcome, args);
    add(counts, outcome.counts.clone());
    if args.twice {
        let again = mooring_sim::run(seed, options)?;
        if again.hash != outcome.hash {
            let at = outcome.trace.iter().zip(&again.trace).position(|(one, other)| one != other);
            let at = at.unwrap_or(outcome.trace.len().min(again.trace.len()));
            println!("seed {seed}: two runs differ at line {at}:");
            for trace in [&outcome.trace, &again.trace] {
                println!("  {}", trace.get(at).map_or("(the end)", String::as_str));
            }
            return Ok(false);
        }
    }
    Ok(outcome.violations.is_empty())
}

fn all(args: &Args) -> Result<(u64, Counts)> {
    let seeds = args.seed.map_or(args.seeds.clone(), |seed| seed..seed.saturating_add(1));
    let next = AtomicU64::new(seeds.start);
    let work = || -> Result<(u64, Counts)> {
        let (mut bad, mut counts) = (0, Counts::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok((bad, counts));
            }
            bad += u64::from(!one(seed, args, &mut counts)?);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads.max(1)).map(|_| scope.spawn(work)).collect();
        let (mut bad, mut counts) = (0, Counts::new());
        for thread in threads {
            let Ok(ended) = thread.join() else { bail!("a run panicked") };
            let (more_bad, more) = ended?;
            bad += more_bad;
            add(&mut counts, more);
        }
        Ok((bad, counts))
    })
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if args.log {
        tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    }
    let began = Instant::now();
    let (bad, counts) = all(&args).context("the simulation")?;
    let counts: Vec<_> = counts.iter().map(|(what, times)| format!("{what} {times}")).collect();
    println!("{}", counts.join(", "));
    let count = args.seed.map_or(args.seeds.end.saturating_sub(args.seeds.start), |_| 1);
    println!("{count} seeds, {} events each: {bad} bad; {:.1} s", args.events, began.elapsed().as_secs_f64());
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
