//! Runs the contract on the fake, and tests the comparison itself.

use super::*;
use crate::dump;
use crate::fake::{FakeMachine, Faulty};

fn machine() -> (FakeMachine, Env) {
    let machine = FakeMachine::new();
    for device in ["/dev/vg0/a", "/dev/vg0/b", "/dev/vg0/ro", "/dev/vg0/hdd"] {
        machine.add_device(device, 1 << 30);
    }
    machine.set_discards("/dev/vg0/hdd", false);
    machine.set_read_only("/dev/vg0/ro", true);
    machine.add_file("/etc/passwd", 512);
    let env = Env {
        device: "/dev/vg0/a".into(),
        device2: "/dev/vg0/b".into(),
        read_only_device: Some("/dev/vg0/ro".into()),
        no_discards_device: Some("/dev/vg0/hdd".into()),
        regular_file: "/etc/passwd".into(),
        new_file: "/var/tmp/mooring-contract-file".into(),
    };
    (machine, env)
}

#[test]
fn the_fake_keeps_the_contract() {
    let (machine, env) = machine();
    let before = dump(&machine.lio());
    let wrong: Vec<_> = run(&machine.lio(), &env).into_iter().filter(|outcome| !outcome.ok).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(dump(&machine.lio()), before, "every row cleans up");
}

#[test]
fn the_fake_keeps_the_contract_of_a_later_kernel() {
    let (machine, env) = machine();
    let on_6_1 = run(&machine.lio(), &env);
    let skipped = on_6_1.iter().filter(|outcome| outcome.skipped.is_some()).count();
    assert_eq!(skipped, rows().iter().filter(|row| row.needs == Needs::PortIds).count());
    machine.set_port_ids(true);
    let outcomes = run(&machine.lio(), &env);
    let wrong: Vec<_> = outcomes.iter().filter(|outcome| !outcome.ok || outcome.skipped.is_some()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(dump(&machine.lio()).lines().all(|line| !line.contains("tpgt_")), "every row cleans up");
}

#[test]
fn the_fake_keeps_the_contract_of_fibre_channel() {
    let (machine, env) = machine();
    let before = dump(&machine.lio());
    let wrong: Vec<_> = run_fc(&machine.lio(), &env).into_iter().filter(|outcome| !outcome.ok).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(dump(&machine.lio()), before, "every row cleans up");
}

#[test]
fn row_names_are_unique_and_the_rows_many() {
    let mut names: Vec<_> = rows().iter().chain(&fc_rows()).map(|row| row.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(count >= 204, "{count}");
}

#[test]
fn without_the_devices_that_they_need_rows_are_skipped_and_not_ok() {
    let (machine, env) = machine();
    let env = Env { read_only_device: None, no_discards_device: None, ..env };
    let skipped: Vec<_> =
        run(&machine.lio(), &env).into_iter().filter(|outcome| outcome.skipped.is_some()).collect();
    assert_eq!(skipped.len(), rows().iter().filter(|row| row.needs != Needs::Nothing).count());
    // A feature that this kernel lacks is no device that was forgotten.
    let failed = skipped.iter().filter(|outcome| !outcome.ok).count();
    let devices = |row: &&Row| matches!(row.needs, Needs::ReadOnly | Needs::NoDiscards);
    assert!(failed > 0);
    assert_eq!(failed, rows().iter().filter(devices).count());
}

#[test]
fn a_wrong_answer_and_a_failed_preparation_are_seen() {
    let (machine, env) = machine();
    let faulty = Faulty::new(machine.lio());
    faulty.fail_when(Errno::EIO, |op, path| op == crate::TreeOp::Mkdir && path.name() == "tpgt_1");
    let outcomes = run(&faulty, &env);
    let of = |name: &str| outcomes.iter().find(|outcome| outcome.name == name).unwrap();
    assert_eq!(of("rmdir acls").got.split(':').next(), Some("preparation failed"));
    assert!(!of("rmdir acls").ok && of("rmdir core").ok);
    // With no tree at all, only rows that expect its errors may pass.
    machine.unload_configfs();
    let passed: Vec<_> = run(&machine.lio(), &env).into_iter().filter(|outcome| outcome.ok).collect();
    assert!(passed.iter().all(|outcome| outcome.expected == "ENOENT"), "{passed:#?}");
}

#[test]
fn two_fakes_hold_the_same_standard_export() {
    let look = || {
        let (machine, env) = machine();
        let (text, left) = standard_dump(&machine.lio(), &env).unwrap();
        assert_eq!(left, []);
        text
    };
    let text = look();
    assert_eq!(differences(&text, &look()), Vec::<String>::new());
    assert!(text.contains("auth/password = ***\n") && !text.contains("secret123456"), "{text}");
    assert!(text.contains("file core/iblock_99001/vol/control ! EACCES\n"), "{text}");
    let other = text.replace("lun_1/write_protect = \"1", "lun_1/write_protect = \"0");
    assert_eq!(differences(&text, &other).len(), 2);
}
