//! The library of `mooring`, the command-line client of the controller or of one agent. A command
//! makes one call or a few, and answers with text or JSON.
//!
//! A command passes through: `args` (the typed words, checked as far as they allow) → `side` (whom
//! to call). To an agent: `session` (a connection, its identities, calls with a deadline) →
//! `volume`, `export`, `agent` (read, decide, send) → `output` (the answer as stable JSON) and
//! `display` (the same for people). To the controller: the same steps in `controller`.
//!
//! What must never happen here: a secret on a command line, in an answer or in an error; a spec
//! sent that drops a grant nobody asked to drop; exit code 0 for something that is not true yet.

mod agent;
mod args;
mod capabilities;
mod chap;
pub mod complete;
mod controller;
mod cut;
mod demo;
mod display;
mod error;
mod export;
mod jobs;
mod output;
mod problem;
mod reservations;
mod secret;
mod select;
mod session;
mod sessions;
mod side;
mod table;
mod text;
mod url;
mod volume;
mod volume_ref;

use std::io::{self, Write};

pub use args::{Cli, Command, Global};
pub use error::{Exit, Failure};

use args::{
    AgentCommand, AttachmentCommand, EpochCommand, ExportCommand, HostCommand, JobCommand, PoolCommand,
    QuotaCommand, ReceiptCommand, SessionCommand, SnapshotCommand, TypeCommand, VolumeCommand,
};
use controller::Client;
use output::{print, write_out};
use session::Session;
use side::Side;

