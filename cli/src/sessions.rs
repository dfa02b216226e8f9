//! `mooring session list`: initiators that are logged in, and those that should be and are not. The
//! controller knows all storage nodes, one agent only its own.
//!
//! What must never happen here: a session that nobody has seen; a missing one that looks like one
//! that nobody asked for; a number that nobody has reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use mooring_api::v1;
use serde::Serialize;

use crate::args::SessionListArgs;
use crate::controller::Client;
use crate::controller::attachment::of_volume;
use crate::controller::records::{Live, SessionRecord};
use crate::display::unlisted;
use crate::error::Failure;
use crate::output::Reply;
use crate::select::{find, name_of};
use crate::session::Session;
use crate::table::{joined, or_none, table};
use crate::text::{one_line, time};

/// State of a session that should exist and does not.
const MISSING: &str = "MISSING";

/// `session list`.
#[derive(Debug, Serialize)]
pub(crate) struct Sessions {
    pub sessions: Vec<Seen>,
    /// Volumes whose targets have more sessions than are listed.
    pub unlisted: Vec<Unlisted>,
}

/// Sessions of a volume that its target counts and does not list, of any initiator: the kernel
/// lists only the newest of each initiator.
#[derive(Debug, Serialize)]
pub(crate) struct Unlisted {
    pub volume_id: String,
    pub volume_name: Option<String>,
    pub sessions: u32,
}

/// One session, or a missing one.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Seen {
    pub volume_id: String,
    pub volume_name: Option<String>,
    /// The host; `null` in an agent's answer.
    pub host: Option<String>,
    /// The storage node; `null` in an agent's own answer.
    pub storage_host: Option<String>,
    pub initiator: Option<String>,
    pub attachments: Vec<String>,
    /// `true`: it should exist and does not.
    pub missing: bool,
    /// `null`: there is none, the caller may not see it, or it is over Fibre Channel, where targets
    /// list only logins.
    pub session: Option<One>,
    /// Commands of the nexus since it was granted, over Fibre Channel of all ports together. `null`
    /// here and in the next two: unknown.
    pub commands: Option<u64>,
    pub read_mib: Option<u64>,
    pub written_mib: Option<u64>,
    /// Time when commands were last seen to move; `null`: not since the agent began to look.
    pub last_activity: Option<String>,
    /// Time when the target was read; `null`: not yet.
    pub looked_at: Option<String>,
}

/// A session.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct One {
    /// The target's number of the session.
    pub id: u64,
    pub isid: String,
    pub addresses: Vec<String>,
    pub state: String,
    pub in_flight: u32,
    /// Time when it was first seen.
    pub since: Option<String>,
}

impl One {
    fn of_record(record: &SessionRecord) -> Self {
        Self {
            id: record.id,
            isid: record.isid.clone(),
            addresses: record.addresses.clone(),
            state: record.state.clone(),
            in_flight: record.in_flight,
            since: record.since.clone(),
        }
    }

    fn of_wire(session: &v1::Session) -> Self {
        Self {
            id: session.id,
            isid: session.isid.clone(),
            addresses: session.addresses.clone(),
            state: session.state.clone(),
            in_flight: session.in_flight,
            since: time(session.since_us),
        }
    }
}

/// Makes one entry for each session, or one entry without a session.
fn each(seen: &Seen, sessions: Vec<One>) -> Vec<Seen> {
    if sessions.is_empty() {
        return vec![seen.clone()];
    }
    sessions.into_iter().map(|session| Seen { session: Some(session), ..seen.clone() }).collect()
}

