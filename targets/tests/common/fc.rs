//! Fibre Channel: a port that several volumes and somebody else share, specs, and the agent's loop
//! over it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use mooring_host::fake::{FakeMachine, SessionId};
use mooring_host::{Tree, TreePath};
use mooring_model::{
    FcFabric, FcGrant, FcNames, FcPort, InitiatorSlot, Lun, Mode, Plan, PortLun, VolumeId, Wwpn,
};
pub(crate) use mooring_targets::fc::Wanted;
use mooring_targets::fc::{self, Place, View};
use mooring_targets::{Error, Op, apply};

use super::{DEVICE, dump_all, machine, mode_of, names_of, run_script, text, volume};

pub(crate) const OTHER_DEVICE: &str = "/dev/vg0/other";

pub(crate) fn port(fabric: FcFabric) -> FcPort {
    FcPort { fabric, wwpn: "20:00:52:54:00:14:00:0a".parse().unwrap() }
}

pub(crate) fn initiator(number: u16) -> Wwpn {
    Wwpn::from_u64(0x2000_5254_0014_0100 + u64::from(number)).unwrap()
}

pub(crate) fn place(number: u16, lun: u16) -> Place {
    Place { initiator: initiator(number), slot: InitiatorSlot::new(number).unwrap(), lun: Lun(lun) }
}

pub(crate) fn grant(number: u16, lun: u16, mode: Mode) -> FcGrant {
    let Place { initiator, slot, lun } = place(number, lun);
    FcGrant { initiator, slot, lun, mode, attachments: Vec::new() }
}

pub(crate) fn other_volume() -> VolumeId {
    "a0000000-5555-4222-8333-444444444444".parse().unwrap()
}

pub(crate) fn names(fabric: FcFabric, volume: VolumeId) -> FcNames {
    FcNames { export: names_of(volume), port: port(fabric) }
}

pub(crate) fn present(fabric: FcFabric, grants: Vec<FcGrant>) -> Wanted {
    Wanted::Present { names: names(fabric, volume()), device: DEVICE.into(), grants }
}

pub(crate) fn absent(fabric: FcFabric) -> Wanted {
    Wanted::Absent { names: names(fabric, volume()) }
}

pub(crate) fn of_other(fabric: FcFabric, grants: Vec<FcGrant>) -> Wanted {
    Wanted::Present { names: names(fabric, other_volume()), device: OTHER_DEVICE.into(), grants }
}

/// A machine with one prepared port of this driver, and the devices of two volumes.
pub(crate) fn bare(fabric: FcFabric) -> FakeMachine {
    let machine = machine();
    machine.add_device(OTHER_DEVICE, 1 << 30);
    assert!(machine.add_fc_port(&port(fabric).to_string()));
    fc::prepare(&machine.lio(), port(fabric)).unwrap();
    machine
}

/// LUN 0 of somebody else in the same group, mapped to a foreign initiator and to one of ours. Its
/// disk takes no EXTENDED COPY: from a writable disk that does, this initiator could write to our
/// volumes whatever their mode (lio.md, s).
const FOREIGN: &str = "
mkdir core/iblock_0
mkdir core/iblock_0/foreign
write core/iblock_0/foreign/control = udev_path=/dev/vg0/foreign
write core/iblock_0/foreign/enable = 1
write core/iblock_0/foreign/attrib/emulate_3pc = 0
mkdir $P/lun/lun_0
link $P/lun/lun_0/x -> core/iblock_0/foreign
mkdir $P/acls/20:00:52:54:00:14:09:09
mkdir $P/acls/20:00:52:54:00:14:09:09/lun_0
link $P/acls/20:00:52:54:00:14:09:09/lun_0/x -> $P/lun/lun_0
mkdir $P/acls/20:00:52:54:00:14:01:03
mkdir $P/acls/20:00:52:54:00:14:01:03/lun_0
link $P/acls/20:00:52:54:00:14:01:03/lun_0/x -> $P/lun/lun_0
";

/// A bare machine with another volume of ours that has the same initiators, and with a foreign LUN.
pub(crate) fn shared(fabric: FcFabric) -> FakeMachine {
    let machine = bare(fabric);
    machine.add_device(super::FOREIGN_DEVICE, 1 << 30);
    run_script(&machine.lio(), &FOREIGN.replace("$P", fc::tpg(port(fabric)).as_str()));
    let grants = vec![grant(1, 7, Mode::ReadWrite), grant(2, 7, Mode::ReadOnly)];
    Node::new(&machine).settle(&of_other(fabric, grants));
    machine
}

