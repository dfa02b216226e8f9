//! Bad input: each kind with its gRPC code, who can cure it, and a message that names the object.
//! Nothing is stored, touched or left behind.

use mooring_api::v1;
use tokio_stream::StreamExt;
use tonic::{Code, Status};

use crate::rig::*;

/// A node with one exported volume, which must stay unchanged.
struct Bench {
    node: Node,
    agent: Agent,
    v: String,
    tree: String,
    lvs: String,
}

impl Bench {
    fn new() -> Self {
        let (node, v) = (Node::new(), volume(1));
        let agent = node.start();
        agent.make(put_volume(&v, 1));
        agent.make(put_export(&v, 1, &[("host1", RW)]));
        let (tree, lvs) = (node.tree(), node.lvs());
        Self { node, agent, v, tree, lvs }
    }

    #[track_caller]
    fn export(&self, code: Code, cure: &str, words: &[&str], change: impl FnOnce(&mut v1::PutExportRequest)) {
        let mut put = put_export(&self.v, 2, &[("host1", RW), ("host2", RO)]);
        change(&mut put);
        assert_refused(self.agent.put_export(put), code, cure, words);
        self.assert_untouched();
    }

    #[track_caller]
    fn volume(&self, code: Code, cure: &str, words: &[&str], change: impl FnOnce(&mut v1::PutVolumeRequest)) {
        let mut put = put_volume(&volume(2), 1);
        change(&mut put);
        assert_refused(self.agent.put_volume(put), code, cure, words);
        self.assert_untouched();
        assert_eq!(self.agent.list().len(), 1);
    }

    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!((self.node.tree(), self.node.lvs()), (self.tree.clone(), self.lvs.clone()));
        let stamp = self.agent.get(&self.v).unwrap().export_stamp.unwrap();
        assert_eq!(stamp.generation.unwrap().counter, 1, "nothing was stored");
    }
}

fn spec_of(put: &mut v1::PutExportRequest) -> &mut v1::ExportSpec {
    match &mut put.wish {
        Some(v1::put_export_request::Wish::Spec(spec)) => spec,
        other => panic!("{other:?}"),
    }
}

fn volume_spec_of(put: &mut v1::PutVolumeRequest) -> &mut v1::VolumeSpec {
    match &mut put.wish {
        Some(v1::put_volume_request::Wish::Spec(spec)) => spec,
        other => panic!("{other:?}"),
    }
}

const INVALID: Code = Code::InvalidArgument;

#[test]
fn a_request_for_an_export_that_makes_no_sense_names_its_field() {
    let bench = Bench::new();
    let bad = |words: &[&str], change: &dyn Fn(&mut v1::PutExportRequest)| {
        bench.export(INVALID, "fix_spec", words, change);
    };
    bad(&["volume_id", "\"disk1\"", "UUID"], &|put| put.volume_id = "disk1".to_owned());
    bad(&["sender", "is missing"], &|put| put.sender = None);
    bad(&["sender.cluster_id", "UUID"], &|put| put.sender.as_mut().unwrap().cluster_id.clear());
    bad(&["stamp", "is missing"], &|put| put.stamp = None);
    bad(&["stamp.generation"], &|put| put.stamp.as_mut().unwrap().generation = None);
    bad(&["stamp.digest", "16 to 64"], &|put| put.stamp.as_mut().unwrap().digest.truncate(15));
    bad(&["wish", "is missing"], &|put| put.wish = None);
    bad(&["opaque", "65537", "65536"], &|put| put.opaque = vec![0; 65_537]);
    bad(&["identity", "is missing"], &|put| spec_of(put).identity = None);
    bad(&["portals[0]", "10.0.0.1:0"], &|put| spec_of(put).portals = vec!["10.0.0.1:0".to_owned()]);
    bad(&["grants[1].initiator", "host2"], &|put| spec_of(put).grants[1].initiator = "host2".to_owned());
    bad(&["grants[1].initiator", "twice"], &|put| spec_of(put).grants[1].initiator = iqn("host1"));
    bad(&["grants[0].mode"], &|put| spec_of(put).grants[0].mode = 0);
    bad(&["grants[0].mode"], &|put| spec_of(put).grants[0].mode = 77);
    bad(&["grants[0].lun", "70000"], &|put| spec_of(put).grants[0].lun = 70_000);
    bad(&["grants", "512"], &|put| {
        spec_of(put).grants = (0..513).map(|n| grant(&format!("h{n}"), RO)).collect();
    });
}

