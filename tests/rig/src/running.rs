//! A command that runs in a VM, and its result.
//!
//! What must never happen here: a scenario that continues as if a command had worked.
//! [`Output::ok`] turns anything but exit status 0 into an error that names VM, command, status and
//! stderr.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mooring_guest::wire::Kind;

use crate::link::{Channel, End};
use crate::waited::WaitRanOut;

/// Time that a killed command may take to be gone; one that waits inside the kernel may never be.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Time that the start of a command may take.
const START_LIMIT: Duration = Duration::from_mins(2);

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Exited with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// Killed after it exceeded its time limit.
    TimedOut,
    /// Killed after it exceeded its time limit, but still inside the kernel.
    Stuck,
}

impl Status {
    /// Returns `true` if it exited with 0.
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }

    /// The exit code; `None` if it did not exit.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            Self::Signaled(_) | Self::TimedOut | Self::Stuck => None,
        }
    }

    /// The code with which a shell would report it.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Exited(code) => u8::try_from(code).unwrap_or(1),
            Self::Signaled(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Self::TimedOut | Self::Stuck => 124,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit status {code}"),
            Self::Signaled(signal) => write!(f, "signal {signal}"),
            Self::TimedOut => write!(f, "timed out and killed"),
            Self::Stuck => write!(f, "timed out and stuck in the kernel"),
        }
    }
}

/// The result of a command.
#[derive(Debug, Clone)]
pub struct Output {
    /// The VM.
    pub vm: String,
    /// The command line, for messages.
    pub command: String,
    /// The end of the command.
    pub status: Status,
    /// The text on stdout; invalid UTF-8 is replaced (use [`crate::Vm::read`] for binary data).
    pub stdout: String,
    /// The text on stderr.
    pub stderr: String,
    /// `true`: output beyond the limit was dropped.
    pub truncated: bool,
    /// The duration, as measured here.
    pub elapsed: Duration,
}

impl Output {
    /// Returns itself, or an error if the command did not exit with 0.
    pub fn ok(self) -> Result<Self> {
        match self.status {
            Status::Exited(0) => Ok(self),
            Status::TimedOut => {
                Err(WaitRanOut::new(format!("the end of: {}", self.failure()), self.elapsed).into())
            }
            // A process that stays inside the kernel is not a slow one.
            Status::Exited(_) | Status::Signaled(_) | Status::Stuck => bail!("{}", self.failure()),
        }
    }

    /// The first line of stdout, trimmed.
    pub fn line(&self) -> &str {
        self.stdout.lines().next().unwrap_or_default().trim()
    }

    fn failure(&self) -> String {
        let (vm, command, status) = (&self.vm, &self.command, self.status);
        let said = [self.stderr.trim(), self.stdout.trim()].into_iter().find(|text| !text.is_empty());
        let said = said.map_or_else(|| "it said nothing".to_owned(), |text| shorten(text, 2000));
        format!("on {vm}: {command}: {status} after {:.1} s: {said}", self.elapsed.as_secs_f64())
    }
}

/// Shortens a text to its last characters.
pub(crate) fn shorten(text: &str, limit: usize) -> String {
    let count = text.chars().count();
    if count <= limit {
        return text.to_owned();
    }
    format!("[...] {}", text.chars().skip(count - limit).collect::<String>())
}

/// The part of a command's output that was read already.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    stdout: usize,
    stderr: usize,
}

/// Output since the last look.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// New bytes of stdout.
    pub stdout: Vec<u8>,
    /// New bytes of stderr.
    pub stderr: Vec<u8>,
    /// `true`: the command has ended; [`Running::wait`] says how.
    pub ended: bool,
}

/// A command that runs. Dropping it kills it; [`Running::detach`] lets it go on.
#[derive(Debug)]
#[must_use = "dropping a running command kills it"]
pub struct Running {
    vm: String,
    command: String,
    channel: Channel,
    start: Instant,
    timeout: Option<Duration>,
    detached: bool,
}

impl Running {
    pub(crate) fn new(
        vm: &str,
        command: String,
        channel: Channel,
        start: Instant,
        timeout: Option<Duration>,
    ) -> Self {
        Self { vm: vm.to_owned(), command, channel, start, timeout, detached: false }
    }

    /// Returns `true` while it runs.
    pub fn is_running(&self) -> bool {
        self.channel.state().end.is_none()
    }

    /// The process id in the VM; waits until it is known.
    pub fn pid(&self) -> Result<u32> {
        let state = self.channel.wait(Some(Instant::now() + START_LIMIT), |state| state.pid.is_some());
        match (state.pid, &state.end) {
            (Some(pid), _) => Ok(pid),
            (None, Some(End::Failed(why))) => bail!("on {}: {}: {why}", self.vm, self.command),
            _ => {
                Err(WaitRanOut::new(format!("the start of {} on {}", self.command, self.vm), START_LIMIT)
                    .into())
            }
        }
    }