/// Runs one command and prints its answer.
pub async fn run(cli: Cli) -> Result<Exit, Failure> {
    let Cli { global, command } = cli;
    let json = global.json;
    match command {
        Command::Volume(command) => run_volume(&global, &command).await,
        Command::Host(command) => run_host(&global, &command).await,
        Command::Snapshot(command) => run_snapshot(&global, &command).await,
        Command::Pool(PoolCommand::List) => {
            let client = Client::open(&global, side::controller(&global, "pool list")?)?;
            print(json, &controller::host::pools(&client).await?)
        }
        Command::Type(command) => run_type(&global, &command).await,
        Command::Quota(command) => run_quota(&global, &command).await,
        Command::Attach(args) => {
            let client = Client::open(&global, side::controller(&global, "attach")?)?;
            print(json, &controller::attach::attach(&client, &args, json).await?)
        }
        Command::Detach(args) => {
            let client = Client::open(&global, side::controller(&global, "detach")?)?;
            print(json, &controller::detach::detach(&client, &args).await?)
        }
        Command::Attachment(command) => run_attachment(&global, &command).await,
        Command::Session(SessionCommand::List(args)) => match side::either(&global)? {
            Side::Agent(address) => {
                let session = Session::open(&global, &address).await?;
                print(json, &sessions::of_agent(&session, &args).await?)
            }
            Side::Controller(url) => {
                let client = Client::open(&global, url)?;
                print(json, &sessions::of_controller(&client, &args).await?)
            }
        },
        Command::Job(command) => run_job(&global, &command).await,
        Command::Receipt(command) => run_receipt(&global, &command).await,
        Command::Audit(args) => {
            let client = Client::open(&global, side::controller(&global, "audit")?)?;
            print(json, &controller::audit::list(&client, &args).await?)
        }
        Command::Demo(args) => {
            let client = Client::open(&global, side::controller(&global, "demo")?)?;
            if json {
                return Err(Failure::Usage("the tour is for people: say it without --json".to_owned()));
            }
            demo::demo(&client, &args).await
        }
        Command::Epoch(EpochCommand::Raise) => {
            let client = Client::open(&global, side::controller(&global, "epoch raise")?)?;
            print(json, &controller::epoch::raise(&client).await?)
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

/// Runs `attachment`.
async fn run_attachment(global: &Global, command: &AttachmentCommand) -> Result<Exit, Failure> {
    use controller::{attachment, check};
    let json = global.json;
    let open = |words| Client::open(global, side::controller(global, words)?);
    match command {
        AttachmentCommand::List(args) => {
            print(json, &attachment::list(&open("attachment list")?, args.volume.as_ref()).await?)
        }
        AttachmentCommand::Show(args) => {
            print(json, &attachment::show(&open("attachment show")?, args.id).await?)
        }
        AttachmentCommand::Mode(args) => {
            print(json, &attachment::set_mode(&open("attachment mode")?, args).await?)
        }
        AttachmentCommand::Cache(args) => {
            print(json, &attachment::set_cache(&open("attachment cache")?, args).await?)
        }
        AttachmentCommand::Check(args) => {
            print(json, &check::check(&open("attachment check")?, args.id).await?)
        }
    }
}

/// Runs `host`.
async fn run_host(global: &Global, command: &HostCommand) -> Result<Exit, Failure> {
    use controller::{fence, host, leaving};
    let json = global.json;
    let open = |words| Client::open(global, side::controller(global, words)?);
    match command {
        HostCommand::List => print(json, &host::list(&open("host list")?).await?),
        HostCommand::Show(args) => print(json, &host::show(&open("host show")?, &args.host).await?),
        HostCommand::Token(args) => print(json, &host::token(&open("host token")?, args).await?),
        HostCommand::Revoke(args) => print(json, &host::revoke(&open("host revoke")?, &args.host).await?),
        HostCommand::Rename(args) => print(json, &leaving::rename(&open("host rename")?, args).await?),
        HostCommand::Forget(args) if args.yes => {
            print(json, &leaving::forget(&open("host forget")?, args).await?)
        }
        HostCommand::Forget(args) => print(json, &leaving::plan(&open("host forget")?, args).await?),
        HostCommand::Disable(args) => {
            let reason = args.reason.as_deref();
            print(json, &host::change(&open("host disable")?, &args.host, "disable", reason).await?)
        }
        HostCommand::Enable(args) => {
            print(json, &host::change(&open("host enable")?, &args.host, "enable", None).await?)
        }
        HostCommand::Drain(args) => {
            print(json, &host::change(&open("host drain")?, &args.host, "drain", None).await?)
        }
        HostCommand::Undrain(args) => {
            print(json, &host::change(&open("host undrain")?, &args.host, "undrain", None).await?)
        }
        HostCommand::Fence(args) => {
            let reason = args.reason.as_deref();
            print(json, &fence::fence(&open("host fence")?, &args.host, reason, &args.also).await?)
        }
        HostCommand::Unfence(args) => {
            print(json, &fence::unfence(&open("host unfence")?, &args.host, args.anyway).await?)
        }
        HostCommand::Fences(args) => print(json, &fence::list(&open("host fences")?, args.all).await?),
    }
}

async fn run_snapshot(global: &Global, command: &SnapshotCommand) -> Result<Exit, Failure> {
    use controller::snapshot;
    let json = global.json;
    let client = Client::open(global, side::controller(global, "snapshot")?)?;
    match command {
        SnapshotCommand::Create(args) => print(json, &snapshot::create(&client, args).await?),
        SnapshotCommand::List(args) => print(json, &snapshot::list(&client, args.volume.as_ref()).await?),
        SnapshotCommand::Show(args) => print(json, &snapshot::show(&client, &args.snapshot).await?),
        SnapshotCommand::Delete(args) => print(json, &snapshot::delete(&client, args).await?),
        SnapshotCommand::ResetStatus(args) => print(json, &snapshot::reset_status(&client, args).await?),
        SnapshotCommand::Unmanage(args) => print(json, &snapshot::unmanage(&client, &args.snapshot).await?),
    }
}

async fn run_job(global: &Global, command: &JobCommand) -> Result<Exit, Failure> {
    let json = global.json;
    match side::either(global)? {
        Side::Agent(address) => {
            let session = Session::open(global, &address).await?;
            match command {
                JobCommand::List => print(json, &jobs::of_agent(&session).await?),
                JobCommand::Show(args) => print(json, &jobs::show_of_agent(&session, args).await?),
                JobCommand::Throttle(args) => print(json, &jobs::throttle_of_agent(&session, args).await?),
            }
        }
        Side::Controller(url) => {
            let client = Client::open(global, url)?;
            match command {
                JobCommand::List => print(json, &jobs::of_controller(&client).await?),
                JobCommand::Show(args) => print(json, &jobs::show_of_controller(&client, args).await?),
                JobCommand::Throttle(args) => {
                    print(json, &jobs::throttle_of_controller(&client, args).await?)
                }
            }
        }
    }
}

async fn run_receipt(global: &Global, command: &ReceiptCommand) -> Result<Exit, Failure> {
    let json = global.json;
    match command {
        ReceiptCommand::List(args) => {
            let client = Client::open(global, side::controller(global, "receipt list")?)?;
            print(json, &controller::receipt::list(&client, args.volume.as_ref()).await?)
        }
        ReceiptCommand::Show(args) => {
            let client = Client::open(global, side::controller(global, "receipt show")?)?;
            print(json, &controller::receipt::show(&client, args.id).await?)
        }
    }
}

async fn run_type(global: &Global, command: &TypeCommand) -> Result<Exit, Failure> {
    use controller::kind;
    let json = global.json;
    let client = Client::open(global, side::controller(global, "type")?)?;
    match command {
        TypeCommand::Create(args) => print(json, &kind::create(&client, args).await?),
        TypeCommand::List => print(json, &kind::list(&client).await?),
        TypeCommand::Show(args) => print(json, &kind::show(&client, &args.kind).await?),
        TypeCommand::Set(args) => print(json, &kind::set(&client, args).await?),
        TypeCommand::Unset(args) => print(json, &kind::unset(&client, args).await?),
        TypeCommand::Access(args) => print(json, &kind::access(&client, args).await?),
        TypeCommand::Delete(args) => print(json, &kind::delete(&client, &args.kind).await?),
    }
}

async fn run_quota(global: &Global, command: &QuotaCommand) -> Result<Exit, Failure> {
    use controller::quota;
    let client = Client::open(global, side::controller(global, "quota")?)?;
    let reply = match command {
        QuotaCommand::Show(args) => quota::show(&client, &args.project).await?,
        QuotaCommand::Set(args) => quota::set(&client, args).await?,
        QuotaCommand::Reset(args) => quota::reset(&client, &args.project).await?,
    };
    print(global.json, &reply)
}

fn side_of_volume(global: &Global, command: &VolumeCommand) -> Result<Side, Failure> {
    Ok(match command {
        VolumeCommand::Create(args) => side::either_for(global, args)?,
        VolumeCommand::ConfirmReview(_) => {
            Side::Controller(side::controller(global, "volume confirm-review")?)
        }
        VolumeCommand::Retype(_) => Side::Controller(side::controller(global, "volume retype")?),
        VolumeCommand::ResetStatus(_) => Side::Controller(side::controller(global, "volume reset-status")?),
        VolumeCommand::Set(_) => Side::Controller(side::controller(global, "volume set")?),
        VolumeCommand::Manage(_) => Side::Controller(side::controller(global, "volume manage")?),
        VolumeCommand::Export(_) => Side::Controller(side::controller(global, "volume export")?),
        VolumeCommand::Import(_) => Side::Controller(side::controller(global, "volume import")?),
        VolumeCommand::Manageable(_) => Side::Controller(side::controller(global, "volume manageable")?),
        VolumeCommand::Unmanage(_) => Side::Controller(side::controller(global, "volume unmanage")?),
        VolumeCommand::Revert(_) => Side::Controller(side::controller(global, "volume revert")?),
        VolumeCommand::RotateSecrets(_) => {
            Side::Controller(side::controller(global, "volume rotate-secrets")?)
        }
        VolumeCommand::List
        | VolumeCommand::Show(_)
        | VolumeCommand::Extend(_)
        | VolumeCommand::Reservations(_)
        | VolumeCommand::Cut(_)
        | VolumeCommand::Uncut(_)
        | VolumeCommand::Delete(_) => side::either(global)?,
    })
}

/// Runs `volume`. Both sides have volumes; only the controller has reviews.
async fn run_volume(global: &Global, command: &VolumeCommand) -> Result<Exit, Failure> {
    let json = global.json;
    match side_of_volume(global, command)? {
        Side::Agent(address) => {
            let session = Session::open(global, &address).await?;
            match command {
                VolumeCommand::Create(args) => print(json, &volume::create(&session, args).await?),
                VolumeCommand::List => print(json, &volume::list(&session).await?),
                VolumeCommand::Show(args) => print(json, &volume::show(&session, &args.volume).await?),
                VolumeCommand::Extend(args) => print(json, &volume::extend(&session, args).await?),
                VolumeCommand::Delete(args) => print(json, &volume::delete(&session, &args.volume).await?),
                VolumeCommand::Reservations(args) => match args.change() {
                    None => print(json, &reservations::of_agent(&session, &args.volume).await?),
                    Some(change) => {
                        print(json, &reservations::change_at_agent(&session, &args.volume, change).await?)
                    }
                },
                VolumeCommand::Cut(args) => {
                    print(json, &cut::of_agent(&session, &args.volume, Some(args.force)).await?)
                }
                VolumeCommand::Uncut(args) => {
                    print(json, &cut::of_agent(&session, &args.volume, None).await?)
                }
                // The other verbs found their side above.
                _ => Err(Failure::Usage(
                    "an agent does not have this: say --controller instead of --agent".to_owned(),
                )),
            }
        }
        Side::Controller(url) => {
            use controller::{manage, operate, revert, rotate, volume};
            let client = Client::open(global, url)?;
            match command {
                VolumeCommand::Create(args) => print(json, &volume::create(&client, args).await?),
                VolumeCommand::List => print(json, &volume::list(&client).await?),
                VolumeCommand::Show(args) => print(json, &volume::show(&client, &args.volume).await?),
                VolumeCommand::Extend(args) => print(json, &volume::extend(&client, args).await?),
                VolumeCommand::Delete(args) => print(json, &volume::delete(&client, args).await?),
                VolumeCommand::Reservations(args) => match args.change() {
                    None => print(json, &reservations::of_controller(&client, &args.volume).await?),
                    Some(change) => {
                        print(json, &reservations::change_at_controller(&client, &args.volume, change).await?)
                    }
                },
                VolumeCommand::Cut(args) => {
                    print(json, &cut::of_controller(&client, &args.volume, Some(args.force)).await?)
                }
                VolumeCommand::Uncut(args) => {
                    print(json, &cut::of_controller(&client, &args.volume, None).await?)
                }
                VolumeCommand::Retype(args) => print(json, &operate::retype(&client, args).await?),
                VolumeCommand::ResetStatus(args) => print(json, &operate::reset_status(&client, args).await?),
                VolumeCommand::Revert(args) => print(json, &revert::revert(&client, args).await?),
                VolumeCommand::RotateSecrets(args) => print(json, &rotate::rotate(&client, args).await?),
                VolumeCommand::Set(args) => print(json, &operate::set(&client, args).await?),
                VolumeCommand::Manage(args) => print(json, &manage::manage(&client, args).await?),
                VolumeCommand::Export(args) => print(json, &controller::export::export(&client, args).await?),
                VolumeCommand::Import(args) => print(json, &controller::import::import(&client, args).await?),
                VolumeCommand::Manageable(args) => {
                    print(json, &manage::list(&client, args.host.as_deref()).await?)
                }
                VolumeCommand::Unmanage(args) => print(json, &manage::unmanage(&client, &args.volume).await?),
                VolumeCommand::ConfirmReview(args) => {
                    print(json, &volume::confirm_review(&client, &args.volume).await?)
                }
            }
        }
    }
}

async fn run_export(global: &Global, command: ExportCommand) -> Result<Exit, Failure> {
    let json = global.json;
    let address = side::agent(global, "export")?;
    match command {
        ExportCommand::Grant(args) => {
            // Read credentials first, so that bad ones fail before any call.
            let grant = export::GrantSpec::resolve(args)?;
            let session = Session::open(global, &address).await?;
            print(json, &export::grant(&session, &grant).await?)
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

/// Prints a failure to standard error, once, and returns the exit code.
pub fn report_failure(failure: &Failure, json: bool) -> Exit {
    let text = failure.text(json);
    // Standard error is the last resort: if it cannot be written to, the exit code still tells.
    let _ = io::stderr().lock().write_all(text.as_bytes());
    failure.exit()
}

/// Prints clap's message on the words: help and version as they are, a mistake as JSON if JSON was
/// requested.
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
