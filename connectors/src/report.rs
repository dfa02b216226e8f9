//! Turns views into reports for the controller and for people. Pure.
//!
//! What must never happen here: "ready" without a verified disk and every path; a secret.

use std::time::Duration;

use mooring_model::{
    AttachmentPath, ByteSize, Cache, ConnectionPhase, ConnectionReport, ConnectionSpec, Cure, Generation,
    HostDisk, HostSession, Iqn, Mode, Problem, VolumeId,
};

use crate::audit::holder_names;
use crate::links::{LinkName, LinkSeen, Links};
use crate::plan::Wanted;
use crate::view::{Identity, SeenBlock, View};
use crate::wire::{SessionState, SessionStatus};

fn session(status: &SessionStatus) -> Option<HostSession> {
    Some(HostSession {
        portal: status.portal?,
        sid: status.sid?,
        isid: status.isid.clone(),
        logged_in: status.state == SessionState::LoggedIn,
        since: status.since,
        relogins: status.relogins,
    })
}

fn disk(block: &SeenBlock) -> Option<HostDisk> {
    let Identity::Right(naa) = &block.identity else { return None };
    Some(HostDisk {
        path: block.path.display().to_string(),
        sequence: block.sequence,
        size: block.size,
        read_only: block.read_only,
        naa: naa.clone(),
    })
}

/// Names of a connection, for reports of one that has neither spec nor session any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Initiator name of this host.
    pub initiator: Iqn,
    /// Target of the volume.
    pub target: Iqn,
}

/// Reports the connection as it is. `left`: steps or obstacles are left.
pub fn report(
    wanted: &Wanted,
    generation: Generation,
    view: &View,
    left: bool,
    links: &dyn Links,
    names: Names,
) -> ConnectionReport {
    let right = view.right().map(|(_, block)| block);
    let (phase, mode, cache) = match wanted {
        Wanted::Present { spec, .. } => {
            let mode = right.filter(|block| agrees(spec, block)).map(|_| spec.mode());
            let off = |block| if view.is_cache_off(block) { Cache::Off } else { Cache::On };
            (present(view, mode.is_some() && !left), mode, right.map(off))
        }
        Wanted::Absent { volume, .. } if view.is_gone(*volume) => (ConnectionPhase::Gone, None, None),
        Wanted::Absent { .. } => (ConnectionPhase::Detaching, None, None),
    };
    let paths = view.links.iter().filter_map(|(name, link)| match (name, &link.seen) {
        (LinkName::Attachment(id), LinkSeen::To(_)) => {
            Some(AttachmentPath { attachment: *id, path: links.path(*name).display().to_string() })
        }
        _ => None,
    });
    let kept = view.session.as_ref().filter(|status| status.generation >= generation);
    let secrets = kept.map(|status| status.secrets).filter(|secrets| *secrets > 0);
    let base = of_session(wanted.volume(), view.session.as_ref(), names);
    ConnectionReport {
        generation,
        phase,
        mode,
        cache,
        disk: right.and_then(disk),
        paths: paths.collect(),
        holders: holder_names(&view.holders()),
        secrets,
        unwritten: view.unwritten.map(ByteSize),
        ..base
    }
}

/// Reports a session of ours that no spec names: it is left alone.
pub fn orphan(status: &SessionStatus) -> ConnectionReport {
    let names = Names { initiator: status.initiator.clone(), target: status.target.clone() };
    let mut report = of_session(status.volume, Some(status), names);
    report.problems.push(Problem {
        object: format!("the session of volume {}", status.volume),
        text: "no spec names it: it is left alone; send its spec again, or a tombstone".to_owned(),
        cure: Cure::Operator,
    });
    report
}

/// Reports the facts that a session alone tells.
fn of_session(volume: VolumeId, seen: Option<&SessionStatus>, names: Names) -> ConnectionReport {
    let lost = seen.filter(|status| status.state != SessionState::LoggedIn);
    let problem = lost.and_then(|status| {
        let cure = if ended(status.state) { Cure::Operator } else { Cure::Retry };
        let text = status.problem.clone()?;
        Some(Problem { object: format!("the session of volume {volume}"), text, cure })
    });
    ConnectionReport {
        volume,
        generation: Generation::ZERO,
        initiator: seen.map_or(names.initiator, |status| status.initiator.clone()),
        target: seen.map_or(names.target, |status| status.target.clone()),
        // The session exists although no spec has it.
        phase: ConnectionPhase::Detaching,
        mode: None,
        cache: None,
        session: seen.and_then(session),
        disk: None,
        paths: Vec::new(),
        holders: Vec::new(),
        problems: problem.into_iter().collect(),
        stuck: None,
        login_took: seen.and_then(|status| status.login_us).map(Duration::from_micros),
        device_took: None,
        secrets: None,
        unwritten: None,
    }
}

fn agrees(spec: &ConnectionSpec, block: &SeenBlock) -> bool {
    (spec.mode() == Mode::ReadOnly) == block.read_only
}

fn ended(state: SessionState) -> bool {
    matches!(state, SessionState::Forbidden | SessionState::Failed | SessionState::WrongDisk)
}

fn present(view: &View, ready: bool) -> ConnectionPhase {
    let Some(session) = &view.session else { return ConnectionPhase::Connecting };
    match session.state {
        SessionState::LoggedIn if ready => ConnectionPhase::Ready,
        SessionState::LoggedIn if !view.has_wrong_disk() => ConnectionPhase::Connecting,
        SessionState::LoggedIn | SessionState::Failed | SessionState::WrongDisk => ConnectionPhase::Failed,
        SessionState::Recovering => ConnectionPhase::Recovering,
        SessionState::Forbidden => ConnectionPhase::Forbidden,
        SessionState::Connecting | SessionState::Ending => ConnectionPhase::Connecting,
    }
}
