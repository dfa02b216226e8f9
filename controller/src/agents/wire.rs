//! Reports from the wire to the model. What an agent says is checked here, once; what makes no sense is no report.
//!
//! What must never happen here: a guess in the place of something that does not parse.

use std::time::{Duration, SystemTime};

use mooring_api::v1;
use mooring_model::{
    AttachmentPath, ByteSize, ConnectionPhase, ConnectionReport, Counters, Cure, Cut, DiskCheck,
    ExportReport, FcGrantReport, FcPortReport, Generation, GrantReport, HostDisk, HostSession, Lun, Mode,
    Naa, Phase, Problem, Receipt, Registration, ReservationHolder, ReservationType, Reservations, Revoked,
    SessionReport, Stamp, StuckStep, VolumeReport,
};

use crate::domain::{
    Health, HealthLevel, HealthReason, HostModule, HostPool, HostReport, HostTransport, ModuleState,
    PortalLink,
};
use crate::store::time_of;

fn generation(wire: Option<&v1::Generation>) -> Generation {
    wire.map_or(Generation::ZERO, |wire| Generation { epoch: wire.epoch, counter: wire.counter })
}

/// A stamp that an agent keeps.
pub(crate) fn stamp(wire: Option<&v1::Stamp>) -> Option<Stamp> {
    mooring_api::stamp_from_wire(wire).ok()
}

