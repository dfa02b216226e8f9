//! `mooring agent show`: an agent's report on its host's capabilities.
//!
//! What must never happen here: "no" where an agent of an earlier release has not said anything.

use std::fmt::{self, Display, Formatter};

use mooring_api::v1;
use serde::Serialize;

use crate::problem::Problem;
use crate::problem::write_problems;
use crate::table::{NONE, facts, joined, or_none, size, table};
use crate::text::{list, mode, some};

/// Health of a part of the host, and the reasons why it is not better.
#[derive(Debug, Serialize)]
pub(crate) struct Health {
    /// `ok`, `degraded`, `failed`.
    pub level: &'static str,
    /// Reasons, the worst first.
    pub reasons: Vec<Reason>,
}

/// A reason for bad health.
#[derive(Debug, Serialize)]
pub(crate) struct Reason {
    /// The reason's code for programs, such as `module_missing`.
    pub code: String,
    pub level: &'static str,
    #[serde(flatten)]
    pub problem: Option<Problem>,
}

impl Health {
    fn of_wire(wire: &v1::Health) -> Self {
        let reason = |reason: &v1::HealthReason| Reason {
            code: reason.code.clone(),
            level: reason.level().word(),
            problem: reason.problem.as_ref().map(Problem::of_wire),
        };
        Self { level: wire.level().word(), reasons: list(&wire.reasons, reason) }
    }
}

/// The level, and the codes of its reasons; `-`: the agent does not say.
fn health_text(health: Option<&Health>) -> String {
    let Some(health) = health else { return NONE.to_owned() };
    let mut codes: Vec<_> = health.reasons.iter().map(|reason| reason.code.as_str()).collect();
    codes.dedup();
    match (health.level, codes.is_empty()) {
        ("ok", _) => "ok".to_owned(),
        (level, true) => level.to_uppercase(),
        (level, false) => format!("{} ({})", level.to_uppercase(), codes.join(", ")),
    }
}

/// A volume group that volumes can be made in, or its thin pool.
#[derive(Debug, Serialize)]
pub(crate) struct Pool {
    pub name: String,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub extent_bytes: u64,
    pub thick: bool,
    pub volumes: u32,
    /// Sum of the sizes of the agent's volumes.
    pub provisioned_bytes: u64,
    /// `null` here and below: the agent does not say.
    pub reserved_bytes: Option<u64>,
    pub snapshots: Option<bool>,
    pub online_extend: Option<bool>,
    /// `true`: hosts' discards reach the storage below.
    pub discard: Option<bool>,
    /// `true`: the storage below takes discards.
    pub discard_below: Option<bool>,
    /// Treatment of a deleted volume's blocks: `zero`, `discard`, `none`.
    pub wipe: Option<&'static str>,
    pub health: Option<Health>,
}

impl Pool {
    fn of_wire(pool: &v1::Pool) -> Self {
        Self {
            name: pool.name.clone(),
            total_bytes: pool.total_bytes,
            free_bytes: pool.free_bytes,
            extent_bytes: pool.extent_bytes,
            thick: pool.thick,
            volumes: pool.volumes,
            provisioned_bytes: pool.provisioned_bytes,
            reserved_bytes: pool.reserved_bytes,
            snapshots: pool.snapshots,
            online_extend: pool.online_extend,
            discard: pool.discard,
            discard_below: pool.discard_below,
            wipe: pool.wipe().word(),
            health: pool.health.as_ref().map(Health::of_wire),
        }
    }

    /// Ratio of promised to physical space.
    fn promised_text(&self) -> String {
        if self.total_bytes == 0 {
            return NONE.to_owned();
        }
        let hundredths = u128::from(self.provisioned_bytes) * 100 / u128::from(self.total_bytes);
        format!("{}.{:02}", hundredths / 100, hundredths % 100)
    }
}

/// A Fibre Channel port that serves volumes.
#[derive(Debug, Serialize)]
pub(crate) struct Port {
    pub port: String,
    /// The adapter's word for the port's state; empty without an adapter.
    pub state: String,
}

/// Digests that targets offer.
#[derive(Debug, Serialize)]
pub(crate) struct Digests {
    pub header: String,
    pub data: String,
    /// The target that was read.
    pub target: String,
}

/// The network interface of a portal.
#[derive(Debug, Serialize)]
pub(crate) struct Link {
    pub portal: String,
    pub interface: String,
    /// `true`: the interface and its link are up.
    pub up: bool,
    /// Largest packet in bytes; `null`: unknown.
    pub mtu: Option<u32>,
}

impl Link {
    fn text(&self) -> String {
        let down = if self.up { "" } else { ", DOWN" };
        let mtu = self.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
        format!("{} ({}{mtu}{down})", self.portal, self.interface)
    }
}