#[test]
fn a_volume_that_makes_no_sense_names_its_field() {
    let bench = Bench::new();
    let bad = |words: &[&str], change: &dyn Fn(&mut v1::PutVolumeRequest)| {
        bench.volume(INVALID, "fix_spec", words, change);
    };
    bad(&["volume_id", "UUID"], &|put| put.volume_id.push('0'));
    bad(&["wish", "is missing"], &|put| put.wish = None);
    bad(&["stamp", "is missing"], &|put| put.stamp = None);
    bad(&["sender", "is missing"], &|put| put.sender = None);
    bad(&["size"], &|put| volume_spec_of(put).size_bytes = 0);
    bad(&["size"], &|put| volume_spec_of(put).size_bytes = SIZE + 1);
    // A negative number, as a caller with signed sizes would send it.
    bad(&["size"], &|put| volume_spec_of(put).size_bytes = (-8_i64).cast_unsigned());
    bad(&["group", "../vg0"], &|put| volume_spec_of(put).group = "../vg0".to_owned());
    bad(&["provisioning"], &|put| volume_spec_of(put).provisioning = 0);
    bad(&["opaque"], &|put| put.opaque = vec![0; 65_537]);
}

#[test]
fn a_message_beyond_the_limit_is_not_even_decoded() {
    let bench = Bench::new();
    let mut put = put_export(&bench.v, 2, &[]);
    put.opaque = vec![0; mooring_api::MESSAGE_BYTES_MAX];
    let status = bench.agent.put_export(put).unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    bench.assert_untouched();
}

#[test]
fn an_unknown_volume_is_not_found() {
    let bench = Bench::new();
    let (w, words) = (volume(2), &[&volume(2)[..], "is not known here"]);
    assert_refused(
        bench.agent.put_export(put_export(&w, 1, &[("host1", RW)])),
        Code::NotFound,
        "fix_spec",
        words,
    );
    assert_refused(bench.agent.get(&w), Code::NotFound, "fix_spec", words);
    let mut client = bench.agent.client();
    let plan = v1::PlanRequest { volume_id: w.clone() };
    let planned = bench.agent.wait(async move { client.plan(plan).await });
    assert_refused(planned, Code::NotFound, "fix_spec", words);
    assert_refused(bench.agent.get("x"), INVALID, "fix_spec", &["volume_id"]);
    bench.assert_untouched();
}

#[test]
fn groups_that_may_not_be_used_or_are_not_there() {
    let bench = Bench::new();
    bench.node.fake.add_vg("vg9", 64 * MIB);
    bench.volume(Code::FailedPrecondition, "operator", &["vg9", "configuration", "vg0"], |put| {
        volume_spec_of(put).group = "vg9".to_owned();
    });
    bench.node.fake.lvm().lose_group("vg0");
    let missing = bench.agent.put_volume(put_volume(&volume(2), 1));
    assert_refused(missing, Code::FailedPrecondition, "operator", &["vg0", "is not on this host", "vg9"]);
}

#[test]
fn no_room_leaves_nothing_in_lvm() {
    let bench = Bench::new();
    let full = |size| {
        bench.volume(Code::ResourceExhausted, "operator", &["vg0", &volume(2), "are free"], |put| {
            volume_spec_of(put).size_bytes = size;
        });
    };
    full(1024 * MIB);
    full(1 << 60);
    assert!(
        !bench.agent.switch.log().iter().any(|call| call.contains("lvcreate") && call.contains(&volume(2)))
    );
    // The rest of the group is usable to the last extent.
    bench.agent.make(put_volume_spec(&volume(3), 1, volume_spec(1016 * MIB)));
    let last = bench.agent.put_volume(put_volume(&volume(2), 1));
    assert_refused(last, Code::ResourceExhausted, "operator", &["vg0"]);
}

