//! Numbers over Fibre Channel: the LUN under which a host sees a volume, and the slot of an
//! initiator port on a storage agent ([decision
//! 22](../../../docs/decisions/0022-one-tpg-lun-per-nexus.md)). Pure: the numbers in use go in, a
//! number comes out.
//!
//! A host that has not removed a disk yet would take a new volume under the same number for that
//! disk (CVE-2023-2088). So a number stays with its volume until its nexus was cut, with proof. Of
//! the free numbers, the one that has been free for longest is given.
//!
//! What must never happen here: one number for two volumes of a port; two numbers for one volume at
//! one port; one slot for two ports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use mooring_model::limit::FC_LUN_MAX;
use mooring_model::{InitiatorSlot, Lun, VolumeId, Wwpn};

use crate::domain::{AttachViolation, RuleViolation};
use crate::initiators::HostPorts;

/// A number of an initiator port that is in use, or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownLun {
    /// The port.
    pub port: Wwpn,
    /// The number.
    pub lun: Lun,
    /// The volume that has it. `None`: it is free.
    pub volume: Option<VolumeId>,
    /// The time since which it is free.
    pub freed_at: Option<SystemTime>,
}

/// Returns the number under which all of these ports are to see a volume. `known`: every number
/// that any of them has or had on that agent.
///
/// One number for all: connection info names one number, whatever ports the host has.
pub fn lun(volume: VolumeId, ports: &HostPorts, known: &[KnownLun]) -> Result<Lun, RuleViolation> {
    let of_host: Vec<_> = known.iter().filter(|one| ports.iter().any(|port| port == one.port)).collect();
    let own: BTreeSet<Lun> =
        of_host.iter().filter(|one| one.volume == Some(volume)).map(|one| one.lun).collect();
    let taken: BTreeMap<Lun, (Wwpn, VolumeId)> = of_host
        .iter()
        .filter_map(|one| one.volume.filter(|of| *of != volume).map(|of| (one.lun, (one.port, of))))
        .collect();
    match own.iter().copied().collect::<Vec<_>>()[..] {
        [] => {}
        [lun] => {
            return match taken.get(&lun) {
                None => Ok(lun),
                Some(&(port, other)) => {
                    Err(RuleViolation::Attach(AttachViolation::LunTaken { volume, lun, port, other }))
                }
            };
        }
        _ => return Err(RuleViolation::Attach(AttachViolation::LunsDiffer { volume })),
    }
    // A number that was freed at several ports counts from the last of them.
    let mut freed: BTreeMap<Lun, SystemTime> = BTreeMap::new();
    for one in of_host {
        if let Some(at) = one.freed_at.filter(|_| one.volume.is_none()) {
            let last = freed.entry(one.lun).or_insert(at);
            *last = at.max(*last);
        }
    }
    let free = (1..=FC_LUN_MAX).map(Lun).filter(|lun| !taken.contains_key(lun));
    free.min_by_key(|lun| (freed.get(lun).copied(), *lun))
        .ok_or(RuleViolation::Attach(AttachViolation::NoLunLeft))
}

