//! Reports from the wire to the model. What an agent says is checked here, once; what makes no
//! sense is no report.
//!
//! What must never happen here: a guess in the place of something that does not parse.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_model::{
    AttachmentPath, ByteSize, ConnectionPhase, ConnectionReport, Counters, Cure, Cut, DiskCheck,
    ExportReport, FcGrantReport, FcPortReport, Generation, GrantReport, HostDisk, HostSession, Lun, Mode,
    Naa, Phase, Problem, Receipt, Registration, ReservationHolder, ReservationType, Reservations, Revoked,
    SessionReport, Stamp, StuckStep, VolumeId, VolumeReport,
};

use crate::convert::mode_from_wire;
use crate::{cache_from_wire, disk_user_from_wire, stamp_from_wire, v1};

fn generation(wire: Option<&v1::Generation>) -> Generation {
    wire.map_or(Generation::ZERO, |wire| Generation { epoch: wire.epoch, counter: wire.counter })
}

/// A stamp that an agent keeps.
pub fn stamp(wire: Option<&v1::Stamp>) -> Option<Stamp> {
    stamp_from_wire(wire).ok()
}

/// A mode. `None`: there is none.
pub fn mode(wire: v1::Mode) -> Option<Mode> {
    mode_from_wire("mode", wire).ok()
}

fn problem(wire: &v1::Problem) -> Problem {
    let cure = match wire.cure() {
        v1::Cure::FixSpec => Cure::FixSpec,
        v1::Cure::Operator => Cure::Operator,
        v1::Cure::Bug => Cure::Bug,
        v1::Cure::Retry | v1::Cure::Unspecified => Cure::Retry,
    };
    Problem { object: wire.object.clone(), text: wire.text.clone(), cure }
}

fn stuck(wire: &v1::StuckStep) -> StuckStep {
    StuckStep { step: wire.step.clone(), since: Duration::from_millis(wire.since_ms) }
}

