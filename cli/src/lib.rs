//! `mooring`: works against one agent. Words in, one call or a few, words or JSON out.
//!
//! The way of a command: `args` (what was typed, checked as far as the words alone go) → `session` (a connection, who is
//! who, the call and its deadline) → `volume`, `export`, `agent` (read, decide, send) → `output` (what is answered, as
//! stable JSON) and `display` (the same for people).
//!
//! What must never happen here: a secret on a command line, in an answer or in an error; a spec sent that drops a grant
//! nobody asked to drop; exit code 0 for something that is not true yet.

mod agent;
mod args;
mod chap;
mod display;
mod error;
mod export;
mod output;
mod select;
mod session;
mod volume;

use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;

pub use args::{Cli, Command, Global};
pub use error::{Exit, Failure};

use args::{AgentCommand, ExportCommand, VolumeCommand};
use session::Session;

/// What a command answers with: the answer and whether it is true already.
struct Reply<T> {
    exit: Exit,
    answer: T,
}

impl<T> Reply<T> {
    /// True.
    fn ok(answer: T) -> Self {
        Self { exit: Exit::Ok, answer }
    }

    /// True, or accepted and not true yet.
    fn when(done: bool, answer: T) -> Self {
        Self { exit: if done { Exit::Ok } else { Exit::Pending }, answer }
    }
}

/// Runs one command and prints its answer.
pub async fn run(cli: Cli) -> Result<Exit, Failure> {
    let json = cli.global.json;
    match cli.command {
        Command::Volume(VolumeCommand::Create(args)) => {
            let session = Session::open(&cli.global).await?;
            print(json, &volume::create(&session, &args).await?)
        }
        Command::Volume(VolumeCommand::List) => {
            let session = Session::open(&cli.global).await?;
            print(json, &volume::list(&session).await?)
        }
        Command::Volume(VolumeCommand::Show(args)) => {
            let session = Session::open(&cli.global).await?;
            print(json, &volume::show(&session, &args.volume).await?)
        }
        Command::Volume(VolumeCommand::Delete(args)) => {
            let session = Session::open(&cli.global).await?;
            print(json, &volume::delete(&session, &args.volume).await?)
        }
        Command::Export(ExportCommand::Grant(args)) => {
            // Bad credentials are found before anybody is called.
            let wish = export::Wish::resolve(args)?;
            let session = Session::open(&cli.global).await?;
            print(json, &export::grant(&session, &wish).await?)
        }
        Command::Export(ExportCommand::Revoke(args)) => {
            let session = Session::open(&cli.global).await?;
            print(json, &export::revoke(&session, &args).await?)
        }
        Command::Export(ExportCommand::Show(args)) => {
            let session = Session::open(&cli.global).await?;
            print(json, &export::show(&session, &args.volume).await?)
        }
        Command::Plan(args) => {
            let session = Session::open(&cli.global).await?;
            print(json, &agent::plan(&session, args.volume.as_ref()).await?)
        }
        Command::Agent(AgentCommand::Show) => {
            let session = Session::open(&cli.global).await?;
            print(json, &agent::show(&session).await?)
        }
        Command::Watch => {
            let session = Session::open(&cli.global).await?;
            agent::watch(&session, |line| write_out(&output::render(json, true, line)?)).await
        }
    }
}

fn print<T: serde::Serialize + std::fmt::Display>(json: bool, reply: &Reply<T>) -> Result<Exit, Failure> {
    // The command is done either way.
    let _ = write_out(&output::render(json, false, &reply.answer)?)?;
    Ok(reply.exit)
}

/// Writes to standard output. A reader that went away (`mooring volume list | head -1`) has had enough: that is no error,
/// and `Break`.
fn write_out(text: &str) -> Result<ControlFlow<()>, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(Failure::Output(error)),
    }
}

/// Prints a failure to standard error, once, and says how to exit.
pub fn report_failure(failure: &Failure, json: bool) -> Exit {
    let text = failure.text(json);
    // Standard error is the last resort: where it cannot be written to, the exit code still tells.
    let _ = io::stderr().lock().write_all(text.as_bytes());
    failure.exit()
}

/// Prints what clap says of the words: help and version as they are, a mistake as JSON where JSON was asked for.
pub fn report_usage(error: &clap::Error, json: bool) -> Exit {
    if !error.use_stderr() {
        let _ = error.print();
        return Exit::Ok;
    }
    if json {
        return report_failure(&Failure::Usage(error.to_string().trim_end().to_owned()), true);
    }
    let _ = error.print();
    Exit::Usage
}
