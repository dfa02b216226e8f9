//! Plans one initiator's ACL: its gate (who may log in) and its mapping (the disk that a session
//! sees).
//!
//! The gate is *closed* while no login can succeed: CHAP is required and the secret is not set. The
//! rules:
//! - A fresh ACL is closed from birth, because the portal group requires CHAP. Its last step opens
//!   it.
//! - When a user changes and another credential with it, the gate is closed first: no mix of old
//!   and new ever admits anybody.
//! - When secrets alone change, they are being rotated, and the gate stays open: an initiator with
//!   either secret gets in before or after, and the host takes either of the target's. A gate that
//!   is closed while the agent dies would shut out a host that comes back.
//! - A mapping is made or repaired in place only while the gate is closed; if a session may be live
//!   the ACL is made anew.
//! - `write_protect` goes to 1 before, and to 0 after the old credentials stopped to count: an
//!   initiator never has the new mode with the old secret at login, nor the old mode with the new
//!   secret.

use mooring_host::TreePath;
use mooring_model::{Chap, Grant, Mode, Secret, Step};

use super::{Present, barrier, write_plain, write_protect};
use crate::layout::{self, UNSET};
use crate::op::{Op, Value};
use crate::view::{AclAuth, AclView, Credentials, TpgView};

/// One write to the gate.
struct Turn {
    file: &'static str,
    value: Value,
    why: &'static str,
}

impl Turn {
    fn new(file: &'static str, value: Value, why: &'static str) -> Self {
        Self { file, value, why }
    }

    fn unset(file: &'static str, why: &'static str) -> Self {
        Self::new(file, UNSET.into(), why)
    }
}

/// The writes that bring the gate from the view to the spec: the first close it, the last of the
/// others opens it.
#[derive(Default)]
struct Gate {
    close: Vec<Turn>,
    open: Vec<Turn>,
}

const USERID: &str = "auth/userid";
pub(super) const PASSWORD: &str = "auth/password";
const USERID_MUTUAL: &str = "auth/userid_mutual";
const PASSWORD_MUTUAL: &str = "auth/password_mutual";
pub(super) const AUTHENTICATION: &str = "attrib/authentication";

impl Gate {
    /// Computes the writes from `seen` (`None`: a fresh ACL) to the grant.
    fn between(seen: Option<&AclView>, grant: &Grant) -> Self {
        match &grant.chap {
            Some(chap) => Self::to_chap(seen, chap),
            None => Self::to_name_alone(seen),
        }
    }

    fn to_chap(seen: Option<&AclView>, chap: &Chap) -> Self {
        let fresh = Credentials::default();
        // An ACL that asked for no CHAP may hold any credential: none is known, so all are written.
        let known = match seen {
            None => Some(&fresh),
            Some(acl) => acl.credentials.as_ref(),
        };
        let mutual = chap.mutual.as_ref();
        let text = |wanted: Option<&String>, seen: fn(&Credentials) -> Option<&String>| {
            let differs = known.is_none_or(|known| seen(known) != wanted);
            differs.then(|| wanted.map_or(Value::from(UNSET), |text| Value::Plain(text.clone())))
        };
        let secret = |wanted: Option<&Secret>, seen: fn(&Credentials) -> Option<&Secret>| {
            let differs = known.is_none_or(|known| seen(known) != wanted);
            differs.then(|| wanted.map_or(Value::from(UNSET), |secret| Value::Secret(secret.clone())))
        };
        let changes = [
            (USERID_MUTUAL, text(mutual.map(|side| &side.user), |seen| seen.mutual_user.as_ref())),
            (PASSWORD_MUTUAL, secret(mutual.map(|side| &side.secret), |seen| seen.mutual_secret.as_ref())),
            (USERID, text(Some(&chap.initiator.user), |seen| seen.user.as_ref())),
            (PASSWORD, secret(Some(&chap.initiator.secret), |seen| seen.secret.as_ref())),
        ];
        let count = changes.iter().filter(|(_, value)| value.is_some()).count();
        let user = [USERID, USERID_MUTUAL];
        let users_stay = changes.iter().all(|(file, value)| value.is_none() || !user.contains(file));
        let mut gate = Self::default();
        if seen.is_some_and(|acl| acl.auth == AclAuth::Off) {
            gate.close.push(Turn::unset(PASSWORD, "whatever it was, it admits nobody"));
            gate.close.push(Turn::new(AUTHENTICATION, "1".into(), "the name alone no longer admits it"));
        } else if count > 1 && !users_stay && seen.is_some_and(|acl| acl.admits(true)) {
            gate.close
                .push(Turn::unset(PASSWORD, "no login while several credentials change; sessions go on"));
        }
        let open_already = gate.close.is_empty() && seen.is_some_and(|acl| acl.admits(true));
        for (file, value) in changes {
            let Some(value) = value else { continue };
            let why = match file {
                _ if open_already && count == 1 => "its one credential that changed; sessions go on",
                _ if open_already => "secrets are rotated; sessions go on, and logins by either",
                PASSWORD => "the last credential: logins from here on",
                _ if value == Value::from(UNSET) => "no mutual CHAP",
                _ => "a credential",
            };
            gate.open.push(Turn::new(file, value, why));
        }
        if !gate.close.is_empty() && gate.open.last().is_none_or(|turn| turn.file != PASSWORD) {
            let secret = Value::Secret(chap.initiator.secret.clone());
            gate.open.push(Turn::new(PASSWORD, secret, "the last credential: logins from here on"));
        }
        gate
    }

