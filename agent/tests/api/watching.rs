//! Watch: first everything, then `synced`, then changes in order; a reader that is too slow is
//! disconnected.

use mooring_api::v1;
use mooring_api::v1::agent_server::Agent as _;
use mooring_api::v1::report::What;
use tokio_stream::StreamExt;
use tonic::{Code, Streaming};

use crate::rig::*;

pub(crate) fn next(agent: &Agent, reports: &mut Streaming<v1::Report>) -> What {
    agent.wait(async { reports.next().await.unwrap().unwrap().what.unwrap() })
}

/// Returns all reports up to the mark.
pub(crate) fn first(agent: &Agent, reports: &mut Streaming<v1::Report>) -> Vec<What> {
    let mut first = Vec::new();
    loop {
        match next(agent, reports) {
            What::Synced(_) => return first,
            what => first.push(what),
        }
    }
}

#[test]
fn first_everything_then_the_mark_then_changes_in_order() {
    let (node, v, w) = (Node::new(), volume(1), volume(2));
    let agent = node.start();
    for id in [&v, &w] {
        agent.make(put_volume(id, 1));
    }
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
    agent.make(put_export(&v, 2, &[("host2", RO)]));

    let mut reports = agent.watch();
    let seen = first(&agent, &mut reports);
    assert!(matches!(&seen[0], What::Capabilities(all) if all.multiattach), "{:?}", seen[0]);
    let ready = |id: &str| {
        let of = |what: &What| matches!(what, What::Volume(report) if report.volume_id == id && report.phase() == v1::Phase::Ready);
        seen.iter().any(of)
    };
    assert!(ready(&v) && ready(&w));
    assert!(
        seen.iter()
            .any(|what| matches!(what, What::Export(report) if report.volume_id == v && report.in_force))
    );
    let receipt = |what: &What| matches!(what, What::Receipt(receipt) if receipt.proven && receipt.initiator == iqn("host1"));
    assert!(seen.iter().any(receipt), "what was proven while nobody watched: {seen:?}");

    for counter in 3..8 {
        let grants: &[(&str, v1::Mode)] = if counter % 2 == 0 { &[("host2", RO)] } else { &[] };
        agent.make(put_export(&v, counter, grants));
    }
    let mut generations = Vec::new();
    let mut open = 0_i32;
    while generations.last() != Some(&7) {
        match next(&agent, &mut reports) {
            What::Export(report) => generations.push(report.generation.unwrap().counter),
            What::Receipt(receipt) if receipt.proven => open -= 1,
            What::Receipt(_) => open += 1,
            _ => {}
        }
        assert!(open == 0 || open == 1, "a receipt is proven after it was begun");
    }
    assert_eq!(generations, [3, 4, 5, 6, 7]);
}

#[test]
fn two_watchers_each_get_everything() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    let mut watchers = [agent.watch(), agent.watch()];
    for reports in &mut watchers {
        first(&agent, reports);
    }
    agent.make(put_volume(&v, 1));
    for reports in &mut watchers {
        let What::Volume(report) = next(&agent, reports) else { panic!("the volume's report") };
        assert_eq!((report.volume_id, report.phase), (v.clone(), v1::Phase::Ready.into()));
    }
}

#[test]
fn a_reader_that_does_not_read_is_cut_off_and_nobody_waits_for_it() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    // The test uses no connection: its windows take megabytes before anybody notices.
    let service = mooring_agent::rpc::agent::Service::new(agent.engine(), agent.stopped());
    let watch = service.watch(tonic::Request::new(v1::WatchRequest {}));
    let mut reports = agent.wait(watch).unwrap().into_inner();
    agent.make(put_volume(&v, 1));
    let names: Vec<String> = (0..500).map(|n| format!("host-with-a-long-name-{n}")).collect();
    let grants: Vec<(&str, v1::Mode)> = names.iter().map(|name| (name.as_str(), RO)).collect();
    for round in 0..5 {
        agent.make(put_export(&v, 2 * round + 1, &grants));
        agent.make(put_export(&v, 2 * round + 2, &[]));
    }
    let status = agent.wait(async {
        loop {
            match reports.next().await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return status,
                None => panic!("the stream ended without a word"),
            }
        }
    });
    assert_refused(Err::<(), _>(status), Code::DataLoss, "retry", &["reports were missed", "watch again"]);
    assert!(first(&agent, &mut agent.watch()).len() > 20, "and may begin anew");
}

#[test]
fn a_watcher_does_not_hold_up_the_end_of_the_agent() {
    let node = Node::new();
    let agent = node.start();
    let mut reports = agent.watch();
    first(&agent, &mut reports);
    agent.stop();
    let ended = agent.wait(async { reports.next().await });
    assert_refused(ended.unwrap(), Code::Unavailable, "retry", &["the agent stops"]);
}