    /// The text on stdout so far.
    pub fn stdout_so_far(&self) -> String {
        String::from_utf8_lossy(&self.channel.state().stdout).into_owned()
    }

    /// The text on stderr so far.
    pub fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&self.channel.state().stderr).into_owned()
    }

    /// Waits at most `limit` until stdout contains a text. Returns `true` if it does.
    pub fn wait_stdout(&self, text: &str, limit: Duration) -> bool {
        let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(text);
        has(&self.channel.wait(Some(Instant::now() + limit), |state| has(&state.stdout)).stdout)
    }

    /// Waits at most `limit` for anything new.
    pub fn progress(&self, seen: &mut Seen, limit: Duration) -> Progress {
        let before = *seen;
        let state = self.channel.wait(Some(Instant::now() + limit), |state| {
            state.stdout.len() > before.stdout || state.stderr.len() > before.stderr
        });
        *seen = Seen { stdout: state.stdout.len(), stderr: state.stderr.len() };
        Progress {
            stdout: state.stdout.get(before.stdout..).unwrap_or_default().to_vec(),
            stderr: state.stderr.get(before.stderr..).unwrap_or_default().to_vec(),
            ended: state.end.is_some(),
        }
    }

    /// Writes to the command's stdin, if that was opened with [`crate::Command::stdin_open`].
    pub fn write_stdin(&self, bytes: &[u8]) -> Result<()> {
        self.channel.data(bytes)
    }

    /// Closes the command's stdin.
    pub fn close_stdin(&self) -> Result<()> {
        self.channel.end_of_data()
    }

    /// Sends a signal to the command's process group.
    pub fn signal(&self, number: u8) -> Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        self.channel.send(Kind::Signal, &[number])
    }

    /// Kills it with all its children, and waits a moment until it is gone.
    pub fn kill(&self) -> Result<()> {
        self.signal(9)?;
        drop(self.channel.wait(Some(Instant::now() + KILL_WAIT), |_| false));
        Ok(())
    }

    /// Lets the command run on until the VM ends.
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// Waits until the command has ended; at its time limit it is killed.
    pub fn wait(self) -> Result<Output> {
        let deadline = self.timeout.map(|timeout| self.start + timeout);
        let in_time = self.channel.wait(deadline, |_| false).end.is_some();
        if !in_time {
            self.kill()?;
        }
        let mut state = self.channel.state();
        let status = match state.end.as_ref() {
            None => Status::Stuck,
            Some(End::Ended(_)) if !in_time => Status::TimedOut,
            Some(End::Ended(ended)) => match (ended.code, ended.signal) {
                (Some(code), _) => Status::Exited(code),
                (None, signal) => Status::Signaled(signal.unwrap_or_default()),
            },
            Some(End::Failed(why)) => bail!("on {}: {}: {why}", self.vm, self.command),
            Some(End::Gone) => bail!(
                "{} went away (power cut, panic or poweroff) while it ran: {}; its console may say why",
                self.vm,
                self.command
            ),
        };
        let truncated = matches!(&state.end, Some(End::Ended(ended)) if ended.truncated);
        let (stdout, stderr) = (std::mem::take(&mut state.stdout), std::mem::take(&mut state.stderr));
        drop(state);
        Ok(Output {
            vm: self.vm.clone(),
            command: self.command.clone(),
            status,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            truncated,
            elapsed: self.start.elapsed(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.detached {
            let _ = self.signal(9);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(status: Status) -> Output {
        Output {
            vm: "host1".to_owned(),
            command: "mkfs /dev/sda".to_owned(),
            status,
            stdout: "some\n".to_owned(),
            stderr: "no such device\n".to_owned(),
            truncated: false,
            elapsed: Duration::from_millis(1500),
        }
    }

    #[test]
    fn ok_names_vm_command_status_and_stderr() {
        assert_eq!(output(Status::Exited(0)).ok().unwrap().line(), "some");
        let err = output(Status::Exited(2)).ok().unwrap_err().to_string();
        assert_eq!(err, "on host1: mkfs /dev/sda: exit status 2 after 1.5 s: no such device");
        assert!(output(Status::Signaled(9)).ok().unwrap_err().to_string().contains("signal 9"));
    }

    #[test]
    fn only_a_command_that_ran_out_of_time_is_a_wait() {
        let is_wait = |status| output(status).ok().unwrap_err().is::<WaitRanOut>();
        assert!(is_wait(Status::TimedOut));
        assert!(![Status::Exited(124), Status::Signaled(9), Status::Stuck].into_iter().any(is_wait));
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Status::Exited(7).shell_code(), 7);
        assert_eq!(Status::Signaled(9).shell_code(), 137);
        assert_eq!(Status::TimedOut.shell_code(), 124);
    }

    #[test]
    fn long_texts_keep_their_end() {
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("abcdef", 3), "[...] def");
    }
}
