//! Shared parts of this crate's tests: a machine with foreign objects beside ours, dumps, specs,
//! and a loop that reaches a spec as the agent does (look, plan, apply, look again).

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod fc;

use std::fmt::Write as _;
use std::ops::ControlFlow;

use mooring_host::fake::{Access, FakeMachine};
use mooring_host::{EntryKind, Tree, TreePath};
use mooring_model::{
    Chap, ChapSide, ExportIdentity, ExportNames, Grant, IqnPrefix, Lun, Mode, Plan, Portal, Secret, Step,
    Tuning, TuningKey, VolumeId,
};
use mooring_targets::{Error, ExportView, Observer, Op, Wanted, apply, plan, prepare};

pub(crate) const DEVICE: &str = "/dev/vg0/lv0";
pub(crate) const FOREIGN_DEVICE: &str = "/dev/vg0/foreign";
pub(crate) const OTHER_TARGET: &str = "iqn.2003-01.org.linux-iscsi.node:foreign";

pub(crate) fn path(text: &str) -> TreePath {
    TreePath::new(text)
}

pub(crate) fn volume() -> VolumeId {
    "a0000000-1111-4222-8333-444444444444".parse().unwrap()
}

pub(crate) fn names_of(volume: VolumeId) -> ExportNames {
    ExportIdentity::Derived.names(volume, &IqnPrefix::default())
}

pub(crate) fn names() -> ExportNames {
    names_of(volume())
}

pub(crate) fn host(number: usize) -> String {
    format!("iqn.2026-01.lab:host{number}")
}

pub(crate) fn side(user: &str, secret: &str) -> ChapSide {
    ChapSide { user: user.to_owned(), secret: Secret::new(secret) }
}

pub(crate) fn grant(number: usize, lun: u16, mode: Mode, chap: Option<Chap>) -> Grant {
    Grant {
        initiator: host(number).parse().unwrap(),
        lun: Lun(lun),
        mode,
        chap,
        attachments: Vec::new(),
        barrier: None,
    }
}

pub(crate) fn chap(user: &str, secret: &str) -> Chap {
    Chap { initiator: side(user, secret), mutual: None }
}

pub(crate) fn present(portals: &[&str], grants: Vec<Grant>) -> Wanted {
    present_as(names(), DEVICE, portals, grants)
}

pub(crate) fn present_as(names: ExportNames, device: &str, portals: &[&str], grants: Vec<Grant>) -> Wanted {
    let portals: Vec<Portal> = portals.iter().map(|portal| portal.parse().unwrap()).collect();
    Wanted::Present {
        names,
        device: device.into(),
        portals,
        withheld: false,
        grants,
        tuning: Tuning::default(),
        port_id: None,
    }
}

pub(crate) fn tuning(said: &[(&str, &str)]) -> Tuning {
    said.iter()
        .map(|(key, value)| {
            let key: TuningKey = key.parse().unwrap();
            (key, key.parse(value).unwrap())
        })
        .collect()
}

/// Adds this tuning of the sessions to a spec.
pub(crate) fn tuned(wanted: Wanted, said: &[(&str, &str)]) -> Wanted {
    let Wanted::Present { names, device, portals, withheld, grants, port_id, .. } = wanted else {
        return wanted;
    };
    Wanted::Present { names, device, portals, withheld, grants, tuning: tuning(said), port_id }
}

/// Adds a relative port id to a spec, for a kernel whose portal groups have an attribute for it.
pub(crate) fn with_port(wanted: Wanted, port_id: u16) -> Wanted {
    let Wanted::Present { names, device, portals, withheld, grants, tuning, .. } = wanted else {
        return wanted;
    };
    Wanted::Present { names, device, portals, withheld, grants, tuning, port_id: Some(port_id) }
}

/// Marks the device of a spec as one that does not answer.
pub(crate) fn withheld(mut wanted: Wanted) -> Wanted {
    if let Wanted::Present { withheld, .. } = &mut wanted {
        *withheld = true;
    }
    wanted
}

pub(crate) fn absent() -> Wanted {
    Wanted::Absent { names: names() }
}

