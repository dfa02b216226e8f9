//! ACLs of initiators, and mapped LUNs. What must never happen: a mapped LUN without its write
//! protection when the kernel would have set it, or with one that the kernel would not.

use std::collections::BTreeSet;

use nix::errno::Errno;

use super::Drain;
use super::model::{Acl, AclKey, Lio, Mapped, MappedKey, TpgKey, Values};
use super::path::{Dir, Owner, lun_number};
use super::tables;
use crate::fake::state::Machine;

/// `TA_DEFAULT_CMDSN_DEPTH_MAX`.
const DEPTH_MAX: u64 = 512;

impl Acl {
    /// Returns `true` if a login must bring credentials: the ACL's own `authentication`, where -1
    /// inherits.
    pub(crate) fn requires_authentication(&self, tpg: bool) -> bool {
        match self.values.text(&tables::ACL, "attrib", "authentication").as_str() {
            "0" => false,
            "1" => true,
            _ => tpg,
        }
    }
}

/// Returns the credentials that a login must match; `None` if no login can match any.
pub(crate) fn credentials(values: &Values) -> Option<(String, String)> {
    both(values, "userid", "password")
}

/// Returns the credentials that prove the target; `None` if it cannot prove itself.
pub(crate) fn mutual_credentials(values: &Values) -> Option<(String, String)> {
    both(values, "userid_mutual", "password_mutual")
}

fn both(values: &Values, user: &str, secret: &str) -> Option<(String, String)> {
    let usable = |name: &str| {
        let value = values.get("auth", name)?;
        let usable = super::fabric::is_set(value) && !value.ends_with(b"\n");
        usable.then(|| String::from_utf8_lossy(value).into_owned())
    };
    Some((usable(user)?, usable(secret)?))
}

impl Lio {
    pub(super) fn make_mapped(&mut self, key: &AclKey, name: &str) -> Result<(), Errno> {
        let lun = lun_number(name)?;
        let index = self.index();
        let acl = self.acl_mut(key).ok_or(Errno::ENOENT)?;
        acl.mapped.insert(lun, Mapped { index, ..Mapped::default() });
        Ok(())
    }

    pub(super) fn link_mapped(&mut self, key: &MappedKey, name: &str, target: &Dir) -> Result<(), Errno> {
        let Owner::Lun(lun) = &target.owner else { return Err(Errno::EFAULT) };
        if !target.is_object() {
            return Err(Errno::EFAULT);
        }
        if lun.tpg != key.acl.tpg {
            return Err(Errno::EINVAL);
        }
        let Some(store) = self.store_of(lun) else { return Err(Errno::EINVAL) };
        let read_only = store.open.as_ref().is_some_and(|open| open.read_only);
        let protect = self.tpg(&key.acl.tpg).is_some_and(|tpg| tpg.is_on("prod_mode_write_protect"));
        let lun = lun.clone();
        let mapped = self.mapped_mut(key).ok_or(Errno::ENOENT)?;
        if mapped.live.is_some() {
            return Err(Errno::EINVAL);
        }
        mapped.links.insert(name.to_owned(), lun.clone());
        mapped.live = Some(lun.clone());
        mapped.write_protect = protect || read_only;
        mapped.counters = super::model::Counters::default();
        self.revive(key, &lun);
        Ok(())
    }

    pub(super) fn unlink_mapped(&mut self, key: &MappedKey, name: &str) {
        if let Some(lun) = self.mapped(key).and_then(|mapped| mapped.live.clone()) {
            self.forget_registrations(&lun, Some(&key.acl.initiator));
        }
        if let Some(mapped) = self.mapped_mut(key) {
            mapped.links.remove(name);
            mapped.live = None;
            mapped.write_protect = false;
        }
    }

    /// Accepted and ignored while nothing is mapped.
    pub(super) fn put_write_protect(&mut self, key: &MappedKey, value: &[u8]) -> Result<(), Errno> {
        let protect = match super::number(value)? {
            flag @ 0..=1 => flag == 1,
            _ => return Err(Errno::EINVAL),
        };
        let mapped = self.mapped_mut(key).ok_or(Errno::ENOENT)?;
        if mapped.live.is_some() {
            mapped.write_protect = protect;
        }
        Ok(())
    }
}

impl Machine {
    pub(super) fn make_acl(&mut self, key: &TpgKey, name: &str) -> Result<(), Errno> {
        if !key.target.fabric.takes_initiator(name) {
            return Err(Errno::EINVAL);
        }
        let tpg = self.lio.tpg_mut(key).ok_or(Errno::ENOENT)?;
        let depth =
            tpg.values.text(tpg.kind.tpg_shape(), "attrib", "default_cmdsn_depth").parse().unwrap_or(64);
        let acl =
            Acl { values: Values::default(), depth, mapped: std::collections::BTreeMap::new(), dying: false };
        tpg.acls.insert(name.to_owned(), acl);
        // A session that demo mode has admitted becomes the ACL's (lio.md, m).
        for session in self.sessions.values_mut() {
            if session.tpg == *key && session.initiator == name {
                session.dynamic = false;
                session.blind = false;
            }
        }
        Ok(())
    }

    /// Sets the depth. Another number drops the ACL's sessions and waits for their commands; an
    /// equal one changes nothing. It does not wait for sessions that had ended by themselves
    /// (lio.md, d).
    pub(super) fn put_depth(&mut self, key: &AclKey, value: &[u8]) -> Result<Drain, Errno> {
        let depth = super::number(value)?;
        if depth > DEPTH_MAX {
            return Err(Errno::EINVAL);
        }
        let depth = u32::try_from(depth).map_err(|_| Errno::EINVAL)?;
        let acl = self.lio.acl_mut(key).ok_or(Errno::ENOENT)?;
        if acl.depth == depth {
            return Ok(Drain::default());
        }
        acl.depth = depth.max(1);
        let live: BTreeSet<u64> = self.sessions.keys().copied().collect();
        let mut cut = self.cut_sessions(|session| session.is_of_acl(key));
        cut.retain(|session| live.contains(session));
        Ok(Drain { sessions: cut, lun: None })
    }
}
