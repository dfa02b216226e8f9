//! Volumes over Fibre Channel beside iSCSI: found ports, grants, receipts, and what is left when a
//! port or the store is gone.

use mooring_api::v1;
use mooring_host::fake::IoRefusal;
use tonic::Code;

use crate::rig::*;

fn put_fc(id: &str, counter: u64, fc: &[FcGrant], iscsi: &[(&str, v1::Mode)]) -> v1::PutExportRequest {
    put_export_spec(id, counter, over_fc(export_spec(iscsi), fc))
}

/// A node whose volume two initiators have over Fibre Channel, and one over iSCSI.
fn node() -> (Node, Agent, String) {
    let (node, v) = (Node::with_fc(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_fc(&v, 1, &[(1, 1, RW), (2, 7, RO)], &[("host1", RW)]));
    (node, agent, v)
}

fn report(agent: &Agent, id: &str) -> v1::ExportReport {
    agent.get(id).unwrap().export.unwrap()
}

#[test]
fn one_volume_over_both_fabrics_at_once() {
    let (node, agent, v) = node();
    assert_eq!(node.reach(&v), ["fc1 rw", "fc2 ro", "host1 rw"]);
    let (one, two, three) =
        (node.plogi(1).unwrap(), node.plogi(2).unwrap(), node.login(&v, "host1").unwrap());
    assert!(node.fake.write(one, 1).is_ok() && node.fake.write(three, 1).is_ok());
    assert!(node.fake.read(two, 7).is_ok());
    assert_eq!(node.fake.write(two, 7), Err(IoRefusal::WriteProtected));
    assert_eq!(node.fake.read(one, 7), Err(IoRefusal::NoLun), "the other's number");
    let seen = report(&agent, &v);
    assert!(seen.in_force && seen.problems.is_empty(), "{seen:?}");
    let [port] = seen.fc.as_slice() else { panic!("{seen:?}") };
    assert_eq!((port.port.as_str(), port.serves), (format!("fc/{FC_PORT}").as_str(), true));
    let grants: Vec<_> =
        port.grants.iter().map(|it| (it.initiator.clone(), it.lun, it.seen(), it.logged_in)).collect();
    assert_eq!(grants, [(wwpn(1), 1, RW, true), (wwpn(2), 7, RO, true)]);
    assert!(port.grants[0].commands > 0);
    // The spec is stored as it came, and a repetition changes nothing.
    let kept = agent.get(&v).unwrap().export_spec.unwrap();
    assert_eq!(kept.fc.unwrap().grants.len(), 2);
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
}

#[test]
fn a_revoke_is_proven_and_touches_nobody_else() {
    let (node, agent, v) = node();
    let (one, two) = (node.plogi(1).unwrap(), node.plogi(2).unwrap());
    let receipts = agent.make(put_fc(&v, 2, &[(2, 7, RO)], &[("host1", RW)]));
    let [receipt] = receipts.as_slice() else { panic!("{receipts:?}") };
    assert_eq!(
        (receipt.initiator.as_str(), receipt.proven, receipt.nexus_removed),
        (wwpn(1).as_str(), true, true)
    );
    assert_eq!(node.reach(&v), ["fc2 ro", "host1 rw"]);
    assert_eq!(node.fake.read(one, 1), Err(IoRefusal::SessionGone), "its last LUN here");
    assert!(node.fake.read(two, 7).is_ok() && node.fake.is_live(two));
    let receipts = agent.make(delete_export(&v, 3));
    assert_eq!(receipts.len(), 2);
    agent.make(delete_volume(&v, 2));
    node.assert_nothing_left(&v);
}

#[test]
fn a_write_in_flight_holds_the_proof_and_quarantines() {
    let (node, agent, v) = node();
    let (one, two) = (node.plogi(1).unwrap(), node.plogi(2).unwrap());
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    let answer = agent.put_export(brief(put_fc(&v, 2, &[(2, 7, RO)], &[("host1", RW)]))).unwrap();
    let [receipt] = answer.receipts.as_slice() else { panic!("{answer:?}") };
    assert!(!answer.done && !receipt.proven && receipt.uncounted, "{answer:?}");
    assert_eq!(node.fake.landed(device(&v)), 0);
    assert_eq!(node.fake.write(one, 1), Err(IoRefusal::NoLun), "nothing new of it is taken");
    node.fake.release(device(&v));
    eventually("the proof", || agent.get(&v).unwrap().receipts[0].proven);
    assert_eq!(node.fake.landed(device(&v)), 1, "before the proof");
    assert!(node.fake.read(two, 7).is_ok());
}

/// One pass at a time works on a volume. An initiator that loses access behind a pass that hangs
/// does not keep it until the disk answers.
#[test]
fn a_revoke_and_a_mode_behind_one_that_hangs_shut_out_at_once() {
    let (node, v) = (Node::with_fc(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let (host1, host2) = (("host1", RW), ("host2", RW));
    agent.make(put_fc(&v, 1, &[(1, 1, RW), (2, 7, RW)], &[host1, host2]));
    let (one, two) = (node.plogi(1).unwrap(), node.plogi(2).unwrap());
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    agent.put_export(brief(put_fc(&v, 2, &[(2, 7, RW)], &[host1, host2]))).unwrap();
    assert_eq!(node.reach(&v), ["fc2 rw", "host1 rw", "host2 rw"], "the control: it hangs");
    // Two changes in a row: the second one does not make the agent forget the first one.
    agent.put_export(brief(put_fc(&v, 3, &[], &[host1, host2]))).unwrap();
    let answer = agent.put_export(brief(put_fc(&v, 4, &[], &[("host1", RO)]))).unwrap();
    assert!(!answer.done && answer.receipts.iter().all(|receipt| !receipt.proven), "{answer:?}");
    eventually("they are shut out", || node.reach(&v) == ["host1 ro"]);
    assert_eq!(node.fake.write(two, 7), Err(IoRefusal::NoLun));
    assert_eq!(node.fake.in_flight(device(&v)), 1, "it hangs still");
    node.fake.release(device(&v));
    eventually("all are proven", || {
        let receipts = agent.get(&v).unwrap().receipts;
        receipts.len() == 3 && receipts.iter().all(|receipt| receipt.proven)
    });
    eventually("it is in force", || report(&agent, &v).in_force);
    assert_eq!(node.reach(&v), ["host1 ro"]);
}

#[test]
fn what_was_granted_is_found_again_without_the_store() {
    let (node, agent, v) = node();
    agent.crash();
    std::fs::remove_dir_all(&node.config.state_dir).unwrap();
    let tree = node.tree();
    let agent = node.start();
    assert_eq!(node.tree(), tree, "byte for byte");
    let refused = agent.put_volume(delete_volume(&v, 2));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["3 initiator(s) in the kernel"]);
    agent.make(put_volume(&v, 1));
    // The agent is restarted before the export's spec comes.
    agent.crash();
    let agent = node.start();
    let receipts = agent.make(put_fc(&v, 2, &[(2, 7, RO)], &[("host1", RW)]));
    let [receipt] = receipts.as_slice() else { panic!("{receipts:?}") };
    assert_eq!((receipt.initiator.as_str(), receipt.proven), (wwpn(1).as_str(), true));
    assert_eq!(node.reach(&v), ["fc2 ro", "host1 rw"]);
}

#[test]
fn a_port_that_shall_not_serve_shows_nothing_any_more() {
    let (mut node, agent, v) = node();
    agent.crash();
    node.config.fibre_channel.as_mut().unwrap().exclude = vec![FC_PORT.parse().unwrap()];
    let agent = node.start();
    eventually("only iSCSI is left", || node.reach(&v) == ["host1 rw"]);
    let refused = agent.put_export(put_fc(&v, 2, &[(3, 9, RW)], &[]));
    assert_refused(
        refused,
        Code::FailedPrecondition,
        "operator",
        &["no Fibre Channel port", "[fibre_channel]"],
    );
    agent.make(put_export(&v, 2, &[("host1", RW)]));
    agent.crash();
    // Without a configuration of Fibre Channel, the agent still removes what may be there.
    node.config.fibre_channel = None;
    let agent = node.start();
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
    assert!(agent.capabilities().transports.iter().all(|it| it.protocol != "fc"));
}

#[test]
fn every_port_shows_it_and_a_spec_may_name_one() {
    const SECOND: &str = "20:00:52:54:00:14:01:0b";
    let (node, v) = (Node::with_fc(), volume(1));
    node.add_fc_port(1, SECOND);
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_fc(&v, 1, &[(1, 1, RW)], &[]));
    assert_eq!(node.reach(&v), ["fc1 rw", "fc1 rw"]);
    let mut spec = over_fc(export_spec(&[]), &[(1, 1, RW)]);
    spec.fc.as_mut().unwrap().ports = vec![format!("fc/{SECOND}")];
    agent.make(put_export_spec(&v, 2, spec.clone()));
    assert_eq!(node.reach(&v), ["fc1 rw"]);
    assert!(node.fake.plogi(&format!("fc/{SECOND}"), &wwpn(1)).is_ok() && node.plogi(1).is_err());
    spec.fc.as_mut().unwrap().ports = vec!["qla2xxx/21:00:00:24:ff:00:00:01".to_owned()];
    let refused = agent.put_export(put_export_spec(&v, 3, spec));
    assert_refused(refused, Code::FailedPrecondition, "fix_spec", &["qla2xxx/21:00", SECOND]);
    let receipts = agent.make(put_fc(&v, 3, &[], &[]));
    assert!(receipts.len() == 1 && receipts[0].proven, "{receipts:?}");
}

#[test]
fn capabilities_tell_the_ports_and_their_links() {
    let node = Node::with_fc();
    let agent = node.start();
    let fc = |agent: &Agent| {
        let transports = agent.capabilities().transports;
        transports.into_iter().find(|it| it.protocol == "fc").expect("a transport")
    };
    let transport = fc(&agent);
    let port = v1::FcPort { port: format!("fc/{FC_PORT}"), state: "Online".to_owned() };
    assert!(transport.ready && transport.ports == [port], "{transport:?}");
    // The port is a target from the start, so that initiators which meet it later find one.
    assert!(node.tree().contains(&format!("fc/{FC_PORT}/tpgt_1")));
    agent.crash();
    std::fs::write(node.dir.path().join("sys/class/fc_host/host0/port_state"), "Linkdown\n").unwrap();
    let agent = node.start();
    assert!(!fc(&agent).ready);
    let problems = agent.capabilities().problems;
    assert!(
        problems.iter().any(|it| it.object.contains(FC_PORT) && it.text.contains("Linkdown")),
        "{problems:?}"
    );
}

#[test]
fn places_are_forgotten_when_nothing_is_there_any_more() {
    let (node, v) = (Node::with("resync_seconds = 1\n[fibre_channel]"), volume(1));
    node.add_fc_port(0, FC_PORT);
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_fc(&v, 1, &[(1, 1, RW), (2, 7, RO)], &[]));
    let kept = |agent: &Agent| agent.engine().store().fc_places().unwrap().len();
    assert_eq!(kept(&agent), 2, "with the answer");
    agent.make(put_fc(&v, 2, &[(2, 8, RO)], &[]));
    eventually("the former two are forgotten", || kept(&agent) == 1);
    agent.make(put_fc(&v, 3, &[], &[]));
    eventually("all are forgotten", || kept(&agent) == 0);
    // Without a place in the volume, a port costs nothing.
    agent.switch.forget_log();
    agent.make(put_export(&v, 4, &[("host1", RW)]));
    assert!(
        !agent.switch.log().iter().any(|call| call.contains("tpgt_1/lun/lun_5") && call.contains(" fc/"))
    );
}