/// Makes objects by raw calls: one line each, as `mkdir P`, `rmdir P`, `link L -> T`, `unlink P`,
/// `write P = V` (`\n` in a value is a newline).
pub(crate) fn run_script(tree: &dyn Tree, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (verb, rest) = line.split_once(' ').unwrap();
        let result = match verb {
            "mkdir" => tree.mkdir(&path(rest)),
            "rmdir" => tree.rmdir(&path(rest)),
            "unlink" => tree.unlink(&path(rest)),
            "link" => {
                let (link, target) = rest.split_once(" -> ").unwrap();
                tree.symlink(&path(target), &path(link))
            }
            "write" => {
                let (at, value) = rest.split_once(" = ").unwrap();
                tree.write(&path(at), value.replace("\\n", "\n").as_bytes())
            }
            other => panic!("no verb {other:?}"),
        };
        result.unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// A target of somebody else, with a backstore in the HBA folder that our volume uses.
const FOREIGN: &str = "
mkdir core/iblock_1160
mkdir core/iblock_1160/foreign
write core/iblock_1160/foreign/control = udev_path=/dev/vg0/foreign
write core/iblock_1160/foreign/wwn/vpd_unit_serial = 12345678
write core/iblock_1160/foreign/enable = 1
mkdir iscsi/iqn.2003-01.org.linux-iscsi.node:foreign
mkdir iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1
mkdir iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1/lun/lun_0
link iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1/lun/lun_0/x -> core/iblock_1160/foreign
mkdir iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1/np/10.10.0.10:3260
mkdir iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1/acls/iqn.2026-01.lab:host0
mkdir iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1/acls/iqn.2026-01.lab:host0/lun_0
link iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1/acls/iqn.2026-01.lab:host0/lun_0/x -> iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1/lun/lun_0
write iscsi/iqn.2003-01.org.linux-iscsi.node:foreign/tpgt_1/enable = 1
";

/// A machine with our device and nothing of ours.
pub(crate) fn machine() -> FakeMachine {
    let machine = FakeMachine::new();
    machine.add_device(DEVICE, 1 << 30);
    prepare(&machine.lio()).unwrap();
    machine
}

/// A machine with our device, beside a target of somebody else.
pub(crate) fn machine_beside_foreign() -> FakeMachine {
    let machine = machine();
    machine.add_device(FOREIGN_DEVICE, 1 << 30);
    run_script(&machine.lio(), FOREIGN);
    machine
}

/// True for paths that change by themselves: statistics, and `members`, which lists the LUNs of
/// other exports.
fn is_moving(path: &TreePath) -> bool {
    matches!(path.name(), "statistics" | "fabric_statistics" | "members" | "hba_info")
}

/// Dumps every object, link and attribute below a path, one per line.
pub(crate) fn dump(tree: &dyn Tree, from: &TreePath) -> String {
    let mut text = String::new();
    dump_into(tree, from, &mut text);
    text
}

fn dump_into(tree: &dyn Tree, folder: &TreePath, text: &mut String) {
    let Ok(entries) = tree.list(folder) else { return };
    for entry in entries {
        let path = folder.join(&entry.name);
        if is_moving(&path) {
            continue;
        }
        match entry.kind {
            EntryKind::Dir => {
                writeln!(text, "{path}/").unwrap();
                dump_into(tree, &path, text);
            }
            EntryKind::Link => writeln!(text, "{path} -> {}", tree.read_link(&path).unwrap()).unwrap(),
            EntryKind::File => match tree.read(&path) {
                // A removed credential reads NULL, one that was never set reads empty: the kernel
                // treats both as unset.
                Ok(bytes) if path.parent().name() == "auth" && bytes.starts_with(b"NULL") => {
                    writeln!(text, "{path} = \"\\n\"").unwrap();
                }
                Ok(bytes) => writeln!(text, "{path} = {:?}", String::from_utf8_lossy(&bytes)).unwrap(),
                Err(error) => writeln!(text, "{path} : {:?}", error.errno).unwrap(),
            },
        }
    }
}

/// Dumps the whole tree.
pub(crate) fn dump_all(tree: &dyn Tree) -> String {
    dump(tree, &TreePath::root())
}

/// Dumps everything that is not ours.
pub(crate) fn dump_foreign(tree: &dyn Tree) -> String {
    let names = names();
    let ours = [mooring_targets::layout::backstore(&names), mooring_targets::layout::target(&names)];
    let all = dump_all(tree);
    let foreign = |line: &&str| {
        let at = line.split([' ']).next().unwrap_or_default().trim_end_matches('/');
        !ours.iter().any(|ours| path(at).is_within(ours))
    };
    all.lines().filter(foreign).collect::<Vec<_>>().join("\n")
}

/// Access that one initiator gets to our export by a new login: mode, LUN, and the credentials that
/// it must show.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) initiator: String,
    pub(crate) lun: u64,
    pub(crate) mode: Mode,
    pub(crate) credentials: Option<(String, String)>,
}

