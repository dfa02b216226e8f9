//! `mooring plan`, `mooring agent show`, `mooring watch`: commands that only look at one agent.

use std::ops::ControlFlow;

use jiff::Timestamp;
use mooring_api::v1;
use tonic::Status;

use crate::capabilities::AgentShown;
use crate::error::{Exit, Failure};
use crate::output::{Event, EventLine, Planned, Reply};
use crate::select::find;
use crate::session::Session;
use crate::text::rfc3339;
use crate::volume_ref::VolumeRef;

/// `plan`.
pub(crate) async fn plan(session: &Session, volume: Option<&VolumeRef>) -> Result<Reply<Planned>, Failure> {
    let id = match volume {
        None => None,
        Some(VolumeRef::Id(id)) => Some(*id),
        Some(name) => Some(find(session, name).await?.0),
    };
    Ok(Reply::ok(Planned::of_response(&session.plan(id).await?)))
}

/// `agent show`.
pub(crate) async fn show(session: &Session) -> Result<Reply<AgentShown>, Failure> {
    let capabilities = session.capabilities().await?;
    Ok(Reply::ok(AgentShown::new(session.hello(), &capabilities)))
}

/// `watch`: passes each report to `print` as it arrives, until no reader is left or the stream
/// ends. The stream ends when the agent stops, or when the agent drops a reader that was too slow;
/// the caller reports either.
pub(crate) async fn watch(
    session: &Session,
    mut print: impl FnMut(&EventLine) -> Result<ControlFlow<()>, Failure>,
) -> Result<Exit, Failure> {
    let mut reports = session.watch().await?;
    loop {
        match reports.message().await {
            Ok(Some(v1::Report { what: Some(what) })) => {
                let line = EventLine { at: rfc3339(Timestamp::now()), event: Event::of_report(&what) };
                if print(&line)?.is_break() {
                    return Ok(Exit::Ok);
                }
            }
            // A kind of report that only a newer agent sends.
            Ok(Some(v1::Report { what: None })) => {}
            Ok(None) => {
                let status =
                    Status::unavailable("the agent ended the stream: it stops, or this reader was too slow");
                return Err(Failure::Agent(Box::new(status)));
            }
            Err(status) => return Err(Failure::Agent(Box::new(status))),
        }
    }
}