/// Returns a slot for a port that has none yet. `None`: all are taken. The search starts at a place
/// that the port's name determines. So after the loss of a database the same port gets the same
/// slot again, and another port another one.
pub fn slot(port: Wwpn, taken: &BTreeSet<u16>) -> Option<InitiatorSlot> {
    const SLOTS: u64 = u16::MAX as u64;
    // Ports of one host, and of one maker, differ in few bits: multiplied by an odd constant these
    // reach the upper half.
    let mixed = port.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let first = mixed % SLOTS;
    (0..SLOTS)
        .filter_map(|step| u16::try_from((first + step) % SLOTS + 1).ok())
        .find(|slot| !taken.contains(slot))
        .and_then(InitiatorSlot::new)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    fn port(number: u64) -> Wwpn {
        Wwpn::from_u64(number).unwrap()
    }

    fn host(numbers: &BTreeSet<u64>) -> HostPorts {
        HostPorts::new(numbers.iter().map(|number| port(*number))).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Attaches a volume to ports, or detaches it from everything.
    #[derive(Debug, Clone)]
    enum Event {
        Attach(u8, BTreeSet<u64>),
        Detach(u8),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (0..8_u8, btree_set(1..5_u64, 1..4)).prop_map(|(volume, ports)| Event::Attach(volume, ports)),
            2 => (0..8_u8).prop_map(Event::Detach),
        ]
    }

    /// The numbers that a store keeps.
    #[derive(Default)]
    struct Ledger(Vec<KnownLun>);

    impl Ledger {
        fn take(&mut self, volume: VolumeId, ports: &HostPorts, lun: Lun) {
            for port in ports.iter() {
                let free = |one: &KnownLun| one.port == port && one.lun == lun;
                assert!(
                    self.0.iter().filter(|one| free(one)).all(|one| one.volume.is_none_or(|of| of == volume))
                );
                self.0.retain(|one| !free(one));
                self.0.push(KnownLun { port, lun, volume: Some(volume), freed_at: None });
            }
        }

        fn release(&mut self, volume: VolumeId, now: SystemTime) {
            for one in self.0.iter_mut().filter(|one| one.volume == Some(volume)) {
                (one.volume, one.freed_at) = (None, Some(now));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Law: after any sequence, a port has one number for each volume and one volume for each
        /// number, and all ports of an attachment have the same number. A freed number comes back
        /// only after every number that was freed before it, and after every number that was never
        /// used.
        #[test]
        fn a_number_is_one_volumes_and_comes_back_last(events in vec(event(), 1..60)) {
            let mut ledger = Ledger::default();
            for (now, event) in (1..).zip(events) {
                match event {
                    Event::Detach(volume) => ledger.release(VolumeId::from_u128(volume.into()), at(now)),
                    Event::Attach(volume, ports) => {
                        let (volume, ports) = (VolumeId::from_u128(volume.into()), host(&ports));
                        let has = ledger.0.iter().any(|one| {
                            one.volume == Some(volume) && ports.iter().any(|port| port == one.port)
                        });
                        let Ok(lun) = lun(volume, &ports, &ledger.0) else {
                            prop_assert!(has, "refused only where the ports disagree already");
                            continue;
                        };
                        let own = |one: &&KnownLun| ports.iter().any(|port| port == one.port);
                        if !has {
                            let freed = |of: Lun| {
                                ledger.0.iter().filter(own).filter(|one| one.lun == of).map(|one| one.freed_at).max().flatten()
                            };
                            let taken = |of: Lun| {
                                ledger.0.iter().filter(own).any(|one| one.lun == of && one.volume.is_some())
                            };
                            for other in (1..=FC_LUN_MAX).map(Lun).filter(|other| !taken(*other)) {
                                prop_assert!(freed(lun) <= freed(other), "{lun} before {other}");
                            }
                        }
                        ledger.take(volume, &ports, lun);
                    }
                }
                let mut seen = BTreeSet::new();
                let mut volumes = BTreeSet::new();
                for one in &ledger.0 {
                    prop_assert!(seen.insert((one.port, one.lun)));
                    if let Some(volume) = one.volume {
                        prop_assert!(volumes.insert((one.port, volume)), "two numbers for one volume");
                    }
                }
            }
        }

        /// Law: slots are never shared, as long as there are any, and a port gets the same one
        /// again.
        #[test]
        fn a_slot_is_one_ports(ports in btree_set(1_u64.., 1..80)) {
            let mut taken = BTreeSet::new();
            for number in &ports {
                let given = slot(port(*number), &taken).unwrap();
                prop_assert!(taken.insert(given.get()));
                prop_assert_eq!(slot(port(*number), &BTreeSet::new()), slot(port(*number), &BTreeSet::new()));
            }
        }
    }

    #[test]
    fn every_number_is_given_before_one_comes_back() {
        let (ports, mut ledger) = (host(&BTreeSet::from([1, 2])), Ledger::default());
        let volume = |number: u16| VolumeId::from_u128(number.into());
        for number in 1..=FC_LUN_MAX {
            let given = lun(volume(number), &ports, &ledger.0).unwrap();
            assert_eq!(given, Lun(number));
            ledger.take(volume(number), &ports, given);
        }
        let refused = lun(volume(1_000), &ports, &ledger.0).unwrap_err();
        assert_eq!(refused, RuleViolation::Attach(AttachViolation::NoLunLeft));
        // In the order in which they were freed, not in that of the numbers.
        ledger.release(volume(9), at(1));
        ledger.release(volume(3), at(2));
        assert_eq!(lun(volume(1_000), &ports, &ledger.0), Ok(Lun(9)));
        // A repeated request gets the same number.
        assert_eq!(lun(volume(7), &ports, &ledger.0), Ok(Lun(7)));
    }

    #[test]
    fn ports_that_disagree_are_told_so() {
        let mut ledger = Ledger::default();
        let (one, two) = (host(&BTreeSet::from([1])), host(&BTreeSet::from([2])));
        ledger.take(VolumeId::from_u128(1), &one, Lun(1));
        ledger.take(VolumeId::from_u128(2), &two, Lun(1));
        let both = host(&BTreeSet::from([1, 2]));
        let refused = lun(VolumeId::from_u128(1), &both, &ledger.0).unwrap_err();
        assert!(
            matches!(refused, RuleViolation::Attach(AttachViolation::LunTaken { lun: Lun(1), .. })),
            "{refused:?}"
        );
        ledger.take(VolumeId::from_u128(3), &one, Lun(3));
        ledger.take(VolumeId::from_u128(3), &two, Lun(4));
        let volume = VolumeId::from_u128(3);
        assert_eq!(
            lun(volume, &both, &ledger.0),
            Err(RuleViolation::Attach(AttachViolation::LunsDiffer { volume }))
        );
        assert_eq!(lun(VolumeId::from_u128(4), &both, &ledger.0), Ok(Lun(2)));
    }

    #[test]
    fn slots_end() {
        let all: BTreeSet<u16> = (1..=u16::MAX).collect();
        assert_eq!(slot(port(1), &all), None);
        let but_one: BTreeSet<u16> = (1..=u16::MAX).filter(|slot| *slot != 4711).collect();
        assert_eq!(slot(port(1), &but_one).map(InitiatorSlot::get), Some(4711));
    }
}
