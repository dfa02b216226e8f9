//! Fibre Channel: port names, target ports, and the LUN numbers under which initiators reach
//! volumes.
//!
//! All volumes of one target port share its portal group. Each (volume, initiator) has its own TPG
//! LUN there: removing its backing drains this nexus and no other. The LUN's number is a function
//! of two small numbers, so two nexuses of a port cannot collide (decision 22):
//!
//! ```text
//! TPG LUN = slot × 256 + LUN        slot: the initiator's, 1 to 65535; LUN: what this initiator sees, 1 to 255
//! ```
//!
//! What must never happen here: two spellings of one port that compare as different; a grant whose
//! number could be another grant's.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limit::{FC_LUN_MAX, GRANTS_PER_EXPORT_MAX};
use crate::name::wrong;
use crate::{AttachmentId, Counters, Lun, Mode, NameError, SpecError};

/// A Fibre Channel port name, 64 bits. The text is the form that configfs takes:
/// `20:00:52:54:00:14:00:0a`, lower case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Wwpn(u64);

impl Wwpn {
    /// Makes a name from its number; `None` for 0, which names no port.
    pub const fn from_u64(number: u64) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// Parses a name where nothing but a port can stand: every spelling of
    /// [`from_str`](Self::from_str), and rtslib's `naa.200052540014000a`.
    ///
    /// Where an iSCSI name can stand, too, `naa.` begins such a name (RFC 7143, 4.2.7.6).
    pub fn of_port(text: &str) -> Result<Self, NameError> {
        let bare = ["naa.", "NAA."].iter().find_map(|prefix| text.strip_prefix(prefix));
        let digits =
            bare.filter(|bare| bare.len() == 16 && bare.bytes().all(|byte| byte.is_ascii_hexdigit()));
        digits.unwrap_or(text).parse()
    }

    /// The number, as sysfs writes it behind `0x`.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The spelling of Linux and os-brick: hexadecimal digits without `0x` and leading zeros.
    pub fn to_linux(self) -> String {
        format!("{:x}", self.0)
    }
}

/// The number that `least` to 16 hexadecimal digits write; `None` for another text.
fn number(digits: &str, least: usize) -> Option<u64> {
    let whole = (least..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if whole { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// The number of a name in any spelling; `None` for a text of another form.
///
/// Linux prints names without leading zeros (`0x%llx`, `scsi_transport_fc.c`), and os-brick takes
/// the `0x` away. A bare text of fewer than 15 digits is more likely something else.
fn number_of(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return number(digits, 1);
    }
    let pairs = |separator: char| {
        let parts: Vec<&str> = text.split(separator).collect();
        (parts.len() == 8 && parts.iter().all(|part| part.len() == 2)).then(|| parts.concat())
    };
    match pairs(':').or_else(|| pairs('-')) {
        Some(digits) => number(&digits, 16),
        None => number(text, 15),
    }
}

impl FromStr for Wwpn {
    type Err = NameError;

    /// Parses what tools print: `20:00:52:54:00:14:00:0A`, `20-00-…`, `0x200052540014000a` (sysfs),
    /// or the digits alone. After `0x` leading zeros may be missing; of bare digits one may be. A
    /// text with `naa.` is refused: see [`of_port`](Self::of_port).
    fn from_str(text: &str) -> Result<Self, NameError> {
        const WANT: &str = "a Fibre Channel port name";
        let number = number_of(text).ok_or_else(|| {
            wrong(text, WANT, "want 16 hexadecimal digits, for example 20:00:52:54:00:14:00:0a")
        })?;
        Self::from_u64(number).ok_or_else(|| wrong(text, WANT, "all zeros name no port"))
    }
}

impl TryFrom<String> for Wwpn {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Wwpn> for String {
    fn from(name: Wwpn) -> Self {
        name.to_string()
    }
}

impl fmt::Display for Wwpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.to_be_bytes().iter().enumerate() {
            write!(f, "{}{byte:02x}", if index == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Wwpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The target driver of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FcFabric {
    /// Ports of libfc: software FCoE, and adapters that leave the protocol to it.
    #[serde(rename = "fc")]
    TcmFc,
    /// QLogic adapters.
    Qla2xxx,
    /// Emulex adapters.
    Efct,
}

impl FcFabric {
    /// All drivers.
    pub const ALL: [Self; 3] = [Self::TcmFc, Self::Qla2xxx, Self::Efct];

    /// The driver's folder in configfs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TcmFc => "fc",
            Self::Qla2xxx => "qla2xxx",
            Self::Efct => "efct",
        }
    }

    /// The kernel module that provides the driver.
    pub const fn module(self) -> &'static str {
        match self {
            Self::TcmFc => "tcm_fc",
            Self::Qla2xxx => "tcm_qla2xxx",
            Self::Efct => "efct",
        }
    }
}

impl fmt::Display for FcFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FcFabric {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let known = Self::ALL.into_iter().find(|fabric| fabric.as_str() == text);
        known.ok_or_else(|| wrong(text, "a Fibre Channel target driver", "want fc, qla2xxx or efct"))
    }
}

/// A target port of a storage node: `fc/20:00:52:54:00:14:00:0a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FcPort {
    /// The driver.
    pub fabric: FcFabric,
    /// The port's name.
    pub wwpn: Wwpn,
}

