//! Targets, target portal groups, portals and LUNs. What must never happen: a LUN whose backstore
//! is not enabled.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::errno::Errno;

use super::Drain;
use super::fc::FabricKind;
use super::model::{Fabric, Lio, Lun, LunKey, Portal, Target, TargetKey, Tpg, TpgKey, Values};
use super::path::{Dir, Owner, lun_number, number_after};
use crate::fake::state::Machine;

/// Longest target name in bytes (`ISCSI_IQN_LEN` less the NUL), and longest credential.
const TARGET_NAME_MAX: usize = 223;
const CREDENTIAL_MAX: usize = 255;

impl Lio {
    pub(super) fn make_fabric(&mut self, name: &str) -> Result<(), Errno> {
        let kind = FabricKind::of(name).ok_or(Errno::EINVAL)?;
        self.fabrics.insert(kind, Fabric::default());
        Ok(())
    }

    pub(super) fn make_tpg(&mut self, target: &TargetKey, name: &str) -> Result<(), Errno> {
        let tpg: u16 = number_after(name, "tpgt_").ok_or(Errno::EINVAL)?;
        let kind = target.fabric;
        if !kind.takes_group(tpg) {
            return Err(Errno::EINVAL);
        }
        let made = Tpg { kind, enabled: !kind.has_enable(), ..Tpg::default() };
        self.target_mut(target).ok_or(Errno::ENOENT)?.tpgs.insert(tpg, made);
        Ok(())
    }

    pub(super) fn make_lun(&mut self, tpg: &TpgKey, name: &str) -> Result<(), Errno> {
        let lun = lun_number(name)?;
        let index = self.index();
        self.tpg_mut(tpg).ok_or(Errno::ENOENT)?.luns.insert(lun, Lun { index, ..Lun::default() });
        Ok(())
    }

    pub(super) fn link_lun(&mut self, key: &LunKey, name: &str, target: &Dir) -> Result<(), Errno> {
        let Owner::Store(store) = &target.owner else { return Err(Errno::EFAULT) };
        if !target.is_object() {
            return Err(Errno::EFAULT);
        }
        if self.lun(key).is_none_or(|lun| lun.link.is_some()) {
            return Err(Errno::EEXIST);
        }
        if self.store(store).is_none_or(|found| found.open.is_none()) {
            return Err(Errno::ENODEV);
        }
        let found = self.store_mut(store).ok_or(Errno::ENOENT)?;
        found.ports = found.ports.wrapping_add(1);
        let rtpi = found.ports;
        let lun = self.lun_mut(key).ok_or(Errno::ENOENT)?;
        lun.link = Some((name.to_owned(), store.clone()));
        lun.rtpi = rtpi;
        Ok(())
    }

    /// Gives a group its relative port id when it is enabled, unique among all groups of all
    /// fabrics: the id that was written, else the lowest that no other enabled group has. A group
    /// of tcm_fc is never enabled, and gets none (by the source).
    fn take_port_id(&mut self, key: &TpgKey) -> Result<(), Errno> {
        let tpg = self.tpg(key).ok_or(Errno::ENOENT)?;
        if !self.has_port_ids || tpg.enabled {
            return Ok(());
        }
        let (written, is_written) = (tpg.port_id, tpg.port_id_is_written);
        let taken: BTreeSet<u16> = self
            .tpgs()
            .filter(|(other, tpg)| tpg.enabled && tpg.kind.has_enable() && other != key)
            .map(|(_, tpg)| tpg.port_id)
            .collect();
        let id = if is_written {
            Some(written).filter(|id| !taken.contains(id)).ok_or(Errno::EINVAL)?
        } else {
            (1..=u16::MAX).find(|id| !taken.contains(id)).ok_or(Errno::EBUSY)?
        };
        self.tpg_mut(key).ok_or(Errno::ENOENT)?.port_id = id;
        Ok(())
    }

    /// Writes `rtpi`: a group that is not enabled remembers it until then.
    pub(super) fn put_port_id(&mut self, key: &TpgKey, value: &[u8]) -> Result<(), Errno> {
        let id = u16::try_from(super::number(value)?).map_err(|_| Errno::ERANGE)?;
        let tpg = self.tpg_mut(key).ok_or(Errno::ENOENT)?;
        if id == 0 || (tpg.enabled && tpg.kind.has_enable()) {
            return Err(Errno::EINVAL);
        }
        (tpg.port_id, tpg.port_id_is_written) = (id, true);
        Ok(())
    }

