//! Shortens the kernel's RCU grace periods during bulk work, and restores them after it.
//!
//! Linking a LUN to its backstore waits for a grace period: 16 to 20 ms, of the 20 to 30 that a
//! whole export takes. With `/sys/kernel/rcu_expedited` at 1 it takes a fraction of one (lio.md,
//! k). The switch is the whole machine's, and costs every processor an interrupt for each grace
//! period. So it is on while many exports are made, and never for one grant.
//!
//! A file in the run folder is written before the switch is turned on, and removed when it is off
//! again. An agent that finds the file when it starts turns the switch off: its predecessor was
//! killed. After a reboot there is neither.
//!
//! What must never happen here: the switch on without the file; a switch that somebody else has
//! turned on, turned off.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mooring_host::{Errno, Tree, TreeError, TreePath};
use mooring_model::Chain;

/// Name of the file in the run folder.
pub(crate) const RECORD: &str = "rcu_expedited";

/// Content of the file, for whoever finds it.
const RECORD_TEXT: &str = "mooring-agent has set /sys/kernel/rcu_expedited to 1 for a bulk operation; it was 0. \
                           The next start of mooring-agent sets it back.\n";

fn switch() -> TreePath {
    TreePath::new("kernel/rcu_expedited")
}

/// Reason why the switch could not be set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The file could not be written or removed.
    #[error("cannot {op} {path}")]
    Record {
        op: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The switch could not be read or written.
    #[error("cannot set the kernel's grace periods")]
    Switch {
        #[from]
        source: TreeError,
    },
}

/// The switch, as this agent uses it. One for each run folder.
#[derive(Debug)]
pub(crate) struct Expedite {
    record: PathBuf,
    /// `true` if the file exists: by this agent, or by an earlier one that could not remove it.
    on: bool,
}

impl Expedite {
    /// Makes the switch for this run folder. Notices what an earlier agent has left;
    /// [`Expedite::end`] cleans that up.
    pub(crate) fn new(run_dir: &Path) -> Self {
        let record = run_dir.join(RECORD);
        let on = record.exists();
        Self { record, on }
    }

    /// Returns `true` if [`Expedite::end`] has something to do.
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Turns the switch on. Changes nothing if somebody else has turned it on, if the kernel has no
    /// such switch, or if an operator asks for normal grace periods whatever is expedited
    /// (`/sys/kernel/rcu_normal`).
    pub(crate) fn begin(&mut self, sys: &dyn Tree) -> Result<(), Error> {
        if self.on {
            return Ok(());
        }
        match sys.read_text(&switch()) {
            Ok(text) if text == "0" => {}
            Ok(_) => return Ok(()),
            Err(error) if error.errno == Errno::ENOENT => return Ok(()),
            Err(source) => return Err(source.into()),
        }
        if sys.read_text(&TreePath::new("kernel/rcu_normal")).is_ok_and(|text| text != "0") {
            return Ok(());
        }
        let failed = |source| Error::Record { op: "write", path: self.record.clone(), source };
        fs::write(&self.record, RECORD_TEXT).map_err(failed)?;
        self.on = true;
        sys.write(&switch(), b"1")?;
        tracing::debug!("grace periods are short for now");
        Ok(())
    }

    /// Turns the switch off, if this agent or an earlier one turned it on. After an error, call it
    /// again.
    pub(crate) fn end(&mut self, sys: &dyn Tree) -> Result<(), Error> {
        if !self.on {
            return Ok(());
        }
        // Somebody may have turned it off meanwhile, or the earlier agent may have been killed
        // before it was on.
        if sys.read_text(&switch())? == "1" {
            sys.write(&switch(), b"0")?;
        }
        match fs::remove_file(&self.record) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Record { op: "remove", path: self.record.clone(), source });
            }
            _ => self.on = false,
        }
        tracing::debug!("grace periods are normal again");
        Ok(())
    }

    /// Turns the switch off, and logs an error, for callers who can do nothing else about it.
    pub(crate) fn end_or_say(&mut self, sys: &dyn Tree) {
        if let Err(error) = self.end(sys) {
            tracing::warn!(error = %Chain(&error), "/sys/kernel/rcu_expedited stays on; tried again at the next tick");
        }
    }
}