/// A transport of the host.
#[derive(Debug, Serialize)]
pub(crate) struct Transport {
    pub protocol: String,
    /// Addresses of portals, or names of ports.
    pub portals: Vec<String>,
    /// Interfaces of the portals whose address the host has.
    pub links: Vec<Link>,
    pub ready: bool,
    pub ports: Vec<Port>,
    pub digests: Option<Digests>,
    pub volumes_per_initiator_max: Option<u32>,
    pub health: Option<Health>,
}

impl Transport {
    fn of_wire(transport: &v1::Transport) -> Self {
        let names = transport.ports.iter().map(|it| &it.port);
        let port = |it: &v1::FcPort| Port { port: it.port.clone(), state: it.state.clone() };
        let link = |it: &v1::PortalLink| Link {
            portal: it.portal.clone(),
            interface: it.interface.clone(),
            up: it.up,
            mtu: it.mtu,
        };
        let digests = |it: &v1::Digests| Digests {
            header: it.header.clone(),
            data: it.data.clone(),
            target: it.target.clone(),
        };
        Self {
            protocol: transport.protocol.clone(),
            portals: transport.portals.iter().chain(names).cloned().collect(),
            links: list(&transport.links, link),
            ready: transport.ready,
            ports: list(&transport.ports, port),
            digests: transport.digests.as_ref().map(digests),
            volumes_per_initiator_max: transport.volumes_per_initiator_max,
            health: transport.health.as_ref().map(Health::of_wire),
        }
    }

    /// Portals, with their interfaces if they are known.
    fn portals_text(&self) -> String {
        let text = |portal: &String| {
            let link = self.links.iter().find(|link| link.portal == *portal);
            link.map_or_else(|| portal.clone(), Link::text)
        };
        joined(&self.portals.iter().map(text).collect::<Vec<_>>())
    }

    fn digests_text(&self) -> String {
        let text = |it: &Digests| format!("header {}; data {}", it.header, it.data);
        or_none(self.digests.as_ref().map(text).as_deref())
    }
}

/// A kernel module that the host needs.
#[derive(Debug, Serialize)]
pub(crate) struct Module {
    pub name: String,
    pub needed_for: String,
    /// `present`, `loadable`, `absent`, `unlisted`, or `unknown`.
    pub state: &'static str,
    /// The remedy that adds it; `null`: none is needed.
    pub remedy: Option<String>,
}

impl Module {
    fn of_wire(module: &v1::Module) -> Self {
        let state = match module.state() {
            v1::ModuleState::Present => "present",
            v1::ModuleState::Loadable => "loadable",
            v1::ModuleState::Absent => "absent",
            v1::ModuleState::Unlisted => "unlisted",
            v1::ModuleState::Unspecified => "unknown",
        };
        Self {
            name: module.name.clone(),
            needed_for: module.needed_for.clone(),
            state,
            remedy: some(&module.remedy),
        }
    }
}

/// The capabilities of a host.
#[derive(Debug, Serialize)]
pub(crate) struct Capabilities {
    pub agent_id: String,
    pub host_name: String,
    pub kernel_release: String,
    /// `null` here and below: the agent does not say.
    pub health: Option<Health>,
    /// `true`: one volume can be attached to many hosts.
    pub multiattach: bool,
    pub access_modes: Vec<&'static str>,
    pub persistent_reservations: Option<bool>,
    pub persistent_reservations_kept: Option<bool>,
    /// `true`: a read-only host changes nothing, whatever its commands claim.
    pub read_only_sealed: Option<bool>,
    pub initiators_per_volume_max: Option<u32>,
    pub attachments_per_connection_max: Option<u32>,
    /// `true`: an attachment on this host can turn the page cache of its disk off.
    pub cache_off: Option<bool>,
    /// Ports through which the host attaches over Fibre Channel.
    pub fc_initiator_ports: Vec<String>,
    pub pools: Vec<Pool>,
    /// Age of `pools` while LVM does not answer.
    pub pools_age_ms: u64,
    /// `true`: LVM has not answered since the agent started.
    pub pools_unknown: bool,
    pub transports: Vec<Transport>,
    pub modules: Vec<Module>,
    pub problems: Vec<Problem>,
}

