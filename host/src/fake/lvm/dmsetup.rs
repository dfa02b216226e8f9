//! Fake of `/sbin/dmsetup`: the calls of the agent, as dmsetup 1.02.185 and Linux 6.1 answer them
//! (`docs/kernel/lio.md`, "Cutting an LV off"). What must never happen: a table exchanged while
//! commands are in flight below it; one that LVM puts back where the kernel would not.

use super::arguments::Arguments;
use super::run::Failure;
use crate::CommandOutput;
use crate::fake::state::Machine;

const SECTOR: u64 = 512;

/// Outcome of a command.
pub(super) enum Ended {
    Output(CommandOutput),
    /// The command waits for commands in flight, until it is killed.
    Waits,
}

impl Machine {
    pub(super) fn run_dmsetup(&mut self, args: &[String]) -> Ended {
        let (verb, rest) = args.split_first().map_or(("", &[][..]), |(verb, rest)| (verb.as_str(), rest));
        let result = match verb {
            "table" => self.dm_table(rest).map(Some),
            "wipe_table" => self.dm_wipe(rest),
            "clear" => self.dm_clear(rest).map(Some),
            _ => Err((1, format!("Unknown command\nUnknown command: {verb}\n"))),
        };
        Ended::Output(match result {
            Ok(None) => return Ended::Waits,
            Ok(Some(stdout)) => {
                CommandOutput { status: 0, stdout: stdout.into_bytes(), stderr: String::new() }
            }
            Err((status, stderr)) => CommandOutput { status, stdout: Vec::new(), stderr },
        })
    }

    /// Returns the node of the active LV in the arguments.
    fn dm_node(&self, rest: &[String], flags: &[&str]) -> Result<(std::path::PathBuf, Arguments), Failure> {
        let args = Arguments::parse(rest, &[], flags).map_err(|text| (1, text))?;
        let [node] = args.names.as_slice() else {
            return Err((1, "The agent names one device.\n".to_owned()));
        };
        let path = std::path::PathBuf::from(node);
        if self.devices.contains_key(&path) {
            return Ok((path, args));
        }
        Err((1, format!("Device {node} not found\nCommand failed.\n")))
    }

    fn dm_table(&self, rest: &[String]) -> Result<String, Failure> {
        let (path, args) = self.dm_node(rest, &["--inactive"])?;
        let Some(device) = self.devices.get(&path) else { return Ok(String::new()) };
        let sectors = device.size / SECTOR;
        Ok(match (args.get("--inactive").is_some(), device.errors, device.errors_wait) {
            (true, _, false) => String::new(),
            (true, _, true) | (false, true, _) => format!("0 {sectors} error \n"),
            (false, false, _) => format!("0 {sectors} linear 8:16 2048\n"),
        })
    }

    fn dm_wipe(&mut self, rest: &[String]) -> Result<Option<String>, Failure> {
        let (path, args) = self.dm_node(rest, &["--noflush", "--nolockfs", "--noudevsync"])?;
        if args.get("--noflush").is_none() || args.get("--nolockfs").is_none() {
            return Err((1, "A flush of a disk that hangs is not modelled.\n".to_owned()));
        }
        let waits = self.in_flight.iter().any(|command| command.device == path);
        if let Some(device) = self.devices.get_mut(&path) {
            device.errors_wait = waits;
            device.errors |= !waits;
        }
        Ok((!waits).then(String::new))
    }

    fn dm_clear(&mut self, rest: &[String]) -> Result<String, Failure> {
        let (path, _) = self.dm_node(rest, &["--noudevsync"])?;
        if let Some(device) = self.devices.get_mut(&path) {
            device.errors_wait = false;
        }
        Ok(String::new())
    }

    /// Resumes an LV's device after LVM has suspended it: a table that waits there comes into
    /// force, else LVM's own table.
    pub(super) fn lvm_resumes(&mut self, path: &std::path::Path) {
        if let Some(device) = self.devices.get_mut(path) {
            device.errors = std::mem::take(&mut device.errors_wait);
        }
    }
}