#[cfg(test)]
mod tests {
    use mooring_host::KernelTree;
    use mooring_host::fake::Faulty;

    use super::*;

    /// A run folder, and a `/sys` with the switch.
    struct Machine {
        dir: tempfile::TempDir,
        sys: Faulty<KernelTree>,
    }

    impl Machine {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("kernel")).unwrap();
            fs::write(dir.path().join("kernel/rcu_expedited"), "0\n").unwrap();
            fs::write(dir.path().join("kernel/rcu_normal"), "0\n").unwrap();
            let sys = Faulty::new(KernelTree::new(dir.path()));
            Self { dir, sys }
        }

        fn expedite(&self) -> Expedite {
            Expedite::new(self.dir.path())
        }

        /// Returns the switch's value, and `true` if the file exists.
        fn state(&self) -> (String, bool) {
            (self.sys.inner().read_text(&switch()).unwrap(), self.dir.path().join(RECORD).exists())
        }
    }

    #[test]
    fn it_is_on_for_the_time_between_and_off_after_it() {
        let machine = Machine::new();
        let mut expedite = machine.expedite();
        expedite.end(&machine.sys).unwrap();
        assert_eq!((machine.state(), machine.sys.mutations()), (("0".to_owned(), false), 0));
        expedite.begin(&machine.sys).unwrap();
        expedite.begin(&machine.sys).unwrap();
        assert_eq!((machine.state(), machine.sys.mutations()), (("1".to_owned(), true), 1));
        expedite.end(&machine.sys).unwrap();
        assert_eq!((machine.state(), machine.sys.mutations()), (("0".to_owned(), false), 2));
    }

    #[test]
    fn after_a_crash_at_any_point_the_next_one_puts_it_back() {
        // Killed before the n-th write of the switch, and after all of them.
        for writes in 0..=2 {
            let machine = Machine::new();
            machine.sys.halt_after(writes);
            let mut expedite = machine.expedite();
            let _ = expedite.begin(&machine.sys);
            if writes > 0 {
                let _ = expedite.end(&machine.sys);
            }
            drop(expedite);
            let left = machine.state();
            assert_eq!(
                left,
                [("0".to_owned(), true), ("1".to_owned(), true), ("0".to_owned(), false)]
                    [usize::try_from(writes).unwrap()]
            );
            machine.sys.clear();
            let mut next = machine.expedite();
            next.end(&machine.sys).unwrap();
            assert_eq!(machine.state(), ("0".to_owned(), false), "{writes} writes");
        }
    }

    #[test]
    fn what_could_not_be_put_back_is_tried_again() {
        let machine = Machine::new();
        let mut expedite = machine.expedite();
        expedite.begin(&machine.sys).unwrap();
        machine.sys.fail_nth(1, Errno::EIO);
        assert!(expedite.end(&machine.sys).is_err() && expedite.is_on());
        expedite.end(&machine.sys).unwrap();
        assert_eq!((machine.state(), expedite.is_on()), (("0".to_owned(), false), false));
    }

    #[test]
    fn what_is_somebody_elses_stays() {
        for (file, text) in [("rcu_expedited", "1\n"), ("rcu_normal", "1\n")] {
            let machine = Machine::new();
            fs::write(machine.dir.path().join("kernel").join(file), text).unwrap();
            let before = machine.state();
            let mut expedite = machine.expedite();
            expedite.begin(&machine.sys).unwrap();
            expedite.end(&machine.sys).unwrap();
            assert_eq!((machine.state(), machine.sys.mutations()), (before, 0), "{file}");
        }
        // A kernel without the switch.
        let machine = Machine::new();
        fs::remove_file(machine.dir.path().join("kernel/rcu_expedited")).unwrap();
        machine.expedite().begin(&machine.sys).unwrap();
        assert!(!machine.dir.path().join(RECORD).exists());
    }

    #[test]
    fn without_a_place_for_the_record_nothing_is_changed() {
        let machine = Machine::new();
        let mut expedite = Expedite::new(&machine.dir.path().join("no/such/folder"));
        assert!(expedite.begin(&machine.sys).is_err());
        assert_eq!((machine.state(), expedite.is_on()), (("0".to_owned(), false), false));
    }
}
