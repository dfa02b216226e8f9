//! Initiators against the fake target: logins, reads and writes, commands that stay in flight, and
//! everything that any initiator could reach at this moment.
//!
//! What must never happen: an initiator refused here that the kernel would admit, for the laws of
//! exposure rest on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::FakeMachine;
use super::lio::{Acl, AclKey, FabricKind, LunKey, TargetKey, Tpg, TpgKey, credentials, portal_address};
use super::state::Machine;

/// Bytes of one read or write.
pub const IO_BYTES: u64 = 4096;

/// Id of a session, valid as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(super) u64);

/// Reason why a login was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoginRefusal {
    /// Nothing listens at this portal, or the machine does not have its address.
    #[error("nothing listens at this portal")]
    Unreachable,
    /// The portal serves no such target (or its target portal group is disabled).
    #[error("target not found")]
    NoTarget,
    /// There is no ACL for this initiator.
    #[error("initiator is not authorized")]
    NotAuthorized,
    /// Credentials were required and did not match.
    #[error("authentication failed")]
    Authentication,
    /// No answer comes: the portal's login thread waits for commands of a session that this login,
    /// or an earlier one, was to replace (lio.md, u).
    #[error("the portal does not answer")]
    NoAnswer,
    /// The target wants a digest that a stock initiator does not offer.
    #[error("no digest in common")]
    NoDigest,
}

/// Object that answered a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// This device.
    Device(PathBuf),
    /// LIO's virtual LUN 0, which replaces a LUN 0 that is not mapped: reads return zeros.
    VirtualLun,
}

/// Reason why a command was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IoRefusal {
    /// DATA PROTECT, "Write protected".
    #[error("write protected")]
    WriteProtected,
    /// "Logical unit not supported".
    #[error("logical unit not supported")]
    NoLun,
    /// NOT READY, "target port in offline state": the LUN is shut (`alua_tg_pt_offline`).
    #[error("the LUN is shut")]
    Shut,
    /// RESERVATION CONFLICT: another initiator has reserved the LUN, or the key is not the
    /// registered one.
    #[error("reservation conflict")]
    ReservationConflict,
    /// NOT READY: the kernel could not write its file of reservations. The command has taken effect
    /// all the same.
    #[error("device not ready")]
    NotReady,
    /// The session has ended.
    #[error("the session is gone")]
    SessionGone,
    /// The device answers with an I/O error.
    #[error("the device has failed")]
    Failed,
    /// The device does not answer: the command is in flight.
    #[error("the device does not answer")]
    Held,
}

/// The access of a mapped LUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Reads only.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// One access that an initiator could have right now: log in (or go on with its session) and reach
/// this LUN.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reach {
    /// Name of the target.
    pub target: String,
    /// Target portal group.
    pub tpg: u16,
    /// The initiator; `*` is any name (demo mode).
    pub initiator: String,
    /// LUN as the initiator numbers it.
    pub lun: u64,
    /// Permitted access, a copy from another LUN of its own included.
    pub mode: Access,
    /// The initiator must show (or has shown) matching credentials.
    pub authenticated: bool,
    /// Device behind the LUN.
    pub device: PathBuf,
}

/// Identity that INQUIRY shows for a LUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// VPD page 80h.
    pub serial: String,
    /// VPD page 83h, 32 hex digits.
    pub naa: String,
    /// READ CAPACITY, in bytes.
    pub size: u64,
    /// MODE SENSE's write-protect bit.
    pub write_protected: bool,
}

/// Origin of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    Ip {
        portal: SocketAddr,
        isid: [u8; 6],
        /// Address of the initiator.
        address: IpAddr,
    },
    Fc,
}

/// A live session.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) tpg: TpgKey,
    pub(super) initiator: String,
    /// Demo mode has admitted the session.
    pub(super) dynamic: bool,
    /// Demo mode has admitted the session without a LUN (`demo_mode_login_only`).
    pub(super) blind: bool,
    pub(super) authenticated: bool,
    pub(super) endpoint: Endpoint,
    pub(super) commands: u64,
    pub(super) read_bytes: u64,
    /// Values agreed at the login, as `param` of the ACL shows them; none over Fibre Channel.
    pub(super) agreed: BTreeMap<&'static str, u64>,
}

impl Session {
    pub(super) fn is_of_acl(&self, key: &AclKey) -> bool {
        !self.dynamic && self.tpg == key.tpg && self.initiator == key.initiator
    }

