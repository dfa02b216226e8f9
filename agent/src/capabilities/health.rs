//! Judges the health of this host, its pools and its transports against the configuration, with the
//! reasons. Each fault says what it concerns, and how bad it is there.
//!
//! What must never happen here: "OK" beside a fault that degrades; a fault that is reported and not
//! counted, or counted and not reported.

use mooring_api::v1;
use mooring_model::{Cure, Problem};

/// Kind of a fault, in a word that programs may rely on. docs/operations/problems.md lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    ModuleMissing,
    ConfigfsMissing,
    SessionDaemon,
    GroupMissing,
    GroupUnusable,
    ThinPoolUnusable,
    ThinPoolNearlyFull,
    ThinPoolFull,
    LvmFailed,
    LvmSilent,
    PortalUnreachable,
    PortalBlocked,
    DeviceSilent,
    PortMissing,
    PortUnusable,
    PortLink,
    StoreLost,
    OwnUnit,
    ConflictingUnit,
    NeededUnit,
    /// A fault that is never more than noted. It is no reason, so that no program sees its word.
    Noted,
}

impl Code {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ModuleMissing => "module_missing",
            Self::ConfigfsMissing => "configfs_missing",
            Self::SessionDaemon => "session_daemon",
            Self::GroupMissing => "group_missing",
            Self::GroupUnusable => "group_unusable",
            Self::ThinPoolUnusable => "thin_pool_unusable",
            Self::ThinPoolNearlyFull => "thin_pool_nearly_full",
            Self::ThinPoolFull => "thin_pool_full",
            Self::LvmFailed => "lvm_failed",
            Self::LvmSilent => "lvm_silent",
            Self::PortalUnreachable => "portal_unreachable",
            Self::PortalBlocked => "portal_blocked",
            Self::DeviceSilent => "device_silent",
            Self::PortMissing => "port_missing",
            Self::PortUnusable => "port_unusable",
            Self::PortLink => "port_link_down",
            Self::StoreLost => "store_lost",
            Self::OwnUnit => "own_unit",
            Self::ConflictingUnit => "conflicting_unit",
            Self::NeededUnit => "needed_unit",
            Self::Noted => "noted",
        }
    }
}

/// Weight of a fault for what it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// An operator should know it. Everything works.
    Noted,
    /// The object works in part, or will not work for long.
    Degrades,
    /// Nothing new can be done with the object.
    Fails,
}

/// Objects that a fault concerns, besides the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum On {
    /// Nothing else.
    Host,
    /// Every pool and every transport.
    Everything,
    /// Every pool.
    Pools,
    /// Every pool in thin pools.
    ThinPools,
    /// The pools of a group.
    Group(String),
    /// One pool.
    Pool(String),
    /// Every transport.
    Transports,
    /// One transport.
    Transport(&'static str),
    /// The transport of a portal.
    Portal(String),
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) weight: Weight,
    pub(super) on: On,
    pub(super) problem: Problem,
}

impl Fault {
    /// Makes a fault that an operator has to cure.
    pub(super) fn new(code: Code, weight: Weight, on: On, object: impl Into<String>, text: String) -> Self {
        let problem = Problem { object: object.into(), text, cure: Cure::Operator };
        Self { code, weight, on, problem }
    }

    /// Changes who can cure the fault.
    pub(super) fn cured_by(mut self, cure: Cure) -> Self {
        self.problem.cure = cure;
        self
    }

    fn concerns_pool(&self, pool: &v1::Pool) -> bool {
        match &self.on {
            On::Everything | On::Pools => true,
            On::ThinPools => !pool.thick,
            On::Group(group) => pool.name.split(':').next() == Some(group),
            On::Pool(name) => pool.name == *name,
            On::Host | On::Transports | On::Transport(_) | On::Portal(_) => false,
        }
    }

    fn concerns_transport(&self, transport: &v1::Transport) -> bool {
        match &self.on {
            On::Everything | On::Transports => true,
            On::Transport(protocol) => transport.protocol == *protocol,
            On::Portal(portal) => transport.portals.contains(portal),
            On::Host | On::Pools | On::ThinPools | On::Group(_) | On::Pool(_) => false,
        }
    }
}

