//! Persistent reservations of a backstore, as the kernel keeps them: those that live, and those
//! that were put back and wait for their initiator to be mapped (lio.md, f).
//!
//! What must never happen: a registration that outlives its mapped LUN; one that comes alive for
//! another LUN than its own.

use std::fmt::Write as _;
use std::path::PathBuf;

use nix::errno::Errno;

use super::model::{Lio, LunKey, MappedKey, StoreKey};
use crate::fake::session::{IoRefusal, Session};
use crate::fake::state::Machine;
use crate::fake::{FakeMachine, SessionId};

/// Length in bytes at which a listing is cut: a page.
const PAGE: usize = 4096;

/// Types that let every initiator read.
const READABLE: [u8; 3] = [1, 5, 7];

/// A PERSISTENT RESERVE OUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrOut {
    /// REGISTER: `key` is the registered key, `new` the next one; 0 unregisters.
    Register {
        /// The key that is registered, or 0.
        key: u64,
        /// The key from now on, or 0.
        new: u64,
        /// The registration outlives a loss of power.
        durable: bool,
    },
    /// REGISTER AND IGNORE EXISTING KEY
    RegisterAnyway {
        /// The key from now on, or 0.
        new: u64,
        /// The registration outlives a loss of power.
        durable: bool,
    },
    /// RESERVE
    Reserve {
        /// Key of the sender.
        key: u64,
        /// Type of the reservation.
        kind: u8,
    },
    /// RELEASE
    Release {
        /// Key of the sender.
        key: u64,
        /// Type of the reservation.
        kind: u8,
    },
    /// CLEAR
    Clear {
        /// Key of the sender.
        key: u64,
    },
    /// PREEMPT
    Preempt {
        /// Key of the sender.
        key: u64,
        /// Key of the initiators that lose their registration.
        victim: u64,
        /// Type that the sender holds then, if a victim held the reservation.
        kind: u8,
    },
}

/// A registration.
#[derive(Debug, Clone)]
pub(crate) struct Reg {
    fabric: &'static str,
    initiator: String,
    isid: Option<String>,
    key: u64,
    /// Type of the reservation that it holds; `None` if it holds none.
    holds: Option<u8>,
    all_ports: bool,
    mapped_lun: u64,
    target: String,
    tpg: u16,
    rtpi: u16,
    target_lun: u64,
    generation: u32,
}

impl Reg {
    fn port(&self) -> String {
        self.isid
            .as_ref()
            .map_or_else(|| self.initiator.clone(), |isid| format!("{},i,0x{isid}", self.initiator))
    }

    fn is_of(&self, session: &Session) -> bool {
        let isid = session.isid_text("");
        self.initiator == session.initiator
            && self.target == session.tpg.target.name
            && self.isid.as_deref().unwrap_or_default() == isid
    }
}

/// The older RESERVE(6), which ends with its session.
#[derive(Debug, Clone)]
struct Old {
    session: u64,
    fabric: &'static str,
    initiator: String,
}

/// Reservations of a backstore.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pr {
    old: Option<Old>,
    live: Vec<Reg>,
    waiting: Vec<Reg>,
    generation: u32,
    active: bool,
}

fn kind_words(kind: u8) -> &'static str {
    match kind {
        1 => "Write Exclusive Access",
        3 => "Exclusive Access",
        5 => "Write Exclusive Access, Registrants Only",
        6 => "Exclusive Access, Registrants Only",
        7 => "Write Exclusive Access, All Registrants",
        8 => "Exclusive Access, All Registrants",
        _ => "Unknown SPC-3 PR Type",
    }
}

impl Pr {
    fn holder(&self) -> Option<(&Reg, u8)> {
        self.live.iter().find_map(|reg| Some((reg, reg.holds?)))
    }

    /// Returns the text of an attribute of `pr/`; `None` if there is no such attribute.
    pub(super) fn show(&self, name: &str) -> Option<String> {
        let held = |text: &dyn Fn(&Reg, u8) -> String| {
            self.holder()
                .map_or_else(|| "No SPC-3 Reservation holder\n".to_owned(), |(reg, kind)| text(reg, kind))
        };
        Some(match name {
            "res_aptpl_active" => {
                format!("APTPL Bit Status: {}\n", if self.active { "Activated" } else { "Disabled" })
            }
            "res_pr_generation" => format!("0x{:08x}\n", self.generation),
            "res_pr_registered_i_pts" => self.listing(),
            "res_holder" => {
                held(&|reg, _| format!("SPC-3 Reservation: {} Initiator: {}\n", reg.fabric, reg.port()))
            }
            "res_pr_type" => held(&|_, kind| format!("SPC-3 Reservation Type: {}\n", kind_words(kind))),
            "res_pr_all_tgt_pts" => held(&|reg, _| {
                let ports = if reg.all_ports { "All Target Ports" } else { "Single Target Port" };
                format!("SPC-3 Reservation: {ports} registration\n")
            }),
            "res_pr_holder_tg_port" => held(&|reg, _| {
                format!(
                    "SPC-3 Reservation: {0} Target Node Endpoint: {1}\nSPC-3 Reservation: Relative Port Identifier Tag: {2} \
                     {0} Portal Group Tag: {3} {0} Logical Unit: {4}\n",
                    reg.fabric, reg.target, reg.rtpi, reg.tpg, reg.target_lun
                )
            }),
            _ => return None,
        })
    }