/// Revokes grants of a volume whose port is gone, and requests new ones in vain.
fn take_away_without_a_port(node: &Node, v: &str) {
    let agent = node.start();
    eventually("only iSCSI is left", || node.reach(v) == ["host1 rw"]);
    // Another number on the port is a new place, too.
    for new in [[(1, 1, RW), (3, 9, RW)], [(1, 3, RW), (2, 7, RO)]] {
        let refused = agent.put_export(put_fc(v, 2, &new, &[("host1", RW)]));
        assert_refused(refused, Code::FailedPrecondition, "operator", &["no Fibre Channel port"]);
    }
    let session = node.login(v, "host1").unwrap();
    agent.put_export(brief(put_fc(v, 2, &[(1, 1, RW), (2, 7, RO)], &[("host1", RO)]))).unwrap();
    eventually("the mode", || node.reach(v) == ["host1 ro"]);
    agent.put_export(brief(put_fc(v, 3, &[(1, 1, RO), (2, 7, RO)], &[("host1", RO)]))).unwrap();
    let mut force = put_fc(v, 4, &[(1, 1, RO), (2, 7, RO)], &[]);
    force.live_sessions = v1::LiveSessions::Cut.into();
    let answer = agent.put_export(force).unwrap();
    assert!(answer.receipts.len() == 1 && answer.receipts[0].proven, "{answer:?}");
    assert!(!node.fake.is_live(session), "it is cut");
    let answer = agent.put_export(put_fc(v, 5, &[(1, 1, RO)], &[])).unwrap();
    assert!(answer.receipts.len() == 1 && answer.receipts[0].proven, "{answer:?}");
}