const fn level(weight: Weight) -> v1::HealthLevel {
    match weight {
        Weight::Noted => v1::HealthLevel::Ok,
        Weight::Degrades => v1::HealthLevel::Degraded,
        Weight::Fails => v1::HealthLevel::Failed,
    }
}

/// Returns the reasons, the worst first; those of the same weight in the order in which they were
/// found.
fn reasons(faults: &[Fault], concerns: impl Fn(&Fault) -> bool) -> Vec<v1::HealthReason> {
    let mut concerned: Vec<_> =
        faults.iter().filter(|fault| fault.weight > Weight::Noted && concerns(fault)).collect();
    concerned.sort_by_key(|fault| std::cmp::Reverse(fault.weight));
    let reason = |fault: &Fault| v1::HealthReason {
        code: fault.code.as_str().to_owned(),
        level: level(fault.weight).into(),
        problem: Some((&fault.problem).into()),
    };
    concerned.into_iter().map(reason).collect()
}

fn health(faults: &[Fault], concerns: impl Fn(&Fault) -> bool) -> v1::Health {
    let reasons = reasons(faults, concerns);
    let level = reasons.first().map_or(v1::HealthLevel::Ok, v1::HealthReason::level);
    v1::Health { level: level.into(), reasons }
}

fn has_failed(health: Option<&v1::Health>) -> bool {
    health.is_some_and(|health| health.level() == v1::HealthLevel::Failed)
}