impl Capabilities {
    pub(crate) fn of_wire(wire: &v1::Capabilities) -> Self {
        Self {
            agent_id: wire.agent_id.clone(),
            host_name: wire.host_name.clone(),
            kernel_release: wire.kernel_release.clone(),
            health: wire.health.as_ref().map(Health::of_wire),
            multiattach: wire.multiattach,
            access_modes: wire.access_modes().filter_map(mode).collect(),
            persistent_reservations: wire.persistent_reservations,
            persistent_reservations_kept: wire.persistent_reservations_kept,
            read_only_sealed: wire.read_only_sealed,
            initiators_per_volume_max: wire.initiators_per_volume_max,
            attachments_per_connection_max: wire.attachments_per_connection_max,
            cache_off: wire.cache_off,
            fc_initiator_ports: wire.fc_initiator_ports.clone(),
            pools: list(&wire.pools, Pool::of_wire),
            pools_age_ms: wire.pools_age_ms,
            pools_unknown: wire.pools_unknown,
            transports: list(&wire.transports, Transport::of_wire),
            modules: list(&wire.modules, Module::of_wire),
            problems: list(&wire.problems, Problem::of_wire),
        }
    }

    fn reservations_text(&self) -> String {
        match (self.persistent_reservations, self.persistent_reservations_kept) {
            (Some(true), Some(true)) => "yes, kept over a loss of power".to_owned(),
            (Some(true), _) => "yes, NOT kept over a loss of power".to_owned(),
            (said, _) => yes(said),
        }
    }
}

/// `agent show`.
#[derive(Debug, Serialize)]
pub(crate) struct AgentShown {
    pub software: String,
    pub protocol: u32,
    /// The cluster that the agent belongs to; `null` while it belongs to none.
    pub cluster_id: Option<String>,
    /// Addresses where targets listen unless a volume's export says otherwise.
    pub portals: Vec<String>,
    /// Volume groups that the agent may use.
    pub groups: Vec<String>,
    #[serde(flatten)]
    pub capabilities: Capabilities,
}

impl AgentShown {
    pub(crate) fn new(hello: &v1::HelloResponse, capabilities: &v1::Capabilities) -> Self {
        Self {
            software: hello.software.clone(),
            protocol: hello.protocol,
            cluster_id: some(&hello.cluster_id),
            portals: hello.portals.clone(),
            groups: hello.groups.clone(),
            capabilities: Capabilities::of_wire(capabilities),
        }
    }
}

/// `yes` or `no`; `-`: the agent does not say.
fn yes(said: Option<bool>) -> String {
    match said {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => NONE.to_owned(),
    }
}

/// Features that a kernel lacks by its name; `None`: none is known. An agent looks only for the
/// modules that its configuration needs.
fn lacking(release: &str) -> Option<&'static str> {
    let text = "Debian's kernel for clouds is without Fibre Channel, FCoE and DLM; the generic one has them";
    release.contains("-cloud-").then_some(text)
}

fn initiators_text(most: Option<u32>) -> String {
    most.map_or_else(|| NONE.to_owned(), |most| format!("at most {most} a volume"))
}

fn write_pools(f: &mut Formatter<'_>, pools: &[Pool]) -> fmt::Result {
    if pools.is_empty() {
        return Ok(());
    }
    let row = |pool: &Pool| {
        [
            pool.name.clone(),
            if pool.thick { "thick" } else { "thin" }.to_owned(),
            size(pool.total_bytes),
            size(pool.free_bytes),
            or_none(pool.reserved_bytes.map(size).as_deref()),
            size(pool.provisioned_bytes),
            pool.promised_text(),
            pool.volumes.to_string(),
            yes(pool.snapshots),
            yes(pool.online_extend),
            yes(pool.discard),
            or_none(pool.wipe),
            health_text(pool.health.as_ref()),
        ]
    };
    let heads = [
        "POOL",
        "KIND",
        "TOTAL",
        "FREE",
        "RESERVED",
        "PROVISIONED",
        "RATIO",
        "VOLUMES",
        "SNAPSHOTS",
        "GROWS IN USE",
        "DISCARD",
        "WIPE",
        "HEALTH",
    ];
    write!(f, "\n\n{}", table(heads, pools.iter().map(row)))
}

fn write_transports(f: &mut Formatter<'_>, transports: &[Transport]) -> fmt::Result {
    if transports.is_empty() {
        return Ok(());
    }
    let row = |transport: &Transport| {
        [
            transport.protocol.clone(),
            if transport.ready { "yes" } else { "NO" }.to_owned(),
            transport.portals_text(),
            transport.digests_text(),
            health_text(transport.health.as_ref()),
        ]
    };
    let heads = ["TRANSPORT", "READY", "PORTALS", "DIGESTS", "HEALTH"];
    write!(f, "\n\n{}", table(heads, transports.iter().map(row)))
}

