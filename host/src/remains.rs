//! What is left of a process that was killed: threads in calls of the kernel that have not returned.
//!
//! What must never happen here: another program's process taken for one of ours, because it has its number now.

use procfs::process::Process;

/// The names of the threads that a process still has, if it runs the same program as this one and is another; empty when it is gone.
pub fn threads_left(pid: u32) -> Vec<String> {
    let Ok(number) = i32::try_from(pid) else { return Vec::new() };
    if pid == std::process::id() {
        return Vec::new();
    }
    let program = |process: &Process| Some(process.stat().ok()?.comm);
    let Ok(process) = Process::new(number) else { return Vec::new() };
    let own = Process::myself().ok().and_then(|own| program(&own));
    if own.is_none() || own != program(&process) {
        return Vec::new();
    }
    let Ok(tasks) = process.tasks() else { return Vec::new() };
    let stats = tasks.flatten().filter_map(|task| task.stat().ok());
    stats.filter(|stat| !matches!(stat.state, 'Z' | 'X' | 'x')).map(|stat| stat.comm).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn another_program_is_none_of_ours() {
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(threads_left(other.id()), Vec::<String>::new());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(threads_left(std::process::id()), Vec::<String>::new());
        assert_eq!(threads_left(u32::MAX), Vec::<String>::new());
    }

    #[test]
    fn the_same_program_is_seen_until_it_is_dead() {
        const WAIT: &str = "MOORING_TEST_WAIT";
        if std::env::var_os(WAIT).is_some() {
            return std::thread::sleep(std::time::Duration::from_secs(60));
        }
        let own = std::env::current_exe().unwrap();
        let name = "remains::tests::the_same_program_is_seen_until_it_is_dead";
        let mut same = Command::new(own).args(["--exact", name]).env(WAIT, "1").spawn().unwrap();
        let begun = std::time::Instant::now();
        while threads_left(same.id()).is_empty() {
            assert!(begun.elapsed().as_secs() < 20, "it was never seen");
        }
        same.kill().unwrap();
        // Not waited for yet: what is left is a zombie.
        while !threads_left(same.id()).is_empty() {
            assert!(begun.elapsed().as_secs() < 40, "it is never gone");
        }
        same.wait().unwrap();
    }
}
