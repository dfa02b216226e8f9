//! Faults of a real machine and their errors: the step, its meaning, and who can cure it. Also
//! reports of exports that do not match their spec.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

use crate::common::*;
use mooring_host::Tree;
use mooring_host::fake::{FakeMachine, IO_BYTES};
use mooring_model::{BlockedKind, Chain, Cure, Mode, Portal};
use mooring_targets::{
    Error, Wanted, count_sessions, layout, plan, pr_folder, prepare, read_live, read_sessions_of, report,
};

const PORTALS: [&str; 1] = ["10.10.0.10:3260"];
const DROP: &str = "secret-1234567";

fn spec() -> Wanted {
    present(&PORTALS, vec![grant(1, 1, Mode::ReadWrite, Some(chap("user", DROP)))])
}

/// Applies a spec on a spoiled machine. Checks the error's step, words and cure, and that the cured
/// machine converges.
fn fails(spoil: impl Fn(&FakeMachine), cure: impl Fn(&FakeMachine), step: &str, words: &str, by: Cure) {
    let machine = machine();
    spoil(&machine);
    let error = pass(&machine.lio(), &spec()).unwrap_err();
    let said = Chain(&error).to_string();
    assert!(said.contains(step) && said.contains(words), "{said}");
    assert!(!said.contains(DROP), "{said}");
    assert_eq!(error.cure(), by, "{said}");
    assert!(matches!(error, Error::Step { .. }), "{said}");
    assert_eq!(ways(&machine), []);
    cure(&machine);
    settle(&machine, &spec());
}

#[test]
fn the_device_is_not_there() {
    fails(
        |machine| machine.remove_device(DEVICE),
        |machine| machine.add_device(DEVICE, 1 << 30),
        "/enable = 1",
        "is the logical volume active?",
        Cure::Operator,
    );
}

#[test]
fn the_device_is_in_use() {
    fails(
        |machine| machine.set_busy(DEVICE, true),
        |machine| machine.set_busy(DEVICE, false),
        "/enable = 1",
        "in use: mounted, below another device, or behind another backstore",
        Cure::Operator,
    );
}

#[test]
fn the_device_is_read_only() {
    fails(
        |machine| machine.set_read_only(DEVICE, true),
        |machine| machine.set_read_only(DEVICE, false),
        "/enable = 1",
        "the block device is read-only",
        Cure::Operator,
    );
}

/// Grants come into force on the other portals before the failing one, and stay in force.
#[test]
fn a_port_is_taken() {
    let machine = machine();
    let grants = spec().grants().to_vec();
    settle(&machine, &present(&PORTALS, vec![]));
    machine.occupy("10.20.0.10:3260".parse().unwrap());
    let spec = present(&["10.10.0.10:3260", "10.20.0.10:3260"], grants);
    let error = pass(&machine.lio(), &spec).unwrap_err();
    let said = Chain(&error).to_string();
    assert!(
        said.contains("np/10.20.0.10:3260") && said.contains("the port is taken on this address"),
        "{said}"
    );
    assert_eq!((ways(&machine), error.cure()), (wanted_ways(&spec), Cure::Operator));
    assert!(!report(&spec, &look(&machine.lio(), &spec), &BTreeMap::new()).in_force);
}

/// Without the target core or the transport's module, the message says what to load.
#[test]
fn no_target_in_the_kernel() {
    let machine = FakeMachine::new();
    machine.unload_configfs();
    for error in [prepare(&machine.lio()).unwrap_err(), pr_folder(&machine.lio()).unwrap_err()] {
        let said = Chain(&error).to_string();
        assert!(said.contains("modprobe target_core_mod") && said.contains("mount -t configfs"), "{said}");
        assert_eq!(error.cure(), Cure::Operator);
    }
    let error = pass(&machine.lio(), &spec()).unwrap_err();
    assert!(error.to_string().contains("modprobe target_core_mod"), "{error}");
    machine.load_configfs();
    prepare(&machine.lio()).unwrap();
    prepare(&machine.lio()).unwrap();
    assert_eq!(pr_folder(&machine.lio()).unwrap().to_str(), Some("/var/target/pr"));
}

/// A backstore that another target shows cannot be removed; the error says where to look.
#[test]
fn a_tombstone_whose_backstore_is_shown_elsewhere() {
    let machine = machine_beside_foreign();
    let tree = machine.lio();
    settle(&machine, &spec());
    let elsewhere = path("iscsi").join(OTHER_TARGET).join("tpgt_1").join("lun").join("lun_9");
    tree.mkdir(&elsewhere).unwrap();
    tree.symlink(&layout::backstore(&names()), &elsewhere.join("x")).unwrap();
    let error = pass(&tree, &absent()).unwrap_err();
    assert!(error.to_string().contains("a LUN of another target"), "{error}");
    assert_eq!(error.cure(), Cure::Operator);
    tree.unlink(&elsewhere.join("x")).unwrap();
    settle(&machine, &absent());
}

