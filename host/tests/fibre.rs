//! Fake Fibre Channel ports under any sequence of operations: nothing panics, and an initiator gets
//! exactly the access that the fake reports.
#![allow(clippy::unwrap_used, reason = "a test says by its panic what went wrong")]

use mooring_host::fake::{FakeMachine, SessionId};
use mooring_host::{Tree, TreePath, dump};
use proptest::prelude::*;

const FABRICS: [&str; 3] = ["fc", "qla2xxx", "efct"];
const PORT: &str = "20:00:00:00:00:00:00:0a";
const HOSTS: [&str; 3] = ["20:00:00:00:00:00:00:01", "20:00:00:00:00:00:00:02", "20:00:00:00:00:00:00:03"];

#[derive(Debug, Clone)]
enum Op {
    Mkdir(String),
    Rmdir(String),
    Symlink(String, String),
    Unlink(String),
    Write(String, &'static str),
    Look(String),
    Login(usize, usize),
    Io(usize, u64, bool),
}

fn path() -> impl Strategy<Value = String> {
    let fabric = prop::sample::select(FABRICS.to_vec());
    let host = prop::sample::select(vec![HOSTS[0], HOSTS[1], "iqn.x:a", "20:00:00:00:00:00:00:0A"]);
    let below = prop_oneof![
        Just(String::new()),
        Just("/tpgt_1/enable".to_owned()),
        Just("/tpgt_1/attrib/generate_node_acls".to_owned()),
        Just("/tpgt_1/attrib/demo_mode_login_only".to_owned()),
        Just("/tpgt_1/attrib/prod_mode_write_protect".to_owned()),
        Just("/tpgt_2".to_owned()),
        (0..3_u32).prop_map(|lun| format!("/tpgt_1/lun/lun_{lun}")),
        (0..3_u32).prop_map(|lun| format!("/tpgt_1/lun/lun_{lun}/l")),
        (0..3_u32).prop_map(|lun| format!("/tpgt_1/lun/lun_{lun}/alua_tg_pt_offline")),
        host.clone().prop_map(|host| format!("/tpgt_1/acls/{host}")),
        (host.clone(), 0..3_u32).prop_map(|(host, lun)| format!("/tpgt_1/acls/{host}/lun_{lun}")),
        (host.clone(), 0..3_u32).prop_map(|(host, lun)| format!("/tpgt_1/acls/{host}/lun_{lun}/l")),
        (host, 0..3_u32).prop_map(|(host, lun)| format!("/tpgt_1/acls/{host}/lun_{lun}/write_protect")),
    ];
    prop_oneof![
        1 => Just("core/iblock_0/v".to_owned()),
        12 => (fabric, below).prop_map(|(fabric, below)| format!("{fabric}/{PORT}{below}"))
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => path().prop_map(Op::Mkdir),
        2 => path().prop_map(Op::Rmdir),
        4 => (path(), path()).prop_map(|(target, link)| Op::Symlink(target, link)),
        2 => path().prop_map(Op::Unlink),
        5 => (path(), prop::sample::select(vec!["0", "1", "2", "x", ""])).prop_map(|(path, value)| Op::Write(path, value)),
        2 => path().prop_map(Op::Look),
        3 => (0..3_usize, 0..3_usize).prop_map(|(fabric, host)| Op::Login(fabric, host)),
        3 => (0..4_usize, 0..3_u64, any::<bool>()).prop_map(|(session, lun, writes)| Op::Io(session, lun, writes)),
    ]
}

fn at(fabric: &str) -> String {
    format!("{fabric}/{PORT}")
}

fn apply(machine: &FakeMachine, sessions: &mut Vec<SessionId>, op: Op) {
    let (lio, path) = (machine.lio(), |text: &str| TreePath::new(text));
    match op {
        Op::Mkdir(at) => drop(lio.mkdir(&path(&at))),
        Op::Rmdir(at) => drop(lio.rmdir(&path(&at))),
        Op::Symlink(target, link) => drop(lio.symlink(&path(&target), &path(&link))),
        Op::Unlink(at) => drop(lio.unlink(&path(&at))),
        Op::Write(at, value) => drop(lio.write(&path(&at), value.as_bytes())),
        Op::Look(at) => {
            let at = path(&at);
            drop((lio.read(&at), lio.list(&at), lio.read_link(&at), lio.is_dir(&at)));
        }
        Op::Login(fabric, host) => sessions.extend(machine.plogi(&at(FABRICS[fabric]), HOSTS[host])),
        Op::Io(session, lun, writes) => {
            let Some(session) = sessions.get(session) else { return };
            drop(if writes { machine.write(*session, lun) } else { machine.read(*session, lun) });
            // The data come at once, because nothing on this one thread waits for them.
            drop(machine.begin_write(*session, lun).map(|late| machine.send_data(late)));
        }
    }
}

/// A machine with a port of each driver and an enabled backstore; a whole export on one of them.
fn machine(exported: Option<usize>) -> FakeMachine {
    let machine = FakeMachine::new();
    machine.add_device("/dev/sda", 1 << 20);
    let mut steps = vec![
        Op::Mkdir("core/iblock_0".into()),
        Op::Mkdir("core/iblock_0/v".into()),
        Op::Write("core/iblock_0/v/control".into(), "udev_path=/dev/sda"),
        Op::Write("core/iblock_0/v/enable".into(), "1"),
    ];
    for fabric in FABRICS {
        assert!(machine.add_fc_port(&at(fabric)));
        steps.push(Op::Mkdir(fabric.to_owned()));
    }
    if let Some(fabric) = exported {
        let group = format!("{}/tpgt_1", at(FABRICS[fabric]));
        let (lun, mapped) = (format!("{group}/lun/lun_1"), format!("{group}/acls/{}/lun_1", HOSTS[0]));
        steps.extend([
            Op::Mkdir(at(FABRICS[fabric])),
            Op::Mkdir(group.clone()),
            Op::Mkdir(lun.clone()),
            Op::Symlink("core/iblock_0/v".into(), format!("{lun}/l")),
            Op::Mkdir(format!("{group}/acls/{}", HOSTS[0])),
            Op::Mkdir(mapped.clone()),
            Op::Symlink(lun, format!("{mapped}/l")),
            Op::Write(format!("{group}/enable"), "1"),
        ]);
    }
    for step in steps {
        apply(&machine, &mut Vec::new(), step);
    }
    machine
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_panics_or_hides_an_exposure(exported in prop::option::of(0..3_usize), ops in prop::collection::vec(ops(), 0..100)) {
        let machine = machine(exported);
        prop_assert_eq!(machine.reachable().len(), usize::from(exported.is_some()));
        let mut sessions = Vec::new();
        for op in ops {
            apply(&machine, &mut sessions, op);
        }
        drop(dump(&machine.lio()));
        for session in sessions {
            machine.logout(session);
        }
        let reachable = machine.reachable();
        let mut got = Vec::new();
        for fabric in FABRICS {
            for host in HOSTS {
                let Ok(session) = machine.plogi(&at(fabric), host) else { continue };
                for lun in machine.report_luns(session).unwrap() {
                    // A LUN whose gate is closed is listed, and answers nothing.
                    if machine.read(session, lun).is_err() {
                        continue;
                    }
                    let known = |reach: &mooring_host::fake::Reach| {
                        (reach.initiator == host || reach.initiator == "*") && reach.lun == lun
                    };
                    prop_assert!(reachable.iter().any(known), "{} reached LUN {} over {}", host, lun, fabric);
                    got.push((host.to_owned(), lun));
                }
                machine.logout(session);
            }
        }
        for reach in reachable {
            let who = if reach.initiator == "*" { HOSTS[2].to_owned() } else { reach.initiator };
            prop_assert!(got.contains(&(who.clone(), reach.lun)), "{} is said to reach LUN {}", who, reach.lun);
        }
    }
}