fn write_modules(f: &mut Formatter<'_>, modules: &[Module]) -> fmt::Result {
    if modules.is_empty() {
        return Ok(());
    }
    let row = |module: &Module| {
        [
            module.name.clone(),
            module.state.to_owned(),
            module.needed_for.clone(),
            or_none(module.remedy.as_deref()),
        ]
    };
    write!(f, "\n\n{}", table(["MODULE", "STATE", "NEEDED FOR", "REMEDY"], modules.iter().map(row)))
}

impl Display for AgentShown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let host = &self.capabilities;
        let modes: Vec<_> = host.access_modes.iter().map(|mode| (*mode).to_owned()).collect();
        let rows = [
            ("AGENT", host.agent_id.clone()),
            ("HOST", format!("{}, Linux {}", host.host_name, host.kernel_release)),
            ("HEALTH", health_text(host.health.as_ref())),
            ("SOFTWARE", format!("{}, protocol {}", self.software, self.protocol)),
            ("CLUSTER", or_none(self.cluster_id.as_deref())),
            ("PORTALS", joined(&self.portals)),
            ("GROUPS", joined(&self.groups)),
            ("MULTIATTACH", yes(Some(host.multiattach))),
            ("MODES", joined(&modes)),
            ("RESERVATIONS", host.reservations_text()),
            ("INITIATORS", initiators_text(host.initiators_per_volume_max)),
        ];
        let note = lacking(&host.kernel_release).map(|text| ("NOTE", text.to_owned()));
        f.write_str(&facts(rows.into_iter().chain(note)))?;
        write_pools(f, &host.pools)?;
        write_transports(f, &host.transports)?;
        write_modules(f, &host.modules)?;
        write_problems(f, &host.problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> v1::Pool {
        v1::Pool { name: "vg0".to_owned(), total_bytes: 300, provisioned_bytes: 1000, ..v1::Pool::default() }
    }

    #[test]
    fn what_is_not_said_is_not_no() {
        let old = v1::Capabilities { pools: vec![pool()], ..v1::Capabilities::default() };
        let shown = AgentShown::new(&v1::HelloResponse::default(), &old);
        let json = serde_json::to_value(&shown).unwrap();
        for key in ["health", "persistent_reservations", "read_only_sealed", "initiators_per_volume_max"] {
            assert!(json[key].is_null(), "{key}");
        }
        assert!(json["pools"][0]["discard"].is_null() && json["pools"][0]["wipe"].is_null());
        let text = shown.to_string();
        assert!(text.contains("RESERVATIONS  -") && text.contains("INITIATORS    -\n"), "{text}");
        // Control: an agent that does say it.
        let says = v1::Capabilities { persistent_reservations: Some(false), ..old };
        let text = AgentShown::new(&v1::HelloResponse::default(), &says).to_string();
        assert!(text.contains("RESERVATIONS  no"), "{text}");
    }

    #[test]
    fn a_kernel_for_clouds_is_noted_and_no_problem() {
        let of = |release: &str| {
            let host = v1::Capabilities { kernel_release: release.to_owned(), ..v1::Capabilities::default() };
            let shown = AgentShown::new(&v1::HelloResponse::default(), &host);
            assert!(shown.capabilities.problems.is_empty());
            shown.to_string()
        };
        for cloud in ["6.1.0-56-cloud-amd64", "6.12.43+deb13-cloud-arm64"] {
            let text = of(cloud);
            assert!(
                text.contains("NOTE  ") && text.contains("without Fibre Channel, FCoE and DLM"),
                "{text}"
            );
        }
        for other in ["6.1.0-56-amd64", "6.12.43+deb13-amd64", "6.14.0-cloudy", ""] {
            assert!(!of(other).contains("NOTE"), "{other}");
        }
    }

    #[test]
    fn a_pool_says_how_often_it_is_promised() {
        assert_eq!(Pool::of_wire(&pool()).promised_text(), "3.33");
        assert_eq!(Pool::of_wire(&v1::Pool { total_bytes: 0, ..pool() }).promised_text(), "-");
    }

    #[test]
    fn a_word_for_health_stands_with_its_reasons() {
        let reason = |code: &str| v1::HealthReason { code: code.to_owned(), ..v1::HealthReason::default() };
        let health = |level: v1::HealthLevel, codes: &[&str]| {
            let reasons = codes.iter().map(|code| reason(code)).collect();
            health_text(Some(&Health::of_wire(&v1::Health { level: level.into(), reasons })))
        };
        assert_eq!(health(v1::HealthLevel::Ok, &[]), "ok");
        let failed =
            health(v1::HealthLevel::Failed, &["lvm_failed", "portal_unreachable", "portal_unreachable"]);
        assert_eq!(failed, "FAILED (lvm_failed, portal_unreachable)");
        assert_eq!(health_text(None), "-");
    }
}