    fn to_name_alone(seen: Option<&AclView>) -> Self {
        let mut gate = Self::default();
        if seen.is_some_and(|acl| acl.auth == AclAuth::Off) {
            return gate;
        }
        if let Some(known) = seen.and_then(|acl| acl.credentials.as_ref()) {
            for (file, set) in [
                (PASSWORD, known.secret.is_some()),
                (USERID, known.user.is_some()),
                (PASSWORD_MUTUAL, known.mutual_secret.is_some()),
                (USERID_MUTUAL, known.mutual_user.is_some()),
            ] {
                if set {
                    gate.close.push(Turn::unset(file, "the grant has no CHAP: no credential stays behind"));
                }
            }
        }
        let why = "the grant has no CHAP: its name alone admits it, from here on";
        gate.open.push(Turn::new(AUTHENTICATION, "0".into(), why));
        gate
    }
}

/// Returns the `write_protect` of the grant's mapped LUN if that LUN is sound: linked, and the link
/// works. `None` otherwise.
fn sound(acl: &AclView, grant: &Grant) -> Option<bool> {
    let mapped = acl.luns.get(&layout::lun_name(grant.lun))?;
    mapped.link.as_ref()?;
    mapped.write_protect
}

/// Returns `true` if an ACL has to be removed and made anew: its mapping is wrong and a session may
/// be using it, or a barrier is owed.
pub(super) fn is_remade(tpg: &TpgView, acl: &AclView, grant: &Grant) -> bool {
    let right = acl.luns.len() == 1 && sound(acl, grant).is_some();
    barrier::is_owed(acl, grant) || !right && acl.admits(tpg.attrib("authentication") != Some("0"))
}

/// Returns `true` if the grant admits an initiator by its name alone, and so far only the group's
/// word does so. The ACL has to say so itself before the group asks for CHAP; otherwise a session
/// that is lost in between does not come back.
fn is_admitted_by_group(tpg: &TpgView, acl: &AclView, grant: &Grant) -> bool {
    let bare = acl.auth == AclAuth::Inherits && acl.credentials == Some(Credentials::default());
    let right = grant.chap.is_none() && bare && !is_remade(tpg, acl, grant);
    right && tpg.attrib("authentication") == Some("0")
}

