//! Fibre Channel initiators against the fake target: ports, logins (PLOGI and PRLI in one), and
//! writes whose data come late.
//!
//! What must never happen: an initiator refused here that the kernel would admit, or a command that
//! is executed here and would not be there: the laws of exposure rest on it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::FakeMachine;
use super::lio::{FabricKind, TargetKey, TpgKey};
use super::session::{Answer, Endpoint, InFlight, IoRefusal, LoginRefusal, Session, SessionId, admit};
use super::state::Machine;

/// A write that the target has taken while its data are on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateWrite(u64);

/// Parses `fc/20:00:52:54:00:14:00:0a`.
fn port(text: &str) -> Option<TargetKey> {
    let (folder, name) = text.split_once('/')?;
    let fabric = FabricKind::of(folder).filter(|kind| *kind != FabricKind::Iscsi)?;
    Some(TargetKey { fabric, name: name.to_owned() })
}

impl Machine {
    fn log_in_fc(&mut self, at: &str, initiator: &str) -> Result<u64, LoginRefusal> {
        let target = port(at).ok_or(LoginRefusal::Unreachable)?;
        if !self.has_fc_port(target.fabric, &target.name) {
            return Err(LoginRefusal::Unreachable);
        }
        let key = self.lio.tpgs().find(|(key, tpg)| key.target == target && tpg.enabled).map(|(key, _)| key);
        let key: TpgKey = key.ok_or(LoginRefusal::NoTarget)?;
        let tpg = self.lio.tpg(&key).ok_or(LoginRefusal::NoTarget)?;
        let (dynamic, authenticated) = admit(tpg, initiator, None)?;
        let blind = dynamic && !tpg.shows_strangers();
        // A port has one login; its older one ends.
        self.cut_sessions(|old| old.tpg == key && old.initiator == initiator);
        self.next_session += 1;
        let session = Session {
            tpg: key,
            initiator: initiator.to_owned(),
            dynamic,
            blind,
            authenticated,
            endpoint: Endpoint::Fc,
            commands: 0,
            read_bytes: 0,
            agreed: BTreeMap::new(),
        };
        self.sessions.insert(self.next_session, session);
        Ok(self.next_session)
    }

    fn begin_late(&mut self, id: u64, lun: u64) -> Result<u64, IoRefusal> {
        let (session, unit) = self.look_up(id, lun, true)?.ok_or(IoRefusal::NoLun)?;
        self.next_session += 1;
        let late = self.next_session;
        let device = unit.device.unwrap_or_default();
        let command =
            InFlight { session: id, owner: session, lun: unit.lun, device, writes: true, late: Some(late) };
        self.in_flight.push(command);
        Ok(late)
    }

    /// Executes the command, now that its data have come: by the present state of its LUN, and by
    /// its mapping when it was looked up.
    fn end_late(&mut self, late: u64) -> Result<Answer, IoRefusal> {
        let at = self.in_flight.iter().position(|command| command.late == Some(late));
        let at = at.ok_or(IoRefusal::SessionGone)?;
        if self.lio.is_shut(&self.in_flight[at].lun) {
            self.in_flight.remove(at);
            return Err(IoRefusal::Shut);
        }
        self.in_flight[at].late = None;
        let path: PathBuf = self.in_flight[at].device.clone();
        if self.devices.get(&path).is_some_and(|device| device.held) {
            return Err(IoRefusal::Held);
        }
        self.complete(&path);
        Ok(Answer::Device(path))
    }
}

impl FakeMachine {
    /// Adds a Fibre Channel port to this machine's adapters: `fc/20:00:52:54:00:14:00:0a`, or with
    /// the driver `qla2xxx` or `efct`. `false`: no such driver.
    pub fn add_fc_port(&self, at: &str) -> bool {
        let Some(target) = port(at) else { return false };
        self.handle.lock().fc_ports.insert((target.fabric, target.name));
        true
    }

    /// Logs an initiator port in at a port of this machine, as PLOGI and PRLI do.
    pub fn plogi(&self, at: &str, initiator: &str) -> Result<SessionId, LoginRefusal> {
        let id = self.handle.lock().log_in_fc(at, initiator);
        self.handle.wake();
        id.map(SessionId)
    }

