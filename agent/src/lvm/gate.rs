//! A gate before LVM. If a disk below some group does not answer, each report of LVM that reads the
//! group hangs, and takes a thread and a volume from whoever asks for it. So while one report
//! hangs, further ones that read all of its groups are refused at once, as if they had run into
//! their time limit. A report of fewer groups may come to an end.
//!
//! A report counts as hung once it takes several times as long as reports on this machine take. By
//! a short fixed limit, a busy machine with many groups, which needs seconds for a report, would
//! refuse itself all of them.
//!
//! Commands that take extents of one group run one at a time, so that none takes what another one
//! is about to.
//!
//! What must never happen here: a command that changes something refused because a report hangs; a
//! report of one group refused because a report of another one hangs; a gate that stays shut when
//! the report has come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mooring_host::{Command, CommandError, CommandOutput, Commands};

use crate::clock;
use crate::workers::LOST_AFTER;

/// Factor over the slowest recent report beyond which a report hangs.
const TIMES_USUAL: u32 = 4;

/// Time after which a report hangs in any case.
const HANGS_AFTER_MAX: Duration = Duration::from_secs(30);

/// Options of reports that are followed by a value.
const WITH_VALUE: [&str; 5] = ["--config", "--reportformat", "--units", "-o", "--select"];

/// The groups that a report reads.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Read {
    /// All groups of the machine.
    All,
    Named(BTreeSet<String>),
}

impl Read {
    /// The groups of a report with these arguments, the first of which is the kind of the report. A
    /// report without names reads all groups.
    fn of(args: &[String]) -> Self {
        let mut args = args.iter().map(String::as_str).skip(1);
        let mut named = BTreeSet::new();
        while let Some(arg) = args.next() {
            if WITH_VALUE.contains(&arg) {
                args.next();
            } else if !arg.starts_with('-') {
                named.insert(arg.split_once('/').map_or(arg, |(group, _)| group).to_owned());
            }
        }
        if named.is_empty() { Self::All } else { Self::Named(named) }
    }

    /// Says whether all groups of `other` are among these.
    fn has_all_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Named(_), Self::All) => false,
            (Self::Named(these), Self::Named(others)) => others.is_subset(these),
        }
    }
}

/// A running report.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    began: Instant,
    read: Read,
}

/// Running reports, and the time that reports take.
#[derive(Default)]
struct Reports {
    at_work: Vec<Running>,
    /// Duration of the slowest recent report; it fades with every faster one.
    slowest: Duration,
}

impl Reports {
    fn hangs_after(&self) -> Duration {
        (self.slowest * TIMES_USUAL).clamp(LOST_AFTER, HANGS_AFTER_MAX)
    }

    /// Counts a report that has come back. A report that was killed says nothing of how long they
    /// take.
    fn took(&mut self, took: Duration) {
        self.slowest = took.max(self.slowest * 3 / 4);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the gate guards is consistent after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The commands of a machine behind the gate.
pub(crate) struct Gated {
    inner: Arc<dyn Commands>,
    reports: Mutex<Reports>,
    /// The locks of volume groups, each held by the command that takes extents of that group. A
    /// command that hangs at one group holds up no other.
    extents: Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
}

impl Gated {
    pub(crate) fn new(inner: Arc<dyn Commands>) -> Self {
        Self { inner, reports: Mutex::default(), extents: Mutex::default() }
    }

    /// The lock of the group whose extents a command takes: its last argument is the group, or a
    /// volume of it.
    fn extents_of(&self, command: &Command) -> Arc<Mutex<()>> {
        let group = command.args.last().and_then(|last| last.split('/').next()).unwrap_or_default();
        Arc::clone(lock(&self.extents).entry(group.to_owned()).or_default())
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        lock(&self.reports)
    }
}

/// Ends a running report when it is dropped, however the report ends.
struct AtWork<'a> {
    gate: &'a Gated,
    running: Running,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut reports = self.gate.reports();
        if let Some(at) = reports.at_work.iter().position(|running| *running == self.running) {
            reports.at_work.swap_remove(at);
        }
    }
}

