//! Costs of processes: processor time and memory, as the kernel accounts them.

use std::fs;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use nix::unistd::{SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

/// A watched process, together with its children: `name=pid`.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The process's name in the table.
    pub name: String,
    /// The process id.
    pub pid: u32,
}

impl FromStr for Watched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, pid) = text.split_once('=').ok_or("want NAME=PID")?;
        let pid = pid.parse().map_err(|_| format!("{pid:?} is no process id"))?;
        Ok(Self { name: name.to_owned(), pid })
    }
}

/// Processor time of a watched process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spent {
    /// The process's name.
    pub name: String,
    /// Seconds of one processor.
    pub seconds: f64,
}

/// The fields of `/proc/PID/stat` after the name, which may contain anything.
fn stat(pid: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn ticks(fields: &[String], with_ended_children: bool) -> u64 {
    // utime, stime; cutime, cstime: numbers 14 to 17, and the first here is number 3.
    let wanted = if with_ended_children { 11..15 } else { 11..13 };
    fields.get(wanted).into_iter().flatten().filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Seconds of processor time that a process and its children have used.
#[allow(clippy::cast_precision_loss, reason = "hundredths of seconds of a run")]
pub fn spent(watched: &Watched) -> Result<Spent> {
    let pid = watched.pid.to_string();
    let own = stat(&pid).ok_or_else(|| anyhow!("{} has ended", watched.name))?;
    let mut sum = ticks(&own, true);
    for entry in fs::read_dir("/proc").context("list processes")?.flatten() {
        let name = entry.file_name();
        let Some(child) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        if let Some(fields) = stat(child).filter(|fields| fields.get(1) == Some(&pid)) {
            sum += ticks(&fields, false);
        }
    }
    let hertz = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100);
    Ok(Spent { name: watched.name.clone(), seconds: sum as f64 / hertz as f64 })
}

/// Resident memory of a process in MiB, now and at most.
pub fn resident(pid: u32) -> Result<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("read a process's memory")?;
    let field = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let kib = field("VmRSS:").zip(field("VmHWM:"));
    kib.map(|(now, most)| (now / 1024, most / 1024)).context("read a process's memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_cost_something() {
        let me = Watched { name: "me".to_owned(), pid: std::process::id() };
        let mut sum = 0_u64;
        while spent(&me).unwrap().seconds < 0.02 {
            sum = sum.wrapping_add((0..100_000).sum());
        }
        assert!(sum > 0);
        let (now, most) = resident(me.pid).unwrap();
        assert!(now > 0 && most >= now);
    }

    #[test]
    fn what_is_watched() {
        let watched: Watched = "controller=42".parse().unwrap();
        assert_eq!((watched.name.as_str(), watched.pid), ("controller", 42));
        assert!("controller".parse::<Watched>().is_err());
        assert!("controller=x".parse::<Watched>().is_err());
    }
}