/// Runs a whole pass of another spec before one step.
struct Meanwhile<'a>(usize, &'a dyn Tree, Wanted);
impl mooring_targets::Observer for Meanwhile<'_> {
    fn before(
        &mut self,
        index: usize,
        _: &mooring_model::Step<mooring_targets::Op>,
    ) -> std::ops::ControlFlow<()> {
        if index == self.0 {
            pass(self.1, &self.2).unwrap();
        }
        std::ops::ControlFlow::Continue(())
    }
}

/// Two volumes on one HBA: one goes while the other comes. Every step of one is interleaved with
/// all steps of the other.
#[test]
fn an_hba_that_goes_meanwhile_does_no_harm() {
    let machine = machine();
    let tree = machine.lio();
    let neighbour = names_of("a0ffffff-1111-4222-8333-444444444444".parse().unwrap());
    assert_eq!(layout::hba(&neighbour), layout::hba(&names()));
    let steps = plan_now(&tree, &spec()).steps.len();
    for between in 0..steps {
        machine.add_device("/dev/vg0/neighbour", 1 << 30);
        let theirs = present_as(neighbour.clone(), "/dev/vg0/neighbour", &PORTALS, vec![]);
        pass(&tree, &theirs).unwrap();
        let ours = plan_now(&tree, &spec());
        let gone = Wanted::Absent { names: neighbour.clone() };
        if let Err(error) = mooring_targets::apply(&ours, &tree, &mut Meanwhile(between, &tree, gone)) {
            assert_eq!((between, error.cure()), (1, Cure::Retry), "{error}");
        }
        settle(&machine, &spec());
        settle(&machine, &absent());
    }
}

/// A path that cannot be given to the kernel as a device is refused before anything is done.
#[test]
fn device_paths_that_would_be_read_as_options() {
    let long = format!("/dev/{}", "x".repeat(507));
    for wrong in ["/dev/a,readonly=1", "/dev/a b", "/dev/a\nb", "dev/a", "", long.as_str()] {
        let spec = present_as(names(), wrong, &PORTALS, vec![]);
        let plan = plan_now(&machine().lio(), &spec);
        assert!(plan.steps.is_empty(), "{wrong:?}");
        assert_eq!(
            plan.blocked.iter().map(|blocked| blocked.kind).collect::<Vec<_>>(),
            [BlockedKind::Missing]
        );
    }
    let longest = &long[..511];
    assert!(plan_now(&machine().lio(), &present_as(names(), longest, &PORTALS, vec![])).blocked.is_empty());
}

#[test]
fn a_report_says_what_the_kernel_enforces() {
    let machine = machine();
    let tree = machine.lio();
    let spec = present(
        &PORTALS,
        vec![grant(1, 1, Mode::ReadWrite, Some(chap("user", DROP))), grant(2, 1, Mode::ReadOnly, None)],
    );
    let now = |spec: &Wanted| {
        let view = look(&tree, spec);
        report(spec, &view, &read_live(&tree, spec, &BTreeMap::new()).unwrap())
    };
    assert!(!now(&spec).in_force);
    settle(&machine, &spec);
    let session = machine.login(PORTALS[0], names().iqn.as_str(), &host(1), Some(("user", DROP))).unwrap();
    machine.write(session, 1).unwrap();
    let facts = now(&spec);
    assert!(facts.in_force && facts.problems.is_empty());
    assert_eq!(facts.portals, [PORTALS[0].parse::<Portal>().unwrap()]);
    assert_eq!(
        facts.grants.iter().map(|grant| grant.seen).collect::<Vec<_>>(),
        [Some(Mode::ReadWrite), Some(Mode::ReadOnly)]
    );
    assert_eq!(facts.grants[0].sessions.len(), 1);
    assert_eq!(facts.grants[0].sessions[0].initiator.as_str(), host(1));
    assert_eq!((facts.grants[0].counters.commands, facts.grants[1].sessions.len()), (1, 0));

    // A grant with half its credentials does not exist; a stranger is a problem; a differing mode
    // is not in force.
    let acl = layout::acl(&names(), &host(2));
    tree.write(&acl.join("lun_1").join("write_protect"), b"0").unwrap();
    tree.write(&layout::acl(&names(), &host(1)).join("auth").join("password"), b"NULL").unwrap();
    tree.mkdir(&layout::acl(&names(), "iqn.1999-01.stranger:x")).unwrap();
    let facts = now(&spec);
    assert_eq!(
        facts.grants.iter().map(|grant| grant.seen).collect::<Vec<_>>(),
        [None, Some(Mode::ReadWrite)]
    );
    assert_eq!(
        facts.problems.iter().map(|problem| problem.object.as_str()).collect::<Vec<_>>(),
        ["iqn.1999-01.stranger:x"]
    );
    assert!(!facts.in_force);
    tree.write(&layout::tpg(&names()).join("enable"), b"0").unwrap();
    assert_eq!(now(&spec).grants.iter().map(|grant| grant.seen).collect::<Vec<_>>(), [None, None]);
}

