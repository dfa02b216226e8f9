//! Stream of reports.

use mooring_api::v1;
use mooring_api::v1::connection_event::What;
use tokio_stream::StreamExt;
use tonic::Code;

use crate::rig::*;

#[test]
fn first_all_then_synced_then_changes() {
    let site = Site::exporting(&[1, 2]);
    let agent = site.start();
    agent.make(agent.put(1, 1, &[(1, RW)]));
    let mut events = agent.watch();
    let mut next = || agent.wait(async { events.next().await.unwrap().unwrap().what.unwrap() });
    let What::Report(report) = next() else { panic!("a report first") };
    assert_eq!((report.volume_id, report.phase), (volume(1).to_string(), v1::ConnectionPhase::Ready.into()));
    assert!(matches!(next(), What::Synced(_)));
    agent.make(agent.put(2, 1, &[(2, RW)]));
    let ready = |what: &What| matches!(what, What::Report(r) if r.volume_id == volume(2).to_string() && r.phase() == v1::ConnectionPhase::Ready);
    while !ready(&next()) {}
    site.world.lose(volume(1), true);
    let lost = |what: &What| matches!(what, What::Report(r) if r.phase() == v1::ConnectionPhase::Recovering);
    while !lost(&next()) {}
}

#[test]
fn a_stop_ends_it_and_says_so() {
    let site = Site::new();
    let agent = site.start();
    let mut events = agent.watch();
    assert!(matches!(agent.wait(events.next()).unwrap().unwrap().what.unwrap(), What::Synced(_)));
    agent.stop();
    let end = agent.wait(events.next()).unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(end.message().contains("its connections stay"), "{end:?}");
}
