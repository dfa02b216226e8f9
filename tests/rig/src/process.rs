//! Starts QEMU so that it cannot outlive this process.
//!
//! There are two safeguards: a parent-death signal, set by `setpriv`, that even a SIGKILL of this
//! process triggers; and a handler for ctrl-C and SIGTERM that ends the VMs and removes the run
//! folders.
//!
//! What must never happen here: QEMU started from a thread that ends. The kernel sends the
//! parent-death signal when the *thread* that forked is gone, so one thread that lives as long as
//! the process starts them all.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lock;

type Request = (Command, Sender<io::Result<Child>>);

static SPAWNER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
static FOLDERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static HANDLER: Once = Once::new();

/// A child that is killed when this process ends, and when it is dropped.
#[derive(Debug)]
pub(crate) struct Guarded {
    child: Child,
}

impl Guarded {
    /// Starts a program through `setpriv --pdeathsig KILL`, which the command must already contain.
    pub(crate) fn spawn(command: Command) -> io::Result<Self> {
        let spawner = SPAWNER.get_or_init(|| {
            let (sender, requests) = mpsc::channel::<Request>();
            thread::spawn(move || {
                for (mut command, answer) in requests {
                    let _ = answer.send(command.spawn());
                }
            });
            Mutex::new(sender)
        });
        let gone = || io::Error::other("the thread that starts programs is gone");
        let (sender, answer) = mpsc::channel();
        lock(spawner).send((command, sender)).map_err(|_| gone())?;
        let child = answer.recv().map_err(|_| gone())??;
        lock(&RUNNING).insert(child.id());
        Ok(Self { child })
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        let status = self.child.try_wait().ok().flatten();
        if status.is_some() {
            lock(&RUNNING).remove(&self.child.id());
        }
        status
    }

    /// Ends it at once, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        lock(&RUNNING).remove(&self.child.id());
        let _ = self.child.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Registers a folder that is removed on ctrl-C, and installs the handler.
pub(crate) fn remember(folder: &Path) {
    lock(&FOLDERS).insert(folder.to_path_buf());
    HANDLER.call_once(|| {
        // This fails only if the process has set a handler before; the parent-death signal ends the
        // VMs in any case.
        let _ = ctrlc::set_handler(|| {
            eprintln!("rig: interrupted, ending the VMs");
            end_all();
            std::process::exit(130);
        });
    });
}

/// Unregisters a folder that was removed in an orderly way.
pub(crate) fn forget(folder: &Path) {
    lock(&FOLDERS).remove(folder);
}

/// Returns `true` if a process with this id runs; a zombie does not count.
pub fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the state is in parentheses and may contain anything.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn end_all() {
    let pids = lock(&RUNNING).clone();
    for pid in &pids {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    // Freeing a VM's memory takes a moment; whoever has seen us end must find nothing left.
    let deadline = Instant::now() + Duration::from_secs(10);
    while pids.iter().any(|pid| alive(*pid)) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    for folder in lock(&FOLDERS).iter() {
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_outlives_the_thread_that_asked_for_it_and_ends_when_dropped() {
        let setpriv = || {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "sleep", "60"]);
            command
        };
        let mut child = thread::spawn(move || Guarded::spawn(setpriv()).unwrap()).join().unwrap();
        thread::sleep(Duration::from_millis(100));
        assert!(child.ended().is_none());
        let pid = Pid::from_raw(child.id().cast_signed());
        drop(child);
        assert!(kill(pid, None).is_err(), "the process is gone");
    }

    #[test]
    fn a_process_that_ended_is_not_alive_even_if_nobody_waited_for_it() {
        assert!(alive(std::process::id()));
        let mut child = Command::new("true").spawn().unwrap();
        let began = Instant::now();
        while alive(child.id()) {
            assert!(began.elapsed() < Duration::from_secs(30), "it has ended");
            thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap();
        assert!(!alive(child.id()));
    }
}
