//! Commands of the system: absolute path, clean environment, time limit, output limit.

use std::time::Duration;

/// One command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Absolute path of the program.
    pub program: &'static str,
    /// Its arguments. Never a secret: arguments stand in the process list.
    pub args: Vec<String>,
    /// The command's process group is killed after this time.
    pub timeout: Duration,
}

/// What a command that ran to its end left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandOutput {
    /// Its exit status; a signal counts as 128 + its number, as in a shell.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

/// A command that could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program is not there or cannot be executed.
    #[error("cannot run {program}")]
    Start {
        /// The program.
        program: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It did not end in time and was killed.
    #[error("{program} {args} did not end within {}s and was killed", .timeout.as_secs())]
    Timeout {
        /// The program.
        program: &'static str,
        /// Its arguments, joined.
        args: String,
        /// The limit.
        timeout: Duration,
    },
    /// It wrote more than the limit.
    #[error("{program} wrote more than {limit} bytes and was killed")]
    Output {
        /// The program.
        program: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
}

/// Runs commands.
pub trait Commands: Send + Sync {
    /// Runs one command to its end. An exit status other than 0 is no error here.
    fn run(&self, command: &Command) -> Result<CommandOutput, CommandError>;
}

/// Runs commands of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostCommands;
