//! Names that end up on disks and wires. They are functions of ids and never change (ARCHITECTURE,
//! invariants 4 and 5).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limit::{ISCSI_NAME_BYTES_MAX, LV_NAME_BYTES_MAX, VG_NAME_BYTES_MAX};
use crate::{AgentId, RevertId, VolumeId};

/// A text that is not a name of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {want}: {why}")]
pub struct NameError {
    text: String,
    want: &'static str,
    why: &'static str,
}

pub(crate) fn wrong(text: &str, want: &'static str, why: &'static str) -> NameError {
    // Names come from requests: keep the part that an error repeats short.
    NameError { text: text.chars().take(80).collect(), want, why }
}

/// The kind of name that an error about an iSCSI name says.
const ISCSI_NAME: &str = "an iSCSI name";

/// The tag of every LV that Mooring owns. An LV without it is foreign.
pub const LV_TAG: &str = "mooring";

/// The tag of an LV whose blocks are not zeroed yet. Such an LV is never exported.
pub const LV_UNZEROED_TAG: &str = "mooring-unzeroed";

/// LV tag, beside [`LV_UNZEROED_TAG`], while an image is copied into the LV. An LV with both tags
/// holds at most a part of an image.
pub const LV_IMPORTING_TAG: &str = "mooring-importing";

/// Prefix of the tag of an LV that keeps a name of its own: `mooring-volume-<volume uuid>`.
const LV_VOLUME_TAG: &str = "mooring-volume-";

/// The tag that marks an adopted LV, which keeps its name, as this volume's.
pub fn lv_volume_tag(volume: VolumeId) -> String {
    format!("{LV_VOLUME_TAG}{volume}")
}

/// The volume that such a tag names; `None` if the tag is not exactly as we write it.
pub fn volume_of_lv_tag(tag: &str) -> Option<VolumeId> {
    let id = tag.strip_prefix(LV_VOLUME_TAG)?;
    id.parse().ok().filter(|volume: &VolumeId| volume.to_string() == id)
}

/// Prefix of the tag of an LV that a revert made: `mooring-reverted-<revert uuid>`.
const LV_REVERT_TAG: &str = "mooring-reverted-";

/// The permanent tag of the LV that this revert made: proof that the revert was done.
pub fn lv_revert_tag(revert: RevertId) -> String {
    format!("{LV_REVERT_TAG}{revert}")
}

/// The revert that such a tag names; `None` if the tag is not exactly as we write it.
pub fn revert_of_lv_tag(tag: &str) -> Option<RevertId> {
    let id = tag.strip_prefix(LV_REVERT_TAG)?;
    id.parse().ok().filter(|revert: &RevertId| revert.to_string() == id)
}

/// Prefix of the tag that records how far an LV is zeroed; MiB from its beginning follow.
pub const LV_ZEROED_MARK: &str = "mooring-zeroed-";

/// Prefix of the tag that records how far an image is copied into an LV; the image's state and MiB
/// from the beginning follow.
pub const LV_COPIED_MARK: &str = "mooring-copied-";

/// The portal group of every target that Mooring makes.
pub const TPG_DEFAULT: u16 = 1;

/// LUN of every export that Mooring makes: 1, never 0. For an unmapped LUN 0 the kernel answers
/// with a virtual disk of 64 blocks, so a host under revocation would read zeros. An unmapped LUN 1
/// answers with an error (lio.md, d).
pub const LUN_DEFAULT: Lun = Lun(1);