    /// Formats the ISID in hex with this separator between its bytes; empty for Fibre Channel.
    pub(super) fn isid_text(&self, separator: &str) -> String {
        match self.endpoint {
            Endpoint::Ip { isid, .. } => isid.map(|byte| format!("{byte:02x}")).join(separator),
            Endpoint::Fc => String::new(),
        }
    }

    /// Returns the initiator's address.
    pub(super) fn address(&self) -> IpAddr {
        match self.endpoint {
            Endpoint::Ip { address, .. } => address,
            Endpoint::Fc => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        }
    }

    fn is_at(&self, at: SocketAddr) -> bool {
        matches!(self.endpoint, Endpoint::Ip { portal, .. } if portal == at)
    }
}

/// A command in the backend.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    pub(super) session: u64,
    pub(super) owner: Session,
    pub(super) lun: LunKey,
    pub(super) device: PathBuf,
    pub(super) writes: bool,
    /// Number of a write that was looked up and not executed yet: its data are on their way.
    pub(super) late: Option<u64>,
}

/// The unit that a session finds at one of its LUNs.
pub(super) struct Unit {
    pub(super) lun: LunKey,
    access: Access,
    /// Device of the unit. `None`: a RAM disk.
    pub(super) device: Option<PathBuf>,
}

impl Machine {
    /// Ends sessions. Returns these, and matching ones that ended earlier with commands still in
    /// flight: a drain waits for both.
    pub(super) fn cut_sessions(&mut self, which: impl Fn(&Session) -> bool) -> Vec<u64> {
        let mut ids: BTreeSet<u64> =
            self.sessions.iter().filter(|(_, session)| which(session)).map(|(id, _)| *id).collect();
        self.sessions.retain(|id, _| !ids.contains(id));
        ids.extend(
            self.in_flight.iter().filter(|command| which(&command.owner)).map(|command| command.session),
        );
        ids.into_iter().collect()
    }

    /// Ends the commands in flight on a device; the writes among them reach it.
    pub(super) fn complete(&mut self, path: &Path) {
        let ends = |command: &InFlight| command.device == path && command.late.is_none();
        let landed = self.in_flight.iter().filter(|command| ends(command) && command.writes).count();
        let ended = self.in_flight.iter().filter(|command| ends(command)).count();
        self.in_flight.retain(|command| !ends(command));
        if let Some(device) = self.devices.get_mut(path) {
            device.ended += ended as u64;
            device.landed += landed as u64;
            if landed > 0 {
                device.mark_written(0, IO_BYTES);
            }
        }
    }

    /// Returns the sessions that the login thread of this portal waits for: it answers nobody
    /// meanwhile, whatever the target.
    pub(super) fn login_waits_for(&self, at: SocketAddr) -> Vec<u64> {
        let waits = |id: &&u64| self.in_flight.iter().any(|command| command.session == **id);
        self.login_threads.get(&at).into_iter().flatten().filter(waits).copied().collect()
    }

    /// Returns the sessions that the login threads of all portals of a group wait for.
    pub(super) fn logins_wait_for(&self, key: &TpgKey) -> Vec<u64> {
        let portals = self.lio.tpg(key).into_iter().flat_map(|tpg| tpg.portals.values());
        portals.flat_map(|portal| self.login_waits_for(portal.address)).collect()
    }

    /// Begins to answer a login by ending the session that it replaces. `Err`: the thread waits for
    /// that session's commands. It does not wait for a session that was ending before
    /// (`iscsi_check_for_session_reinstatement`).
    fn reinstate(&mut self, at: SocketAddr, key: &TpgKey, initiator: &str) -> Result<(), LoginRefusal> {
        let is_same = |old: &Session| old.tpg == *key && old.initiator == initiator && old.is_at(at);
        let replaced = self.sessions.iter().filter(|(_, old)| is_same(old)).map(|(id, _)| *id).collect();
        self.cut_sessions(is_same);
        self.login_threads.insert(at, replaced);
        if self.login_waits_for(at).is_empty() { Ok(()) } else { Err(LoginRefusal::NoAnswer) }
    }