    fn listing(&self) -> String {
        let mut text = "SPC-3 PR Registrations:\n".to_owned();
        for reg in &self.live {
            let line = format!(
                "{} Node: {} Key: 0x{:016x} PRgen: 0x{:08x}\n",
                reg.fabric,
                reg.port(),
                reg.key,
                reg.generation
            );
            if text.len() + line.len() >= PAGE {
                break;
            }
            text.push_str(&line);
        }
        if self.live.is_empty() {
            text.push_str("None\n");
        }
        text
    }

    /// Returns the text of the kernel's file.
    fn file(&self) -> String {
        if !self.active || self.live.is_empty() {
            return "No Registrations or Reservations".to_owned();
        }
        let mut text = String::new();
        for (number, reg) in self.live.iter().enumerate() {
            let _ = write!(
                text,
                "PR_REG_START: {number}\ninitiator_fabric={}\ninitiator_node={}\n",
                reg.fabric, reg.initiator
            );
            if let Some(isid) = &reg.isid {
                let _ = writeln!(text, "initiator_sid={isid}");
            }
            let _ = writeln!(text, "sa_res_key={}", reg.key);
            let _ = match reg.holds {
                Some(kind) => writeln!(text, "res_holder=1\nres_type={kind:02x}\nres_scope=00"),
                None => writeln!(text, "res_holder=0"),
            };
            let _ = write!(
                text,
                "res_all_tg_pt={}\nmapped_lun={}\ntarget_fabric={}\ntarget_node={}\ntpgt={}\nport_rtpi={}\ntarget_lun={}\n\
                 PR_REG_END: {number}\n",
                u8::from(reg.all_ports),
                reg.mapped_lun,
                reg.fabric,
                reg.target,
                reg.tpg,
                reg.rtpi,
                reg.target_lun
            );
        }
        text.push('\0');
        text
    }

    /// Takes a registration back, as `res_aptpl_metadata` does.
    pub(super) fn put_back(&mut self, value: &[u8]) -> Result<(), Errno> {
        let text = String::from_utf8_lossy(value).into_owned();
        let find = |name: &str| {
            let mut words = text.split([',', '\n']).filter_map(|word| word.split_once('='));
            words.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
        };
        let number = |name: &str| {
            find(name).map_or(Ok(0), |value| super::number(value.as_bytes()).map_err(|_| Errno::EINVAL))
        };
        let small = |name: &str| u16::try_from(number(name)?).map_err(|_| Errno::EINVAL);
        let key = number("sa_res_key")?;
        let kind = u8::try_from(number("res_type")?).map_err(|_| Errno::EINVAL)?;
        let holds = (number("res_holder")? != 0).then_some(kind);
        let (Some(initiator), Some(target)) = (find("initiator_node"), find("target_node")) else {
            return Err(Errno::EINVAL);
        };
        if key == 0 || holds == Some(0) {
            return Err(Errno::EINVAL);
        }
        self.waiting.push(Reg {
            fabric: "",
            initiator,
            isid: find("initiator_sid"),
            key,
            holds,
            all_ports: number("res_all_tg_pt")? != 0,
            mapped_lun: number("mapped_lun")?,
            target,
            tpg: small("tpgt")?,
            rtpi: small("port_rtpi")?,
            target_lun: number("target_lun")?,
            generation: 0,
        });
        Ok(())
    }

    fn add(&mut self, reg: Reg) {
        self.live.push(Reg { generation: self.generation, ..reg });
        self.generation = self.generation.wrapping_add(1);
    }

    /// Removes one registration; a reservation of all registrants passes on to the next.
    fn remove(&mut self, index: usize) {
        let gone = self.live.remove(index);
        if let (Some(kind @ (7 | 8)), Some(next)) = (gone.holds, self.live.first_mut()) {
            next.holds = Some(kind);
        }
    }

    /// Returns `true` if the reservation forbids this access to an initiator that is not registered
    /// there.
    fn conflicts(&self, session: &Session, writes: bool) -> bool {
        let Some((holder, kind)) = self.holder() else { return false };
        let may = if matches!(kind, 1 | 3) {
            holder.is_of(session)
        } else {
            self.live.iter().any(|reg| reg.is_of(session))
        };
        !may && (writes || !READABLE.contains(&kind))
    }