impl fmt::Display for FcPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.fabric, self.wwpn)
    }
}

impl FromStr for FcPort {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (fabric, name) = text.split_once('/').ok_or_else(|| {
            wrong(
                text,
                "a Fibre Channel target port",
                "want its driver and its name: fc/20:00:52:54:00:14:00:0a",
            )
        })?;
        Ok(Self { fabric: fabric.parse()?, wwpn: Wwpn::of_port(name)? })
    }
}

/// An initiator's number on a storage node. The controller gives each initiator one, and reuses it
/// only when no kernel can hold a nexus of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InitiatorSlot(NonZeroU16);

impl InitiatorSlot {
    /// Makes a slot; `None` unless the number is from 1 to 65535.
    pub const fn new(number: u16) -> Option<Self> {
        match NonZeroU16::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for InitiatorSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The number of a LUN in a port's portal group. Initiators never see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortLun(u32);

impl PortLun {
    /// Size of an initiator's block of TPG LUN numbers; each block begins at a multiple of it.
    const BLOCK: u32 = FC_LUN_MAX as u32 + 1;

    /// The TPG LUN number of this initiator's LUN; `None` if the LUN is not one that a grant may
    /// have.
    pub fn of(slot: InitiatorSlot, lun: Lun) -> Option<Self> {
        let lun = Some(lun.0).filter(|lun| (1..=FC_LUN_MAX).contains(lun))?;
        Some(Self(u32::from(slot.get()) * Self::BLOCK + u32::from(lun)))
    }

    /// The initiator's slot and LUN that a number encodes; `None` if [`PortLun::of`] cannot make
    /// it.
    pub fn parts(number: u32) -> Option<(InitiatorSlot, Lun)> {
        let slot = InitiatorSlot::new(u16::try_from(number / Self::BLOCK).ok()?)?;
        let lun = u16::try_from(number % Self::BLOCK).ok().filter(|lun| *lun > 0)?;
        Some((slot, Lun(lun)))
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PortLun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The spec of one initiator port's access to the volume over Fibre Channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FcGrant {
    /// The initiator port.
    pub initiator: Wwpn,
    /// The initiator's number on this storage node.
    pub slot: InitiatorSlot,
    /// The LUN number that the initiator sees, 1 to 255; each of its volumes on this node has
    /// another one.
    pub lun: Lun,
    /// The access it allows.
    pub mode: Mode,
    /// The attachments that share this nexus.
    pub attachments: Vec<AttachmentId>,
}

/// The Fibre Channel export of one volume. A grant applies on every port; one that is absent here
/// is revoked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FcExportSpec {
    /// The target ports. Empty: those in the agent's configuration.
    pub ports: Vec<FcPort>,
    /// The grants.
    pub grants: Vec<FcGrant>,
}

impl FcExportSpec {
    /// Checks what the types alone cannot guarantee. The controller ensures that an initiator keeps
    /// its slot and has a different LUN for each volume: one spec shows only one volume.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.ports.iter().map(|port| port.wwpn).collect::<BTreeSet<_>>().len() != self.ports.len() {
            return Err(SpecError::new("fc.ports", "one port is listed twice"));
        }
        if self.grants.len() > GRANTS_PER_EXPORT_MAX {
            return Err(SpecError::new("fc.grants", format!("more than {GRANTS_PER_EXPORT_MAX}")));
        }
        let (mut names, mut slots) = (BTreeSet::new(), BTreeSet::new());
        for (index, grant) in self.grants.iter().enumerate() {
            let field = |name| format!("fc.grants[{index}].{name}");
            if !names.insert(grant.initiator) {
                let why = format!(
                    "{} is listed twice; attachments of one initiator share one grant",
                    grant.initiator
                );
                return Err(SpecError::new(field("initiator"), why));
            }
            if !slots.insert(grant.slot) {
                let why =
                    format!("slot {} belongs to another initiator: each has one of its own", grant.slot);
                return Err(SpecError::new(field("slot"), why));
            }
            if PortLun::of(grant.slot, grant.lun).is_none() {
                let why = format!("LUN {} is not allowed: want 1 to {FC_LUN_MAX}", grant.lun);
                return Err(SpecError::new(field("lun"), why));
            }
            if self.ports.iter().any(|port| port.wwpn == grant.initiator) {
                let why = format!("{} is a target port of this export, not an initiator", grant.initiator);
                return Err(SpecError::new(field("initiator"), why));
            }
        }
        Ok(())
    }
}