    fn listens(&self, tpg: &Tpg, at: Option<SocketAddr>) -> bool {
        tpg.portals.values().any(|portal| {
            let here = self.has_address(portal.address.ip());
            let same = at.is_none_or(|at| {
                let any = portal.address.ip().is_unspecified() && self.has_address(at.ip());
                portal.address.port() == at.port() && (portal.address.ip() == at.ip() || any)
            });
            here && same
        })
    }

    fn log_in(
        &mut self,
        portal: &str,
        target: &str,
        initiator: &str,
        shown: Option<(&str, &str)>,
    ) -> Result<u64, LoginRefusal> {
        let at = portal_address(portal).ok_or(LoginRefusal::Unreachable)?;
        let target = &TargetKey { fabric: FabricKind::Iscsi, name: target.to_owned() };
        // A socket listens as long as it has a portal, whatever its group's state.
        let socket = self.has_address(at.ip()) && self.lio.tpgs().any(|(_, tpg)| self.listens(tpg, Some(at)));
        if !socket {
            return Err(LoginRefusal::Unreachable);
        }
        if !self.login_waits_for(at).is_empty() {
            return Err(LoginRefusal::NoAnswer);
        }
        let served = self
            .lio
            .tpgs()
            .find(|(key, tpg)| key.target == *target && tpg.enabled && self.listens(tpg, Some(at)))
            .map(|(key, _)| key);
        let key = served.ok_or(LoginRefusal::NoTarget)?;
        let verdict = self
            .lio
            .tpg(&key)
            .ok_or(LoginRefusal::NoTarget)
            .and_then(|tpg| Ok((admit(tpg, initiator, shown)?, agree(tpg)?)));
        if verdict.is_ok() {
            // One initiator port at one portal: its login replaces its older session.
            self.reinstate(at, &key, initiator)?;
        }
        if let Some(found) = self.lio.target_mut(target) {
            match &verdict {
                Ok(_) => found.accepts += 1,
                Err(refusal) => {
                    found.last_failed = Some(initiator.to_owned());
                    match refusal {
                        LoginRefusal::Authentication => found.authenticate_fails += 1,
                        LoginRefusal::NoDigest => found.negotiate_fails += 1,
                        _ => found.authorize_fails += 1,
                    }
                }
            }
        }
        let ((dynamic, authenticated), agreed) = verdict?;
        self.next_session += 1;
        let id = self.next_session;
        let [.., high, low] = id.to_be_bytes();
        let session = Session {
            tpg: key,
            initiator: initiator.to_owned(),
            dynamic,
            blind: false,
            authenticated,
            endpoint: Endpoint::Ip {
                portal: at,
                isid: [0x00, 0x02, 0x3d, 0x00, high, low],
                address: IpAddr::V4(Ipv4Addr::new(10, 10, 0, 11)),
            },
            commands: 0,
            read_bytes: 0,
            agreed,
        };
        self.sessions.insert(id, session);
        Ok(id)
    }

    /// Returns the LUNs of an initiator, by the numbers it uses.
    fn units(&self, key: &TpgKey, initiator: &str, dynamic: bool) -> BTreeMap<u64, Unit> {
        let Some(tpg) = self.lio.tpg(key) else { return BTreeMap::new() };
        let unit = |lun: LunKey, protected: bool| {
            let open = self.lio.store_of(&lun)?.open.as_ref()?;
            let access = if protected || open.read_only { Access::ReadOnly } else { Access::ReadWrite };
            Some(Unit { lun, access, device: open.device.clone() })
        };
        if dynamic {
            let protected = tpg.is_on("demo_mode_write_protect");
            let luns = tpg.luns.keys();
            return luns
                .filter_map(|lun| Some((*lun, unit(LunKey { tpg: key.clone(), lun: *lun }, protected)?)))
                .collect();
        }
        let mapped = tpg.acls.get(initiator).filter(|acl| !acl.dying).into_iter().flat_map(|acl| &acl.mapped);
        mapped
            .filter_map(|(lun, mapped)| Some((*lun, unit(mapped.live.clone()?, mapped.write_protect)?)))
            .collect()
    }

    /// Returns the LUNs of a session.
    pub(super) fn units_of(&self, session: &Session) -> BTreeMap<u64, Unit> {
        if session.blind {
            return BTreeMap::new();
        }
        self.units(&session.tpg, &session.initiator, session.dynamic)
    }