/// Returns every access to our export right now. The fake says who gets in, and whether credentials
/// are asked for; the tree says which ones.
pub(crate) fn ways(machine: &FakeMachine) -> Vec<Way> {
    let names = names();
    let tree = machine.lio();
    let mut ways = Vec::new();
    for reach in machine.reachable() {
        if reach.target != names.iqn.as_str() {
            continue;
        }
        assert_eq!(reach.device.to_str().unwrap(), DEVICE, "the wrong disk: {reach:?}");
        let auth = mooring_targets::layout::acl(&names, &reach.initiator).join("auth");
        let read = |name: &str| {
            let bytes = tree.read(&auth.join(name)).unwrap();
            String::from_utf8(bytes.strip_suffix(b"\n").unwrap_or(&bytes).to_vec()).unwrap()
        };
        ways.push(Way {
            credentials: reach.authenticated.then(|| (read("userid"), read("password"))),
            initiator: reach.initiator,
            lun: reach.lun,
            mode: mode_of(reach.mode),
        });
    }
    ways.sort();
    ways
}

pub(crate) fn mode_of(access: Access) -> Mode {
    match access {
        Access::ReadOnly => Mode::ReadOnly,
        Access::ReadWrite => Mode::ReadWrite,
    }
}

/// Returns the access that a spec gives.
pub(crate) fn wanted_ways(wanted: &Wanted) -> Vec<Way> {
    if wanted.doors().is_empty() {
        return Vec::new();
    }
    let mut ways: Vec<Way> = wanted.grants().iter().map(way_of).collect();
    ways.sort();
    ways
}

pub(crate) fn way_of(grant: &Grant) -> Way {
    let credentials =
        grant.chap.as_ref().map(|c| (c.initiator.user.clone(), c.initiator.secret.expose().to_owned()));
    Way { initiator: grant.initiator.to_string(), lun: u64::from(grant.lun.0), mode: grant.mode, credentials }
}

pub(crate) fn look(tree: &dyn Tree, wanted: &Wanted) -> ExportView {
    ExportView::read_for(tree, wanted).unwrap()
}

pub(crate) fn plan_now(tree: &dyn Tree, wanted: &Wanted) -> Plan<Op> {
    plan(wanted, &look(tree, wanted))
}

/// Runs one pass of the agent.
pub(crate) fn pass(tree: &dyn Tree, wanted: &Wanted) -> Result<Plan<Op>, Error> {
    let plan = plan_now(tree, wanted);
    apply(&plan, tree, &mut ())?;
    Ok(plan)
}

/// Reaches a spec in one pass, and asserts that nothing is left to do.
pub(crate) fn settle(machine: &FakeMachine, wanted: &Wanted) -> Plan<Op> {
    let tree = machine.lio();
    let done = pass(&tree, wanted).unwrap();
    let left = plan_now(&tree, wanted);
    assert!(left.is_quiet(), "not quiet after one pass:\n{}\nfirst:\n{}", text(&left), text(&done));
    assert_eq!(ways(machine), wanted_ways(wanted));
    done
}

/// Returns a plan as `mooring plan` would print it.
pub(crate) fn text(plan: &Plan<Op>) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        writeln!(text, "{}\n    # {}", step.op, step.why).unwrap();
    }
    for blocked in &plan.blocked {
        writeln!(text, "BLOCKED {:?} {}\n    # {}", blocked.kind, blocked.object, blocked.why).unwrap();
    }
    text
}

/// Stops after this many steps.
pub(crate) struct StopAfter(pub(crate) usize);

impl Observer for StopAfter {
    fn before(&mut self, index: usize, _step: &Step<Op>) -> ControlFlow<()> {
        if index < self.0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Calls back after every step.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: FnMut(&Step<Op>)> Observer for Each<F> {
    fn after(&mut self, _index: usize, step: &Step<Op>) {
        (self.0)(step);
    }
}
