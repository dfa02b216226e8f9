//! The side that a command calls: one storage agent (gRPC) or the controller (REST); and the check
//! that its words fit that side.
//!
//! What must never happen here: a command that silently goes to another side than its words say; an
//! option that is silently left out.

use mooring_api::Address;

use crate::args::{CreateArgs, Global};
use crate::error::Failure;
use crate::url::ControllerUrl;

/// The peer of a command.
pub(crate) enum Side {
    /// One agent.
    Agent(Address),
    /// The controller.
    Controller(ControllerUrl),
}

fn usage<T>(text: String) -> Result<T, Failure> {
    Err(Failure::Usage(text))
}

fn no_two(global: &Global) -> Result<(), Failure> {
    if global.typed.agent && global.typed.controller {
        return usage("--agent and --controller are two sides: say one of them".to_owned());
    }
    Ok(())
}

fn to_controller(global: &Global) -> Result<ControllerUrl, Failure> {
    if global.cluster.is_some() {
        return usage(
            "--cluster is for an agent (with --agent); the controller acts as its own cluster".to_owned(),
        );
    }
    match &global.controller {
        Some(url) => Ok(url.clone()),
        None => ControllerUrl::local().map_err(|error| Failure::Usage(error.to_string())),
    }
}

fn to_agent(global: &Global) -> Result<Address, Failure> {
    if global.token_file.is_some() {
        return usage(
            "--token-file is for the controller; an agent knows its callers by certificates".to_owned(),
        );
    }
    global.agent.clone().map_or_else(|| local_agent().map_err(|error| Failure::Usage(error.to_string())), Ok)
}

/// The agent of this machine.
fn local_agent() -> Result<Address, mooring_api::ParseAddressError> {
    "unix:/run/mooring/agent.sock".parse()
}

/// The agent, for commands that only an agent has.
pub(crate) fn agent(global: &Global, command: &str) -> Result<Address, Failure> {
    no_two(global)?;
    if global.typed.controller {
        return usage(format!(
            "`mooring {command}` works against one agent: say --agent instead of --controller"
        ));
    }
    to_agent(global)
}

/// The controller, for commands that only the controller has. A `MOORING_AGENT` that is meant for
/// other commands is ignored.
pub(crate) fn controller(global: &Global, command: &str) -> Result<ControllerUrl, Failure> {
    no_two(global)?;
    if global.typed.agent {
        return usage(format!(
            "`mooring {command}` works against the controller: say --controller instead of --agent"
        ));
    }
    to_controller(global)
}

/// The side of a command that both have: a named agent, unless the command line names a controller.
pub(crate) fn either(global: &Global) -> Result<Side, Failure> {
    no_two(global)?;
    if global.agent.is_some() && !global.typed.controller {
        return to_agent(global).map(Side::Agent);
    }
    to_controller(global).map(Side::Controller)
}

/// The side of `volume create`, which has options for each side.
pub(crate) fn either_for(global: &Global, args: &CreateArgs) -> Result<Side, Failure> {
    let side = either(global)?;
    match side {
        Side::Agent(_) if args.kind.is_some() => {
            usage("--type is for the controller; an agent has volume groups (--group)".to_owned())
        }
        Side::Controller(_) if args.group.is_some() => usage(
            "--group is for an agent (with --agent); the controller chooses the pool by the type (--type)"
                .to_owned(),
        ),
        side => Ok(side),
    }
}