#[test]
fn a_group_that_fills_up_before_the_creation_fails_it_until_space_is_free() {
    let (node, v) = (Node::with("resync_seconds = 1"), volume(1));
    let agent = node.start();
    let mut reports = agent.watch();
    // Reports before the mark show the state at the start, not its history.
    drop(crate::watching::first(&agent, &mut reports));
    let said = "  Volume group \"vg0\" has insufficient free space (1 extents): 2 required.\n";
    node.fake.lvm().fail_next("lvcreate", 5, said);
    agent.put_volume(put_volume(&v, 1)).unwrap();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|report: &v1::VolumeReport| report.phase() != v1::Phase::Ready) {
        let report = agent.wait(async { reports.next().await.unwrap().unwrap() });
        if let Some(v1::report::What::Volume(report)) = report.what {
            seen.push(report);
        }
    }
    // A look at the right moment reports the volume while it is being made.
    let failed = seen.iter().find(|report| report.phase() == v1::Phase::Failed).unwrap();
    assert_eq!(failed.problems[0].cure(), v1::Cure::Operator);
    assert!(failed.problems[0].text.contains("vg0 has not enough free space"), "{failed:?}");
}

#[test]
fn a_portal_that_is_not_on_this_host() {
    let bench = Bench::new();
    let words = &["10.9.9.9:3260", "does not have the address", "it has 10.0.0.1"];
    bench.export(Code::FailedPrecondition, "fix_spec", words, |put| {
        spec_of(put).portals = vec!["10.9.9.9:3260".to_owned()];
    });
}

#[test]
fn an_id_whose_identity_on_the_wire_is_taken() {
    let bench = Bench::new();
    // This id differs from volume 1 only in its last digit; the NAA is made of the first 25.
    let twin = format!("{}7", &bench.v[..bench.v.len() - 1]);
    bench.volume(Code::AlreadyExists, "fix_spec", &[&twin, &bench.v, "NAA"], |put| {
        put.volume_id.clone_from(&twin);
    });
    // The successor learns of it from the store.
    bench.agent.crash();
    let agent = bench.node.start();
    let again = agent.put_volume(put_volume(&twin, 1));
    assert_refused(again, Code::AlreadyExists, "fix_spec", &[&twin, &bench.v]);
}

#[test]
fn a_volume_that_is_granted_is_not_deleted() {
    let bench = Bench::new();
    let refused = bench.agent.put_volume(delete_volume(&bench.v, 2));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &[&bench.v, "1 initiator(s)", "revoke"]);
    bench.assert_untouched();
    assert!(!bench.agent.get(&bench.v).unwrap().volume.unwrap().device.is_empty());
}

#[test]
fn a_volume_keeps_its_size_its_group_and_its_identity() {
    let bench = Bench::new();
    let resize = put_volume_spec(&bench.v, 2, volume_spec(SIZE / 2));
    let refused = bench.agent.put_volume(resize);
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &[&bench.v, "never shrinks"]);
    bench.export(Code::FailedPrecondition, "fix_spec", &[&bench.v, "identity"], |put| {
        spec_of(put).identity = Some(recorded("iqn.2003-01.org.other:a"));
    });
}

fn recorded(iqn: &str) -> v1::ExportIdentity {
    let recorded = v1::RecordedIdentity {
        iqn: iqn.to_owned(),
        tpg: 1,
        lun: 1,
        serial: "kept".to_owned(),
        lv: format!("mooring-{}", volume(2)),
        backstore_hba: "iblock_7".to_owned(),
        backstore_name: "kept".to_owned(),
        model_alias: false,
    };
    v1::ExportIdentity { kind: Some(v1::export_identity::Kind::Recorded(recorded)) }
}