    /// Handles the arrival of a command: its LUN is looked up, it is counted, and its access is
    /// judged. `None`: there is no such LUN.
    pub(super) fn look_up(
        &mut self,
        id: u64,
        lun: u64,
        writes: bool,
    ) -> Result<Option<(Session, Unit)>, IoRefusal> {
        let session = self.sessions.get_mut(&id).ok_or(IoRefusal::SessionGone)?;
        session.commands += 1;
        let session = session.clone();
        let Some(unit) = self.units_of(&session).remove(&lun) else { return Ok(None) };
        self.count(&session, lun, &unit.lun, 0, 0);
        if writes && unit.access == Access::ReadOnly {
            return Err(IoRefusal::WriteProtected);
        }
        Ok(Some((session, unit)))
    }

    fn command(&mut self, id: u64, lun: u64, writes: bool, stay: bool) -> Result<Answer, IoRefusal> {
        let Some((session, unit)) = self.look_up(id, lun, writes)? else {
            return match (lun, writes) {
                (0, false) => Ok(Answer::VirtualLun),
                (0, true) => Err(IoRefusal::WriteProtected),
                _ => Err(IoRefusal::NoLun),
            };
        };
        if self.lio.is_shut(&unit.lun) {
            return Err(IoRefusal::Shut);
        }
        if self.is_reserved(id, &session, &unit.lun, writes) {
            return Err(IoRefusal::ReservationConflict);
        }
        let (read, written) = if writes { (0, IO_BYTES) } else { (IO_BYTES, 0) };
        self.count(&session, lun, &unit.lun, read, written);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.read_bytes += read;
        }
        let Some(path) = unit.device else { return Ok(Answer::VirtualLun) };
        if self.devices.get(&path).is_some_and(|device| device.errors) {
            return Err(IoRefusal::Failed);
        }
        let held = self.devices.get(&path).is_some_and(|device| device.held);
        self.in_flight.push(InFlight {
            session: id,
            owner: session,
            lun: unit.lun,
            device: path.clone(),
            writes,
            late: None,
        });
        if held {
            return if stay { Ok(Answer::Device(path)) } else { Err(IoRefusal::Held) };
        }
        self.complete(&path);
        Ok(Answer::Device(path))
    }

    /// Counts one command when no bytes are given, else its bytes: on the mapped LUN, the LUN and
    /// the backstore.
    fn count(&mut self, session: &Session, number: u64, lun: &LunKey, read: u64, written: u64) {
        let commands = u64::from(read + written == 0);
        let add = |counters: &mut super::lio::Counters| {
            counters.commands += commands;
            counters.read_bytes += read;
            counters.written_bytes += written;
        };
        let key = AclKey { tpg: session.tpg.clone(), initiator: session.initiator.clone() };
        if let Some(mapped) = self.lio.acl_mut(&key).and_then(|acl| acl.mapped.get_mut(&number)) {
            add(&mut mapped.counters);
        }
        let store = self.lio.lun_mut(lun).and_then(|lun| {
            add(&mut lun.counters);
            lun.link.as_ref().map(|(_, store)| store.clone())
        });
        if let Some(store) = store.and_then(|key| self.lio.store_mut(&key)) {
            add(&mut store.counters);
        }
    }

    fn reach_of(
        &self,
        key: &TpgKey,
        name: &str,
        dynamic: bool,
        authenticated: bool,
        all: &mut BTreeSet<Reach>,
    ) {
        let open = |unit: &Unit| !self.lio.is_shut(&unit.lun);
        let units = self.units(key, name, dynamic);
        // EXTENDED COPY to a writable LUN copies to any LUN of this ACL, whatever its
        // `write_protect` is.
        let copies = |unit: &Unit| unit.access == Access::ReadWrite && self.lio.takes_copies(&unit.lun);
        let copied = units.values().any(copies);
        // A command that claims to read and has data behind it runs a second time, with that data.
        let immediate = key.target.fabric == FabricKind::Iscsi
            && self.lio.tpg(key).is_some_and(|tpg| tpg.param("ImmediateData") == "Yes");
        for (lun, unit) in units.into_iter().filter(|(_, unit)| open(unit)) {
            // The claimed direction of data decides if `write_protect` is checked, not the opcode.
            let passed = copied || immediate || self.lio.takes_false_reads(&unit.lun);
            all.insert(Reach {
                target: key.target.name.clone(),
                tpg: key.tpg,
                initiator: name.to_owned(),
                lun,
                mode: if passed { Access::ReadWrite } else { unit.access },
                authenticated,
                device: unit.device.unwrap_or_default(),
            });
        }
    }
}