#[test]
fn a_volume_with_an_fc_grant_changes_when_no_port_is_configured() {
    let (mut node, agent, v) = node();
    agent.crash();
    node.config.fibre_channel = None;
    take_away_without_a_port(&node, &v);
}

#[test]
fn a_volume_with_an_fc_grant_changes_when_its_port_serves_no_more() {
    let (mut node, agent, v) = node();
    agent.crash();
    node.config.fibre_channel.as_mut().unwrap().exclude = vec![FC_PORT.parse().unwrap()];
    take_away_without_a_port(&node, &v);
}

#[test]
fn a_port_that_a_kept_spec_names_is_not_judged_again() {
    const SECOND: &str = "20:00:52:54:00:14:01:0b";
    let (mut node, v) = (Node::with_fc(), volume(1));
    node.add_fc_port(1, SECOND);
    let named = |counter, fc: &[FcGrant]| {
        let mut spec = over_fc(export_spec(&[]), fc);
        spec.fc.as_mut().unwrap().ports = vec![format!("fc/{SECOND}")];
        put_export_spec(&v, counter, spec)
    };
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(named(1, &[(1, 1, RW), (2, 7, RW)]));
    agent.crash();
    node.config.fibre_channel.as_mut().unwrap().exclude = vec![SECOND.parse().unwrap()];
    let agent = node.start();
    eventually("nothing is left", || node.reach(&v).is_empty());
    let refused = agent.put_export(named(2, &[(1, 1, RW), (2, 7, RW), (3, 9, RW)]));
    assert_refused(refused, Code::FailedPrecondition, "operator", &["for the new grant"]);
    let answer = agent.put_export(named(2, &[(1, 1, RW)])).unwrap();
    assert!(answer.receipts.len() == 1 && answer.receipts[0].proven, "{answer:?}");
}