/// The report on one Fibre Channel grant at one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FcGrantReport {
    /// The initiator.
    pub initiator: Wwpn,
    /// The LUN number that it sees.
    pub lun: Lun,
    /// The mode in the spec.
    pub wanted: Mode,
    /// The mode that the kernel enforces; `None` while the nexus is not complete.
    pub seen: Option<Mode>,
    /// `true` if the target holds a login of this initiator.
    pub logged_in: bool,
    /// I/O counters of the nexus.
    pub counters: Counters,
}

/// The report on one volume at one Fibre Channel port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FcPortReport {
    /// The port.
    pub port: FcPort,
    /// The port's portal group exists and answers logins.
    pub serves: bool,
    /// The grants.
    pub grants: Vec<FcGrantReport>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grant(initiator: u64, slot: u16, lun: u16) -> FcGrant {
        FcGrant {
            initiator: Wwpn::from_u64(initiator).unwrap(),
            slot: InitiatorSlot::new(slot).unwrap(),
            lun: Lun(lun),
            mode: Mode::ReadWrite,
            attachments: Vec::new(),
        }
    }

    fn spec(grants: Vec<FcGrant>) -> FcExportSpec {
        let wwpn = Wwpn::from_u64(0x2000_5254_0014_000a).unwrap();
        FcExportSpec { ports: vec![FcPort { fabric: FcFabric::TcmFc, wwpn }], grants }
    }

    #[test]
    fn one_port_has_many_spellings_and_one_text() {
        for text in [
            "20:00:52:54:00:14:00:0a",
            "20:00:52:54:00:14:00:0A",
            "20-00-52-54-00-14-00-0a",
            "0x200052540014000a",
            "0X200052540014000A",
            "200052540014000a",
            "200052540014000A",
        ] {
            let name: Wwpn = text.parse().unwrap();
            assert_eq!(
                (name.to_string().as_str(), name.as_u64()),
                ("20:00:52:54:00:14:00:0a", 0x2000_5254_0014_000a)
            );
        }
        for bad in [
            "",
            "0x",
            "naa.",
            "naa.200052540014000a",
            "NAA.200052540014000A",
            "20:00:52:54:00:14:00",
            "20:00:52:54:00:14:00:0a:0b",
            "20:00:52:54:00:14:00:a",
            "200:0:52:54:00:14:00:0a",
            "20:00-52:54:00:14:00:0a",
            "0x20:00:52:54:00:14:00:0a",
            "naa.20-00-52-54-00-14-00-0a",
            "0xnaa.200052540014000a",
            "0x0",
            "0x+1",
            "0x0200052540014000a",
            "0x0x200052540014000a",
            "00052540014000",
            "000000000000000",
            "200052540014000ag",
            "+00052540014000a",
            "-0005254001400a",
            "20:00:52:54:00:14:00:0g",
            " 200052540014000a",
            "200052540014000a\n",
            "00:00:00:00:00:00:00:00",
            "iqn.2026-01.lab:host1",
            "2000525400140００a",
        ] {
            assert!(bad.parse::<Wwpn>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn leading_zeros_may_be_missing_as_linux_prints_names() {
        for (text, number) in [
            ("100000000000b01", 0x0100_0000_0000_0b01),
            ("0100000000000B01", 0x0100_0000_0000_0b01),
            ("0x100000000000b01", 0x0100_0000_0000_0b01),
            ("0x0100000000000b01", 0x0100_0000_0000_0b01),
            ("01:00:00:00:00:00:0b:01", 0x0100_0000_0000_0b01),
            ("0xa", 0xa),
            ("0x000A", 0xa),
        ] {
            assert_eq!(text.parse::<Wwpn>().unwrap().as_u64(), number, "{text}");
        }
        let name = Wwpn::from_u64(0x0100_0000_0000_0b01).unwrap();
        assert_eq!(
            (name.to_linux().as_str(), name.to_string().as_str()),
            ("100000000000b01", "01:00:00:00:00:00:0b:01")
        );
    }

    #[test]
    fn rtslibs_spelling_is_a_ports_only_where_a_port_stands() {
        for text in ["naa.200052540014000a", "NAA.200052540014000A", "0x200052540014000a", "200052540014000a"]
        {
            assert_eq!(Wwpn::of_port(text).unwrap().as_u64(), 0x2000_5254_0014_000a, "{text}");
        }
        let port: FcPort = "qla2xxx/naa.200052540014000a".parse().unwrap();
        assert_eq!(port.to_string(), "qla2xxx/20:00:52:54:00:14:00:0a");
        for bad in [
            "",
            "naa.",
            "naa.0000000000000000",
            "naa.0x20005254001400",
            "naa.20005254001400",
            "naa.200052540014000a0",
            "naa.20:00:52:54:00:14:00:0a",
            "naa.naa.200052540014000a",
            "naa.200052540014000a200052540014000a",
        ] {
            assert!(Wwpn::of_port(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_driver_is_named_by_its_folder() {
        for fabric in FcFabric::ALL {
            assert_eq!(fabric.as_str().parse::<FcFabric>().unwrap(), fabric);
        }
        for bad in ["", "iscsi", "tcm_fc", "FC", "qla2xxx_npiv"] {
            assert!(bad.parse::<FcFabric>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_port_is_its_driver_and_its_name() {
        let port: FcPort = "qla2xxx/20:00:52:54:00:14:00:0A".parse().unwrap();
        assert_eq!(port.to_string(), "qla2xxx/20:00:52:54:00:14:00:0a");
        for bad in ["", "fc", "fc/", "/20:00:52:54:00:14:00:0a", "20:00:52:54:00:14:00:0a", "fc/20:00/1"] {
            assert!(bad.parse::<FcPort>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_spec_is_checked_by_field() {
        assert_eq!(spec(vec![grant(1, 1, 1), grant(2, 2, 1), grant(3, 65535, 255)]).check(), Ok(()));
        for (grants, field) in [
            (vec![grant(1, 1, 0)], "fc.grants[0].lun"),
            (vec![grant(1, 1, 256)], "fc.grants[0].lun"),
            (vec![grant(1, 1, 1), grant(1, 2, 1)], "fc.grants[1].initiator"),
            (vec![grant(1, 1, 1), grant(2, 1, 2)], "fc.grants[1].slot"),
            (vec![grant(0x2000_5254_0014_000a, 1, 1)], "fc.grants[0].initiator"),
        ] {
            assert_eq!(spec(grants).check().unwrap_err().field, field);
        }
        let many = (1..=513).map(|number| grant(u64::from(number), number, 1)).collect();
        assert_eq!(spec(many).check().unwrap_err().field, "fc.grants");
        let mut twice = spec(vec![]);
        twice.ports.push(FcPort { fabric: FcFabric::Efct, ..twice.ports[0] });
        assert_eq!(twice.check().unwrap_err().field, "fc.ports");
    }

    proptest! {
        /// Law: a name survives formatting and parsing, in every spelling that tools use.
        #[test]
        fn text_and_number_agree(number in 1u64..) {
            let name = Wwpn::from_u64(number).unwrap();
            let text = name.to_string();
            prop_assert_eq!(text.parse::<Wwpn>().unwrap(), name);
            prop_assert_eq!(text.to_uppercase().parse::<Wwpn>().unwrap(), name);
            prop_assert_eq!(text.replace(':', "-").parse::<Wwpn>().unwrap(), name);
            for spelling in [format!("0x{number:016x}"), format!("{number:#x}"), format!("{number:016X}")] {
                prop_assert_eq!(spelling.parse::<Wwpn>().unwrap(), name);
                prop_assert_eq!(Wwpn::of_port(&spelling).unwrap(), name);
            }
            prop_assert_eq!(Wwpn::of_port(&format!("naa.{number:016x}")).unwrap(), name);
            // A bare text of fewer digits is no name: os-brick's own names have 15 or 16.
            let linux = name.to_linux();
            let read = linux.parse::<Wwpn>().ok();
            prop_assert_eq!(read, (linux.len() >= 15).then_some(name));
            prop_assert_eq!(Wwpn::try_from(String::from(name)).unwrap(), name);
            prop_assert_eq!(text.len(), 23);
        }

        /// Law: parsing never panics; an accepted text has one canonical form.
        #[test]
        fn garbage_is_refused(text in prop_oneof!["\\PC{0,24}", "[0-9a-f:x.-]{14,24}", "(0x|naa\\.)?[0-9a-fA-F]{15,17}"]) {
            if let Ok(name) = text.parse::<Wwpn>() {
                prop_assert_eq!(name.to_string().parse::<Wwpn>().unwrap(), name);
            }
        }

        /// Law: two nexuses of a port share a number only if they are the same nexus, and the
        /// number identifies it.
        #[test]
        fn port_luns_are_unique(a in (1u16.., 1u16..=255), b in (1u16.., 1u16..=255)) {
            let number = |(slot, lun)| PortLun::of(InitiatorSlot::new(slot).unwrap(), Lun(lun)).unwrap();
            prop_assert_eq!(number(a) == number(b), a == b);
            let (slot, lun) = PortLun::parts(number(a).get()).unwrap();
            prop_assert_eq!((slot.get(), lun.0), a);
            // Avoids the numbers that rtslib and people use.
            prop_assert!(number(a).get() > 256);
        }

        /// Law: a number that no nexus can have has no parts.
        #[test]
        fn foreign_numbers_have_no_parts(number in any::<u32>()) {
            match PortLun::parts(number) {
                Some((slot, lun)) => prop_assert_eq!(PortLun::of(slot, lun).unwrap().get(), number),
                None => prop_assert!(number < 257 || number % 256 == 0 || number > 0x00ff_ffff),
            }
        }
    }
}
