//! Sessions: read when asked, followed at a bounded rate, and reported when they change.

use std::time::Duration;

use mooring_api::v1;
use mooring_api::v1::report::What;
use tokio_stream::StreamExt;

use crate::rig::*;

fn grants(agent: &Agent, id: &str) -> Vec<v1::GrantReport> {
    agent.get(id).unwrap().export.unwrap().grants
}

/// Repeats the look until one is stored, which does not happen beside a pass. A list gives what is
/// stored, and looks at nothing.
fn looked(agent: &Agent, id: &str) -> Vec<v1::GrantReport> {
    eventually("a look that is kept", || {
        grants(agent, id);
        let kept = agent.list().into_iter().find(|status| status.volume_id == id).unwrap();
        kept.export.unwrap().grants.iter().all(|grant| !grant.sessions.is_empty())
    });
    grants(agent, id)
}

/// Returns the next report of an export that `fits`, and skips others.
fn told(
    agent: &Agent,
    reports: &mut tonic::Streaming<v1::Report>,
    fits: impl Fn(&v1::ExportReport) -> bool,
) -> v1::ExportReport {
    agent.wait(async {
        loop {
            if let What::Export(report) = reports.next().await.unwrap().unwrap().what.unwrap()
                && fits(&report)
            {
                return report;
            }
        }
    })
}

#[test]
fn a_login_and_its_end_are_told_unasked() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
    let mut reports = agent.watch();
    let session = node.login(&v, "host1").unwrap();
    let report = told(&agent, &mut reports, |report| !report.grants[0].sessions.is_empty());
    let seen = &report.grants[0].sessions[0];
    assert_eq!((seen.initiator.as_str(), seen.state.as_str()), (iqn("host1").as_str(), "LOGGED_IN"));
    assert_eq!((seen.addresses.as_slice(), seen.isid.len()), (&["10.10.0.11".to_owned()][..], 12));
    assert!(seen.since_us > 0 && report.looked_us >= seen.since_us);
    assert!(report.in_force && report.grants[1].sessions.is_empty());
    node.fake.logout(session);
    let report = told(&agent, &mut reports, |report| report.grants[0].sessions.is_empty());
    assert!(report.looked_us > seen.since_us);
}

#[test]
fn who_asks_is_told_what_is_so_now() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let session = node.login(&v, "host1").unwrap();
    let first = looked(&agent, &v)[0].clone();
    assert_eq!((first.sessions.len(), first.commands, first.active_us), (1, 0, 0));
    for _ in 0..256 {
        node.fake.write(session, 1).unwrap();
    }
    eventually("its commands are seen", || grants(&agent, &v)[0].commands == 256);
    let busy = grants(&agent, &v)[0].clone();
    assert_eq!((busy.commands, busy.read_mib, busy.written_mib), (256, 0, 1));
    assert!(busy.active_us > 0);
    assert_eq!(busy.sessions[0].since_us, first.sessions[0].since_us, "the same session, seen first then");
    // A restarted agent recognises the sessions when it looks. It has not seen the commands before
    // its start.
    agent.crash();
    let agent = node.start();
    let again = looked(&agent, &v)[0].clone();
    assert_eq!((again.sessions[0].id, again.commands, again.active_us), (busy.sessions[0].id, 256, 0));
    assert!(again.sessions[0].since_us >= busy.sessions[0].since_us);
}

/// A new grant of a revoked nexus does not inherit the counters.
#[test]
fn a_nexus_made_anew_begins_at_nothing() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let session = node.login(&v, "host1").unwrap();
    node.fake.write(session, 1).unwrap();
    assert_eq!(grants(&agent, &v)[0].sessions.len(), 1);
    let receipts = agent.make(put_export(&v, 2, &[]));
    assert!(receipts[0].proven && receipts[0].sessions_cut.len() == 1, "{receipts:?}");
    let answer = agent.put_export(put_export(&v, 3, &[("host1", RW)])).unwrap();
    let grant = &answer.report.unwrap().grants[0];
    assert_eq!((grant.sessions.len(), grant.commands), (0, 0));
}

/// Following the sessions changes nothing. It takes a fixed number of calls in a second, however
/// many volumes there are.
#[test]
fn the_pulse_only_reads_and_goes_round() {
    let node = Node::new();
    let agent = node.start();
    let ids: Vec<_> = (1..=40).map(volume).collect();
    for id in &ids {
        agent.make(put_volume(id, 1));
        agent.make(put_export(id, 1, &[("host1", RW), ("host2", RW), ("host3", RO)]));
    }
    let changes = agent.switch.changes();
    let mut reports = agent.watch();
    for id in &ids {
        node.login(id, "host3").unwrap();
    }
    let mut missing: std::collections::BTreeSet<_> = ids.iter().cloned().collect();
    while !missing.is_empty() {
        let report = told(&agent, &mut reports, |report| !report.grants[2].sessions.is_empty());
        missing.remove(&report.volume_id);
    }
    assert_eq!(agent.switch.changes(), changes);
}

