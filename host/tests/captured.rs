//! The fake's tree against the tree of a real kernel (`lio-tree.txt`, Linux 6.1, one export, two
//! initiators, one of them logged in): the same objects, the same modes as far as they show, the
//! same text but for what belongs to that machine and that moment.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by its panic what went wrong")]

use std::collections::BTreeMap;

use mooring_host::fake::{FakeLio, FakeMachine};
use mooring_host::{EntryKind, Errno, Tree, TreeError, TreePath};

const TARGET: &str = "iqn.2026-01.lab.storage:t0";

/// Names whose values are ids, counters, times, or belong to the host.
const VOLATILE: &[&str] = &[
    "creation_time",
    "dev",
    "hba_info",
    "indx",
    "inst",
    "last_fail_time",
    "name",
    "num_cmds",
    "in_cmds",
    "cmd_pdus",
    "rsp_pdus",
    "txdata_octs",
    "read_mbytes",
    "write_mbytes",
    "port_auth_indx",
    "role",
    // Counters of failed logins from before the tree was read.
    "authenticate_fails",
    "negotiate_fails",
    "login_fails",
    "last_fail_type",
    "fail_intr_addr",
    "fail_intr_name",
];

fn captured() -> BTreeMap<String, String> {
    let mut objects = BTreeMap::new();
    let mut folder = String::new();
    for line in include_str!("lio-tree.txt").lines() {
        if let Some(object) = line.strip_prefix("  ") {
            if let Some((name, target)) = object.split_once(" -> ") {
                objects.insert(format!("{folder}{name}"), format!("-> {target}"));
            } else {
                let (name, value) = object[4..].split_once(" = ").expect("mode, name, value");
                objects.insert(format!("{folder}{name}"), text(value));
            }
        } else {
            let path = line.split("  [").next().expect("a path").trim_start_matches("./");
            path.clone_into(&mut folder);
            objects.insert(path.trim_end_matches('/').to_owned(), "folder".to_owned());
        }
    }
    objects.remove("");
    objects
}

fn text(value: &str) -> String {
    match value.strip_prefix('\'').and_then(|value| value.strip_suffix('\'')) {
        Some(quoted) => quoted.replace("\\n", "\n").trim_end().to_owned(),
        None if value.contains("denied: 13") => "EACCES".to_owned(),
        None if value.contains("device: 19") => "ENODEV".to_owned(),
        None => value.trim_end().to_owned(),
    }
}

fn walk(tree: &FakeLio, folder: &TreePath, objects: &mut BTreeMap<String, String>) {
    for entry in tree.list(folder).unwrap() {
        let path = folder.join(&entry.name);
        let value = match entry.kind {
            EntryKind::Dir => {
                walk(tree, &path, objects);
                "folder".to_owned()
            }
            EntryKind::Link => format!("-> {}", tree.read_link(&path).unwrap()),
            EntryKind::File => match tree.read_text(&path) {
                Ok(text) => text.trim_end().to_owned(),
                Err(error) => format!("{:?}", error.errno),
            },
        };
        objects.insert(path.as_str().to_owned(), value);
    }
}

/// The captured export, built in the order of lio.md, b.
fn build(lio: &FakeLio) -> Result<(), TreeError> {
    let path = TreePath::new;
    let store = path("core/iblock_0/lv0");
    lio.mkdir(&store.parent())?;
    lio.mkdir(&store)?;
    lio.write(&store.join("control"), b"udev_path=/dev/vg0/lv0\n")?;
    lio.write(&store.join("wwn").join("vpd_unit_serial"), b"12345678\n")?;
    lio.write(&store.join("enable"), b"1\n")?;
    let target = path("iscsi").join(TARGET);
    let tpg = target.join("tpgt_1");
    for folder in [&path("iscsi"), &target, &tpg] {
        lio.mkdir(folder)?;
    }
    let lun = tpg.join("lun").join("lun_0");
    lio.mkdir(&lun)?;
    lio.symlink(&store, &lun.join("lv0"))?;
    for host in ["iqn.2026-01.lab:host1", "iqn.2026-01.lab:host2"] {
        let acl = tpg.join("acls").join(host);
        lio.mkdir(&acl)?;
        lio.mkdir(&acl.join("lun_0"))?;
        lio.symlink(&lun, &acl.join("lun_0").join("lun"))?;
    }
    let auth = tpg.join("acls").join("iqn.2026-01.lab:host1").join("auth");
    for (name, value) in [
        ("userid", "user1"),
        ("password", "secret123456"),
        ("userid_mutual", "muser"),
        ("password_mutual", "msecret12345"),
    ] {
        lio.write(&auth.join(name), value.as_bytes())?;
    }
    lio.mkdir(&tpg.join("np").join("10.10.0.10:3260"))?;
    lio.write(&tpg.join("enable"), b"1\n")
}

#[test]
fn the_fake_has_the_kernels_tree() {
    let machine = FakeMachine::new();
    machine.add_device("/dev/vg0/lv0", 1 << 30);
    let lio = machine.lio();
    build(&lio).unwrap();
    machine
        .login("10.10.0.10:3260", TARGET, "iqn.2026-01.lab:host1", Some(("user1", "secret123456")))
        .unwrap();
    let (mut fake, kernel) = (BTreeMap::new(), captured());
    walk(&lio, &TreePath::root(), &mut fake);

    let missing: Vec<_> = kernel.keys().filter(|path| !fake.contains_key(*path)).collect();
    let invented: Vec<_> = fake.keys().filter(|path| !kernel.contains_key(*path)).collect();
    assert_eq!((missing, invented), (Vec::new(), Vec::new()));
    assert!(kernel.len() > 400, "{}", kernel.len());

    let mut differ = Vec::new();
    for (path, expected) in &kernel {
        let name = path.rsplit('/').next().unwrap_or(path);
        // A session's table holds its own numbers; its form is compared without them.
        let plain = |text: &str| text.chars().filter(|c| !c.is_ascii_hexdigit()).collect::<String>();
        let same = match name {
            "info" | "port_ident" => plain(&fake[path]) == plain(expected),
            name => VOLATILE.contains(&name) || fake[path] == *expected,
        };
        if !same {
            differ.push(format!("{path}: fake {:?}, kernel {expected:?}", fake[path]));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
    assert_eq!(lio.write(&TreePath::new("dbroot"), b"/tmp").unwrap_err().errno, Errno::EINVAL);
}