    /// Returns `true` if a mapped LUN points to this LUN, live or stale.
    pub(super) fn is_mapped(&self, key: &LunKey) -> bool {
        self.tpg(&key.tpg).is_some_and(|tpg| {
            let mut all = tpg.acls.values().flat_map(|acl| acl.mapped.values());
            all.any(|mapped| mapped.links.values().any(|target| target == key))
        })
    }

    /// Takes this LUN from every initiator; the links stay, stale.
    pub(super) fn unmap_everywhere(&mut self, key: &LunKey) {
        self.forget_registrations(key, None);
        let Some(tpg) = self.tpg_mut(&key.tpg) else { return };
        for mapped in tpg.acls.values_mut().flat_map(|acl| acl.mapped.values_mut()) {
            if mapped.live.as_ref() == Some(key) {
                mapped.live = None;
            }
        }
    }

    /// `userid`, `password` and their mutual forms: stored exactly as written, a newline included.
    pub(super) fn put_auth(&mut self, dir: &Dir, name: &str, value: &[u8]) -> Result<(), Errno> {
        if value.len() > CREDENTIAL_MAX {
            return Err(Errno::EINVAL);
        }
        let values = self.values_mut(&dir.owner).ok_or(Errno::ENOENT)?;
        values.set(&dir.part, name, value);
        let set = |name: &str| values.get(&dir.part, name).is_some_and(is_set);
        let mutual = set("userid_mutual") && set("password_mutual");
        values.set(&dir.part, "authenticate_target", if mutual { "1" } else { "0" });
        Ok(())
    }

    pub(super) fn values_mut(&mut self, owner: &Owner) -> Option<&mut Values> {
        Some(match owner {
            Owner::Root => &mut self.values,
            Owner::Hba(hba) => &mut self.hbas.get_mut(hba)?.values,
            Owner::Store(key) => &mut self.store_mut(key)?.values,
            Owner::Fabric(kind) => &mut self.fabrics.get_mut(kind)?.values,
            Owner::Target(key) => &mut self.target_mut(key)?.values,
            Owner::Tpg(key) => &mut self.tpg_mut(key)?.values,
            Owner::Portal(key, name) => &mut self.tpg_mut(key)?.portals.get_mut(name)?.values,
            Owner::Lun(key) => &mut self.lun_mut(key)?.values,
            Owner::Acl(key) => &mut self.acl_mut(key)?.values,
            Owner::Mapped(key) => &mut self.mapped_mut(key)?.values,
        })
    }

    pub(super) fn values(&self, owner: &Owner) -> Option<&Values> {
        Some(match owner {
            Owner::Root => &self.values,
            Owner::Hba(hba) => &self.hbas.get(hba)?.values,
            Owner::Store(key) => &self.store(key)?.values,
            Owner::Fabric(kind) => &self.fabrics.get(kind)?.values,
            Owner::Target(key) => &self.target(key)?.values,
            Owner::Tpg(key) => &self.tpg(key)?.values,
            Owner::Portal(key, name) => &self.tpg(key)?.portals.get(name)?.values,
            Owner::Lun(key) => &self.lun(key)?.values,
            Owner::Acl(key) => &self.acl(key)?.values,
            Owner::Mapped(key) => &self.mapped(key)?.values,
        })
    }
}

impl Machine {
    pub(super) fn make_target(&mut self, kind: FabricKind, name: &str) -> Result<(), Errno> {
        let taken = match kind {
            FabricKind::Iscsi => name.len() <= TARGET_NAME_MAX,
            FabricKind::Fc => kind.takes_initiator(name),
            // These drivers ask their adapters for the port.
            FabricKind::Qla2xxx | FabricKind::Efct => self.has_fc_port(kind, name),
        };
        if !taken {
            return Err(Errno::EINVAL);
        }
        let fabric = self.lio.fabrics.get_mut(&kind).ok_or(Errno::ENOENT)?;
        fabric.targets.insert(name.to_owned(), Target::default());
        Ok(())
    }

