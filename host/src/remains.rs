//! Finds the remains of a process that has ended, or was killed: threads in calls of the kernel
//! that have not returned.
//!
//! What must never happen here: another program's process taken for one of ours, because it has its
//! number now; a thread that may run again called a dying one.

use procfs::process::{Process, Task};

/// Bit of SIGKILL in the set of signals that wait for a thread.
const KILLED: u64 = 1 << (9 - 1);

/// linux/sched.h: PF_EXITING.
const EXITING: u32 = 0x4;

/// Threads that a process still has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remains {
    /// Names of the threads; empty when the process is gone.
    pub threads: Vec<String>,
    /// No thread will run a line of the program again: each ends with its present call.
    pub dying: bool,
}

/// Finds the remains of a process, if it runs the program of this process and is another process.
pub fn remains_of(pid: u32) -> Remains {
    let Ok(number) = i32::try_from(pid) else { return Remains::default() };
    if pid == std::process::id() {
        return Remains::default();
    }
    let program = |process: &Process| Some(process.stat().ok()?.comm);
    let Ok(process) = Process::new(number) else { return Remains::default() };
    let own = Process::myself().ok().and_then(|own| program(&own));
    if own.is_none() || own != program(&process) {
        return Remains::default();
    }
    let Ok(tasks) = process.tasks() else { return Remains::default() };
    let (threads, dying): (Vec<_>, Vec<_>) = tasks.flatten().filter_map(|task| of_thread(&task)).unzip();
    Remains { threads, dying: dying.into_iter().all(|dying| dying) }
}

/// Returns the thread's name, and `true` if it is dying. `None` when it is dead.
fn of_thread(task: &Task) -> Option<(String, bool)> {
    let stat = task.stat().ok()?;
    if matches!(stat.state, 'Z' | 'X' | 'x') {
        return None;
    }
    // The signal is taken off the list when the thread begins to end.
    let dying = stat.flags & EXITING != 0 || task.status().is_ok_and(|status| status.sigpnd & KILLED != 0);
    Some((stat.comm, dying))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn another_program_is_none_of_ours() {
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(remains_of(other.id()).threads, Vec::<String>::new());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(remains_of(std::process::id()).threads, Vec::<String>::new());
        assert_eq!(remains_of(u32::MAX).threads, Vec::<String>::new());
    }

    #[test]
    fn the_same_program_is_seen_until_it_is_dead() {
        const WAIT: &str = "MOORING_TEST_WAIT";
        if std::env::var_os(WAIT).is_some() {
            return std::thread::sleep(std::time::Duration::from_mins(1));
        }
        let own = std::env::current_exe().unwrap();
        let name = "remains::tests::the_same_program_is_seen_until_it_is_dead";
        let mut same = Command::new(own).args(["--exact", name]).env(WAIT, "1").spawn().unwrap();
        let begun = std::time::Instant::now();
        while remains_of(same.id()).threads.is_empty() {
            assert!(begun.elapsed().as_secs() < 20, "it was never seen");
        }
        assert!(!remains_of(same.id()).dying, "it lives");
        same.kill().unwrap();
        // Nobody has waited for the process yet: the rest is a zombie.
        while !remains_of(same.id()).threads.is_empty() {
            assert!(begun.elapsed().as_secs() < 40, "it is never gone");
        }
        same.wait().unwrap();
    }
}