#[test]
fn a_recorded_export_goes_with_its_names_and_not_by_a_bare_tombstone() {
    let (node, w) = (Node::new(), volume(2));
    let agent = node.start();
    agent.make(put_volume(&w, 1));
    let mut spec = export_spec(&[("host1", RW)]);
    spec.identity = Some(recorded("iqn.2003-01.org.other:a"));
    agent.make(put_export_spec(&w, 1, spec.clone()));
    assert_eq!(node.fake.reachable().len(), 1);
    // Under derived names, the export would live on, and its receipt would deny it.
    let refused = agent.put_export(delete_export(&w, 2));
    assert_refused(
        refused,
        Code::FailedPrecondition,
        "fix_spec",
        &[&w, "recorded names", "iqn.2003-01.org.other:a"],
    );
    assert_eq!(node.fake.reachable().len(), 1);
    spec.grants.clear();
    assert!(agent.make(put_export_spec(&w, 2, spec))[0].proven);
    assert_eq!(node.fake.reachable(), []);
    agent.make(delete_volume(&w, 2));
    assert!(!node.tree().contains("org.other") && !node.lvs().contains(&w));
}

#[test]
fn another_cluster_is_denied() {
    let bench = Bench::new();
    let other = Some(v1::Sender { cluster_id: "11111111-2222-4333-8444-555555555555".to_owned() });
    let words = &["11111111-2222-4333-8444-555555555555", CLUSTER];
    bench.export(Code::PermissionDenied, "operator", words, |put| put.sender.clone_from(&other));
    bench.volume(Code::PermissionDenied, "operator", words, |put| put.sender.clone_from(&other));
}

#[test]
fn a_refused_change_does_not_take_the_agent_for_its_sender() {
    let node = Node::new();
    let agent = node.start();
    let stranger = v1::Sender { cluster_id: "11111111-2222-4333-8444-555555555555".to_owned() };
    let mut put = put_volume_spec(&volume(1), 1, volume_spec(1 << 60));
    put.sender = Some(stranger.clone());
    assert_refused(agent.put_volume(put), Code::ResourceExhausted, "operator", &["vg0"]);
    agent.make(put_volume(&volume(1), 1));
    assert_eq!(hello(&agent, 1, 1).unwrap().cluster_id, CLUSTER);
    let late = v1::PutVolumeRequest { sender: Some(stranger), ..put_volume(&volume(2), 1) };
    assert_refused(agent.put_volume(late), Code::PermissionDenied, "operator", &[CLUSTER]);
}

fn hello(agent: &Agent, protocol_min: u32, protocol_max: u32) -> Result<v1::HelloResponse, Status> {
    let mut client = agent.client();
    let request = v1::HelloRequest { protocol_min, protocol_max, software: "test 1.0".to_owned() };
    agent.wait(async move { client.hello(request).await }).map(tonic::Response::into_inner)
}

#[test]
fn without_a_common_protocol_both_are_named() {
    let bench = Bench::new();
    let said = hello(&bench.agent, 1, 9).unwrap();
    assert_eq!(
        (said.protocol, said.portals.as_slice(), said.groups.as_slice()),
        (1, &[PORTAL.to_owned()][..], &["vg0".to_owned()][..])
    );
    let words = &["no common protocol", "speaks 1 to 1", "test 1.0", "7 to 9"];
    assert_refused(hello(&bench.agent, 7, 9), Code::FailedPrecondition, "operator", words);
    assert!(hello(&bench.agent, 0, 0).is_err());
}

#[test]
fn a_chap_secret_that_initiators_refuse_is_refused_without_being_repeated() {
    let bench = Bench::new();
    for wrong in ["short", "with a blank in it", "NULL-and-so-on", "Schluessel\nmit-Zeile"] {
        let mut put = put_export(&bench.v, 2, &[("host1", RW)]);
        spec_of(&mut put).grants[0].chap.as_mut().unwrap().initiator.as_mut().unwrap().secret =
            wrong.to_owned();
        let status = bench.agent.put_export(put).unwrap_err();
        assert!(status.code() == INVALID && !status.message().contains(wrong), "{status:?}");
        assert!(status.message().contains("grants[0].chap"), "{status:?}");
    }
    bench.assert_untouched();
}
