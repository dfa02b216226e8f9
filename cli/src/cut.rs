//! `mooring volume cut` and `uncut`: isolates a volume from its disk and ends that, through the
//! controller or one agent.
//!
//! What must never happen here: a volume reported as isolated that its agent does not show so;
//! hosts that get errors although no user allowed it.

use std::fmt::{self, Display, Formatter};

use jiff::Timestamp;
use mooring_api::v1::{self, put_volume_request};
use serde::Serialize;
use serde_json::json;

use crate::controller::Client;
use crate::controller::client::Call;
use crate::controller::records::OneState;
use crate::controller::volume;
use crate::error::Failure;
use crate::output::{Cut, Reply};
use crate::problem::{Problem, write_problems};
use crate::select::{find, name_of};
use crate::session::{Session, stamp_for, twice};
use crate::table::named;
use crate::volume_ref::VolumeRef;

/// Pause between looks at a volume that is not there yet.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(200);

/// `volume cut`, `volume uncut`.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeCut {
    /// `true`: the state is as requested.
    done: bool,
    volume_id: String,
    name: Option<String>,
    /// `null`: it is not isolated.
    cut: Option<Cut>,
    problems: Vec<Problem>,
}

impl Display for VolumeCut {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = named(self.name.as_deref(), &self.volume_id);
        match &self.cut {
            None => write!(f, "volume {name} is not cut off from its disk")?,
            Some(cut) => write!(f, "volume {name} is {cut}")?,
        }
        write_problems(f, &self.problems)
    }
}

/// Refuses to isolate a volume under initiators that are granted and logged in: they would get
/// errors. A revoked one does not count, even while its teardown hangs and the last report still
/// shows it.
fn refuse_survivors(id: &str, status: &v1::VolumeStatus) -> Result<(), Failure> {
    let export = status.export.as_ref();
    let stuck = export.is_some_and(|export| export.stuck.is_some());
    let seen = |initiator: &str| {
        let mut grants = export.iter().flat_map(|export| &export.grants);
        grants.any(|grant| grant.initiator == initiator && !grant.sessions.is_empty())
    };
    let spec = status.export_spec.as_ref();
    let iscsi = spec.iter().flat_map(|spec| &spec.grants).map(|grant| &grant.initiator);
    let fc = spec.iter().filter_map(|spec| spec.fc.as_ref()).flat_map(|fc| &fc.grants);
    // A hanging call hides the volume's sessions; Fibre Channel always does.
    let who: Vec<_> = iscsi
        .filter(|initiator| stuck || seen(initiator))
        .chain(fc.map(|grant| &grant.initiator))
        .map(String::as_str)
        .collect();
    if who.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "volume {id} is in use by {}: their reads and writes would end with errors. Revoke them first, or say --force",
        who.join(", ")
    )))
}

/// Changes the isolation on an agent. `cut`: isolate, and whether also under hosts; `None`: end it.
pub(crate) async fn of_agent(
    session: &Session,
    volume: &VolumeRef,
    cut: Option<bool>,
) -> Result<Reply<VolumeCut>, Failure> {
    let sender = session.sender()?;
    twice(async || {
        let (id, status) = find(session, volume).await?;
        let Some(kept) = status.volume_spec.clone() else {
            return Err(Failure::Refused(format!("nobody asked this agent for volume {id} (any more)")));
        };
        let cut_us = match cut {
            None => 0,
            // The time of the first request stays.
            Some(_) if kept.cut_us != 0 => kept.cut_us,
            Some(force) => {
                if !force {
                    refuse_survivors(&id.to_string(), &status)?;
                }
                Timestamp::now().as_microsecond()
            }
        };
        let spec = v1::VolumeSpec { cut_us, ..kept };
        let digest = mooring_api::digest(&spec, &status.volume_opaque);
        let put = v1::PutVolumeRequest {
            sender: Some(sender.clone()),
            volume_id: id.to_string(),
            stamp: Some(stamp_for(status.volume_stamp.as_ref(), digest)?),
            wish: Some(put_volume_request::Wish::Spec(spec.clone())),
            opaque: status.volume_opaque.clone(),
            deadline_ms: session.deadline_ms(),
            new: false,
        };
        let response = session.put_volume(put).await?;
        let report = response.report.unwrap_or_default();
        let wanted = if cut.is_some() { v1::CutState::InForce } else { v1::CutState::Unspecified };
        let done = report.cut() == wanted;
        let answer = VolumeCut {
            done,
            volume_id: id.to_string(),
            name: name_of(&status.volume_opaque),
            cut: Cut::of_wire(Some(&spec), &report),
            problems: report.problems.iter().map(Problem::of_wire).collect(),
        };
        Ok(Reply::when(done, answer))
    })
    .await
}

/// Changes the isolation through the controller, with the same arguments.
pub(crate) async fn of_controller(
    client: &Client,
    volume: &VolumeRef,
    cut: Option<bool>,
) -> Result<Reply<VolumeCut>, Failure> {
    let found = volume::find(client, volume).await?;
    let path = ["mooring", "v1", "volumes", &found.id, "cut"];
    let call = match cut {
        Some(force) => Call::put("the cut", &path, json!({ "force": force })),
        None => Call::delete("the end of the cut", &path),
    };
    let mut now = client.read::<OneState>(call).await?.volume;
    loop {
        let state = now.cut.as_ref().map(|cut| cut.state.as_str());
        let done = if cut.is_some() { state == Some("in_force") } else { state.is_none() };
        if done || !client.pause(LOOK_EVERY).await {
            let answer = VolumeCut {
                done,
                volume_id: found.id,
                name: found.name,
                cut: now.cut.map(Cut::from),
                problems: Vec::new(),
            };
            return Ok(Reply::when(done, answer));
        }
        let look = Call::get("the volume's state", &["mooring", "v1", "volumes", &found.id]);
        let lost = |fault| Failure::lost(format!("the cut of volume {}", found.id), fault);
        now = client.read::<OneState>(look).await.map_err(lost)?.volume;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_granted_it_still_counts() {
        let grant = |name: &str| v1::Grant { initiator: name.to_owned(), ..Default::default() };
        let seen = |name: &str| v1::GrantReport {
            initiator: name.to_owned(),
            sessions: vec![v1::Session::default()],
            ..Default::default()
        };
        let status = |granted: &[&str], stuck: bool| v1::VolumeStatus {
            export: Some(v1::ExportReport {
                grants: vec![seen("iqn.2026-01.lab:gone"), seen("iqn.2026-01.lab:there")],
                stuck: stuck.then(Default::default),
                ..Default::default()
            }),
            export_spec: Some(v1::ExportSpec {
                grants: granted.iter().map(|name| grant(name)).collect(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let refused = |granted: &[&str], stuck| match refuse_survivors("v", &status(granted, stuck)) {
            Ok(()) => String::new(),
            Err(failure) => failure.to_string(),
        };
        assert_eq!(refused(&[], true), "", "its teardown hangs, and nobody is granted it");
        assert!(refused(&["iqn.2026-01.lab:there"], false).contains("in use by iqn.2026-01.lab:there:"));
        assert_eq!(refused(&["iqn.2026-01.lab:idle"], false), "");
        assert!(refused(&["iqn.2026-01.lab:idle"], true).contains("lab:idle"));
    }
}