/// The session's numbers show commands that have not come back.
#[test]
fn commands_in_flight_are_counted() {
    let machine = machine();
    let tree = machine.lio();
    settle(&machine, &spec());
    let session = machine.login(PORTALS[0], names().iqn.as_str(), &host(1), Some(("user", DROP))).unwrap();
    machine.hold(DEVICE);
    for _ in 0..8 {
        machine.start_write(session, 1).unwrap();
    }
    let now = || read_live(&tree, &spec(), &BTreeMap::new()).unwrap();
    assert_eq!(now()[&host(1)].sessions[0].in_flight, 8);
    machine.release(DEVICE);
    assert_eq!(now()[&host(1)].sessions[0].in_flight, 0);
}

/// If one initiator has several sessions, its ACL shows the newest; the target counts all of them.
#[test]
fn the_target_counts_the_sessions_that_no_acl_shows() {
    let machine = machine();
    let tree = machine.lio();
    let portals = [PORTALS[0], "10.20.0.10:3260"];
    settle(&machine, &present(&portals, spec().grants().to_vec()));
    let count = || count_sessions(&tree, &names()).unwrap();
    assert_eq!(count(), Some(0));
    let login = |portal| machine.login(portal, names().iqn.as_str(), &host(1), Some(("user", DROP))).unwrap();
    let (older, newer) = (login(portals[0]), login(portals[1]));
    let shown = || read_sessions_of(&tree, &names(), &host(1)).unwrap().unwrap().len();
    assert_eq!((count(), shown()), (Some(2), 1));
    machine.logout(newer);
    assert_eq!((count(), shown()), (Some(1), 1));
    machine.logout(older);
    assert_eq!((count(), shown()), (Some(0), 0));
    assert_eq!(count_sessions(&tree, &names_of(mooring_model::VolumeId::from_u128(1))).unwrap(), None);
}

/// Counters keep their values while no command comes. A nexus that does not exist has none.
#[test]
fn counters_move_with_the_commands() {
    let machine = machine();
    let tree = machine.lio();
    settle(&machine, &spec());
    let session = machine.login(PORTALS[0], names().iqn.as_str(), &host(1), Some(("user", DROP))).unwrap();
    for _ in 0..(1 << 20) / IO_BYTES {
        machine.write(session, 1).unwrap();
    }
    let first = read_live(&tree, &spec(), &BTreeMap::new()).unwrap();
    let counters = first[&host(1)].counters;
    assert_eq!((counters.commands, counters.read_mib, counters.written_mib), ((1 << 20) / IO_BYTES, 0, 1));
    assert_eq!(read_live(&tree, &spec(), &first).unwrap(), first);
    machine.read(session, 1).unwrap();
    let next = read_live(&tree, &spec(), &first).unwrap()[&host(1)].counters;
    assert_eq!((next.commands, next.written_mib), (counters.commands + 1, 1));
    settle(&machine, &absent());
    assert_eq!(read_live(&tree, &spec(), &first).unwrap(), BTreeMap::new());
}

/// A blocked export is a problem in the report, with the operator's cure, and is never in force.
#[test]
fn what_is_blocked_is_reported() {
    let machine = machine();
    settle(&machine, &spec());
    let moved = present_as(names(), "/dev/vg1/lv0", &PORTALS, spec().grants().to_vec());
    let view = look(&machine.lio(), &moved);
    let facts = report(&moved, &view, &BTreeMap::new());
    assert_eq!((facts.in_force, facts.problems.len(), facts.problems[0].cure), (false, 1, Cure::Operator));
    assert!(facts.problems[0].text.contains("found /dev/vg0/lv0 open, wanted /dev/vg1/lv0"));
    assert!(plan(&moved, &view).steps.is_empty(), "a live export is not rebuilt");
}
