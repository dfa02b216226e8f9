//! Discards of hosts: passed through on thin volumes, on thick ones where the group says so and the
//! disk takes them, and never changed under a host.

use mooring_host::Tree;
use mooring_model::{ExportIdentity, IqnPrefix};
use mooring_targets::layout;

use crate::revert::thin;
use crate::rig::*;

/// True if initiators may unmap blocks of the volume, as the kernel's backstore says.
fn passes(node: &Node, id: &str) -> bool {
    let names = ExportIdentity::Derived.names(id.parse().unwrap(), &IqnPrefix::default());
    let attrib = layout::backstore(&names).join("attrib").join("emulate_tpu");
    node.fake.lio().read_text(&attrib).unwrap() == "1"
}

#[test]
fn discards_pass_through_where_the_group_says_so_and_the_disk_takes_them() {
    for (lines, disk, expected) in [
        ("", true, false),
        ("discard = false\n", true, false),
        ("discard = true\n", true, true),
        ("discard = true\n", false, false),
    ] {
        let (node, v) = (Node::with_group(lines), volume(1));
        node.fake.lvm().set_discards("vg0", disk);
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        agent.make(put_export(&v, 1, &[("host1", RW)]));
        assert_eq!(passes(&node, &v), expected, "{lines} {disk}");
        assert_eq!(agent.plan(""), mooring_api::v1::PlanResponse::default());
    }
}

#[test]
fn thin_volumes_pass_discards_through_unless_their_pool_ignores_them() {
    for key in ["", "discard = false\n", "discard = true\n"] {
        let (node, v, w) =
            (Node::with_group(&format!("thin_pool = \"256MiB\"\n{key}")), volume(1), volume(2));
        // The disk below the pool does not matter: blocks go back to the pool.
        node.fake.lvm().set_discards("vg0", false);
        let agent = node.start();
        agent.make(put_volume_spec(&v, 1, thin()));
        agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
        assert!(passes(&node, &v), "{key}");
        // A pool that ignores discards has the kernel refuse the attribute.
        node.fake.lvm().set_pool_ignores_discards("vg0", true);
        agent.make(put_volume_spec(&w, 1, thin()));
        agent.make(put_export(&w, 1, &[("host1", RW)]));
        assert!(!passes(&node, &w), "{key}");
        assert!(passes(&node, &v), "nothing changes under a host: {key}");
        assert_eq!(agent.plan(""), mooring_api::v1::PlanResponse::default());
    }
}

/// A device may take its time to answer, and the kernel knows better.
#[test]
fn no_device_is_asked_whether_it_takes_discards() {
    let (node, v) = (Node::with_group("thin_pool = \"256MiB\"\n"), volume(1));
    let agent = node.start();
    agent.make(put_volume_spec(&v, 1, thin()));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RO)]));
    assert!(passes(&node, &v));
    let log = agent.switch.log();
    let asked = format!("discards {}", device(&v).display());
    assert!(!log.contains(&asked), "{log:?}");
    // The control: calls on the device are in the log.
    let named = device(&v).display().to_string();
    assert!(log.iter().any(|call| call.contains(&named)), "{log:?}");
}

#[test]
fn a_thick_volume_beside_a_thin_pool_needs_the_key() {
    let (node, v) = (Node::with_group("thin_pool = \"256MiB\"\n"), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    assert!(!passes(&node, &v));
}

#[test]
fn a_change_of_the_key_touches_no_export_and_holds_for_the_next() {
    for (before, after) in [(false, true), (true, false)] {
        let (mut node, v, w) = (Node::with_group(&format!("discard = {before}\n")), volume(1), volume(2));
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        agent.make(put_export(&v, 1, &[("host1", RW)]));
        let one = node.login(&v, "host1").unwrap();
        agent.crash();
        node.config.groups[0].discard = after;
        let agent = node.start();
        agent.make(put_export(&v, 2, &[("host1", RW), ("host2", RO)]));
        assert_eq!(passes(&node, &v), before, "a host is logged in");
        node.fake.write(one, 1).unwrap();
        agent.make(put_volume(&w, 1));
        agent.make(put_export(&w, 1, &[("host1", RW)]));
        assert_eq!(passes(&node, &w), after);
        // A reboot makes every backstore anew.
        agent.crash();
        node.fake.reboot();
        let _agent = node.start();
        eventually("the exports are restored", || node.fake.reachable().len() == 3);
        assert_eq!((passes(&node, &v), passes(&node, &w)), (after, after));
    }
}