/// A logical unit number as an initiator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lun(pub u16);

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                $check(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                $check(&text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_name!(
    /// An iSCSI name (RFC 7143, 4.2.7), lower case: `iqn.YYYY-MM.authority[:rest]`. An initiator
    /// may also be `eui.` with 16 hexadecimal digits, or `naa.` with 16 or 32; targets are read by
    /// [`Iqn::of_target`].
    ///
    /// Upper case is refused: LIO checks nothing (lio.md, b), so it would accept such a name and
    /// never match it.
    Iqn,
    check_iscsi_name
);
text_name!(
    /// The prefix of every target's name, before `:<volume uuid>`: an IQN without a colon part.
    IqnPrefix,
    check_prefix
);
text_name!(
    /// The name of an LVM volume group (lvm(8)).
    VgName,
    check_vg
);

/// Checks an iSCSI name of any type.
fn check_iscsi_name(text: &str) -> Result<(), NameError> {
    let eui = text.strip_prefix("eui.").map(|digits| (digits, digits.len() == 16));
    let naa = text.strip_prefix("naa.").map(|digits| (digits, matches!(digits.len(), 16 | 32)));
    let Some((digits, is_whole)) = eui.or(naa) else { return check_iqn(text) };
    if digits.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(wrong(text, ISCSI_NAME, "iSCSI names are lower case"));
    }
    if is_whole && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(wrong(text, ISCSI_NAME, "want 16 hexadecimal digits after eui., and 16 or 32 after naa."))
}

fn check_iqn(text: &str) -> Result<(), NameError> {
    const WANT: &str = ISCSI_NAME;
    if text.len() > ISCSI_NAME_BYTES_MAX {
        return Err(wrong(text, WANT, "it is longer than 223 bytes"));
    }
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(wrong(text, WANT, "iSCSI names are lower case"));
    }
    let rest = text.strip_prefix("iqn.").ok_or_else(|| {
        wrong(
            text,
            WANT,
            "want iqn.YYYY-MM.reversed.domain[:name], for example iqn.2004-10.com.example:host1",
        )
    })?;
    if !text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b':'))
    {
        return Err(wrong(text, WANT, "only a-z, 0-9, '.', '-' and ':' are allowed"));
    }
    let (date, rest) =
        rest.split_once('.').ok_or_else(|| wrong(text, WANT, "no naming authority after the date"))?;
    let date_ok = date.len() == 7
        && date.bytes().enumerate().all(|(i, b)| if i == 4 { b == b'-' } else { b.is_ascii_digit() })
        && matches!(
            &date[5..],
            "01" | "02" | "03" | "04" | "05" | "06" | "07" | "08" | "09" | "10" | "11" | "12"
        );
    if !date_ok {
        return Err(wrong(text, WANT, "the date after iqn. is not YYYY-MM"));
    }
    let authority = rest.split(':').next().unwrap_or_default();
    if authority.is_empty() || authority.split('.').any(str::is_empty) {
        return Err(wrong(text, WANT, "the naming authority is not a reversed domain"));
    }
    if rest.ends_with(':') {
        return Err(wrong(text, WANT, "nothing follows the last colon"));
    }
    Ok(())
}

fn check_prefix(text: &str) -> Result<(), NameError> {
    check_iqn(text)?;
    if text.contains(':') {
        return Err(wrong(text, "an IQN prefix", "the part after ':' is the volume's id"));
    }
    // Leave room for ":" and the 36 characters of a UUID.
    if text.len() + 37 > ISCSI_NAME_BYTES_MAX {
        return Err(wrong(text, "an IQN prefix", "it is too long for a volume id behind it"));
    }
    Ok(())
}

fn check_vg(text: &str) -> Result<(), NameError> {
    const WANT: &str = "a volume group name";
    if text.is_empty() || text.len() > VG_NAME_BYTES_MAX {
        return Err(wrong(text, WANT, "want 1 to 64 bytes"));
    }
    if text.starts_with('-') || matches!(text, "." | "..") {
        return Err(wrong(text, WANT, "it must not start with '-' nor be '.' or '..'"));
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'_' | b'.' | b'-')) {
        return Err(wrong(text, WANT, "only letters, digits, '+', '_', '.' and '-' are allowed"));
    }
    Ok(())
}