impl Present<'_> {
    /// Lets such ACLs admit by name on their own.
    pub(super) fn keep_admitted(&mut self, tpg: &TpgView) {
        for grant in self.grants {
            let initiator = grant.initiator.as_str();
            if tpg.acls.get(initiator).is_some_and(|acl| is_admitted_by_group(tpg, acl, grant)) {
                let path = layout::acl(self.names, initiator).join("attrib").join("authentication");
                self.plan.step(write_plain(path, "0"), "its name alone admits it, as before");
            }
        }
    }

    /// Makes modes smaller before anything else: it is quick and concerns live sessions.
    pub(super) fn shrink_modes(&mut self, tpg: &TpgView) {
        for grant in self.grants.iter().filter(|grant| grant.mode == Mode::ReadOnly) {
            let initiator = grant.initiator.as_str();
            let Some(acl) = tpg.acls.get(initiator) else { continue };
            self.plan.steps.extend(barrier::broken(self.names, acl, grant));
            for (name, mapped) in acl.luns.iter().filter(|(_, mapped)| mapped.write_protect == Some(false)) {
                // A mapped LUN that leads elsewhere is not ours to change.
                if mapped.link.as_ref().is_some_and(|link| link.target == self.lun) {
                    let path = layout::acl(self.names, initiator).join(name).join("write_protect");
                    let why = format!("{initiator} may only read; works on live sessions");
                    self.plan.step(write_plain(path, "1"), why);
                }
            }
        }
    }

    /// Takes down the wrong mapped LUNs below ACLs that stay: their gate is closed.
    pub(super) fn clear_mappings(&mut self, tpg: &TpgView) {
        for grant in self.grants {
            let initiator = grant.initiator.as_str();
            let Some(acl) = tpg.acls.get(initiator) else { continue };
            if is_remade(tpg, acl, grant) {
                continue;
            }
            let dir = layout::acl(self.names, initiator);
            for (name, mapped) in &acl.luns {
                let ours = *name == layout::lun_name(grant.lun);
                if ours && (mapped.link.is_none() || mapped.write_protect.is_some()) {
                    continue;
                }
                if let Some(link) = &mapped.link {
                    let path = dir.join(name).join(&link.name);
                    self.plan
                        .step(Op::Unlink { path }, format!("not the mapping of {initiator} that is wanted"));
                }
                self.plan.step(Op::Rmdir { path: dir.join(name) }, "the same");
            }
        }
    }

    /// Makes or repairs the ACL of every grant.
    pub(super) fn admit(&mut self) {
        for grant in self.grants {
            let seen = self.view.tpg().and_then(|tpg| {
                let acl = tpg.acls.get(grant.initiator.as_str())?;
                (!is_remade(tpg, acl, grant)).then_some(acl)
            });
            self.admit_one(grant, seen);
        }
    }

    fn admit_one(&mut self, grant: &Grant, seen: Option<&AclView>) {
        let dir = layout::acl(self.names, grant.initiator.as_str());
        if seen.is_none() {
            let why = "admits nobody yet: CHAP is required and no secret is set";
            self.plan.step(Op::Mkdir { path: dir.clone() }, why);
            self.plan.steps.extend(grant.barrier.map(|id| barrier::mark(&dir, id)));
        }
        let mode = self.map(&dir, grant, seen);
        let kept = self.view.tpg().zip(seen).is_some_and(|(tpg, acl)| is_admitted_by_group(tpg, acl, grant));
        let gate = if kept { Gate::default() } else { Gate::between(seen, grant) };
        let closed = !gate.close.is_empty() || seen.is_none_or(|acl| !acl.admits(true));
        self.turn(&dir, gate.close);
        let mode = mode.map(|path| write_plain(path, write_protect(grant.mode)));
        let why = match grant.mode {
            Mode::ReadOnly => "read-only",
            Mode::ReadWrite => "read-write",
        };
        if closed {
            self.plan.steps.extend(mode.map(|op| Step { op, why: why.into() }));
            self.turn(&dir, gate.open);
        } else {
            self.turn(&dir, gate.open);
            self.plan.steps.extend(mode.map(|op| Step { op, why: why.into() }));
        }
    }

    /// Maps the LUN. Returns the path of the `write_protect` that is still to be written. `None` if
    /// it is right already.
    fn map(&mut self, dir: &TreePath, grant: &Grant, seen: Option<&AclView>) -> Option<TreePath> {
        let lun = dir.join(layout::lun_name(grant.lun));
        let write_protect = lun.join("write_protect");
        let mapped = seen.and_then(|acl| acl.luns.get(&layout::lun_name(grant.lun)));
        if let Some(protected) = seen.and_then(|acl| sound(acl, grant)) {
            return (protected && grant.mode == Mode::ReadWrite).then_some(write_protect);
        }
        // A stale link was taken down with its folder; a folder without a link is a mapping that
        // was begun.
        if mapped.is_none_or(|mapped| mapped.link.is_some()) {
            self.plan.step(Op::Mkdir { path: lun.clone() }, "the LUN as the initiator numbers it");
        }
        let (target, link) = (self.lun.clone(), lun.join(layout::LINK));
        self.plan.step(Op::Link { target, link }, "maps it, behind the closed gate");
        Some(write_protect)
    }

    fn turn(&mut self, dir: &TreePath, turns: Vec<Turn>) {
        for Turn { file, value, why } in turns {
            let path = file.split('/').fold(dir.clone(), |path, name| path.join(name));
            self.plan.step(Op::Write { path, value }, why);
        }
    }
}