/// Decides on a login to this group. Returns two values: demo mode has admitted it; credentials
/// matched.
pub(super) fn admit(
    tpg: &Tpg,
    initiator: &str,
    shown: Option<(&str, &str)>,
) -> Result<(bool, bool), LoginRefusal> {
    let group = tpg.requires_authentication();
    let (dynamic, required, stored) = match tpg.acls.get(initiator) {
        Some(acl) if acl.dying => return Err(LoginRefusal::NotAuthorized),
        Some(acl) => (false, acl.requires_authentication(group), credentials(&acl.values)),
        None if tpg.admits_strangers() => (true, group, credentials(&tpg.values)),
        None => return Err(LoginRefusal::NotAuthorized),
    };
    if !required {
        return Ok((dynamic, false));
    }
    let matches = stored.zip(shown).is_some_and(|((userid, password), shown)| shown == (&userid, &password));
    if matches { Ok((dynamic, true)) } else { Err(LoginRefusal::Authentication) }
}

/// Computes the values that a login of a stock initiator agrees on, from the present `param`
/// (`iscsi_check_acceptor_state`). It offers no digest, `InitialR2T=No`, `ImmediateData=Yes`, and
/// the bursts of open-iscsi.
fn agree(tpg: &Tpg) -> Result<BTreeMap<&'static str, u64>, LoginRefusal> {
    let param = |name: &str| tpg.param(name);
    for digest in ["HeaderDigest", "DataDigest"] {
        if !param(digest).split(',').any(|word| word == "None") {
            return Err(LoginRefusal::NoDigest);
        }
    }
    let bytes = |name: &str, offer: u64| param(name).parse().unwrap_or(offer).min(offer);
    let burst = bytes("MaxBurstLength", 16_776_192);
    Ok(BTreeMap::from([
        ("MaxBurstLength", burst),
        // A first burst longer than a burst is made as long as that
        // (`iscsi_enforce_integrity_rules`).
        ("FirstBurstLength", bytes("FirstBurstLength", 262_144).min(burst)),
        ("ImmediateData", u64::from(param("ImmediateData") == "Yes")),
        ("InitialR2T", u64::from(param("InitialR2T") == "Yes")),
    ]))
}

/// Returns the way in which an initiator may log in. `None`: not at all; `true`: with credentials;
/// `false`: without.
fn way_in(acl: &Acl, group: bool) -> Option<bool> {
    if acl.dying {
        return None;
    }
    let required = acl.requires_authentication(group);
    (!required || credentials(&acl.values).is_some()).then_some(required)
}

impl FakeMachine {
    /// Logs an initiator in, as a stock initiator would over this portal (`10.10.0.10:3260`), with
    /// or without CHAP credentials (user id, password).
    pub fn login(
        &self,
        portal: &str,
        target: &str,
        initiator: &str,
        credentials: Option<(&str, &str)>,
    ) -> Result<SessionId, LoginRefusal> {
        let id = self.handle.lock().log_in(portal, target, initiator, credentials);
        self.handle.wake();
        id.map(SessionId)
    }

    /// Ends a session by a logout. Its commands in flight go on.
    pub fn logout(&self, session: SessionId) {
        let mut machine = self.handle.lock();
        if let Some(ended) = machine.sessions.remove(&session.0)
            && let Some(target) = machine.lio.target_mut(&ended.tpg.target)
        {
            target.normal_logouts += 1;
        }
    }

    /// Returns `true` if a session lives.
    pub fn is_live(&self, session: SessionId) -> bool {
        self.handle.lock().sessions.contains_key(&session.0)
    }

    /// Reads [`IO_BYTES`] from a LUN.
    pub fn read(&self, session: SessionId, lun: u64) -> Result<Answer, IoRefusal> {
        self.handle.lock().command(session.0, lun, false, false)
    }

    /// Writes [`IO_BYTES`] to a LUN. On a held device the command stays in flight and the answer is
    /// [`IoRefusal::Held`].
    pub fn write(&self, session: SessionId, lun: u64) -> Result<Answer, IoRefusal> {
        self.handle.lock().command(session.0, lun, true, false)
    }