impl Iqn {
    /// Parses the name of a target, which is an `iqn.…`: Mooring neither makes nor takes over
    /// targets of another type.
    pub fn of_target(text: &str) -> Result<Self, NameError> {
        check_iqn(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl IqnPrefix {
    /// The project's prefix; a site may set its own.
    pub const DEFAULT: &'static str = "iqn.2026-11.dev.mooring";

    /// The name under which a host logs in: `<prefix>:host.<host uuid>`. The distribution's own
    /// name would be shared by cloned images.
    pub fn initiator(&self, host: AgentId) -> Iqn {
        Iqn(format!("{}:host.{host}", self.0))
    }

    /// The name under which a storage node's agent briefly logs in to its own targets to change
    /// reservations: `<prefix>:pr.<agent uuid>`. No grant may have such a name.
    pub fn reserver(&self, agent: AgentId) -> Iqn {
        Iqn(format!("{}:pr.{agent}", self.0))
    }

    /// Returns `true` if an initiator's name is the reserver name of any agent.
    pub fn is_reserver(&self, initiator: &Iqn) -> bool {
        initiator.as_str().strip_prefix(&self.0).is_some_and(|rest| rest.starts_with(":pr."))
    }

    /// The name of a volume's target: `<prefix>:<volume uuid>`.
    pub fn target(&self, volume: VolumeId) -> Iqn {
        let mut name = String::with_capacity(self.0.len() + 40);
        name.extend([self.0.as_str(), ":", &volume.to_string()]);
        Iqn(name)
    }

    /// The volume whose target has this name; `None` if the name is not ours.
    pub fn volume(&self, target: &str) -> Option<VolumeId> {
        let id = target.strip_prefix(&self.0)?.strip_prefix(':')?;
        // Accept only our own spelling: another spelling of an id is another target.
        let as_written = !id.bytes().any(|byte| byte.is_ascii_uppercase());
        id.parse().ok().filter(|_| as_written)
    }
}

impl Default for IqnPrefix {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

/// The name of a logical volume in its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LvName(String);

impl LvName {
    const PREFIX: &'static str = "mooring-";
    const GROWTH_PREFIX: &'static str = "mooring-grow-";
    const BACK_PREFIX: &'static str = "mooring-back-";
    const SNAPSHOT_PREFIX: &'static str = "mooring-snap-";
    const THIN_POOL: &'static str = "mooring-pool";

    /// The name of a volume's LV: `mooring-<volume uuid>`.
    pub fn of(volume: VolumeId) -> Self {
        let mut name = String::with_capacity(Self::PREFIX.len() + 40);
        name.extend([Self::PREFIX, &volume.to_string()]);
        Self(name)
    }

    /// The name of the extents that are appended to a volume, until they are zeroed:
    /// `mooring-grow-<volume uuid>`.
    pub fn growth_of(volume: VolumeId) -> Self {
        Self(format!("{}{volume}", Self::GROWTH_PREFIX))
    }

    /// The name of the LV that will replace this volume's LV in a revert: `mooring-back-<volume
    /// uuid>`.
    pub fn back_of(volume: VolumeId) -> Self {
        Self(format!("{}{volume}", Self::BACK_PREFIX))
    }

    /// The name of a snapshot's LV: `mooring-snap-<snapshot uuid>`.
    pub fn snapshot_of(snapshot: VolumeId) -> Self {
        Self(format!("{}{snapshot}", Self::SNAPSHOT_PREFIX))
    }

    /// The name of an LV that someone else made, or that it had before it was adopted. It may have
    /// the form of one of ours. An error if LVM would not take it (lvm(8)).
    pub fn existing(text: &str) -> Result<Self, NameError> {
        const WANT: &str = "a logical volume's name";
        if text.is_empty() || text.len() > LV_NAME_BYTES_MAX {
            return Err(wrong(text, WANT, "want 1 to 127 bytes"));
        }
        if text.starts_with('-') || matches!(text, "." | "..") {
            return Err(wrong(text, WANT, "it must not start with '-' nor be '.' or '..'"));
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'_' | b'.' | b'-')) {
            return Err(wrong(text, WANT, "only letters, digits, '+', '_', '.' and '-' are allowed"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name of a group's thin pool, `mooring-pool`. A group has at most one.
    pub fn thin_pool() -> Self {
        Self(Self::THIN_POOL.to_owned())
    }

    /// Returns `true` if this is the name of a group's thin pool.
    pub fn is_thin_pool(name: &str) -> bool {
        name == Self::THIN_POOL
    }

    /// The snapshot whose LV has this name; `None` if the name is not ours.
    pub fn snapshot(name: &str) -> Option<VolumeId> {
        name.strip_prefix(Self::SNAPSHOT_PREFIX)?.parse().ok()
    }

    /// The volume whose LV has this name; `None` if the name is not ours.
    pub fn volume(name: &str) -> Option<VolumeId> {
        name.strip_prefix(Self::PREFIX)?.parse().ok()
    }

    /// The volume that the LV of this name will extend; `None` if the name is not ours.
    pub fn growing(name: &str) -> Option<VolumeId> {
        name.strip_prefix(Self::GROWTH_PREFIX)?.parse().ok()
    }

    /// The volume whose LV the LV of this name will replace; `None` if the name is not ours.
    pub fn going_back(name: &str) -> Option<VolumeId> {
        name.strip_prefix(Self::BACK_PREFIX)?.parse().ok()
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The place of a backstore in configfs: `core/<hba>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackstoreName {
    /// The HBA folder. Numbers from 1000 keep clear of rtslib's low ones. There are 256 folders
    /// because the kernel serialises the removal of backstores of one HBA (lio.md, k).
    pub hba: String,
    /// The backstore's folder.
    pub name: String,
}

impl BackstoreName {
    /// The place of a volume's backstore: `iblock_<1000 + first byte of the uuid>/<volume uuid>`.
    pub fn of(volume: VolumeId) -> Self {
        Self { hba: format!("iblock_{}", 1000 + u16::from(volume.as_bytes()[0])), name: volume.to_string() }
    }
}

/// The 128-bit NAA identifier (type 6) that LIO builds from a unit serial, as 32 hexadecimal
/// digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Naa(String);

impl Naa {
    /// Builds the identifier: `6001405` and the first 25 hex digits of the serial, padded with
    /// zeros. Other characters are skipped (lio.md, e). The last 7 digits of a UUID are lost, so
    /// two volumes can collide: the agent refuses the second.
    pub fn of_serial(serial: &str) -> Self {
        let mut naa = String::with_capacity(32);
        naa.push_str("6001405");
        for digit in serial.bytes().filter(u8::is_ascii_hexdigit).take(25) {
            naa.push(char::from(digit.to_ascii_lowercase()));
        }
        while naa.len() < 32 {
            naa.push('0');
        }
        Self(naa)
    }

    /// Makes an identifier from its 32 hexadecimal digits; `None` unless it is of type 6.
    pub fn from_hex(text: &str) -> Option<Self> {
        let plain = text.len() == 32 && text.starts_with('6') && text.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| Self(text.to_ascii_lowercase()))
    }

    /// The 32 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Naa {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::from_hex(&text).ok_or_else(|| "an NAA has 32 hexadecimal digits and begins with 6".to_owned())
    }
}

impl From<Naa> for String {
    fn from(naa: Naa) -> Self {
        naa.0
    }
}

impl fmt::Display for Naa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An IP address and TCP port where a target listens; an IPv6 address stands in brackets. The
/// wildcard address is refused: it would take the port from every other target of the machine
/// (lio.md, b).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Portal(SocketAddr);

impl Portal {
    /// The registered iSCSI port.
    pub const PORT_DEFAULT: u16 = 3260;

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.0.ip()
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// The address and the port.
    pub fn socket(&self) -> SocketAddr {
        self.0
    }
}

/// Parses an address without a port: `ADDRESS`, or `[ADDRESS]` for IPv6.
fn bare_address(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// Returns `true` for an IPv6 address in brackets with a zone (RFC 4007, section 11):
/// `[fe80::1%eth1]`, with or without a port.
fn has_zone(text: &str) -> bool {
    let inside = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(inside, _)| inside);
    let address = inside.and_then(|inside| inside.split_once('%')).map(|(address, _)| address);
    address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

/// Returns the reason why an address does not identify one machine for every host; `None` if it
/// does.
fn not_one_address(socket: SocketAddr) -> Option<&'static str> {
    let ip = socket.ip();
    let group = ip.is_multicast() || matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    if ip.is_unspecified() || group {
        return Some("want one address of this machine, not a wildcard or group address");
    }
    let IpAddr::V6(ip) = ip else { return None };
    if ip.to_ipv4_mapped().is_some() {
        return Some("write an IPv4 address as such");
    }
    let scoped = matches!(socket, SocketAddr::V6(socket) if socket.scope_id() != 0);
    (ip.is_unicast_link_local() || scoped).then_some(
        "a link-local address may be another machine's on each link: use a unique local or global one",
    )
}

impl FromStr for Portal {
    type Err = NameError;

    /// Parses `ADDRESS` (port 3260) or `ADDRESS:PORT`; for IPv6 `[ADDRESS]` or `[ADDRESS]:PORT`.
    fn from_str(text: &str) -> Result<Self, NameError> {
        const WANT: &str = "a portal";
        const FORM: &str = "want ADDRESS or ADDRESS:PORT, for example 10.10.0.10:3260 or [fd00::10]:3260";
        const ZONE: &str =
            "a zone names a link of one machine alone: use a unique local or global address without one";
        let bare = || bare_address(text).map(|ip| SocketAddr::new(ip, Self::PORT_DEFAULT));
        let unread = || wrong(text, WANT, if has_zone(text) { ZONE } else { FORM });
        let socket = text.parse::<SocketAddr>().ok().or_else(bare).ok_or_else(unread)?;
        if socket.port() == 0 {
            return Err(wrong(text, WANT, "port 0 is not allowed"));
        }
        match not_one_address(socket) {
            Some(why) => Err(wrong(text, WANT, why)),
            None => Ok(Self(socket)),
        }
    }
}

impl TryFrom<String> for Portal {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<Portal> for String {
    fn from(portal: Portal) -> Self {
        portal.to_string()
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> VolumeId {
        "a0000000-1111-4222-8333-444444444444".parse().unwrap()
    }

    #[test]
    fn names_are_functions_of_the_id() {
        assert_eq!(
            IqnPrefix::default().target(id()).as_str(),
            "iqn.2026-11.dev.mooring:a0000000-1111-4222-8333-444444444444"
        );
        assert_eq!(LvName::of(id()).as_str(), "mooring-a0000000-1111-4222-8333-444444444444");
        assert_eq!(LvName::volume(LvName::of(id()).as_str()), Some(id()));
        assert_eq!(LvName::volume("mooring-snap-a0000000-1111-4222-8333-444444444444"), None);
        let growth = LvName::growth_of(id());
        assert_eq!(growth.as_str(), "mooring-grow-a0000000-1111-4222-8333-444444444444");
        assert_eq!((LvName::volume(growth.as_str()), LvName::growing(growth.as_str())), (None, Some(id())));
        assert_eq!(LvName::growing(LvName::of(id()).as_str()), None);
        let back = LvName::back_of(id());
        assert_eq!(back.as_str(), "mooring-back-a0000000-1111-4222-8333-444444444444");
        assert_eq!((LvName::volume(back.as_str()), LvName::going_back(back.as_str())), (None, Some(id())));
        let revert = RevertId::from_u128(7);
        let tag = lv_revert_tag(revert);
        assert_eq!(tag, "mooring-reverted-00000000-0000-0000-0000-000000000007");
        assert_eq!(revert_of_lv_tag(&tag), Some(revert));
        assert_eq!((revert_of_lv_tag("mooring-reverted-"), volume_of_lv_tag(&tag)), (None, None));
        let tag = lv_volume_tag(id());
        assert_eq!(tag, "mooring-volume-a0000000-1111-4222-8333-444444444444");
        assert_eq!(volume_of_lv_tag(&tag), Some(id()));
        for other in ["mooring", "mooring-volume-", &tag.to_uppercase(), &tag.replace("-a0", "-A0")] {
            assert_eq!(volume_of_lv_tag(other), None, "{other}");
        }
        let backstore = BackstoreName::of(id());
        assert_eq!((backstore.hba.as_str(), backstore.name), ("iblock_1160", id().to_string()));
    }

    #[test]
    fn naa_is_the_kernels() {
        // Both pairs were read from a real kernel (lio.md, e).
        assert_eq!(
            Naa::of_serial("11112222-3333-4444-5555-666677778888").as_str(),
            "60014051111222233334444555566667"
        );
        assert_eq!(Naa::of_serial("s1").as_str(), "60014051000000000000000000000000");
    }

    #[test]
    fn initiator_names() {
        for good in [
            "iqn.1993-08.org.debian:01:deadbeef",
            "iqn.2026-01.lab:host1",
            "iqn.2026-11.dev.mooring:host.a-b",
        ] {
            assert!(good.parse::<Iqn>().is_ok(), "{good}");
        }
        let long = format!("iqn.2026-01.lab:{}", "x".repeat(223));
        for bad in [
            "",
            "iqn",
            "iqn.",
            "iqn.2026-13.lab:a",
            "iqn.202-013.lab:a",
            "IQN.2026-01.lab:a",
            "iqn.2026-01.lab:A",
            "iqn.2026-01.:a",
            "iqn.2026-01.lab:",
            "iqn.2026-01.lab:a/b",
            "iqn.2026-01.lab:a b",
            "iqn.2026-01.lab:a\n",
            "../x",
            &long,
        ] {
            assert!(bad.parse::<Iqn>().is_err() && Iqn::of_target(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_of_other_types_are_initiators_alone() {
        for good in [
            "eui.02004567a425678d",
            "eui.0000000000000001",
            "naa.52004567ba64678d",
            "naa.62004567ba64678d0123456789abcdef",
        ] {
            let name: Iqn = good.parse().unwrap();
            assert_eq!((name.as_str(), Iqn::try_from(good.to_owned()).unwrap()), (good, name.clone()));
            assert!(Iqn::of_target(good).is_err() && good.parse::<IqnPrefix>().is_err(), "{good}");
        }
        assert!(Iqn::of_target("iqn.2026-01.lab:disk").is_ok());
        for bad in [
            "eui.",
            "eui",
            "naa.",
            "EUI.02004567a425678d",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "eui.02004567a425678",
            "eui.02004567a425678d0",
            "eui.02004567a425678g",
            "eui.02004567a425678d0123456789abcdef",
            "eui.02004567a425678d:host1",
            "naa.52004567ba64678d0",
            "naa.62004567ba64678d0123456789abcdef0",
            "naa.62004567ba64678d0123456789abcde/",
            "naa.../../../../../..",
            "nqn.2014-08.org.nvmexpress:uuid:x",
        ] {
            assert!(bad.parse::<Iqn>().is_err(), "{bad:?}");
        }
        let short = "eui.1".parse::<Iqn>().unwrap_err().to_string();
        assert_eq!(
            short,
            "\"eui.1\" is not an iSCSI name: want 16 hexadecimal digits after eui., and 16 or 32 after naa."
        );
    }

    #[test]
    fn portals() {
        for (text, want) in [
            ("10.10.0.10", "10.10.0.10:3260"),
            ("10.10.0.10:3261", "10.10.0.10:3261"),
            ("[fd00::10]", "[fd00::10]:3260"),
            ("[FD00:0:0:0:0::0010]:3261", "[fd00::10]:3261"),
            ("[2001:db8::1]:3260", "[2001:db8::1]:3260"),
        ] {
            let portal: Portal = text.parse().unwrap();
            assert_eq!(portal.to_string(), want, "{text}");
            assert_eq!(portal.to_string().parse::<Portal>().unwrap(), portal);
            assert_eq!(portal.socket().to_string(), want);
        }
        for (bad, says) in [
            ("", "want ADDRESS"),
            (":3260", "want ADDRESS"),
            ("10.10.0.10:0", "port 0"),
            ("0.0.0.0:3260", "wildcard"),
            ("10.10.0.10:99999", "want ADDRESS"),
            ("host:3260", "want ADDRESS"),
            ("224.0.0.1", "wildcard or group"),
            ("255.255.255.255", "wildcard or group"),
            // Without brackets the end of the address is ambiguous.
            ("fd00::10", "want ADDRESS"),
            ("fd00::10:3260", "want ADDRESS"),
            ("[fd00::10", "want ADDRESS"),
            ("[fd00::10]:", "want ADDRESS"),
            ("[10.0.0.1]:3260", "want ADDRESS"),
            ("[::]:3260", "wildcard"),
            ("[ff02::1]", "wildcard or group"),
            ("[fe80::1]:3260", "link-local"),
            ("[fe80::1%2]:3260", "link-local"),
            ("[fd00::10%2]:3260", "link-local"),
            ("[fe80::1%eth1]:3260", "a zone names a link"),
            ("[fe80::1%eth1]", "a zone names a link"),
            ("[fe80::1%2]", "a zone names a link"),
            // The control: no address stands before the zone, or no brackets around it.
            ("[x%eth1]:3260", "want ADDRESS"),
            ("fe80::1%eth1", "want ADDRESS"),
            ("[::ffff:10.0.0.1]:3260", "IPv4 address as such"),
        ] {
            let error = bad.parse::<Portal>().unwrap_err().to_string();
            assert!(error.contains("is not a portal") && error.contains(says), "{bad:?}: {error}");
        }
    }

    #[test]
    fn names_that_others_gave() {
        for good in
            ["data", "root_1", "a+b.c-d", "volume-1_+.x", "mooring-a0000000-1111-4222-8333-444444444444"]
        {
            assert_eq!(LvName::existing(good).unwrap().as_str(), good);
        }
        let long = "x".repeat(128);
        for bad in ["", ".", "..", "-a", "-x", "--config", "a/b", "a b", "a\n", "a@b", &long] {
            assert!(LvName::existing(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn group_names() {
        assert!("vg0".parse::<VgName>().is_ok());
        for bad in ["", ".", "..", "-x", "a/b", "a b", "a\n"] {
            assert!(bad.parse::<VgName>().is_err(), "{bad:?}");
        }
    }
}