/// A mode. `None`: there is none.
pub(crate) fn mode(wire: v1::Mode) -> Option<Mode> {
    match wire {
        v1::Mode::ReadOnly => Some(Mode::ReadOnly),
        v1::Mode::ReadWrite => Some(Mode::ReadWrite),
        v1::Mode::Unspecified => None,
    }
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
pub(crate) fn volume(wire: &v1::VolumeReport) -> Option<VolumeReport> {
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

/// An export's report.
pub(crate) fn export(wire: &v1::ExportReport) -> Option<ExportReport> {
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

/// Who has reserved a volume.
pub(crate) fn reservations(wire: &v1::Reservations) -> Reservations {
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
pub(crate) fn receipt(wire: &v1::Receipt) -> Option<Receipt> {
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

/// A connection's report.
pub(crate) fn connection(wire: &v1::ConnectionReport) -> Option<ConnectionReport> {
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
        cache: wire.cache_off.map(mooring_api::cache_from_wire),
        unwritten: wire.unwritten_bytes.map(ByteSize),
        secrets: wire.secrets,
    })
}

/// Who uses the disk of a connection.
pub(crate) fn disk_check(wire: &v1::CheckConnectionResponse) -> DiskCheck {
    DiskCheck {
        disk: wire.disk.as_ref().and_then(disk),
        cache: wire.cache_off.map(mooring_api::cache_from_wire),
        users: wire.users.iter().filter_map(mooring_api::disk_user_from_wire).collect(),
        unseen: wire.unseen.clone(),
        problems: wire.problems.iter().map(problem).collect(),
    }
}

/// A word for how well something is. `None`: its agent does not say.
pub(crate) fn health_level(wire: v1::HealthLevel) -> Option<HealthLevel> {
    match wire {
        v1::HealthLevel::Ok => Some(HealthLevel::Ok),
        v1::HealthLevel::Degraded => Some(HealthLevel::Degraded),
        v1::HealthLevel::Failed => Some(HealthLevel::Failed),
        v1::HealthLevel::Unspecified => None,
    }
}

/// How well something is. `None`: its agent does not say.
pub(crate) fn health(wire: Option<&v1::Health>) -> Option<Health> {
    let wire = wire?;
    let reason = |reason: &v1::HealthReason| {
        let problem = reason.problem.clone().unwrap_or_default();
        Some(HealthReason {
            code: reason.code.clone(),
            level: health_level(reason.level())?,
            object: problem.object,
            text: problem.text,
        })
    };
    Some(Health {
        level: health_level(wire.level())?,
        reasons: wire.reasons.iter().filter_map(reason).collect(),
    })
}

/// A pool, for who lists hosts.
pub(crate) fn host_pool(wire: &v1::Pool) -> HostPool {
    HostPool {
        name: wire.name.clone(),
        total: wire.total_bytes,
        free: wire.free_bytes,
        thick: wire.thick,
        provisioned: wire.provisioned_bytes,
        reserved: wire.reserved_bytes,
        snapshots: wire.snapshots,
        online_extend: wire.online_extend,
        discard: wire.discard,
        wipe: wire.wipe().word(),
        health: health(wire.health.as_ref()),
    }
}

fn portal_link(wire: &v1::PortalLink) -> PortalLink {
    PortalLink { portal: wire.portal.clone(), interface: wire.interface.clone(), up: wire.up, mtu: wire.mtu }
}

fn host_transport(wire: &v1::Transport) -> HostTransport {
    HostTransport {
        protocol: wire.protocol.clone(),
        ready: wire.ready,
        portals: wire.portals.clone(),
        links: wire.links.iter().map(portal_link).collect(),
        ports: wire.ports.iter().map(|port| (port.port.clone(), port.state.clone())).collect(),
        digests: wire.digests.as_ref().map(|said| (said.header.clone(), said.data.clone())),
        volumes_per_initiator_max: wire.volumes_per_initiator_max,
        health: health(wire.health.as_ref()),
    }
}

fn host_module(wire: &v1::Module) -> Option<HostModule> {
    let state = match wire.state() {
        v1::ModuleState::Present => ModuleState::Present,
        v1::ModuleState::Loadable => ModuleState::Loadable,
        v1::ModuleState::Absent => ModuleState::Absent,
        v1::ModuleState::Unlisted => ModuleState::Unlisted,
        v1::ModuleState::Unspecified => return None,
    };
    Some(HostModule {
        name: wire.name.clone(),
        needed_for: wire.needed_for.clone(),
        state,
        remedy: Some(wire.remedy.clone()).filter(|remedy| !remedy.is_empty()),
    })
}

/// What an agent can do, but for its pools.
pub(crate) fn host_report(wire: &v1::Capabilities) -> HostReport {
    HostReport {
        kernel_release: wire.kernel_release.clone(),
        multiattach: wire.multiattach,
        modes: wire.access_modes().filter_map(mode).collect(),
        reservations: wire.persistent_reservations,
        reservations_kept: wire.persistent_reservations_kept,
        read_only_sealed: wire.read_only_sealed,
        initiators_per_volume_max: wire.initiators_per_volume_max,
        attachments_per_connection_max: wire.attachments_per_connection_max,
        cache_off: wire.cache_off,
        fc_initiator_ports: wire.fc_initiator_ports.clone(),
        transports: wire.transports.iter().map(host_transport).collect(),
        modules: wire.modules.iter().filter_map(host_module).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> v1::Capabilities {
        let problem = v1::Problem { object: "vg0".to_owned(), text: "broken".to_owned(), cure: 0 };
        let failed = v1::HealthLevel::Failed.into();
        let reason =
            v1::HealthReason { code: "lvm_failed".to_owned(), level: failed, problem: Some(problem) };
        let health = Some(v1::Health { level: failed, reasons: vec![reason] });
        let module = |state: v1::ModuleState, remedy: &str| v1::Module {
            name: "tcm_fc".to_owned(),
            state: state.into(),
            remedy: remedy.to_owned(),
            ..v1::Module::default()
        };
        v1::Capabilities {
            kernel_release: "6.1".to_owned(),
            health: health.clone(),
            access_modes: vec![v1::Mode::ReadWrite.into(), 99],
            modules: vec![
                module(v1::ModuleState::Absent, "apt install x"),
                module(v1::ModuleState::Present, ""),
                // Of a release to come.
                module(v1::ModuleState::Unspecified, ""),
            ],
            transports: vec![v1::Transport {
                protocol: "iscsi".to_owned(),
                health,
                ..v1::Transport::default()
            }],
            ..v1::Capabilities::default()
        }
    }

    #[test]
    fn what_an_agent_says_of_itself_is_read() {
        let (wire, report) = (said(), host_report(&said()));
        let health = health(wire.health.as_ref()).unwrap();
        assert_eq!((health.level, health.reasons.len()), (HealthLevel::Failed, 1));
        let reason = &health.reasons[0];
        assert_eq!(
            (reason.code.as_str(), reason.object.as_str(), reason.text.as_str()),
            ("lvm_failed", "vg0", "broken")
        );
        assert_eq!(report.transports[0].health.as_ref(), Some(&health));
        assert_eq!(report.modes, [Mode::ReadWrite], "a mode that nobody knows is none");
        let modules: Vec<_> = report.modules.iter().map(|one| (one.state, one.remedy.as_deref())).collect();
        assert_eq!(modules, [(ModuleState::Absent, Some("apt install x")), (ModuleState::Present, None)]);
    }

    #[test]
    fn what_an_earlier_release_does_not_say_is_not_known() {
        let old = v1::Capabilities {
            multiattach: true,
            pools: vec![v1::Pool::default()],
            ..v1::Capabilities::default()
        };
        assert_eq!(health(old.health.as_ref()), None);
        assert_eq!(health(Some(&v1::Health::default())), None, "a level that nobody knows");
        let (report, pool) = (host_report(&old), host_pool(&old.pools[0]));
        assert_eq!(
            (report.multiattach, report.reservations, report.initiators_per_volume_max),
            (true, None, None)
        );
        assert_eq!((pool.snapshots, pool.discard, pool.reserved, pool.health), (None, None, None, None));
        assert_eq!(pool.wipe, None, "nobody said that it is zeroed");
    }

    #[test]
    fn a_wipe_has_the_word_of_the_configuration() {
        let of = |wipe: i32| host_pool(&v1::Pool { wipe, ..v1::Pool::default() }).wipe;
        let all = [v1::Wipe::None, v1::Wipe::Zero, v1::Wipe::Discard].map(|wipe| of(wipe.into()));
        assert_eq!(all, [Some("none"), Some("zero"), Some("discard")]);
        assert_eq!(of(99), None, "of a release to come");
    }
}
