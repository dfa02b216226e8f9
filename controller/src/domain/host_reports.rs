//! Conversion of an agent's capabilities from the wire to the domain: its machine and its pools.
//!
//! What must never happen here: a guess in place of a fact that an agent does not report.

use mooring_api::{reports, v1};

use super::{
    Health, HealthLevel, HealthReason, HostModule, HostPool, HostReport, HostTransport, ModuleState,
    PortalLink,
};

/// Converts a level of health; `None` if the agent does not report it.
pub(crate) fn health_level(wire: v1::HealthLevel) -> Option<HealthLevel> {
    match wire {
        v1::HealthLevel::Ok => Some(HealthLevel::Ok),
        v1::HealthLevel::Degraded => Some(HealthLevel::Degraded),
        v1::HealthLevel::Failed => Some(HealthLevel::Failed),
        v1::HealthLevel::Unspecified => None,
    }
}

/// Converts a health; `None` if the agent does not report it.
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

/// Converts a pool, for lists of hosts.
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

/// Converts an agent's capabilities, without its pools.
pub(crate) fn host_report(wire: &v1::Capabilities) -> HostReport {
    HostReport {
        kernel_release: wire.kernel_release.clone(),
        multiattach: wire.multiattach,
        modes: wire.access_modes().filter_map(reports::mode).collect(),
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
    use mooring_model::Mode;

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
                // A state of a later release.
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