impl Commands for Gated {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        match command.args.first().map(String::as_str) {
            Some("vgs" | "lvs" | "pvs") => {}
            Some("lvcreate") => {
                let extents = self.extents_of(command);
                let _alone = lock(&extents);
                return self.inner.run(command);
            }
            _ => return self.inner.run(command),
        }
        let running = Running { began: clock::std_instant(), read: Read::of(&command.args) };
        let began = running.began;
        {
            let mut reports = self.reports();
            let timeout = reports.hangs_after();
            let hangs =
                |other: &Running| other.began.elapsed() >= timeout && running.read.has_all_of(&other.read);
            if reports.at_work.iter().any(hangs) {
                let args = command.args.join(" ");
                return Err(CommandError::Timeout { program: command.program, args, timeout });
            }
            reports.at_work.push(running.clone());
        }
        let _at_work = AtWork { gate: self, running };
        let output = self.inner.run(command)?;
        self.reports().took(began.elapsed());
        Ok(output)
    }

    fn run_in_a_row(&self, commands: &[Command]) -> Result<Vec<CommandOutput>, CommandError> {
        let Some(first) = commands.first() else { return Ok(Vec::new()) };
        let extents = self.extents_of(first);
        let _alone = lock(&extents);
        self.inner.run_in_a_row(commands)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Commands whose reports wait until the test lets them go.
    struct Hanging(Mutex<mpsc::Receiver<()>>);

    impl Commands for Hanging {
        fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
            if command.args[0] == "vgs" {
                self.0.lock().unwrap().recv().unwrap();
            }
            Ok(CommandOutput { status: 0, stdout: Vec::new(), stderr: String::new() })
        }
    }

    fn command(line: &str) -> Command {
        let args = line.split(' ').map(str::to_owned).collect();
        Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) }
    }

    #[test]
    fn nobody_of_ours_takes_extents_between_two_commands_in_a_row() {
        /// Records which commands run, and lets a moment pass in each.
        struct Slow(Mutex<Vec<String>>);
        impl Commands for Slow {
            fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
                self.0.lock().unwrap().push(command.args[0].clone());
                std::thread::sleep(Duration::from_millis(2));
                let status = i32::from(command.args[0] == "fails");
                Ok(CommandOutput { status, ..CommandOutput::default() })
            }
        }
        let slow = Arc::new(Slow(Mutex::default()));
        let gate = Arc::new(Gated::new(Arc::clone(&slow) as Arc<dyn Commands>));
        let creator = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || {
                (0..20).for_each(|_| drop(gate.run(&command("lvcreate vg0")).unwrap()));
            })
        };
        for _ in 0..20 {
            let row = gate.run_in_a_row(&[command("lvremove vg0/a"), command("lvextend vg0/b")]).unwrap();
            assert_eq!(row.len(), 2);
        }
        creator.join().unwrap();
        let ran = slow.0.lock().unwrap().clone();
        let removed = ran.iter().enumerate().filter(|(_, verb)| *verb == "lvremove");
        assert_eq!(removed.filter(|(at, _)| ran[at + 1] == "lvextend").count(), 20, "{ran:?}");
        assert_eq!(gate.run_in_a_row(&[command("fails vg0/a"), command("lvextend vg0/b")]).unwrap().len(), 1);
    }

    #[test]
    fn a_creation_that_hangs_at_one_group_holds_up_no_other() {
        /// Creations in vg1 wait until the test lets them go.
        struct HangsAtOne(Mutex<mpsc::Receiver<()>>, mpsc::Sender<()>);
        impl Commands for HangsAtOne {
            fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
                if command.args.last().is_some_and(|last| last == "vg1") {
                    self.1.send(()).unwrap();
                    self.0.lock().unwrap().recv().unwrap();
                }
                Ok(CommandOutput::default())
            }
        }
        let ((go, wait), (tell, told)) = (mpsc::channel(), mpsc::channel());
        let gate = Arc::new(Gated::new(Arc::new(HangsAtOne(Mutex::new(wait), tell))));
        let hangs = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || drop(gate.run(&command("lvcreate --name a vg1")).unwrap()))
        };
        told.recv().unwrap();
        gate.run(&command("lvcreate --name a vg2")).unwrap();
        gate.run(&command("lvcreate --snapshot vg2/a")).unwrap();
        gate.run_in_a_row(&[command("lvremove vg2/a"), command("lvextend vg2/b")]).unwrap();
        // The control: the same group waits.
        assert!(gate.extents_of(&command("lvcreate --snapshot vg1/b")).try_lock().is_err());
        go.send(()).unwrap();
        hangs.join().unwrap();
        assert!(gate.extents_of(&command("lvcreate --snapshot vg1/b")).try_lock().is_ok());
    }

    #[test]
    fn a_report_hangs_when_it_takes_several_times_as_long_as_others_of_late() {
        let mut reports = Reports::default();
        assert_eq!(reports.hangs_after(), LOST_AFTER);
        reports.took(Duration::from_secs(5));
        assert_eq!(reports.hangs_after(), Duration::from_secs(20));
        reports.took(Duration::from_mins(1));
        assert_eq!(reports.hangs_after(), HANGS_AFTER_MAX);
        for _ in 0..20 {
            reports.took(Duration::from_millis(20));
        }
        assert_eq!(reports.hangs_after(), LOST_AFTER, "it was busy once, and is not any more");
    }

    #[test]
    fn a_report_that_hangs_refuses_those_that_read_all_of_its_groups() {
        const LINE: &str =
            "vgs --config log/report_command_log=0 --reportformat json --units b --nosuffix -o vg_name vg1";
        let (go, wait) = mpsc::channel();
        let gate = Arc::new(Gated::new(Arc::new(Hanging(Mutex::new(wait)))));
        let first = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.run(&command(LINE)).unwrap())
        };
        while gate.reports().at_work.is_empty() {
            std::thread::yield_now();
        }
        std::thread::sleep(LOST_AFTER);
        for line in ["lvs vg0", "lvs -o lv_name --select lv_tags={vg1} vg0", "lvs vg0/vg1"] {
            gate.run(&command(line)).expect("a report of another group");
        }
        for line in ["lvs vg1", "lvs vg1/lv0 vg1/lv1", "lvs vg0 vg1", "lvs", "pvs -o vg_name"] {
            assert!(matches!(gate.run(&command(line)), Err(CommandError::Timeout { .. })), "{line}");
        }
        go.send(()).unwrap();
        first.join().unwrap();
        // The control: a report of a part of the groups may come to an end.
        let both = Running { began: Instant::now(), read: Read::of(&command("vgs vg0 vg1").args) };
        gate.reports().at_work.push(both);
        gate.reports().slowest = Duration::ZERO;
        std::thread::sleep(LOST_AFTER);
        gate.run(&command("lvs vg1")).expect("the other group may be the one that hangs");
        assert!(matches!(gate.run(&command("lvs vg0 vg1")), Err(CommandError::Timeout { .. })));
    }

    #[test]
    fn one_report_that_hangs_shuts_the_gate_for_reports_until_it_is_back() {
        let (go, wait) = mpsc::channel();
        let gate = Arc::new(Gated::new(Arc::new(Hanging(Mutex::new(wait)))));
        let first = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.run(&command("vgs")).unwrap())
        };
        while gate.reports().at_work.is_empty() {
            std::thread::yield_now();
        }
        // The machine was busy: a report may take half a minute.
        gate.reports().took(HANGS_AFTER_MAX);
        gate.run(&command("lvs")).expect("it has only just begun");
        gate.reports().slowest = Duration::ZERO;
        std::thread::sleep(LOST_AFTER);
        assert!(matches!(gate.run(&command("lvs")), Err(CommandError::Timeout { .. })));
        assert!(matches!(gate.run(&command("vgs")), Err(CommandError::Timeout { .. })));
        gate.run(&command("lvremove")).expect("changes are not refused");
        go.send(()).unwrap();
        first.join().unwrap();
        gate.run(&command("lvs")).expect("the gate is open again");
    }
}
