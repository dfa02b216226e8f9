//! Laws of the fake machine: in any order of operations, it neither panics nor contradicts itself.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by its panic what went wrong")]

use std::time::Duration;

use mooring_host::fake::{FakeMachine, SessionId};
use mooring_host::{BlockDevices, Command, Commands, Tree, TreePath, dump};
use proptest::prelude::*;
use proptest::sample::select;

const DEVICES: [&str; 3] = ["/dev/vg0/lv0", "/dev/sda", "/dev/sdb"];
const TARGETS: [&str; 2] = ["iqn.x:a", "iqn.x:b"];
const HOSTS: [&str; 2] = ["iqn.x:h1", "iqn.x:h2"];
const PORTALS: [&str; 3] = ["10.0.0.1:3260", "0.0.0.0:3260", "[::1]:3260"];

fn tree_paths() -> Vec<String> {
    let mut paths: Vec<String> =
        ["", "core", "iscsi", "dbroot", "nosuch", "iscsi/discovery_auth/userid"].map(str::to_owned).into();
    for hba in ["core/iblock_0", "core/fileio_0", "core/rd_mcp_1", "core/bad"] {
        paths.push(hba.to_owned());
        for below in [
            "v",
            "v/control",
            "v/enable",
            "v/info",
            "v/wwn/vpd_unit_serial",
            "v/attrib/queue_depth",
            "v/attrib",
        ] {
            paths.push(format!("{hba}/{below}"));
        }
    }
    for target in TARGETS {
        paths.push(format!("iscsi/{target}"));
        let tpg = format!("iscsi/{target}/tpgt_1");
        for below in [
            "",
            "/enable",
            "/lun",
            "/acls",
            "/lun/lun_1",
            "/lun/lun_1/s",
            "/lun/lun_0",
            "/lun/lun_0/s",
            "/attrib/authentication",
            "/attrib/generate_node_acls",
            "/attrib/prod_mode_write_protect",
            "/auth/userid",
            "/dynamic_sessions",
        ] {
            paths.push(format!("{tpg}{below}"));
        }
        paths.extend(PORTALS.map(|portal| format!("{tpg}/np/{portal}")));
        for host in HOSTS {
            for below in [
                "",
                "/lun_1",
                "/lun_1/l",
                "/lun_1/l/s",
                "/lun_1/write_protect",
                "/auth/userid",
                "/auth/password",
                "/cmdsn_depth",
                "/info",
                "/attrib/authentication",
                "/lun_1/statistics/scsi_auth_intr/num_cmds",
                "/lun_1/statistics/scsi_att_intr_port/port_ident",
            ] {
                paths.push(format!("{tpg}/acls/{host}{below}"));
            }
        }
    }
    paths
}

#[derive(Debug, Clone)]
enum Op {
    Mkdir(String),
    Rmdir(String),
    Symlink(String, String),
    Unlink(String),
    Write(String, Vec<u8>),
    Look(String),
    Login(usize, usize, usize, bool),
    Io(usize, u64, bool),
    Logout(usize),
    Hold(usize),
    Lvm(String),
    Zero(usize, u64, u64),
    ReadOnly(usize, bool),
    Reboot,
    Unload(bool),
}