/// The pulse does not walk into a drain that hangs: the volume's next answer is as quick as before.
#[test]
fn the_pulse_keeps_away_from_a_drain() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
    let session = node.login(&v, "host1").unwrap();
    node.fake.hold(device(&v));
    node.fake.start_write(session, 1).unwrap();
    agent.make_not_done(brief(put_export(&v, 2, &[("host2", RO)])));
    let waiting = node.fake.waiting();
    // The pulse comes by twice meanwhile.
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(node.fake.waiting() <= waiting, "no more calls hang than before");
    node.fake.release(device(&v));
    eventually("the drain ends", || node.fake.waiting() == 0);
}

/// If one host has two sessions, the kernel shows the newer one. Commands of the older one are not
/// counted, and not hidden: a receipt says at most how many commands may still land.
#[test]
fn what_nobody_sees_may_land_all_the_same() {
    let (node, v) = (Node::new(), volume(1));
    let second = "10.0.1.1:3260";
    node.fake.set_addresses(["127.0.0.1", "10.0.0.1", "10.0.1.1"].map(|ip| ip.parse().unwrap()));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let spec = |grants: &[(&str, v1::Mode)]| {
        let portals = [PORTAL, second].map(str::to_owned).to_vec();
        v1::ExportSpec { portals, ..export_spec(grants) }
    };
    agent.make(put_export_spec(&v, 1, spec(&[("host1", RW), ("host2", RW)])));
    let (user, secret) = ("host1", secret_of("host1"));
    let older = node.fake.login(PORTAL, &target(&v), &iqn("host1"), Some((user, &secret))).unwrap();
    node.fake.login(second, &target(&v), &iqn("host1"), Some((user, &secret))).unwrap();
    node.login(&v, "host2").unwrap();
    assert_eq!(looked(&agent, &v).iter().map(|grant| grant.sessions.len()).collect::<Vec<_>>(), [1, 1]);
    node.fake.hold(device(&v));
    for _ in 0..8 {
        node.fake.start_write(older, 1).unwrap();
    }
    let answer = agent.put_export(brief(put_export_spec(&v, 2, spec(&[("host2", RW)])))).unwrap();
    let receipt = &answer.receipts[0];
    // Command window (`cmdsn_depth`) of the session that the kernel does not show.
    assert_eq!((receipt.proven, receipt.sessions_cut.len(), receipt.may_still_land), (false, 1, 64));
    node.fake.release(device(&v));
    eventually("the proof", || agent.get(&v).unwrap().receipts[0].proven);
}

/// If one host has several sessions, the kernel lists the newest. The agent reports unasked how
/// many others there are. While nobody is logged in, it does not count.
#[test]
fn how_many_sessions_are_not_listed_is_said() {
    let (node, v) = (Node::new(), volume(1));
    let second = "10.0.1.1:3260";
    node.fake.set_addresses(["127.0.0.1", "10.0.0.1", "10.0.1.1"].map(|ip| ip.parse().unwrap()));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let portals = [PORTAL, second].map(str::to_owned).to_vec();
    let spec = v1::ExportSpec { portals, ..export_spec(&[("host1", RW), ("host2", RW)]) };
    agent.make(put_export_spec(&v, 1, spec));
    let asked = || agent.get(&v).unwrap().export.unwrap().unlisted_sessions;
    eventually("a look that is no pass's", || asked() == Some(0));
    let counts =
        || agent.switch.log().iter().filter(|call| call.ends_with("iscsi_instance/sessions")).count();
    let mut reports = agent.watch();
    assert_eq!(counts(), 0);
    node.login(&v, "host1").unwrap();
    node.login(&v, "host2").unwrap();
    let both = |report: &v1::ExportReport| report.grants.iter().all(|grant| !grant.sessions.is_empty());
    assert_eq!(told(&agent, &mut reports, both).unlisted_sessions, Some(0));
    assert!(counts() > 0);
    let login = |portal| {
        node.fake.login(portal, &target(&v), &iqn("host1"), Some(("host1", &secret_of("host1")))).unwrap()
    };
    let newer = login(second);
    let report = told(&agent, &mut reports, |report| report.unlisted_sessions == Some(1));
    assert_eq!(report.grants.iter().map(|grant| grant.sessions.len()).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(asked(), Some(1));
    node.fake.logout(newer);
    told(&agent, &mut reports, |report| report.unlisted_sessions == Some(0));
}