/// Entries from the controller's attachments. Attachments of one volume on one host share their
/// sessions. Attachments that are being made appear once they are logged in.
fn of_attachments(all: &[impl std::ops::Deref<Target = Live>]) -> Vec<Seen> {
    // The key is volume and initiator.
    let mut nexuses = BTreeMap::<_, (Seen, Vec<One>)>::new();
    for live in all.iter().filter(|live| live.session == Some(true) || live.session_missing) {
        let counters = live.counters;
        let (seen, _) = nexuses.entry((&live.volume_id, &live.initiator)).or_insert_with(|| {
            let seen = Seen {
                volume_id: live.volume_id.clone(),
                volume_name: live.volume_name.clone(),
                host: live.host.clone(),
                storage_host: live.storage_host.clone(),
                initiator: live.initiator.clone(),
                attachments: Vec::new(),
                missing: false,
                session: None,
                commands: counters.map(|done| done.commands),
                read_mib: counters.map(|done| done.read_mib),
                written_mib: counters.map(|done| done.written_mib),
                last_activity: live.last_activity.clone(),
                looked_at: live.looked_at.clone(),
            };
            (seen, live.sessions.iter().map(One::of_record).collect())
        });
        seen.attachments.push(live.id.clone());
        seen.missing |= live.session_missing;
    }
    nexuses.into_values().flat_map(|(seen, sessions)| each(&seen, sessions)).collect()
}

/// `session list` of the controller.
pub(crate) async fn of_controller(
    client: &Client,
    args: &SessionListArgs,
) -> Result<Reply<Sessions>, Failure> {
    let id = match &args.volume {
        None => None,
        Some(volume) => Some(crate::controller::volume::find(client, volume).await?.id),
    };
    let all = of_volume(client, id.as_deref()).await?;
    let unlisted: BTreeMap<_, _> = all
        .iter()
        .filter(|live| args.host.is_none() || live.host == args.host)
        .filter_map(|live| {
            let sessions = live.unlisted_sessions.filter(|more| *more > 0)?;
            let (volume_id, volume_name) = (live.volume_id.clone(), live.volume_name.clone());
            Some((live.volume_id.clone(), Unlisted { volume_id, volume_name, sessions }))
        })
        .collect();
    let mut sessions = of_attachments(&all);
    if let Some(host) = &args.host {
        sessions.retain(|seen| seen.host.as_ref() == Some(host));
    }
    Ok(Reply::ok(Sessions { sessions, unlisted: unlisted.into_values().collect() }))
}

/// Entries for the initiator ports that are logged in at a target port, each once, with their
/// counters of all target ports together.
fn of_ports(status: &v1::VolumeStatus, report: &v1::ExportReport) -> Vec<Seen> {
    let fc = status.export_spec.iter().flat_map(|spec| &spec.fc);
    let specs: Vec<_> = fc.flat_map(|fc| &fc.grants).collect();
    let mut all = BTreeMap::<&str, Vec<&v1::FcGrantReport>>::new();
    for grant in report.fc.iter().flat_map(|port| &port.grants) {
        all.entry(&grant.initiator).or_default().push(grant);
    }
    all.retain(|_, grants| grants.iter().any(|grant| grant.logged_in));
    let sum = |grants: &[&v1::FcGrantReport], number: fn(&v1::FcGrantReport) -> u64| {
        Some(grants.iter().map(|grant| number(grant)).fold(0, u64::saturating_add))
    };
    let seen = |(initiator, grants): (&str, Vec<&v1::FcGrantReport>)| {
        let ids = specs.iter().filter(|spec| spec.initiator == initiator);
        let ids: BTreeSet<_> = ids.flat_map(|spec| &spec.attachment_ids).cloned().collect();
        Seen {
            volume_id: status.volume_id.clone(),
            volume_name: name_of(&status.volume_opaque),
            host: None,
            storage_host: None,
            initiator: Some(initiator.to_owned()),
            attachments: ids.into_iter().collect(),
            missing: false,
            session: None,
            commands: sum(&grants, |grant| grant.commands),
            read_mib: sum(&grants, |grant| grant.read_mib),
            written_mib: sum(&grants, |grant| grant.written_mib),
            last_activity: grants.iter().map(|grant| grant.active_us).max().and_then(time),
            looked_at: time(report.looked_us),
        }
    };
    all.into_iter().map(seen).collect()
}