    fn act(
        &mut self,
        session: &Session,
        command: PrOut,
        made: impl FnOnce() -> Option<Reg>,
    ) -> Result<(), IoRefusal> {
        let own = self.live.iter().position(|reg| reg.is_of(session));
        let registered = own.map_or(0, |own| self.live[own].key);
        let shown = match command {
            PrOut::RegisterAnyway { .. } => registered,
            PrOut::Register { key, .. }
            | PrOut::Reserve { key, .. }
            | PrOut::Release { key, .. }
            | PrOut::Clear { key }
            | PrOut::Preempt { key, .. } => key,
        };
        let conflict = Err(IoRefusal::ReservationConflict);
        if shown != registered {
            return conflict;
        }
        let Some(own) = own else {
            let (PrOut::Register { new, durable, .. } | PrOut::RegisterAnyway { new, durable }) = command
            else {
                return conflict;
            };
            if let Some(reg) = made().filter(|_| new != 0) {
                self.add(Reg { key: new, ..reg });
                self.active = durable;
            }
            return Ok(());
        };
        match command {
            PrOut::Register { new, durable, .. } | PrOut::RegisterAnyway { new, durable } => {
                if new == 0 {
                    // PRGENERATION does not move for this.
                    self.remove(own);
                } else {
                    self.live[own].key = new;
                    self.generation = self.generation.wrapping_add(1);
                }
                self.active = durable;
            }
            PrOut::Reserve { kind, .. } => match self.holder() {
                Some((holder, held)) if !holder.is_of(session) || held != kind => return conflict,
                _ => self.live[own].holds = Some(kind),
            },
            PrOut::Release { kind, .. } => {
                if self.live[own].holds == Some(kind) {
                    self.live[own].holds = None;
                }
            }
            PrOut::Clear { .. } => {
                self.live.clear();
                self.active = false;
                self.generation = self.generation.wrapping_add(1);
            }
            PrOut::Preempt { victim, kind, .. } => {
                // `core_scsi3_pro_preempt`: a preempted key without the reservation may be the
                // sender's own, but not where all registrants hold it.
                let held = self.holder().map(|(reg, held)| (reg.key, held));
                let takes = held.is_some_and(|(key, _)| key == victim);
                let spares = takes || held.is_some_and(|(_, held)| matches!(held, 7 | 8));
                let before = self.live.len();
                self.live.retain(|reg| reg.key != victim || (spares && reg.is_of(session)));
                if !takes && self.live.len() == before {
                    return conflict;
                }
                if let Some(own) = self.live.iter_mut().find(|reg| reg.is_of(session)).filter(|_| takes) {
                    own.holds = Some(kind);
                }
                self.generation = self.generation.wrapping_add(1);
            }
        }
        Ok(())
    }
}

impl Lio {
    /// Revives the registrations that wait for an initiator, which is being mapped.
    pub(super) fn revive(&mut self, key: &MappedKey, lun: &LunKey) {
        let fabric = key.acl.tpg.target.fabric.name();
        let rtpi = self.port_id(lun);
        let Some(store) = self.lun(lun).and_then(|seen| Some(seen.link.as_ref()?.1.clone())) else { return };
        let Some(store) = self.store_mut(&store) else { return };
        let pr = &mut store.pr;
        let fits = |reg: &Reg| {
            reg.initiator == key.acl.initiator
                && reg.mapped_lun == key.lun
                && reg.target == lun.tpg.target.name
                && reg.tpg == lun.tpg.tpg
                && reg.target_lun == lun.lun
        };
        let (come, wait) = std::mem::take(&mut pr.waiting).into_iter().partition(fits);
        pr.waiting = wait;
        let come: Vec<Reg> = come;
        pr.active |= !come.is_empty();
        for reg in come {
            pr.add(Reg { fabric, rtpi, ..reg });
        }
    }

    /// Drops the registrations of an initiator that is no longer mapped to a LUN, and its
    /// reservation.
    pub(super) fn forget_registrations(&mut self, lun: &LunKey, initiator: Option<&str>) {
        let Some((_, store)) = self.lun(lun).and_then(|lun| lun.link.clone()) else { return };
        let Some(store) = self.store_mut(&store) else { return };
        let pr = &mut store.pr;
        let goes = |reg: &Reg| {
            reg.target == lun.tpg.target.name
                && reg.target_lun == lun.lun
                && initiator.is_none_or(|initiator| reg.initiator == initiator)
        };
        while let Some(index) = pr.live.iter().position(goes) {
            pr.remove(index);
        }
    }
}