    /// Sends a write without waiting for its end: on a held device it is in flight afterwards, and
    /// lands at [`FakeMachine::release`].
    pub fn start_write(&self, session: SessionId, lun: u64) -> Result<Answer, IoRefusal> {
        self.handle.lock().command(session.0, lun, true, true)
    }

    /// Sends REPORT LUNS. Returns the LUNs that the session sees now.
    pub fn report_luns(&self, session: SessionId) -> Result<Vec<u64>, IoRefusal> {
        let machine = self.handle.lock();
        let live = machine.sessions.get(&session.0).ok_or(IoRefusal::SessionGone)?;
        Ok(machine.units_of(live).into_keys().collect())
    }

    /// Sends INQUIRY, READ CAPACITY and MODE SENSE to one LUN.
    pub fn inquire(&self, session: SessionId, lun: u64) -> Result<Identity, IoRefusal> {
        let machine = self.handle.lock();
        let live = machine.sessions.get(&session.0).ok_or(IoRefusal::SessionGone)?;
        let unit = machine.units_of(live).remove(&lun).ok_or(IoRefusal::NoLun)?;
        let store = machine.lio.store_of(&unit.lun).ok_or(IoRefusal::NoLun)?;
        let serial = String::from_utf8_lossy(&store.serial).into_owned();
        let device = unit.device.as_ref().and_then(|path| machine.devices.get(path));
        Ok(Identity {
            naa: super::lio::naa(&serial),
            serial,
            size: device.map_or(0, |device| device.size),
            write_protected: unit.access == Access::ReadOnly,
        })
    }

    /// Returns everything that any initiator could reach right now, with or without credentials: by
    /// a new login (an enabled group with a portal on an address of this machine), or by a session
    /// that lives. Sorted.
    pub fn reachable(&self) -> Vec<Reach> {
        let machine = self.handle.lock();
        let mut all = BTreeSet::new();
        for (key, tpg) in machine.lio.tpgs() {
            let fabric = key.target.fabric;
            let there = match fabric {
                FabricKind::Iscsi => machine.listens(tpg, None),
                _ => machine.has_fc_port(fabric, &key.target.name),
            };
            if !tpg.enabled || !there {
                continue;
            }
            let group = tpg.requires_authentication();
            for (initiator, acl) in &tpg.acls {
                if let Some(authenticated) = way_in(acl, group) {
                    machine.reach_of(&key, initiator, false, authenticated, &mut all);
                }
            }
            if tpg.shows_strangers() && (!group || credentials(&tpg.values).is_some()) {
                machine.reach_of(&key, "*", true, group, &mut all);
            }
        }
        for session in machine.sessions.values().filter(|session| !session.blind) {
            machine.reach_of(
                &session.tpg,
                &session.initiator,
                session.dynamic,
                session.authenticated,
                &mut all,
            );
        }
        all.into_iter().collect()
    }

    /// Returns `true` if a target has an ACL for this initiator, and no portal where it could log
    /// in.
    pub fn is_withheld(&self, target: &str, initiator: &str) -> bool {
        let machine = self.handle.lock();
        machine.lio.tpgs().any(|(key, tpg)| {
            let known = tpg.acls.get(initiator).is_some_and(|acl| !acl.dying);
            key.target.name == target && tpg.enabled && tpg.portals.is_empty() && known
        })
    }

    /// Makes a device stop answering: commands on it stay in flight.
    pub fn hold(&self, device: impl AsRef<Path>) {
        if let Some(device) = self.handle.lock().devices.get_mut(device.as_ref()) {
            device.held = true;
        }
    }

    /// Lets a held device answer: its commands in flight complete, and calls that waited for it
    /// return.
    pub fn release(&self, device: impl AsRef<Path>) {
        let mut machine = self.handle.lock();
        if let Some(device) = machine.devices.get_mut(device.as_ref()) {
            device.held = false;
        }
        machine.complete(device.as_ref());
        drop(machine);
        self.handle.wake();
    }

    /// Counts the commands in flight on a device.
    pub fn in_flight(&self, device: impl AsRef<Path>) -> usize {
        let machine = self.handle.lock();
        machine.in_flight.iter().filter(|command| command.device == device.as_ref()).count()
    }

    /// Counts the writes of initiators that have reached a device.
    pub fn landed(&self, device: impl AsRef<Path>) -> u64 {
        self.handle.lock().devices.get(device.as_ref()).map_or(0, |device| device.landed)
    }
}