    pub(super) fn make_portal(&mut self, key: &TpgKey, name: &str) -> Result<(), Errno> {
        let address = portal_address(name).ok_or(Errno::EINVAL)?;
        let target = self.lio.target(&key.target).ok_or(Errno::ENOENT)?;
        // The portal is in another group, or in this one under another spelling.
        let in_same_target =
            target.tpgs.values().any(|tpg| tpg.portals.values().any(|other| other.address == address));
        if in_same_target {
            return Err(Errno::EINVAL);
        }
        let listening: Vec<SocketAddr> =
            self.lio.tpgs().flat_map(|(_, tpg)| tpg.portals.values().map(|other| other.address)).collect();
        // Shared with another target: no second socket. Otherwise the kernel binds one, which may
        // collide.
        if !listening.contains(&address)
            && listening.iter().chain(&self.occupied).any(|other| collide(*other, address))
        {
            return Err(Errno::EINVAL);
        }
        let tpg = self.lio.tpg_mut(key).ok_or(Errno::ENOENT)?;
        tpg.portals.insert(name.to_owned(), Portal { address, values: Values::default() });
        Ok(())
    }

    pub(super) fn enable_tpg(&mut self, key: &TpgKey, value: &[u8]) -> Result<Drain, Errno> {
        let enable = match super::number(value)? {
            flag @ 0..=1 => flag == 1,
            _ => return Err(Errno::EINVAL),
        };
        if enable {
            self.lio.take_port_id(key)?;
        }
        let tpg = self.lio.tpg_mut(key).ok_or(Errno::ENOENT)?;
        tpg.enabled = enable;
        if enable {
            if tpg.requires_authentication() {
                tpg.values.set("param", "AuthMethod", "CHAP");
            }
            return Ok(Drain::default());
        }
        let mut sessions = self.logins_wait_for(key);
        sessions.extend(self.cut_sessions(|session| session.tpg == *key));
        Ok(Drain { sessions, lun: None })
    }

    /// Does the kernel's work behind a plain attribute.
    pub(super) fn after_write(&mut self, dir: &Dir, name: &str) {
        let (Owner::Tpg(key), "attrib") = (&dir.owner, dir.part.as_str()) else { return };
        if key.target.fabric != FabricKind::Iscsi {
            return;
        }
        let Some(tpg) = self.lio.tpg_mut(key) else { return };
        match name {
            "authentication" => {
                let method = if tpg.requires_authentication() { "CHAP" } else { "CHAP,None" };
                tpg.values.set("param", "AuthMethod", method);
            }
            "generate_node_acls" if tpg.is_on(name) => tpg.values.set("attrib", "cache_dynamic_acls", "1"),
            _ => {}
        }
    }
}

impl Tpg {
    /// Returns the value by which a login is answered.
    pub(crate) fn param(&self, name: &str) -> String {
        self.values.text(self.kind.tpg_shape(), "param", name)
    }

    pub(crate) fn requires_authentication(&self) -> bool {
        self.kind == FabricKind::Iscsi && self.is_on("authentication")
    }

    /// Returns `true` if an initiator without an ACL may log in. efct does not check.
    pub(crate) fn admits_strangers(&self) -> bool {
        self.kind == FabricKind::Efct || self.is_on("generate_node_acls")
    }

    /// Returns `true` if such an initiator sees LUNs.
    pub(crate) fn shows_strangers(&self) -> bool {
        self.admits_strangers() && !self.is_on("demo_mode_login_only")
    }

    /// Returns `true` if this flag in `attrib` is 1.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.values.is_on(self.kind.tpg_shape(), "attrib", name)
    }
}

/// Returns `true` if a credential is set: the kernel takes the word NULL for "none".
pub(super) fn is_set(value: &[u8]) -> bool {
    !value.is_empty() && !value.starts_with(b"NULL")
}

/// Returns `true` if two listening sockets exclude each other.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let any = |address: IpAddr| address == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let any4 = |address: IpAddr| address == IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let same_family = one.is_ipv4() == other.is_ipv4();
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip()
            || any(one.ip())
            || any(other.ip())
            || (same_family && (any4(one.ip()) || any4(other.ip()))))
}

/// Parses the socket address in a portal's name: `IPv4:PORT` or `[IPv6]:PORT`.
pub(crate) fn portal_address(name: &str) -> Option<SocketAddr> {
    let (address, port) = if let Some(rest) = name.strip_prefix('[') {
        let (address, port) = rest.split_once("]:")?;
        (IpAddr::V6(address.parse().ok()?), port)
    } else {
        let (address, port) = name.split_once(':')?;
        (IpAddr::V4(address.parse().ok()?), port)
    };
    let port = super::number(port.as_bytes()).ok()?;
    Some(SocketAddr::new(address, u16::try_from(port).ok()?))
}