fn time_of(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A time that may not be said.
fn moment(micros: i64) -> Option<SystemTime> {
    (micros > 0).then(|| time_of(micros))
}

fn session(wire: &v1::Session) -> Option<SessionReport> {
    Some(SessionReport {
        initiator: wire.initiator.parse().ok()?,
        isid: wire.isid.clone(),
        id: wire.id,
        addresses: wire.addresses.clone(),
        state: wire.state.clone(),
        in_flight: wire.in_flight,
        since: moment(wire.since_us),
    })
}

fn grant(wire: &v1::GrantReport) -> Option<GrantReport> {
    Some(GrantReport {
        initiator: wire.initiator.parse().ok()?,
        lun: Lun(u16::try_from(wire.lun).ok()?),
        wanted: mode(wire.wanted())?,
        seen: mode(wire.seen()),
        sessions: wire.sessions.iter().filter_map(session).collect(),
        counters: Counters {
            commands: wire.commands,
            read_mib: wire.read_mib,
            written_mib: wire.written_mib,
            active: moment(wire.active_us),
        },
        barrier: wire.barrier.parse().ok(),
    })
}

fn fc_grant(wire: &v1::FcGrantReport) -> Option<FcGrantReport> {
    Some(FcGrantReport {
        initiator: wire.initiator.parse().ok()?,
        lun: Lun(u16::try_from(wire.lun).ok()?),
        wanted: mode(wire.wanted())?,
        seen: mode(wire.seen()),
        logged_in: wire.logged_in,
        counters: Counters {
            commands: wire.commands,
            read_mib: wire.read_mib,
            written_mib: wire.written_mib,
            active: moment(wire.active_us),
        },
    })
}

fn fc_port(wire: &v1::FcPortReport) -> Option<FcPortReport> {
    Some(FcPortReport {
        port: wire.port.parse().ok()?,
        serves: wire.serves,
        grants: wire.grants.iter().filter_map(fc_grant).collect(),
    })
}

/// A volume's report.
pub fn volume(wire: &v1::VolumeReport) -> Option<VolumeReport> {
    let phase = match wire.phase() {
        v1::Phase::Creating => Phase::Creating,
        v1::Phase::Ready => Phase::Ready,
        v1::Phase::Deleting => Phase::Deleting,
        v1::Phase::Gone => Phase::Gone,
        v1::Phase::Failed => Phase::Failed,
        v1::Phase::Orphan => Phase::Orphan,
        v1::Phase::Unspecified => return None,
    };
    Some(VolumeReport {
        id: wire.volume_id.parse().ok()?,
        phase,
        group: wire.group.clone(),
        size: ByteSize(wire.size_bytes),
        device: Some(wire.device.clone()).filter(|device| !device.is_empty()),
        zeroed: wire.zeroed_bytes.map(ByteSize),
        problems: wire.problems.iter().map(problem).collect(),
        reverted: wire.reverted_id.parse().ok(),
        uploaded: wire.uploaded_id.parse().ok(),
        cut: match wire.cut() {
            v1::CutState::Unspecified => Cut::No,
            v1::CutState::Pending => Cut::Pending,
            v1::CutState::InForce => Cut::InForce,
        },
    })
}

/// The report of this volume in an answer. `None` if there is none, or if it is another volume's:
/// nothing may be learned of one volume from the report of another.
pub fn volume_of(wire: Option<&v1::VolumeReport>, id: VolumeId) -> Option<VolumeReport> {
    wire.and_then(volume).filter(|report| report.id == id)
}

/// The report of this volume's export in an answer. `None` if there is none, or if it is another
/// volume's.
pub fn export_of(wire: Option<&v1::ExportReport>, id: VolumeId) -> Option<ExportReport> {
    wire.and_then(export).filter(|report| report.volume == id)
}

/// An export's report.
pub fn export(wire: &v1::ExportReport) -> Option<ExportReport> {
    Some(ExportReport {
        volume: wire.volume_id.parse().ok()?,
        generation: generation(wire.generation.as_ref()),
        target: wire.target.parse().ok()?,
        naa: Naa::from_hex(&wire.naa)?,
        portals: wire.portals.iter().filter_map(|portal| portal.parse().ok()).collect(),
        in_force: wire.in_force,
        grants: wire.grants.iter().filter_map(grant).collect(),
        problems: wire.problems.iter().map(problem).collect(),
        stuck: wire.stuck.as_ref().map(stuck),
        fc: wire.fc.iter().filter_map(fc_port).collect(),
        looked: moment(wire.looked_us),
        unlisted_sessions: wire.unlisted_sessions,
        reservations: wire.reservations.as_ref().map(reservations),
        kept_reservations: wire.kept_reservations.clone(),
    })
}

fn registration(wire: &v1::Registration) -> Option<Registration> {
    Some(Registration {
        initiator: wire.initiator.parse().ok()?,
        isid: Some(wire.isid.clone()).filter(|isid| !isid.is_empty()),
        key: wire.key,
    })
}

/// Reads the persistent reservations of a volume from the wire.
pub fn reservations(wire: &v1::Reservations) -> Reservations {
    let holder = |holder: &v1::ReservationHolder| {
        Some(ReservationHolder {
            initiator: holder.initiator.parse().ok()?,
            isid: Some(holder.isid.clone()).filter(|isid| !isid.is_empty()),
            kind: u8::try_from(holder.r#type).ok().and_then(ReservationType::of_code),
            since: moment(holder.since_us),
        })
    };
    Reservations {
        generation: wire.generation,
        registrations: wire.registrations.iter().filter_map(registration).collect(),
        truncated: wire.truncated,
        holder: wire.holder.as_ref().and_then(holder),
        durable: wire.durable,
        lost: wire.lost.iter().filter_map(registration).collect(),
    }
}

/// A receipt.
pub fn receipt(wire: &v1::Receipt) -> Option<Receipt> {
    Some(Receipt {
        volume: wire.volume_id.parse().ok()?,
        initiator: wire.initiator.parse().ok()?,
        attachments: wire.attachment_ids.iter().filter_map(|id| id.parse().ok()).collect(),
        generation: generation(wire.generation.as_ref()),
        revoked: if wire.nexus_removed { Revoked::Nexus } else { Revoked::Nothing },
        sessions: wire.sessions_cut.iter().filter_map(session).collect(),
        proof: wire.proof(),
        began: time_of(wire.began_us),
        ended: moment(wire.ended_us),
        reservation: wire.reservation(),
        cause: wire.why(),
    })
}

fn host_session(wire: &v1::HostSession) -> Option<HostSession> {
    Some(HostSession {
        portal: wire.portal.parse().ok()?,
        sid: wire.sid,
        isid: wire.isid.clone(),
        logged_in: wire.logged_in,
        since: moment(wire.since_us),
        relogins: wire.relogins,
    })
}

fn disk(wire: &v1::HostDisk) -> Option<HostDisk> {
    Some(HostDisk {
        path: wire.path.clone(),
        sequence: wire.sequence,
        size: ByteSize(wire.size_bytes),
        read_only: wire.read_only,
        naa: Naa::from_hex(&wire.naa)?,
    })
}

fn path(wire: &v1::AttachmentPath) -> Option<AttachmentPath> {
    Some(AttachmentPath { attachment: wire.attachment_id.parse().ok()?, path: wire.path.clone() })
}

/// The report of this volume's connection in an answer. `None` if there is none, or if it is
/// another volume's.
pub fn connection_of(wire: Option<&v1::ConnectionReport>, id: VolumeId) -> Option<ConnectionReport> {
    wire.and_then(connection).filter(|report| report.volume == id)
}

/// A connection's report.
pub fn connection(wire: &v1::ConnectionReport) -> Option<ConnectionReport> {
    let phase = match wire.phase() {
        v1::ConnectionPhase::Connecting => ConnectionPhase::Connecting,
        v1::ConnectionPhase::Ready => ConnectionPhase::Ready,
        v1::ConnectionPhase::Recovering => ConnectionPhase::Recovering,
        v1::ConnectionPhase::Detaching => ConnectionPhase::Detaching,
        v1::ConnectionPhase::Gone => ConnectionPhase::Gone,
        v1::ConnectionPhase::Failed => ConnectionPhase::Failed,
        v1::ConnectionPhase::Forbidden => ConnectionPhase::Forbidden,
        v1::ConnectionPhase::Unspecified => return None,
    };
    let took = |us: u64| (us > 0).then(|| Duration::from_micros(us));
    Some(ConnectionReport {
        volume: wire.volume_id.parse().ok()?,
        generation: generation(wire.generation.as_ref()),
        initiator: wire.initiator.parse().ok()?,
        target: wire.target.parse().ok()?,
        phase,
        mode: mode(wire.mode()),
        session: wire.session.as_ref().and_then(host_session),
        disk: wire.disk.as_ref().and_then(disk),
        paths: wire.paths.iter().filter_map(path).collect(),
        holders: wire.holders.clone(),
        problems: wire.problems.iter().map(problem).collect(),
        stuck: wire.stuck.as_ref().map(stuck),
        login_took: took(wire.login_us),
        device_took: took(wire.device_us),
        cache: wire.cache_off.map(cache_from_wire),
        unwritten: wire.unwritten_bytes.map(ByteSize),
        secrets: wire.secrets,
    })
}

/// Reads the users of a connection's disk from the wire.
pub fn disk_check(wire: &v1::CheckConnectionResponse) -> DiskCheck {
    DiskCheck {
        disk: wire.disk.as_ref().and_then(disk),
        cache: wire.cache_off.map(cache_from_wire),
        users: wire.users.iter().filter_map(disk_user_from_wire).collect(),
        unseen: wire.unseen.clone(),
        problems: wire.problems.iter().map(problem).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01a0b1c2-d3e4-4f50-8a61-72830194a5b6";
    const OTHER: &str = "02a0b1c2-d3e4-4f50-8a61-72830194a5b6";

    #[test]
    fn a_report_of_another_volume_is_none() {
        let (id, other) = (ID.parse().unwrap(), OTHER.parse().unwrap());
        let wire = v1::VolumeReport {
            volume_id: ID.to_owned(),
            phase: v1::Phase::Ready.into(),
            ..Default::default()
        };
        assert_eq!(volume_of(Some(&wire), id), volume(&wire));
        assert!(volume(&wire).is_some());
        assert_eq!(volume_of(Some(&wire), other), None);
        let wire = v1::ExportReport {
            volume_id: ID.to_owned(),
            target: format!("iqn.2026-01.lab.mooring:vol.{ID}"),
            naa: "6001405001a0b1c2d3e44f508a617283".to_owned(),
            ..Default::default()
        };
        assert_eq!(export_of(Some(&wire), id), export(&wire));
        assert!(export(&wire).is_some());
        assert_eq!(export_of(Some(&wire), other), None);
        assert_eq!((volume_of(None, id), export_of(None, id)), (None, None));
    }
}
