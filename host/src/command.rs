//! Runs commands of the system: absolute path, clean environment, time limit, output limit.
//!
//! What must never happen: a command that outlives its limit unnoticed, one that sees our
//! environment, input or descriptors, or a full pipe on one stream that stops the other.

use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Maximum number of bytes that a command may write to each of its standard output and standard
/// error; one that writes more is killed.
pub const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Complete environment of a command. The locale keeps texts stable; the last variable keeps `lvm`
/// from warning about descriptors that it did not open.
const ENVIRONMENT: [(&str, &str); 3] =
    [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C"), ("LVM_SUPPRESS_FD_WARNINGS", "1")];

/// Time to wait for output once the command has ended: a process that it left behind may hold the
/// pipes for ever.
const AFTER_EXIT: Duration = Duration::from_secs(1);

/// Time that a killed command may take to die; one in an uninterruptible system call may never die.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// One command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Absolute path of the program.
    pub program: &'static str,
    /// Arguments. Never a secret: arguments are in the process list.
    pub args: Vec<String>,
    /// Time limit, after which the command's process group is killed.
    pub timeout: Duration,
}

/// Result of a command that ran to its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandOutput {
    /// Exit status; a signal counts as 128 + its number, as in a shell.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

/// A command that could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program does not exist or cannot be executed.
    #[error("cannot run {program}")]
    Start {
        /// Path of the program.
        program: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The command did not end in time and was killed.
    #[error("{program} {args} did not end within {}s and was killed", .timeout.as_secs())]
    Timeout {
        /// Path of the program.
        program: &'static str,
        /// Arguments, joined.
        args: String,
        /// Time limit.
        timeout: Duration,
    },
    /// The command wrote more than the limit.
    #[error("{program} wrote more than {limit} bytes and was killed")]
    Output {
        /// Path of the program.
        program: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
}

/// Runs commands.
pub trait Commands: Send + Sync {
    /// Runs one command to its end. An exit status other than 0 is no error here.
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError>;

    /// Runs commands one after the other, up to the first that fails. Returns the outputs of those
    /// that ran. An implementation that can keep other commands from coming in between does so.
    fn run_in_a_row(&self, commands: &[Command]) -> Result<Vec<CommandOutput>, CommandError> {
        let mut outputs = Vec::new();
        for command in commands {
            let output = self.run(command)?;
            let failed = output.status != 0;
            outputs.push(output);
            if failed {
                break;
            }
        }
        Ok(outputs)
    }
}

/// Runs commands on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostCommands;

impl Commands for HostCommands {
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError> {
        run(command, OUTPUT_BYTES_MAX)
    }
}

/// Report of a thread around a child.
enum Event {
    Exited,
    /// One stream has ended.
    EndOfStream,
    /// One stream passed the limit.
    TooMuch,
}

/// Outcome of a child.
enum Ending {
    Exited,
    TimedOut,
    TooMuch,
}

/// Bytes of one stream, shared with the thread that reads it: that thread may be lost.
type Bytes = Arc<Mutex<Vec<u8>>>;

fn run(command: &Command, limit: usize) -> Result<CommandOutput, CommandError> {
    let program = command.program;
    let start = |source| CommandError::Start { program, source };
    let begun = Instant::now();
    let mut child = spawn(command).map_err(start)?;
    let group = Pid::from_raw(i32::try_from(child.id()).map_err(|_| start(io::ErrorKind::Other.into()))?);
    let (events, seen) = mpsc::channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let watched = Watch::new(child, group, events.clone()).and_then(|watch| {
        let out = collect(stdout, limit, events.clone())?;
        Ok((watch, out, collect(stderr, limit, events)?))
    });
    let (watch, out, err) = watched.map_err(|error| {
        kill(group);
        start(error)
    })?;
    let ending = await_end(&seen, begun + command.timeout);
    if !matches!(ending, Ending::Exited) {
        kill(group);
        await_end(&seen, Instant::now() + AFTER_KILL);
    }
    match ending {
        Ending::TimedOut => {
            Err(CommandError::Timeout { program, args: command.args.join(" "), timeout: command.timeout })
        }
        Ending::TooMuch => Err(CommandError::Output { program, limit }),
        Ending::Exited => {
            let status = watch.reap().map_err(start)?;
            let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
            tracing::debug!(program, args = command.args.join(" "), status, elapsed = ?begun.elapsed(), "command ended");
            Ok(CommandOutput {
                status,
                stdout: take(&out),
                stderr: String::from_utf8_lossy(&take(&err)).into_owned(),
            })
        }
    }
}

fn spawn(command: &Command) -> io::Result<Child> {
    if !command.program.starts_with('/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the program's path is not absolute"));
    }
    std::process::Command::new(command.program)
        .args(&command.args)
        .env_clear()
        .envs(ENVIRONMENT)
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Waits for a child on a thread, and reaps it when told (or when dropped). Until then its process
/// id, and so its group's, belongs to nobody else and may be killed.
struct Watch {
    reap: Sender<()>,
    status: Receiver<io::Result<ExitStatus>>,
}

impl Watch {
    fn new(mut child: Child, pid: Pid, events: Sender<Event>) -> io::Result<Self> {
        let (reap, told) = mpsc::channel::<()>();
        let (send, status) = mpsc::channel();
        thread::Builder::new().name("command-wait".to_owned()).spawn(move || {
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
                == Err(nix::errno::Errno::EINTR)
            {}
            let _ = events.send(Event::Exited);
            let _ = told.recv();
            let _ = send.send(child.wait());
        })?;
        Ok(Self { reap, status })
    }

    fn reap(self) -> io::Result<ExitStatus> {
        drop(self.reap);
        self.status.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }
}

/// Reads one stream to its end, or to the limit, on a thread.
fn collect(
    stream: Option<impl Read + Send + 'static>,
    limit: usize,
    events: Sender<Event>,
) -> io::Result<Bytes> {
    let bytes = Bytes::default();
    let sink = Arc::clone(&bytes);
    thread::Builder::new().name("command-read".to_owned()).spawn(move || {
        let mut chunk = vec![0; 64 << 10];
        let mut stream = stream;
        while let Some(stream) = &mut stream {
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => {
                    let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                    if sink.len() + read > limit {
                        let _ = events.send(Event::TooMuch);
                        return;
                    }
                    sink.extend_from_slice(&chunk[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = events.send(Event::EndOfStream);
    })?;
    Ok(bytes)
}

fn await_end(seen: &Receiver<Event>, mut deadline: Instant) -> Ending {
    let (mut exited, mut ends) = (false, 0);
    loop {
        match seen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::TooMuch) => return Ending::TooMuch,
            Ok(Event::EndOfStream) => ends += 1,
            Ok(Event::Exited) => {
                exited = true;
                deadline = deadline.min(Instant::now() + AFTER_EXIT);
            }
            Err(_) if exited => return Ending::Exited,
            Err(_) => return Ending::TimedOut,
        }
        if exited && ends == 2 {
            return Ending::Exited;
        }
    }
}

fn kill(group: Pid) {
    // ESRCH: the group has gone already.
    let _ = killpg(group, Signal::SIGKILL);
}

fn take(bytes: &Bytes) -> Vec<u8> {
    std::mem::take(&mut *bytes.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        Command {
            program: "/bin/sh",
            args: vec!["-c".to_owned(), script.to_owned()],
            timeout: Duration::from_secs(20),
        }
    }

    #[test]
    fn output_status_and_signals_come_back() {
        let output = HostCommands.run(&sh("echo out; echo err >&2; exit 5")).unwrap();
        assert_eq!(
            (output.status, output.stdout.as_slice(), output.stderr.as_str()),
            (5, &b"out\n"[..], "err\n")
        );
        assert_eq!(HostCommands.run(&sh("kill -TERM $$")).unwrap().status, 128 + 15);
        assert_eq!(HostCommands.run(&sh("exit 0")).unwrap(), CommandOutput::default());
    }

    #[test]
    fn the_environment_is_ours_alone_and_input_is_empty() {
        let env = Command { program: "/usr/bin/env", args: Vec::new(), timeout: Duration::from_secs(20) };
        let output = HostCommands.run(&env).unwrap();
        let mut lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]);
        assert_eq!(HostCommands.run(&sh("cat | wc -c")).unwrap().stdout.trim_ascii(), b"0");
        // The command leads a group of its own.
        let leads = "read -r pid name state parent group rest < /proc/$$/stat; test $group = $$";
        assert_eq!(HostCommands.run(&sh(leads)).unwrap().status, 0);
    }

    #[test]
    fn both_streams_are_read_at_once() {
        let script =
            "dd if=/dev/zero bs=1M count=2 status=none >&2; dd if=/dev/zero bs=1M count=2 status=none";
        let output = HostCommands.run(&sh(script)).unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (2 << 20, 2 << 20));
    }

    #[test]
    fn the_time_limit_kills_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid.display());
        let error =
            HostCommands.run(&Command { timeout: Duration::from_secs(4), ..sh(&script) }).unwrap_err();
        assert!(matches!(error, CommandError::Timeout { .. }), "{error}");
        let pid = std::fs::read_to_string(pid).unwrap();
        let status = format!("/proc/{}/status", pid.trim());
        for _ in 0..1000 {
            match std::fs::read_to_string(&status) {
                Ok(text) if !text.contains("State:\tZ") => thread::sleep(Duration::from_millis(20)),
                _ => return,
            }
        }
        panic!("process {pid} outlived its command");
    }

    #[test]
    fn what_a_command_leaves_behind_does_not_hold_it() {
        let begun = Instant::now();
        let output = HostCommands.run(&sh("echo done; setsid sleep 30 &")).unwrap();
        assert_eq!(output.stdout, b"done\n");
        assert!(begun.elapsed() < Duration::from_secs(25));
    }

    #[test]
    fn too_much_output_is_refused() {
        let error = run(&sh("cat /dev/zero"), 100_000).unwrap_err();
        assert!(matches!(error, CommandError::Output { limit: 100_000, .. }), "{error}");
        assert_eq!(run(&sh("head -c 100000 /dev/zero"), 100_000).unwrap().stdout.len(), 100_000);
    }

    #[test]
    fn a_missing_or_relative_program_does_not_start() {
        for program in ["/nonexistent/program", "sh"] {
            let error = HostCommands.run(&Command { program, ..sh("exit 0") }).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot run {program}"));
        }
    }
}
