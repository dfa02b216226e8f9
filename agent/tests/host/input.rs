//! Requests that are refused, with their answers; and secrets, which appear nowhere.

use std::os::unix::fs::PermissionsExt;

use mooring_api::{Message, v1};
use tonic::Code;

use crate::rig::*;

#[test]
fn malformed_requests_say_which_field() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    let good = agent.put(1, 1, &[(1, RW)]);
    let check = |put: v1::PutConnectionRequest, words: &[&str]| {
        assert_refused(agent.try_put(put), Code::InvalidArgument, "fix_spec", words);
    };
    check(v1::PutConnectionRequest { volume_id: "vol1".into(), ..good.clone() }, &["volume_id"]);
    check(v1::PutConnectionRequest { sender: None, ..good.clone() }, &["sender"]);
    check(v1::PutConnectionRequest { stamp: None, ..good.clone() }, &["stamp"]);
    check(v1::PutConnectionRequest { wish: None, ..good.clone() }, &["wish", "neither a spec"]);
    check(v1::PutConnectionRequest { opaque: vec![0; 65 * 1024], ..good.clone() }, &["opaque"]);
    let with = |change: fn(&mut v1::ConnectionSpec)| {
        let mut spec = agent.spec(1, &[(1, RW)]);
        change(&mut spec);
        put_spec(1, 1, spec)
    };
    check(with(|spec| spec.portals.clear()), &["portals"]);
    check(with(|spec| spec.lun = 0), &["lun"]);
    check(with(|spec| spec.attachments.clear()), &["attachments"]);
    check(with(|spec| spec.naa = "5".repeat(32)), &["naa"]);
    check(
        with(|spec| spec.chap.as_mut().unwrap().initiator.as_mut().unwrap().secret = "short".into()),
        &["chap"],
    );
    assert_refused(
        agent.try_put(with(|spec| spec.initiator = "iqn.1993-08.org.debian:01:abc".into())),
        Code::FailedPrecondition,
        "fix_spec",
        &["this host logs in as iqn.2026-11.dev.mooring:host.", "iqn.1993-08.org.debian:01:abc"],
    );
    assert!(agent.list().is_empty() && agent.door.changes() == 0);
    assert_refused(agent.get(1), Code::NotFound, "fix_spec", &["no connection"]);
    let mut client = agent.client();
    let wrong = v1::GetConnectionRequest { volume_id: "x".into() };
    let refused = agent.wait(async move { client.get_connection(wrong).await });
    assert_refused(refused, Code::InvalidArgument, "fix_spec", &["volume_id"]);
    agent.make(good);
}

#[test]
fn generations_fence() {
    let site = Site::exporting(&[1]);
    let agent = site.start();
    agent.make(agent.put(1, 5, &[(1, RW)]));
    let stale = agent.try_put(agent.put(1, 4, &[(1, RO)]));
    assert_refused(stale, Code::Aborted, "retry", &["generation 1.4", "older than 1.5"]);
    let conflict = agent.try_put(agent.put(1, 5, &[(1, RO)]));
    assert_refused(conflict, Code::Aborted, "fix_spec", &["another content"]);
    let stale = agent.try_put(tombstone(1, 4, true));
    assert_refused(stale, Code::Aborted, "retry", &["older"]);
    agent.crash();
    let agent = site.start();
    let stale = agent.try_put(agent.put(1, 4, &[(1, RO)]));
    assert_refused(stale, Code::Aborted, "retry", &["older"]);
    site.assert_attached(1, 1);
}

#[test]
fn another_cluster_is_refused() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    let other = v1::Sender { cluster_id: "00000000-2f5c-4a8e-9d57-0f3c1a7b9e11".into() };
    let put = v1::PutConnectionRequest { sender: Some(other), ..tombstone(1, 2, true) };
    assert_refused(agent.try_put(put), Code::PermissionDenied, "operator", &[CLUSTER]);
    site.assert_attached(1, 1);
}

#[test]
fn what_a_connection_is_does_not_change() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    let mut spec = agent.spec(1, &[(1, RW)]);
    (spec.naa, spec.serial) = (agent.spec(2, &[]).naa, agent.spec(2, &[]).serial);
    assert_refused(
        agent.try_put(put_spec(1, 2, spec)),
        Code::FailedPrecondition,
        "fix_spec",
        &["NAA", "detach it first"],
    );
    // One path cannot belong to two volumes either.
    assert_refused(
        agent.try_put(agent.put(2, 1, &[(1, RW)])),
        Code::FailedPrecondition,
        "fix_spec",
        &[&attachment(1), &volume(1).to_string()],
    );
    agent.make(tombstone(1, 2, false));
    agent.make(agent.put(2, 1, &[(1, RW)]));
    site.assert_attached(1, 2);
    site.assert_lawful();
}

#[test]
fn no_answer_no_log_and_no_file_of_others_holds_a_secret() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    let mut spec = agent.spec(1, &[(1, RW)]);
    let mutual = v1::ChapSide { user: "target".into(), secret: format!("{SECRET_WORD}-of-target") };
    spec.chap.as_mut().unwrap().mutual = Some(mutual);
    let mut said = vec![format!("{:?}", agent.make(put_spec(1, 1, spec.clone())))];
    let status = agent.get(1).unwrap();
    let shown = status.spec.clone().unwrap().chap.unwrap();
    assert_eq!(
        (shown.initiator.unwrap().user.as_str(), shown.mutual.unwrap().user.as_str()),
        ("host", "target")
    );
    said.push(String::from_utf8_lossy(&status.encode_to_vec()).into_owned());
    said.push(format!("{:?}", agent.list()));
    // Failures with secrets in the request.
    let mut clash = spec.clone();
    clash.chap.as_mut().unwrap().mutual.as_mut().unwrap().secret = secret();
    said.push(format!("{:?}", agent.try_put(put_spec(1, 2, clash)).unwrap_err()));
    site.world.target(volume(2), |target| target.secret = Some("something-else".into()));
    said.push(format!("{:?}", agent.make_not_done(agent.put(2, 1, &[(2, RW)]))));
    let store = mooring_agent::store::Store::open(&site.config.state_dir).unwrap();
    said.push(format!("{:?} {store:?}", store.specs().unwrap()));
    agent.crash();
    let agent = site.start();
    said.push(format!("{:?}", agent.list()));
    for text in said {
        assert!(!text.contains(SECRET_WORD), "{text}");
    }
    let logs = logs();
    assert!(logs.contains("log in to iqn.2026-11.dev.mooring:"), "the control: steps were logged");
    let told: Vec<&str> = logs.lines().filter(|line| line.contains(SECRET_WORD)).collect();
    assert!(told.is_empty(), "{told:#?}");
    for entry in std::fs::read_dir(&site.config.state_dir).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode() & 0o077;
        assert_eq!(mode, 0, "the store is read by nobody else");
    }
}