impl Machine {
    /// Returns `true` if a reservation forbids this session its command.
    pub(in crate::fake) fn is_reserved(
        &self,
        id: u64,
        session: &Session,
        lun: &LunKey,
        writes: bool,
    ) -> bool {
        self.lio.store_of(lun).is_some_and(|store| match self.old_holder(&store.pr) {
            Some(old) => old.session != id,
            None => store.pr.conflicts(session, writes),
        })
    }

    fn old_holder<'a>(&self, pr: &'a Pr) -> Option<&'a Old> {
        pr.old.as_ref().filter(|old| self.sessions.contains_key(&old.session))
    }

    /// Returns the text of an attribute of `pr/`; `None` if there is no such attribute.
    pub(super) fn show_reservations(&self, pr: &Pr, name: &str) -> Option<String> {
        match self.old_holder(pr) {
            Some(Old { fabric, initiator, .. }) if name == "res_holder" => {
                Some(format!("SPC-2 Reservation: {fabric} Initiator: {initiator}\n"))
            }
            _ => pr.show(name),
        }
    }

    fn reserve_6(&mut self, id: u64, lun: u64) -> Result<(), IoRefusal> {
        // The command claims to move no data: `write_protect` lets it pass.
        let Some((session, unit)) = self.look_up(id, lun, false)? else { return Err(IoRefusal::NoLun) };
        if self.is_reserved(id, &session, &unit.lun, true) {
            return Err(IoRefusal::ReservationConflict);
        }
        let fabric = session.tpg.target.fabric.name();
        let store = self.lio.lun(&unit.lun).and_then(|lun| Some(lun.link.as_ref()?.1.clone()));
        let store = store.and_then(|store| self.lio.store_mut(&store)).ok_or(IoRefusal::NoLun)?;
        if !store.pr.live.is_empty() {
            return Err(IoRefusal::ReservationConflict);
        }
        store.pr.old = Some(Old { session: id, fabric, initiator: session.initiator.clone() });
        Ok(())
    }

    fn persistent_reserve(&mut self, id: u64, lun: u64, command: PrOut) -> Result<(), IoRefusal> {
        let Some((session, unit)) = self.look_up(id, lun, true)? else { return Err(IoRefusal::NoLun) };
        if self.lio.store_of(&unit.lun).and_then(|store| self.old_holder(&store.pr)).is_some() {
            return Err(IoRefusal::ReservationConflict);
        }
        let isid = Some(session.isid_text("")).filter(|isid| !isid.is_empty());
        let key: StoreKey = self
            .lio
            .lun(&unit.lun)
            .and_then(|lun| Some(lun.link.as_ref()?.1.clone()))
            .ok_or(IoRefusal::NoLun)?;
        let rtpi = self.lio.port_id(&unit.lun);
        let made = || {
            Some(Reg {
                fabric: session.tpg.target.fabric.name(),
                initiator: session.initiator.clone(),
                isid: isid.clone(),
                key: 0,
                holds: None,
                all_ports: false,
                mapped_lun: lun,
                target: session.tpg.target.name.clone(),
                tpg: session.tpg.tpg,
                rtpi,
                target_lun: unit.lun.lun,
                generation: 0,
            })
        };
        let file = {
            let store = self.lio.store_mut(&key).ok_or(IoRefusal::NoLun)?;
            store.pr.act(&session, command, made)?;
            (String::from_utf8_lossy(&store.serial).into_owned(), store.pr.file())
        };
        self.write_aptpl(&file.0, &file.1)
    }

    /// Writes the file. The command has taken effect, and is answered with an error where the
    /// folder is missing.
    fn write_aptpl(&self, serial: &str, text: &str) -> Result<(), IoRefusal> {
        let Some(root) = &self.root else { return Ok(()) };
        let dbroot = self.lio.values.get("", "dbroot").map_or("/var/target".into(), String::from_utf8_lossy);
        let folder = root.join(dbroot.trim_start_matches('/')).join("pr");
        std::fs::write(folder.join(format!("aptpl_{serial}")), text).map_err(|_| IoRefusal::NotReady)
    }
}

impl FakeMachine {
    /// Sets the folder in the place of `/`: LIO writes its files of reservations below it, where
    /// their folder is. Without one they are not written.
    pub fn set_root(&self, root: impl Into<PathBuf>) {
        self.handle.lock().root = Some(root.into());
    }

    /// Sends RESERVE(6) in a session.
    pub fn reserve_6(&self, session: SessionId, lun: u64) -> Result<(), IoRefusal> {
        self.handle.lock().reserve_6(session.0, lun)
    }

    /// Sends PERSISTENT RESERVE OUT in a session.
    pub fn persistent_reserve(&self, session: SessionId, lun: u64, command: PrOut) -> Result<(), IoRefusal> {
        self.handle.lock().persistent_reserve(session.0, lun, command)
    }
}