    /// Sends a write and holds its data back. Until they are sent the command is in flight and not
    /// executed.
    pub fn begin_write(&self, session: SessionId, lun: u64) -> Result<LateWrite, IoRefusal> {
        self.handle.lock().begin_late(session.0, lun).map(LateWrite)
    }

    /// Sends the data of such a write: it is executed, or refused.
    pub fn send_data(&self, write: LateWrite) -> Result<Answer, IoRefusal> {
        let answer = self.handle.lock().end_late(write.0);
        self.handle.wake();
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fake::{FakeLio, IoRefusal};
    use crate::{Errno, Tree, TreePath};

    const DEVICE: &str = "/dev/vg0/lv0";
    const PORT: &str = "20:00:52:54:00:14:00:0a";
    const ONE: &str = "20:00:52:54:00:14:00:0b";
    const TWO: &str = "20:00:52:54:00:14:00:0c";

    fn path(text: &str) -> TreePath {
        TreePath::new(text)
    }

    /// Makes a machine with one port of a driver, and a backstore.
    fn machine(fabric: &str) -> (FakeMachine, FakeLio) {
        let machine = FakeMachine::new();
        machine.add_device(DEVICE, 1 << 30);
        assert!(machine.add_fc_port(&format!("{fabric}/{PORT}")));
        let lio = machine.lio();
        for folder in ["core/iblock_0", "core/iblock_0/a"] {
            lio.mkdir(&path(folder)).unwrap();
        }
        lio.write(&path("core/iblock_0/a/control"), b"udev_path=/dev/vg0/lv0").unwrap();
        lio.write(&path("core/iblock_0/a/enable"), b"1").unwrap();
        for folder in [fabric.to_owned(), format!("{fabric}/{PORT}"), format!("{fabric}/{PORT}/tpgt_1")] {
            lio.mkdir(&path(&folder)).unwrap();
        }
        (machine, lio)
    }

    /// Makes a LUN of one's own, mapped as LUN 1.
    fn grant(lio: &FakeLio, initiator: &str, number: u32) {
        let group = path("fc").join(PORT).join("tpgt_1");
        let lun = group.join("lun").join(format!("lun_{number}"));
        lio.mkdir(&lun).unwrap();
        lio.symlink(&path("core/iblock_0/a"), &lun.join("l")).unwrap();
        let acl = group.join("acls").join(initiator);
        lio.mkdir(&acl).unwrap();
        lio.mkdir(&acl.join("lun_1")).unwrap();
        lio.symlink(&lun, &acl.join("lun_1").join("l")).unwrap();
    }

    fn at(text: &str) -> TreePath {
        path(&format!("fc/{PORT}/tpgt_1/{text}"))
    }

    #[test]
    fn a_login_needs_port_group_and_acl() {
        let (machine, lio) = machine("fc");
        let login = |port: &str| machine.plogi(&format!("fc/{port}"), ONE);
        assert_eq!(login(TWO), Err(LoginRefusal::Unreachable));
        assert_eq!(machine.plogi(&format!("iscsi/{PORT}"), ONE), Err(LoginRefusal::Unreachable));
        assert_eq!(login(PORT), Err(LoginRefusal::NotAuthorized));
        grant(&lio, ONE, 257);
        let first = login(PORT).unwrap();
        assert!(machine.write(first, 1).is_ok());
        assert_eq!(machine.read(first, 2), Err(IoRefusal::NoLun));
        let ident = at(&format!("acls/{ONE}/lun_1/statistics/scsi_att_intr_port/port_ident"));
        assert_eq!(lio.read_text(&ident).unwrap(), format!("{ONE}+i+"));
        let second = login(PORT).unwrap();
        assert!(!machine.is_live(first) && machine.is_live(second));
    }

    /// lio.md, d and o: the calls that are a barrier and those that are not, with a write in flight
    /// on a disk that does not answer.
    #[test]
    fn only_the_lun_and_the_acl_drain() {
        let (machine, lio) = machine("fc");
        grant(&lio, ONE, 257);
        grant(&lio, TWO, 513);
        let one = machine.plogi(&format!("fc/{PORT}"), ONE).unwrap();
        let two = machine.plogi(&format!("fc/{PORT}"), TWO).unwrap();
        machine.hold(DEVICE);
        machine.start_write(one, 1).unwrap();
        lio.write(&at(&format!("acls/{ONE}/lun_1/write_protect")), b"1").unwrap();
        lio.unlink(&at(&format!("acls/{ONE}/lun_1/l"))).unwrap();
        assert_eq!((machine.in_flight(DEVICE), machine.landed(DEVICE)), (1, 0), "no barrier");
        // The other initiator's LUN has nothing in flight, and goes at once.
        lio.unlink(&at(&format!("acls/{TWO}/lun_1/l"))).unwrap();
        lio.unlink(&at("lun/lun_513/l")).unwrap();
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| lio.unlink(&at("lun/lun_257/l")));
            while machine.waiting() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!drain.is_finished());
            // Nothing else of the port waits for it.
            lio.mkdir(&at("lun/lun_514")).unwrap();
            lio.list(&at("acls")).unwrap();
            assert_eq!(machine.landed(DEVICE), 0);
            machine.release(DEVICE);
            drain.join().unwrap().unwrap();
        });
        assert_eq!(machine.landed(DEVICE), 1);
        assert!(machine.is_live(one) && machine.is_live(two), "no session is dropped");
    }

    #[test]
    fn a_shut_lun_executes_nothing() {
        let (machine, lio) = machine("fc");
        grant(&lio, ONE, 257);
        let session = machine.plogi(&format!("fc/{PORT}"), ONE).unwrap();
        let late = machine.begin_write(session, 1).unwrap();
        let shut = at("lun/lun_257/alua_tg_pt_offline");
        lio.write(&shut, b"1").unwrap();
        assert_eq!(machine.write(session, 1), Err(IoRefusal::Shut));
        assert_eq!(machine.send_data(late), Err(IoRefusal::Shut));
        assert_eq!(machine.reachable(), vec![]);
        // A command that was looked up while its LUN was writable is executed if the LUN is open
        // when its data come.
        let late = machine.begin_write(session, 1).unwrap();
        lio.write(&at(&format!("acls/{ONE}/lun_1/write_protect")), b"1").unwrap();
        lio.write(&shut, b"0").unwrap();
        assert!(machine.send_data(late).is_ok());
        assert_eq!(machine.landed(DEVICE), 1);
        assert_eq!(machine.write(session, 1), Err(IoRefusal::WriteProtected));
        let commands = at(&format!("acls/{ONE}/lun_1/statistics/scsi_auth_intr/num_cmds"));
        assert_eq!(lio.read_text(&commands).unwrap(), "4", "counted when looked up, whatever became of it");
    }

    #[test]
    fn adapters_have_an_enable_and_blind_strangers() {
        let (machine, lio) = machine("qla2xxx");
        let group = path("qla2xxx").join(PORT).join("tpgt_1");
        let login = || machine.plogi(&format!("qla2xxx/{PORT}"), ONE);
        assert_eq!(
            lio.mkdir(&path("qla2xxx").join(TWO)).unwrap_err().errno,
            Errno::EINVAL,
            "no such adapter"
        );
        let lun = group.join("lun").join("lun_257");
        lio.mkdir(&lun).unwrap();
        lio.symlink(&path("core/iblock_0/a"), &lun.join("l")).unwrap();
        assert_eq!(login(), Err(LoginRefusal::NoTarget));
        lio.write(&group.join("enable"), b"1").unwrap();
        let stranger = login().unwrap();
        assert_eq!((machine.report_luns(stranger), machine.reachable()), (Ok(vec![]), vec![]));
        lio.write(&group.join("attrib").join("demo_mode_login_only"), b"0").unwrap();
        assert_eq!(machine.reachable().len(), 1, "now it would see every LUN of the port");
        assert_eq!(machine.report_luns(stranger), Ok(vec![]));
        lio.write(&group.join("attrib").join("generate_node_acls"), b"0").unwrap();
        assert_eq!(login(), Err(LoginRefusal::NotAuthorized));
    }
}
