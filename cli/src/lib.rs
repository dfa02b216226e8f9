//! `mooring`: works against the controller, or against one agent. Words in, one call or a few, words or JSON out.
//!
//! The way of a command: `args` (what was typed, checked as far as the words alone go) → `side` (who is asked). To an agent:
//! `session` (a connection, who is who, the call and its deadline) → `volume`, `export`, `agent` (read, decide, send) →
//! `output` (what is answered, as stable JSON) and `display` (the same for people). To the controller: the same steps in
//! `controller`.
//!
//! What must never happen here: a secret on a command line, in an answer or in an error; a spec sent that drops a grant
//! nobody asked to drop; exit code 0 for something that is not true yet.

mod agent;
mod args;
mod chap;
mod controller;
mod display;
mod error;
mod export;
mod output;
mod select;
mod session;
mod side;
mod volume;

use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;

pub use args::{Cli, Command, Global};
pub use error::{Exit, Failure};

use args::{AgentCommand, AttachmentCommand, ExportCommand, HostCommand, TypeCommand, VolumeCommand};
use controller::Client;
use session::Session;
use side::Side;

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
    let Cli { global, command } = cli;
    let json = global.json;
    match command {
        Command::Volume(command) => run_volume(&global, &command).await,
        Command::Host(HostCommand::List) => {
            let client = Client::open(&global, side::controller(&global, "host list")?)?;
            print(json, &controller::host::list(&client).await?)
        }
        Command::Type(TypeCommand::Create(args)) => {
            let client = Client::open(&global, side::controller(&global, "type create")?)?;
            print(json, &controller::kind::create(&client, &args).await?)
        }
        Command::Type(TypeCommand::List) => {
            let client = Client::open(&global, side::controller(&global, "type list")?)?;
            print(json, &controller::kind::list(&client).await?)
        }
        Command::Attach(args) => {
            let client = Client::open(&global, side::controller(&global, "attach")?)?;
            print(json, &controller::attach::attach(&client, &args, json).await?)
        }
        Command::Detach(args) => {
            let client = Client::open(&global, side::controller(&global, "detach")?)?;
            print(json, &controller::detach::detach(&client, &args).await?)
        }
        Command::Attachment(AttachmentCommand::List(args)) => {
            let client = Client::open(&global, side::controller(&global, "attachment list")?)?;
            print(json, &controller::attachment::list(&client, args.volume.as_ref()).await?)
        }
        Command::Attachment(AttachmentCommand::Show(args)) => {
            let client = Client::open(&global, side::controller(&global, "attachment show")?)?;
            print(json, &controller::attachment::show(&client, args.id).await?)
        }
        Command::Export(command) => run_export(&global, command).await,
        Command::Plan(args) => {
            let session = Session::open(&global, &side::agent(&global, "plan")?).await?;
            print(json, &agent::plan(&session, args.volume.as_ref()).await?)
        }
        Command::Agent(AgentCommand::Show) => {
            let session = Session::open(&global, &side::agent(&global, "agent show")?).await?;
            print(json, &agent::show(&session).await?)
        }
        Command::Watch => {
            let session = Session::open(&global, &side::agent(&global, "watch")?).await?;
            agent::watch(&session, |line| write_out(&output::render(json, true, line)?)).await
        }
    }
}

/// Volumes are on both sides.
async fn run_volume(global: &Global, command: &VolumeCommand) -> Result<Exit, Failure> {
    let json = global.json;
    let side = match command {
        VolumeCommand::Create(args) => side::either_for(global, args)?,
        VolumeCommand::List | VolumeCommand::Show(_) | VolumeCommand::Delete(_) => side::either(global)?,
    };
    match side {
        Side::Agent(address) => {
            let session = Session::open(global, &address).await?;
            match command {
                VolumeCommand::Create(args) => print(json, &volume::create(&session, args).await?),
                VolumeCommand::List => print(json, &volume::list(&session).await?),
                VolumeCommand::Show(args) => print(json, &volume::show(&session, &args.volume).await?),
                VolumeCommand::Delete(args) => print(json, &volume::delete(&session, &args.volume).await?),
            }
        }
        Side::Controller(url) => {
            use controller::volume;
            let client = Client::open(global, url)?;
            match command {
                VolumeCommand::Create(args) => print(json, &volume::create(&client, args).await?),
                VolumeCommand::List => print(json, &volume::list(&client).await?),
                VolumeCommand::Show(args) => print(json, &volume::show(&client, &args.volume).await?),
                VolumeCommand::Delete(args) => print(json, &volume::delete(&client, &args.volume).await?),
            }
        }
    }
}

async fn run_export(global: &Global, command: ExportCommand) -> Result<Exit, Failure> {
    let json = global.json;
    let address = side::agent(global, "export")?;
    match command {
        ExportCommand::Grant(args) => {
            // Bad credentials are found before anybody is called.
            let wish = export::Wish::resolve(args)?;
            let session = Session::open(global, &address).await?;
            print(json, &export::grant(&session, &wish).await?)
        }
        ExportCommand::Revoke(args) => {
            let session = Session::open(global, &address).await?;
            print(json, &export::revoke(&session, &args).await?)
        }
        ExportCommand::Show(args) => {
            let session = Session::open(global, &address).await?;
            print(json, &export::show(&session, &args.volume).await?)
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
