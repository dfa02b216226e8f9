//! The names under which one host reaches a volume: its iSCSI name, or its Fibre Channel ports.
//!
//! A storage agent grants to each port of a host separately, and reports each revocation
//! separately. Here they are one nexus: a host's grant is revoked only when it is revoked at all of
//! its ports.
//!
//! What must never happen here: two spellings of one host that compare as different; two
//! attachments that share a port taken for strangers.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use mooring_model::{Initiator, Iqn, NameError, Wwpn};

/// The Fibre Channel ports of one host: at least one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPorts(BTreeSet<Wwpn>);

impl HostPorts {
    /// One port.
    pub fn one(port: Wwpn) -> Self {
        Self(BTreeSet::from([port]))
    }

    /// A set of ports; `None` if it is empty.
    pub fn new(ports: impl IntoIterator<Item = Wwpn>) -> Option<Self> {
        let ports: BTreeSet<_> = ports.into_iter().collect();
        (!ports.is_empty()).then_some(Self(ports))
    }

    /// The ports, in order.
    pub fn iter(&self) -> impl Iterator<Item = Wwpn> {
        self.0.iter().copied()
    }
}

/// The names of a host that reaches a volume. With the volume, they are the nexus.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Initiators {
    /// Over iSCSI.
    Iscsi(Iqn),
    /// Over Fibre Channel.
    Fc(HostPorts),
}

impl Initiators {
    /// The iSCSI name; `None` over Fibre Channel.
    pub fn iqn(&self) -> Option<&Iqn> {
        match self {
            Self::Iscsi(iqn) => Some(iqn),
            Self::Fc(_) => None,
        }
    }

    /// The Fibre Channel ports; `None` over iSCSI.
    pub fn ports(&self) -> Option<&HostPorts> {
        match self {
            Self::Iscsi(_) => None,
            Self::Fc(ports) => Some(ports),
        }
    }

    /// Each name, as the storage agents know it.
    pub fn each(&self) -> impl Iterator<Item = Initiator> {
        let iqn = self.iqn().cloned().map(Initiator::Iscsi);
        let ports = self.ports().into_iter().flat_map(HostPorts::iter).map(Initiator::Fc);
        iqn.into_iter().chain(ports)
    }

    /// Returns `true` if this is one of the names.
    pub fn has(&self, one: &Initiator) -> bool {
        match (self, one) {
            (Self::Iscsi(own), Initiator::Iscsi(iqn)) => own == iqn,
            (Self::Fc(ports), Initiator::Fc(port)) => ports.0.contains(port),
            (Self::Iscsi(_), Initiator::Fc(_)) | (Self::Fc(_), Initiator::Iscsi(_)) => false,
        }
    }

    /// Returns `true` if both share a name: an act on one at the target then affects the other.
    pub fn meets(&self, other: &Self) -> bool {
        other.each().any(|one| self.has(&one))
    }
}

impl From<Iqn> for Initiators {
    fn from(iqn: Iqn) -> Self {
        Self::Iscsi(iqn)
    }
}

impl PartialEq<Iqn> for Initiators {
    fn eq(&self, other: &Iqn) -> bool {
        self.iqn() == Some(other)
    }
}

impl FromStr for Initiators {
    type Err = NameError;

    /// Reads the form of [`Display`](fmt::Display): an iSCSI name, or ports with commas between
    /// them.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let ports: Result<Vec<Wwpn>, _> = text.split(',').map(str::parse).collect();
        match ports.ok().and_then(HostPorts::new) {
            Some(ports) => Ok(Self::Fc(ports)),
            None => text.parse().map(Self::Iscsi),
        }
    }
}

impl fmt::Display for Initiators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, one) in self.each().enumerate() {
            write!(f, "{}{one}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Initiators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    use super::*;

    fn ports(numbers: &BTreeSet<u64>) -> Initiators {
        Initiators::Fc(HostPorts::new(numbers.iter().filter_map(|number| Wwpn::from_u64(*number))).unwrap())
    }

    fn any_initiators() -> impl Strategy<Value = Initiators> {
        let iqn = (0..4_u8, 0..4_usize).prop_map(|(n, kind)| {
            // Names with the digits of the ports below are no ports.
            let names = [
                format!("iqn.2026-01.lab:host{n}"),
                format!("eui.{:016x}", n + 1),
                format!("naa.{:016x}", n + 1),
                format!("naa.{:032x}", n + 1),
            ];
            names[kind].parse().unwrap()
        });
        let fc = btree_set(1..6_u64, 1..4).prop_map(|numbers| ports(&numbers));
        prop_oneof![iqn.prop_map(Initiators::Iscsi), fc]
    }

    proptest! {
        /// Law: reading the text gives the original names.
        #[test]
        fn the_text_says_all(of in any_initiators()) {
            prop_assert_eq!(of.to_string().parse::<Initiators>().unwrap(), of.clone());
            prop_assert_eq!(of.each().count(), of.ports().map_or(1, |ports| ports.iter().count()));
        }

        /// Law: two meet exactly when they share a name; each meets itself.
        #[test]
        fn they_meet_in_a_name(a in any_initiators(), b in any_initiators()) {
            let common = a.each().any(|one| b.each().any(|other| one == other));
            prop_assert_eq!(a.meets(&b), common);
            prop_assert_eq!(a.meets(&b), b.meets(&a));
            prop_assert!(a.meets(&a));
        }
    }

    #[test]
    fn a_name_of_iscsi_is_read_back_as_one_and_no_port() {
        for name in ["naa.200052540014000b", "eui.200052540014000b", "naa.200052540014000b200052540014000c"] {
            let initiators: Initiators = name.parse().unwrap();
            assert_eq!(initiators.iqn().map(Iqn::as_str), Some(name));
            let port: Initiators = "200052540014000b".parse().unwrap();
            assert!(!initiators.meets(&port), "{name}");
        }
    }

    #[test]
    fn what_names_nobody_is_refused() {
        for bad in
            ["", ",", "20:00:52:54:00:14:00:0a,", "20:00:52:54:00:14:00:0a,iqn.2026-01.lab:host1", "host1"]
        {
            assert!(bad.parse::<Initiators>().is_err(), "{bad:?}");
        }
        assert_eq!(HostPorts::new([]), None);
    }
}