/// Fills in what the faults mean: the problems, and the health of everything. `serves` is `true` if
/// the host has groups to serve from.
pub(super) fn judge(found: &mut v1::Capabilities, faults: &[Fault], serves: bool) {
    found.problems = faults.iter().map(|fault| (&fault.problem).into()).collect();
    for pool in &mut found.pools {
        pool.health = Some(health(faults, |fault| fault.concerns_pool(pool)));
    }
    for transport in &mut found.transports {
        transport.health = Some(health(faults, |fault| fault.concerns_transport(transport)));
    }
    let own = |fault: &Fault| matches!(fault.on, On::Host | On::Everything) && fault.weight == Weight::Fails;
    let none = |mut all: Box<dyn Iterator<Item = Option<&v1::Health>> + '_>| all.all(has_failed);
    let pools = found.pools.iter().map(|pool| pool.health.as_ref());
    let transports = found.transports.iter().map(|transport| transport.health.as_ref());
    let failed = faults.iter().any(own)
        || serves && (none(Box::new(transports)) || !found.pools_unknown && none(Box::new(pools)));
    let reasons = reasons(faults, |_| true);
    let level = match (failed, reasons.is_empty()) {
        (true, _) => v1::HealthLevel::Failed,
        (false, false) => v1::HealthLevel::Degraded,
        (false, true) => v1::HealthLevel::Ok,
    };
    found.health = Some(v1::Health { level: level.into(), reasons });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str) -> v1::Pool {
        v1::Pool { name: name.to_owned(), thick: !name.contains(':'), ..v1::Pool::default() }
    }

    fn found() -> v1::Capabilities {
        let portals = |one: &str| vec![one.to_owned()];
        let iscsi = |one| v1::Transport {
            protocol: "iscsi".to_owned(),
            portals: portals(one),
            ..v1::Transport::default()
        };
        v1::Capabilities {
            pools: vec![pool("vg0"), pool("vg0:thin"), pool("vg1")],
            transports: vec![
                iscsi("10.0.0.1:3260"),
                iscsi("10.0.1.1:3260"),
                v1::Transport { protocol: "fc".to_owned(), ..v1::Transport::default() },
            ],
            ..v1::Capabilities::default()
        }
    }

    /// Returns one letter for each level: the host, the pools, the transports.
    fn levels(faults: &[(Weight, On)]) -> String {
        let mut found = found();
        let fault = |(weight, on): &(Weight, On)| {
            Fault::new(Code::LvmFailed, *weight, on.clone(), "o", "t".to_owned())
        };
        let faults: Vec<_> = faults.iter().map(fault).collect();
        judge(&mut found, &faults, true);
        let letter = |health: &Option<v1::Health>| match health.as_ref().unwrap().level() {
            v1::HealthLevel::Ok => 'o',
            v1::HealthLevel::Degraded => 'd',
            v1::HealthLevel::Failed => 'F',
            v1::HealthLevel::Unspecified => '?',
        };
        let pools = found.pools.iter().map(|pool| letter(&pool.health));
        let transports = found.transports.iter().map(|one| letter(&one.health));
        std::iter::once(letter(&found.health)).chain(pools).chain(transports).collect()
    }

    #[test]
    fn a_fault_counts_for_what_it_concerns() {
        use Weight::{Degrades, Fails, Noted};
        let group = |name: &str| On::Group(name.to_owned());
        let rows: [(&[(Weight, On)], &str); 15] = [
            (&[], "oooo" /* host, three pools */),
            (&[(Noted, On::Everything)], "oooo"),
            (&[(Degrades, On::Host)], "dooo"),
            (&[(Fails, On::Host)], "Fooo"),
            (&[(Fails, On::Everything)], "FFFF"),
            (&[(Fails, group("vg0"))], "dFFo"),
            (&[(Fails, group("vg0")), (Fails, group("vg1"))], "FFFF"),
            (&[(Fails, On::Pool("vg0:thin".to_owned()))], "doFo"),
            (&[(Fails, On::ThinPools)], "doFo"),
            (&[(Degrades, On::Pools)], "dddd"),
            (&[(Degrades, On::Pools), (Fails, group("vg1"))], "dddF"),
            (&[(Fails, On::Transports)], "Fooo"),
            (&[(Fails, On::Transport("iscsi"))], "dooo"),
            (&[(Fails, On::Transport("iscsi")), (Degrades, On::Transport("fc"))], "dooo"),
            (&[(Fails, On::Portal("10.0.1.1:3260".to_owned()))], "dooo"),
        ];
        let transports = [
            "ooo", "ooo", "ooo", "ooo", "FFF", "ooo", "ooo", "ooo", "ooo", "ooo", "ooo", "FFF", "FFo", "FFd",
            "oFo",
        ];
        for ((faults, first), rest) in rows.into_iter().zip(transports) {
            assert_eq!(levels(faults), format!("{first}{rest}"), "{faults:?}");
        }
    }

    #[test]
    fn the_worst_is_told_first_and_what_is_only_noted_is_no_reason() {
        let mut found = found();
        let fault = |code, weight, text: &str| Fault::new(code, weight, On::Pools, "vg0", text.to_owned());
        let faults = [
            fault(Code::Noted, Weight::Noted, "one"),
            fault(Code::ThinPoolNearlyFull, Weight::Degrades, "two"),
            fault(Code::LvmFailed, Weight::Fails, "three"),
        ];
        judge(&mut found, &faults, true);
        assert_eq!(found.problems.len(), 3, "each is told");
        let reasons = found.pools[0].health.clone().unwrap().reasons;
        let told: Vec<_> = reasons.iter().map(|one| (one.code.as_str(), one.level())).collect();
        let degraded = ("thin_pool_nearly_full", v1::HealthLevel::Degraded);
        assert_eq!(told, [("lvm_failed", v1::HealthLevel::Failed), degraded]);
        assert_eq!(reasons[0].problem.as_ref().unwrap().text, "three");
        assert_eq!(found.health.unwrap().reasons, reasons);
    }

    #[test]
    fn a_host_that_serves_nothing_does_not_fail_for_want_of_pools() {
        let mut found = v1::Capabilities::default();
        judge(&mut found, &[], false);
        assert_eq!(found.health.as_ref().unwrap().level(), v1::HealthLevel::Ok);
        // The control: a host that serves fails without pools, unless nobody knows of any.
        judge(&mut found, &[], true);
        assert_eq!(found.health.as_ref().unwrap().level(), v1::HealthLevel::Failed);
    }
}