fn ops() -> impl Strategy<Value = Op> {
    let path = || select(tree_paths());
    let values = [
        "0",
        "1",
        "1\n",
        "-1",
        "x",
        "",
        "user",
        "user\n",
        "NULL",
        "udev_path=/dev/sda",
        "udev_path=/dev/vg0/lv0,readonly=1",
        "fd_dev_name=/dev/sdb,fd_dev_size=4096",
        "rd_pages=1",
        "18446744073709551616",
        "\u{fffd}=,,=",
    ];
    let value = prop_oneof![
        4 => select(values.map(|value| value.as_bytes().to_vec()).to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ];
    let lvm = select(vec![
        "lvcreate --yes --wipesignatures n --zero n --size 8388608b --name lv0 --addtag mooring vg0"
            .to_owned(),
        "lvremove --yes --force vg0/lv0".to_owned(),
        "lvchange --activate n vg0/lv0".to_owned(),
        "lvchange --activate y vg0/lv0".to_owned(),
        "lvchange --addtag a --deltag mooring vg0/lv0".to_owned(),
        "lvs --reportformat json --units b --nosuffix -o lv_name,lv_tags,lv_attr -S tags=mooring".to_owned(),
        "vgs --reportformat json --units b --nosuffix -o vg_name,vg_free".to_owned(),
        "lvcreate --size".to_owned(),
        String::new(),
    ]);
    let link = || {
        select(
            tree_paths()
                .into_iter()
                .filter(|path| path.ends_with("/s") || path.ends_with("/l"))
                .collect::<Vec<_>>(),
        )
    };
    let target = || {
        select(
            tree_paths()
                .into_iter()
                .filter(|path| path.ends_with("/v") || path.contains("/lun/lun_"))
                .collect::<Vec<_>>(),
        )
    };
    prop_oneof![
        8 => path().prop_map(Op::Mkdir),
        2 => path().prop_map(Op::Rmdir),
        6 => (target(), link()).prop_map(|(target, link)| Op::Symlink(target, link)),
        1 => (path(), path()).prop_map(|(target, link)| Op::Symlink(target, link)),
        1 => link().prop_map(Op::Unlink),
        8 => (path(), value).prop_map(|(path, value)| Op::Write(path, value)),
        2 => path().prop_map(Op::Look),
        4 => (0..2_usize, 0..2_usize, 0..3_usize, any::<bool>()).prop_map(|(t, h, p, c)| Op::Login(t, h, p, c)),
        3 => (0..4_usize, 0..3_u64, any::<bool>()).prop_map(|(s, l, w)| Op::Io(s, l, w)),
        1 => (0..4_usize).prop_map(Op::Logout),
        1 => (0..3_usize).prop_map(Op::Hold),
        2 => lvm.prop_map(Op::Lvm),
        1 => (0..3_usize, any::<u64>(), any::<u64>()).prop_map(|(d, o, l)| Op::Zero(d, o, l)),
        1 => (0..3_usize, any::<bool>()).prop_map(|(d, r)| Op::ReadOnly(d, r)),
        1 => Just(Op::Reboot),
        1 => any::<bool>().prop_map(Op::Unload),
    ]
}

fn apply(machine: &FakeMachine, sessions: &mut Vec<SessionId>, op: Op) {
    let lio = machine.lio();
    let path = |text: &str| TreePath::new(text);
    // These calls may wait for I/O in flight, forever on this one thread.
    if matches!(op, Op::Rmdir(_) | Op::Unlink(_) | Op::Write(..) | Op::Zero(..)) {
        for device in DEVICES {
            machine.release(device);
        }
    }
    match op {
        Op::Mkdir(at) => drop(lio.mkdir(&path(&at))),
        Op::Rmdir(at) => drop(lio.rmdir(&path(&at))),
        Op::Symlink(target, link) => drop(lio.symlink(&path(&target), &path(&link))),
        Op::Unlink(at) => drop(lio.unlink(&path(&at))),
        Op::Write(at, value) => drop(lio.write(&path(&at), &value)),
        Op::Look(at) => {
            let at = path(&at);
            drop((lio.read(&at), lio.list(&at), lio.read_link(&at), lio.is_dir(&at)));
        }
        Op::Login(target, host, portal, shown) => {
            let shown = shown.then_some(("user", "user"));
            sessions.extend(machine.login(PORTALS[portal], TARGETS[target], HOSTS[host], shown));
        }
        Op::Io(at, lun, write) => {
            if let Some(session) = sessions.get(at) {
                drop(if write { machine.write(*session, lun) } else { machine.read(*session, lun) });
                drop((machine.inquire(*session, lun), machine.report_luns(*session)));
            }
        }
        Op::Logout(at) => sessions.get(at).into_iter().for_each(|session| machine.logout(*session)),
        Op::Hold(at) => machine.hold(DEVICES[at]),
        Op::Lvm(line) => {
            let args = line.split(' ').map(str::to_owned).collect();
            let command = Command { program: "/sbin/lvm", args, timeout: Duration::from_secs(1) };
            machine.lvm().run(&command).unwrap();
        }
        Op::Zero(at, offset, length) => drop(machine.blocks().zero(DEVICES[at].as_ref(), offset, length)),
        Op::ReadOnly(at, on) => machine.set_read_only(DEVICES[at], on),
        Op::Reboot => machine.reboot(),
        Op::Unload(true) => machine.unload_configfs(),
        Op::Unload(false) => machine.load_configfs(),
    }
}

/// Returns the usual steps of an export, so that random sequences start from something that works.
fn export() -> Vec<Op> {
    let tpg = "iscsi/iqn.x:a/tpgt_1".to_owned();
    let acl = format!("{tpg}/acls/iqn.x:h1");
    let write = |path: &str, value: &str| Op::Write(path.to_owned(), value.as_bytes().to_vec());
    vec![
        Op::Mkdir("core/iblock_0".into()),
        Op::Mkdir("core/iblock_0/v".into()),
        write("core/iblock_0/v/control", "udev_path=/dev/sda"),
        write("core/iblock_0/v/enable", "1"),
        Op::Mkdir("iscsi".into()),
        Op::Mkdir("iscsi/iqn.x:a".into()),
        Op::Mkdir(tpg.clone()),
        Op::Mkdir(format!("{tpg}/lun/lun_1")),
        Op::Symlink("core/iblock_0/v".into(), format!("{tpg}/lun/lun_1/s")),
        Op::Mkdir(acl.clone()),
        write(&format!("{acl}/auth/userid"), "user"),
        write(&format!("{acl}/auth/password"), "user"),
        Op::Mkdir(format!("{acl}/lun_1")),
        Op::Symlink(format!("{tpg}/lun/lun_1"), format!("{acl}/lun_1/l")),
        Op::Mkdir(format!("{tpg}/np/10.0.0.1:3260")),
        write(&format!("{tpg}/enable"), "1"),
    ]
}

fn machine() -> FakeMachine {
    let machine = FakeMachine::new();
    machine.add_device("/dev/sda", 1 << 20);
    machine.add_file("/dev/sdb", 1 << 20);
    machine.add_vg("vg0", 64 << 20);
    machine
}

/// Asserts that everything an initiator gets by trying is in `reachable`, and that every access
/// there that needs a login can be had.
fn exposure_is_the_whole_truth(machine: &FakeMachine, sessions: &[SessionId]) {
    for session in sessions {
        machine.logout(*session);
    }
    for device in DEVICES {
        machine.release(device);
    }
    let reachable = machine.reachable();
    let mut got = Vec::new();
    for target in TARGETS {
        for host in HOSTS.into_iter().chain(["iqn.x:stranger"]) {
            for portal in PORTALS {
                for shown in [None, Some(("user", "user"))] {
                    let Ok(session) = machine.login(portal, target, host, shown) else { continue };
                    for lun in machine.report_luns(session).unwrap() {
                        let known = reachable.iter().any(|reach| {
                            let who = reach.initiator == host || reach.initiator == "*";
                            who && reach.target == target
                                && reach.lun == lun
                                && (!reach.authenticated || shown.is_some())
                        });
                        assert!(known, "{host} reached {target} LUN {lun}, which is not in {reachable:?}");
                        got.push((target.to_owned(), host.to_owned(), lun));
                    }
                }
            }
        }
    }
    for reach in reachable.into_iter().filter(|reach| !reach.authenticated) {
        let who = if reach.initiator == "*" { "iqn.x:stranger".to_owned() } else { reach.initiator };
        assert!(
            got.contains(&(reach.target, who.clone(), reach.lun)),
            "{who} is said to reach LUN {}",
            reach.lun
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_operations_panics_or_hides_an_exposure(
        exported in any::<bool>(),
        ops in proptest::collection::vec(ops(), 1..120),
    ) {
        let machine = machine();
        let mut sessions = Vec::new();
        if exported {
            for op in export() {
                apply(&machine, &mut sessions, op);
            }
            prop_assert_eq!(machine.reachable().len(), 1);
        }
        for op in ops {
            apply(&machine, &mut sessions, op);
        }
        drop(dump(&machine.lio()));
        exposure_is_the_whole_truth(&machine, &sessions);
        machine.reboot();
        prop_assert_eq!(machine.reachable(), Vec::new());
        machine.load_configfs();
        for op in export() {
            apply(&machine, &mut sessions, op);
        }
        machine.set_read_only("/dev/sda", false);
    }

    #[test]
    fn zeroing_in_any_order_covers_exactly_what_was_zeroed(
        ranges in proptest::collection::vec((0..64_u64, 0..16_u64), 0..40),
    ) {
        let machine = FakeMachine::new();
        machine.add_device("/dev/sda", 64 << 10);
        let mut model = [false; 128];
        for (start, length) in ranges {
            machine.blocks().zero("/dev/sda".as_ref(), start * 512, length * 512).unwrap();
            model[usize::try_from(start).unwrap()..usize::try_from(start + length).unwrap()].fill(true);
        }
        let zeroed = machine.blocks().zeroed_ranges("/dev/sda");
        for (sector, expected) in model.into_iter().enumerate() {
            let at = sector as u64 * 512;
            prop_assert_eq!(zeroed.iter().any(|(from, to)| (*from..*to).contains(&at)), expected);
        }
        prop_assert!(zeroed.windows(2).all(|pair| pair[0].1 < pair[1].0), "disjoint, sorted, merged");
        prop_assert_eq!(machine.blocks().is_zeroed("/dev/sda"), model.iter().all(|zero| *zero));
    }
}
