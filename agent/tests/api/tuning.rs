//! Tuning of an export's sessions: as its spec says, also after a restart and a reboot, and in
//! spite of changes by hand.

use mooring_api::v1;
use mooring_host::{Tree, TreePath};
use tonic::Code;

use crate::rig::*;

const RW: v1::Mode = v1::Mode::ReadWrite;

fn said(pairs: &[(&str, &str)]) -> Vec<v1::Tuning> {
    let one =
        |(name, value): &(&str, &str)| v1::Tuning { name: (*name).to_owned(), value: (*value).to_owned() };
    pairs.iter().map(one).collect()
}

fn put(id: &str, counter: u64, pairs: &[(&str, &str)]) -> v1::PutExportRequest {
    let spec = v1::ExportSpec { tuning: said(pairs), ..export_spec(&[("host1", RW)]) };
    put_export_spec(id, counter, spec)
}

fn path(id: &str, name: &str) -> TreePath {
    TreePath::new(&format!("iscsi/{}/tpgt_1/{name}", target(id)))
}

#[test]
fn it_is_in_force_and_stays_so() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let pairs = [("data_digest", "crc32c,none"), ("queue_depth", "16"), ("max_burst", "1048576")];
    agent.make(put(&v, 1, &pairs));
    let read = |name: &str| node.fake.lio().read_text(&path(&v, name)).unwrap();
    let depth = format!("acls/{}/cmdsn_depth", iqn("host1"));
    let in_force = || (read("param/MaxBurstLength"), read("attrib/default_cmdsn_depth"), read(&depth));
    let wanted = || ("1048576".to_owned(), "16".to_owned(), "16".to_owned());
    assert_eq!(in_force(), wanted());
    assert_eq!(agent.get(&v).unwrap().export_spec.unwrap().tuning, said(&pairs));
    // A restart of the agent alone, and then of the machine.
    agent.crash();
    let agent = node.start();
    eventually("nothing to do", || agent.get(&v).unwrap().export.is_some_and(|export| export.in_force));
    assert_eq!(agent.plan(&v).steps.len(), 0);
    agent.crash();
    node.fake.reboot();
    // Changes by hand are not told: only the next change of the spec finds them.
    node.fake.set_watches_max(0);
    let agent = node.start();
    eventually("the export", || node.reach(&v).len() == 1);
    assert_eq!(in_force(), wanted());
    // The next change corrects drift of values in the spec. Other values are left alone.
    node.fake.lio().write(&path(&v, "param/MaxBurstLength"), b"512").unwrap();
    node.fake.lio().write(&path(&v, "param/FirstBurstLength"), b"512").unwrap();
    assert_eq!(agent.plan(&v).steps.len(), 1, "{:?}", agent.plan(&v));
    let session = node.login(&v, "host1").unwrap();
    agent.make(put(&v, 2, &[("queue_depth", "32"), ("max_burst", "8192")]));
    assert_eq!(in_force(), ("8192".to_owned(), "32".to_owned(), "16".to_owned()));
    assert_eq!(read("param/FirstBurstLength"), "512");
    assert!(node.fake.is_live(session));
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    for (pairs, field) in [
        (&[("queue_depth", "0")][..], "tuning[0].value"),
        (&[("queue_depth", "8"), ("header_digets", "crc32c")], "tuning[1].name"),
        (&[("queue_depth", "8"), ("queue_depth", "8")], "tuning[1].name"),
        (&[("first_burst", "1024"), ("max_burst", "512")], "tuning.first_burst"),
    ] {
        let refused = agent.put_export(put(&v, 1, pairs)).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(field), "{refused}");
    }
    assert!(agent.get(&v).unwrap().export_spec.is_none());
}
