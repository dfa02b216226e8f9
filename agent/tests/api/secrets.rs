//! Secrets: they are in the kernel and in the store, and nowhere else. The agent keeps a secret
//! that a sender does not know.

use std::fmt::Write;

use mooring_api::{Message, v1};
use tokio_stream::StreamExt;
use tonic::Code;

use crate::rig::*;

fn with_mutual(mut spec: v1::ExportSpec) -> v1::ExportSpec {
    let chap = spec.grants[0].chap.as_mut().unwrap();
    chap.mutual = Some(v1::ChapSide { user: "target".to_owned(), secret: secret_of("target") });
    spec
}

#[test]
fn no_answer_no_error_no_debug_and_no_log_holds_a_secret() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    let mut reports = agent.watch();
    let mut said = String::new();
    let mut hear = |what: &dyn std::fmt::Debug| writeln!(said, "{what:?}\n{what:#?}").unwrap();
    agent.make(put_volume(&v, 1));
    let spec = with_mutual(export_spec(&[("host1", RW), ("host2", RO)]));
    hear(&agent.put_export(put_export_spec(&v, 1, spec.clone())).unwrap());
    let status = agent.get(&v).unwrap();
    assert!(status.encode_to_vec().windows(SECRET_WORD.len()).all(|bytes| bytes != SECRET_WORD.as_bytes()));
    let shown = status.export_spec.clone().unwrap();
    let chap = shown.grants[0].chap.as_ref().unwrap();
    assert_eq!(
        (chap.initiator.as_ref().unwrap().user.as_str(), chap.mutual.as_ref().unwrap().user.as_str()),
        ("host1", "target")
    );
    hear(&status);
    hear(&agent.list());

    // Refusals and failures of all kinds, with the secrets in the request.
    let mut clash = spec.clone();
    clash.grants[0].chap.as_mut().unwrap().mutual.as_mut().unwrap().secret = secret_of("host1");
    hear(&agent.put_export(put_export_spec(&v, 2, clash)).unwrap_err());
    hear(&agent.put_export(put_export(&v, 1, &[("host1", RW)])).unwrap_err());
    hear(&agent.put_export(put_export(&volume(2), 1, &[("host1", RW)])).unwrap_err());
    let lio = node.fake.lio();
    mooring_host::Tree::mkdir(&lio, &mooring_host::TreePath::new(&format!("iscsi/{}/tpgt_9", target(&v))))
        .unwrap();
    hear(&agent.put_export(put_export(&v, 2, &[("host3", RW)])).unwrap());
    agent.make_not_done(put_export(&v, 2, &[("host3", RW)]));
    hear(&agent.plan(""));
    mooring_host::Tree::rmdir(&lio, &mooring_host::TreePath::new(&format!("iscsi/{}/tpgt_9", target(&v))))
        .unwrap();
    agent.make(put_export_spec(&v, 3, spec.clone()));
    hear(&agent.make(put_export(&v, 4, &[])));
    let store = mooring_agent::store::Store::open(&node.config.state_dir).unwrap();
    hear(&store.specs().unwrap());
    hear(&store);
    agent.wait(async {
        while let Ok(Some(report)) =
            tokio::time::timeout(std::time::Duration::from_millis(200), reports.next()).await
        {
            hear(&report.unwrap());
        }
    });
    agent.crash();
    // Secrets that come from the store are not shown either.
    let agent = node.start();
    hear(&agent.list());

    assert!(!said.contains(SECRET_WORD), "{said}");
    let logs = logs();
    assert!(logs.contains("auth/password = ***"), "the control: steps were logged");
    let told: Vec<&str> = logs.lines().filter(|line| line.contains(SECRET_WORD)).collect();
    assert!(told.is_empty(), "{told:#?}");
}

#[test]
fn whoever_sends_specs_may_ask_for_them_with_their_secrets() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let spec = with_mutual(export_spec(&[("host1", RW), ("host2", RO)]));
    agent.make(put_export_spec(&v, 1, spec.clone()));
    let status = agent.list_asking(true).remove(0);
    assert_eq!(status.export_spec, Some(spec));
    let volume = status.volume_spec.clone().unwrap();
    assert_eq!((volume.group.as_str(), volume.size_bytes), ("vg0", SIZE));
    assert!(!format!("{status:?}").contains(SECRET_WORD));
    let without = agent.list_asking(false).remove(0);
    assert!(!without.encode_to_vec().windows(SECRET_WORD.len()).any(|it| it == SECRET_WORD.as_bytes()));
    assert_eq!(without.volume_spec, Some(volume));
}

#[test]
fn an_empty_secret_keeps_the_kept_one() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export_spec(&v, 1, with_mutual(export_spec(&[("host1", RW)]))));
    let mut shown = agent.get(&v).unwrap().export_spec.unwrap();
    assert!(shown.grants[0].chap.as_ref().unwrap().initiator.as_ref().unwrap().secret.is_empty());
    shown.grants.push(grant("host2", RO));
    let session = node.login(&v, "host1").unwrap();
    agent.make(put_export_spec(&v, 2, shown.clone()));
    assert!(node.fake.is_live(session) && node.login(&v, "host2").is_ok());
    agent.crash();
    node.fake.reboot();
    let agent = node.start();
    eventually("the export is back", || node.reach(&v).len() == 2);
    assert!(node.login(&v, "host1").is_ok(), "the secret was kept on disk, too");

    // For another user name or host, or after a revoke, the agent has no secret to keep.
    let mut other = shown.clone();
    other.grants[0].chap.as_mut().unwrap().initiator.as_mut().unwrap().user = "somebody".to_owned();
    let refused = agent.put_export(put_export_spec(&v, 3, other));
    assert_refused(
        refused,
        Code::InvalidArgument,
        "fix_spec",
        &["grants[0].chap.initiator.secret", &iqn("host1")],
    );
    let mut other = shown.clone();
    other.grants[1] = grant("host3", RO);
    other.grants[1].chap.as_mut().unwrap().initiator.as_mut().unwrap().secret.clear();
    let refused = agent.put_export(put_export_spec(&v, 3, other));
    assert_refused(
        refused,
        Code::InvalidArgument,
        "fix_spec",
        &["grants[1].chap.initiator.secret", &iqn("host3")],
    );
    agent.make(put_export(&v, 3, &[("host2", RO)]));
    let refused = agent.put_export(put_export_spec(&v, 4, shown));
    assert_refused(refused, Code::InvalidArgument, "fix_spec", &["grants[0].chap.initiator.secret"]);
}