/// The agent's part: a machine, and the places that were last in force.
pub(crate) struct Node<'a> {
    pub(crate) machine: &'a FakeMachine,
    pub(crate) former: RefCell<BTreeSet<Place>>,
}

impl<'a> Node<'a> {
    pub(crate) fn new(machine: &'a FakeMachine) -> Self {
        Self { machine, former: RefCell::default() }
    }

    pub(crate) fn look(&self, tree: &dyn Tree, wanted: &Wanted) -> View {
        View::read(tree, wanted, &self.former.borrow()).unwrap()
    }

    pub(crate) fn plan(&self, wanted: &Wanted) -> Plan<Op> {
        fc::plan(wanted, &self.look(&self.machine.lio(), wanted))
    }

    /// Runs one pass. Places of the spec are remembered before the pass, and former places are
    /// forgotten only when nothing is left to do.
    pub(crate) fn pass(&self, tree: &dyn Tree, wanted: &Wanted) -> Result<Plan<Op>, Error> {
        let plan = fc::plan(wanted, &self.look(tree, wanted));
        self.former.borrow_mut().extend(wanted.places());
        apply(&plan, tree, &mut ())?;
        if self.plan(wanted).is_quiet() {
            *self.former.borrow_mut() = wanted.places();
        }
        Ok(plan)
    }

    /// Reaches a spec in one pass, and asserts that nothing is left to do.
    pub(crate) fn settle(&self, wanted: &Wanted) -> Plan<Op> {
        let done = self.pass(&self.machine.lio(), wanted).unwrap();
        let left = self.plan(wanted);
        assert!(left.is_quiet(), "not quiet after one pass:\n{}\nfirst:\n{}", text(&left), text(&done));
        done
    }

    /// Logs in every initiator that the port admits.
    pub(crate) fn log_in_all(&self, fabric: FcFabric) -> Vec<(u16, SessionId)> {
        let login = |number| {
            Some((
                number,
                self.machine.plogi(&port(fabric).to_string(), &initiator(number).to_string()).ok()?,
            ))
        };
        (1..=3).filter_map(login).collect()
    }
}

/// Access of an initiator to our volume over the port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) initiator: String,
    pub(crate) lun: u64,
    pub(crate) mode: Mode,
}

/// Returns every access to our volume over the port right now, by an existing login or by a new
/// one.
pub(crate) fn ways(machine: &FakeMachine, fabric: FcFabric) -> BTreeSet<Way> {
    let here = |reach: &mooring_host::fake::Reach| {
        reach.target == port(fabric).wwpn.to_string() && reach.device.to_str() == Some(DEVICE)
    };
    let way = |reach: mooring_host::fake::Reach| Way {
        initiator: reach.initiator,
        lun: reach.lun,
        mode: mode_of(reach.mode),
    };
    machine.reachable().into_iter().filter(here).map(way).collect()
}

pub(crate) fn way_of(grant: &FcGrant) -> Way {
    Way { initiator: grant.initiator.to_string(), lun: u64::from(grant.lun.0), mode: grant.mode }
}

pub(crate) fn wanted_ways(wanted: &Wanted) -> BTreeSet<Way> {
    wanted.grants().iter().map(way_of).collect()
}

pub(crate) fn lun_of(fabric: FcFabric, place: Place) -> TreePath {
    fc::lun(port(fabric), PortLun::of(place.slot, place.lun).unwrap())
}

pub(crate) fn mapped_of(fabric: FcFabric, place: Place) -> TreePath {
    fc::mapped(port(fabric), place.initiator, place.lun)
}

/// Dumps everything except our places and our backstore.
pub(crate) fn dump_foreign(tree: &dyn Tree, fabric: FcFabric) -> String {
    let mut ours = vec![mooring_targets::layout::backstore(&names_of(volume()))];
    for (number, lun) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)] {
        ours.extend([lun_of(fabric, place(number, lun)), mapped_of(fabric, place(number, lun))]);
    }
    let foreign = |line: &&str| {
        let at = line.split(' ').next().unwrap_or_default().trim_end_matches('/');
        let within =
            |ours: &str| at.strip_prefix(ours).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        !ours.iter().any(|ours| within(ours.as_str()))
    };
    dump_all(tree).lines().filter(foreign).collect::<Vec<_>>().join("\n")
}