/// Entries from one agent's status of one volume. An agent does not know whether a session should
/// exist.
fn of_status(status: &v1::VolumeStatus) -> Vec<Seen> {
    let Some(report) = &status.export else { return Vec::new() };
    let attachments = |initiator: &str| -> Vec<String> {
        let specs = status.export_spec.iter().flat_map(|spec| &spec.grants);
        let ids = specs.filter(|spec| spec.initiator == initiator).flat_map(|spec| &spec.attachment_ids);
        ids.cloned().collect::<BTreeSet<_>>().into_iter().collect()
    };
    let seen = |grant: &v1::GrantReport| Seen {
        volume_id: status.volume_id.clone(),
        volume_name: name_of(&status.volume_opaque),
        host: None,
        storage_host: None,
        initiator: Some(grant.initiator.clone()),
        attachments: attachments(&grant.initiator),
        missing: false,
        session: None,
        commands: Some(grant.commands),
        read_mib: Some(grant.read_mib),
        written_mib: Some(grant.written_mib),
        last_activity: time(grant.active_us),
        looked_at: time(report.looked_us),
    };
    let live = report.grants.iter().filter(|grant| !grant.sessions.is_empty());
    let sessions = |grant: &v1::GrantReport| grant.sessions.iter().map(One::of_wire).collect();
    let over_iscsi = live.flat_map(|grant| each(&seen(grant), sessions(grant)));
    over_iscsi.chain(of_ports(status, report)).collect()
}

/// `session list` of one agent.
pub(crate) async fn of_agent(session: &Session, args: &SessionListArgs) -> Result<Reply<Sessions>, Failure> {
    if args.host.is_some() {
        return Err(Failure::Usage(
            "an agent knows initiators and no hosts: leave --host away, or say --controller".to_owned(),
        ));
    }
    let all = match &args.volume {
        Some(volume) => vec![find(session, volume).await?.1],
        None => session.list().await?,
    };
    let unlisted = |status: &v1::VolumeStatus| {
        let sessions = status.export.as_ref()?.unlisted_sessions.filter(|more| *more > 0)?;
        let volume_name = name_of(&status.volume_opaque);
        Some(Unlisted { volume_id: status.volume_id.clone(), volume_name, sessions })
    };
    Ok(Reply::ok(Sessions {
        sessions: all.iter().flat_map(of_status).collect(),
        unlisted: all.iter().filter_map(unlisted).collect(),
    }))
}

impl Seen {
    fn state(&self) -> String {
        match &self.session {
            _ if self.missing => MISSING.to_owned(),
            Some(session) => session.state.clone(),
            None => "logged in".to_owned(),
        }
    }
}

impl Display for Sessions {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.sessions.is_empty() {
            return f.write_str("no sessions");
        }
        let mib = |of: Option<u64>| or_none(of.map(|mib| format!("{mib} MiB")).as_deref());
        let row = |seen: &Seen| {
            let session = seen.session.as_ref();
            [
                seen.volume_name.clone().unwrap_or_else(|| seen.volume_id.clone()),
                or_none(seen.host.as_deref().or(seen.initiator.as_deref())),
                or_none(seen.storage_host.as_deref()),
                seen.state(),
                session.map_or_else(|| or_none(None), |session| joined(&session.addresses)),
                or_none(session.map(|session| session.isid.as_str())),
                or_none(session.and_then(|session| session.since.as_deref())),
                or_none(seen.commands.map(|commands| commands.to_string()).as_deref()),
                mib(seen.read_mib),
                mib(seen.written_mib),
                or_none(seen.last_activity.as_deref()),
            ]
        };
        let heads = [
            "VOLUME",
            "HOST",
            "STORAGE",
            "STATE",
            "ADDRESS",
            "ISID",
            "SINCE",
            "COMMANDS",
            "READ",
            "WRITTEN",
            "LAST ACTIVITY",
        ];
        f.write_str(&table(heads, self.sessions.iter().map(row)))?;
        for of in &self.unlisted {
            let volume = one_line(of.volume_name.as_ref().unwrap_or(&of.volume_id));
            write!(f, "\n{volume}: {}", unlisted(of.sessions))?;
        }
        Ok(())
    }
}
