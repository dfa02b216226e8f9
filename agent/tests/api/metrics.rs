//! Metrics: the endpoint gives the true values, the documentation lists exactly the metrics that
//! exist, and no scrape makes the agent look at anything.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use mooring_agent::metrics;
use mooring_api::v1;
use prometheus_parse::{Sample, Scrape, Value};

use crate::rig::*;

const OPERATIONS: &str = include_str!("../../../docs/operations/metrics.md");

/// Serves the agent's metrics, as the program does.
fn serve(agent: &Agent) -> SocketAddr {
    let (engine, stop) = (agent.engine(), agent.stopped());
    let listener =
        agent.wait(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("an address of this machine");
    let address = listener.local_addr().unwrap();
    let (sender, arrived) = tokio::sync::mpsc::channel(1);
    agent.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            sender.send(stream).await.unwrap();
        }
    });
    agent.spawn(metrics::serve(engine, None, arrived, stop));
    address
}

fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/openmetrics-text"), "{head}");
    assert!(body.ends_with("\n# EOF\n"), "{body}");
    body.to_owned()
}

fn samples(text: &str) -> Vec<Sample> {
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap().samples
}

/// Value of the one sample with this name and these labels; it may have further labels. `None` if
/// there is no such sample.
fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let is = |sample: &Sample| {
        sample.metric == name && labels.iter().all(|(key, value)| sample.labels.get(key) == Some(value))
    };
    let found: Vec<_> = samples(text).into_iter().filter(is).collect();
    assert!(found.len() <= 1, "{found:?}");
    match found.first()?.value {
        Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => Some(value),
        ref other => panic!("{other:?}"),
    }
}

/// Names of the metric families of a text, as scrapes name them, each with its explanation.
fn families(text: &str) -> BTreeMap<String, String> {
    let kinds: BTreeMap<_, _> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let named = helps.map(|(name, help)| {
        let end = match kinds[name] {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        (format!("{name}{end}"), help.to_owned())
    });
    named.collect()
}

/// Names in the documentation's table.
fn documented() -> BTreeSet<String> {
    let rows = OPERATIONS.lines().filter_map(|line| line.strip_prefix("| `mooring_agent_"));
    rows.map(|row| format!("mooring_agent_{}", row.split_once('`').unwrap().0)).collect()
}

#[test]
fn every_metric_is_documented_and_every_documented_one_is_there() {
    let (node, v) = (Node::with_fc(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    let spec = over_fc(export_spec(&[("host1", RW)]), &[(11, 1, RO)]);
    agent.make(put_export_spec(&v, 1, spec));
    let session = node.login(&v, "host1").unwrap();
    node.plogi(11).unwrap();
    let address = serve(&agent);
    let of = |name: &str| {
        // A look beside a pass is not kept.
        agent.get(&v).unwrap();
        value(&scrape(address), &format!("mooring_agent_{name}"), &[("transport", "iscsi")])
    };
    eventually("the login is seen", || of("nexus_sessions") == Some(1.0));
    node.fake.write(session, 1).unwrap();
    eventually("the command is seen", || of("nexus_last_activity_timestamp_seconds").is_some());
    agent.capabilities();
    let text = scrape(address);
    let families = families(&text);
    let there: BTreeSet<_> = families.keys().cloned().collect();
    assert_eq!(there, documented(), "left: what is there; right: what docs/operations/metrics.md lists");
    // Dashboards and alerts rely on the types.
    let types: BTreeSet<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    insta::assert_snapshot!(types.into_iter().collect::<Vec<_>>().join("\n"));
    assert!(families.values().all(|help| help.len() > 10), "{families:?}");
    for sample in samples(&text) {
        assert!(there.contains(&sample.metric), "{} is in no family", sample.metric);
    }
    let silent: Vec<_> =
        there.iter().filter(|name| samples(&text).iter().all(|sample| sample.metric != **name)).collect();
    let none = [
        "connections",
        "connections_misused",
        "health_reasons",
        "job_done_bytes",
        "job_limit_bytes",
        "job_size_bytes",
    ];
    assert_eq!(
        silent,
        none.map(|name| format!("mooring_agent_{name}")).iter().collect::<Vec<_>>(),
        "only what this machine has none of says nothing"
    );
}

#[test]
fn health_is_what_was_told_last() {
    let node = Node::new();
    let agent = node.start();
    let address = serve(&agent);
    let of = |name: &str, labels: &[(&str, &str)]| {
        value(&scrape(address), &format!("mooring_agent_{name}"), labels)
    };
    let levels = || ["ok", "degraded", "failed"].map(|level| of("health", &[("level", level)]));
    assert_eq!(levels(), [None, None, None], "nobody has asked");
    agent.capabilities();
    assert_eq!(levels(), [Some(1.0), None, None]);
    node.fake.lvm().hide_group("vg0");
    let missing = [("code", "group_missing"), ("level", "degraded")];
    eventually("the loss of the group is told", || {
        agent.capabilities();
        of("health_reasons", &missing) == Some(1.0)
    });
    assert_eq!(levels(), [None, None, Some(1.0)], "the only group");
}

#[test]
fn the_numbers_are_those_of_the_kernel() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO)]));
    let session = node.login(&v, "host1").unwrap();
    let address = serve(&agent);
    let (host1, host2) = (iqn("host1"), iqn("host2"));
    let first = |name: &str| {
        // A look beside a pass is not kept.
        agent.get(&v).unwrap();
        value(&scrape(address), &format!("mooring_agent_{name}"), &[("initiator", &host1)])
    };
    eventually("the login is seen", || first("nexus_sessions") == Some(1.0));
    for _ in 0..512 {
        node.fake.write(session, 1).unwrap();
    }
    eventually("the commands are seen", || first("nexus_commands_total") == Some(512.0));
    let text = scrape(address);
    let one = [("volume", v.as_str()), ("initiator", &host1), ("transport", "iscsi"), ("mode", "rw")];
    let two = [("volume", v.as_str()), ("initiator", &host2), ("transport", "iscsi"), ("mode", "ro")];
    let of = |name: &str, labels: &[(&str, &str)]| value(&text, &format!("mooring_agent_{name}"), labels);
    assert_eq!((of("nexus_sessions", &one), of("nexus_sessions", &two)), (Some(1.0), Some(0.0)));
    assert_eq!((of("nexus_in_force", &one), of("nexus_in_force", &two)), (Some(1.0), Some(1.0)));
    assert_eq!(
        (of("nexus_commands_total", &one), of("nexus_commands_total", &two)),
        (Some(512.0), Some(0.0))
    );
    assert_eq!(of("nexus_written_bytes_total", &one), Some(2.0 * 1024.0 * 1024.0));
    assert_eq!(
        (of("nexus_read_bytes_total", &one), of("nexus_commands_in_flight", &one)),
        (Some(0.0), Some(0.0))
    );
    let (active, looked) =
        (of("nexus_last_activity_timestamp_seconds", &one), of("volume_looked_timestamp_seconds", &[]));
    assert!(active.is_some() && active <= looked, "{active:?} {looked:?}");
    assert_eq!(of("nexus_last_activity_timestamp_seconds", &two), None, "it never did anything");
    #[allow(clippy::cast_precision_loss, reason = "small")]
    let size = SIZE as f64;
    assert_eq!(of("volume_size_bytes", &[("volume", &v)]), Some(size));
    assert_eq!(of("volume_phase", &[("volume", &v), ("phase", "ready")]), Some(1.0));
    assert_eq!(
        (of("exports", &[("state", "in_force")]), of("exports", &[("state", "waiting")])),
        (Some(1.0), Some(0.0))
    );
    assert_eq!(of("group_size_bytes", &[("group", "vg0")]), Some(1024.0 * 1024.0 * 1024.0));
    assert_eq!((of("lvm_answers", &[]), of("stuck_calls", &[])), (Some(1.0), Some(0.0)));
    eventually("the connection is seen", || {
        value(&scrape(address), "mooring_agent_portal_connections", &[]) == Some(1.0)
    });
    assert_eq!((of("receipts_proven_total", &[]), of("receipts_unproven", &[])), (Some(0.0), Some(0.0)));

    // After a revoke, the nexus has no series any more, and its receipt is counted.
    assert!(agent.make(put_export(&v, 2, &[("host2", RO)]))[0].proven);
    let text = scrape(address);
    let of = |name: &str, labels: &[(&str, &str)]| value(&text, &format!("mooring_agent_{name}"), labels);
    assert_eq!((of("nexus_sessions", &one), of("nexus_in_force", &two)), (None, Some(1.0)));
    assert_eq!((of("receipts_proven_total", &[]), of("receipts_unproven", &[])), (Some(1.0), Some(0.0)));
}

#[test]
fn a_hanging_drain_is_a_stuck_call_an_unproven_receipt_and_a_quarantine() {
    let (node, v) = (Node::with("answer_deadline_ms = 100"), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let session = node.login(&v, "host1").unwrap();
    node.fake.hold(device(&v));
    node.fake.start_write(session, 1).unwrap();
    agent.make_not_done(brief(put_export(&v, 2, &[])));
    let address = serve(&agent);
    let of = |name: &str, labels: &[(&str, &str)]| {
        value(&scrape(address), &format!("mooring_agent_{name}"), labels)
    };
    eventually("the call is stuck", || of("stuck_calls", &[]) == Some(1.0));
    assert_eq!((of("receipts_unproven", &[]), of("receipts_proven_total", &[])), (Some(1.0), Some(0.0)));
    assert_eq!(
        (of("quarantined_volumes", &[]), of("exports", &[("state", "waiting")])),
        (Some(1.0), Some(1.0))
    );
    node.fake.release(device(&v));
    eventually("the proof", || of("receipts_proven_total", &[]) == Some(1.0));
    eventually("no quarantine is left", || {
        (of("receipts_unproven", &[]), of("quarantined_volumes", &[])) == (Some(0.0), Some(0.0))
    });
    eventually("it goes on", || of("stuck_calls", &[]) == Some(0.0));
}

/// The pulse stops at its first call, so every other call would come from a scrape.
#[test]
fn nobody_who_asks_makes_the_agent_look() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    node.login(&v, "host1").unwrap();
    let address = serve(&agent);
    let sessions = || value(&scrape(address), "mooring_agent_nexus_sessions", &[("volume", &v)]);
    eventually("the login is seen", || sessions() == Some(1.0));
    let look = format!("read iscsi/{}/tpgt_1/acls/{}/info", target(&v), iqn("host1"));
    agent.switch.pause_before(&look);
    eventually("the pulse stands still", || agent.switch.paused().is_some());
    agent.switch.forget_log();
    for _ in 0..100 {
        let text = scrape(address);
        assert_eq!(value(&text, "mooring_agent_nexus_sessions", &[("volume", &v)]), Some(1.0));
        assert!(value(&text, "mooring_agent_group_volumes", &[("group", "vg0")]).is_some());
    }
    assert_eq!(agent.switch.log(), Vec::<String>::new());
    agent.switch.go_on();
    eventually("the pulse goes on: a look would have been written down", || {
        agent.switch.log().contains(&look)
    });
}

/// Metrics of objects that the agent has not looked at since its start are absent, not 0.
#[test]
fn what_is_not_known_is_not_said() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    node.login(&v, "host1").unwrap();
    agent.crash();
    let switch = crate::switch::Switch::new(&node.fake, None);
    // This file has the sessions. No pass reads it.
    let look = format!("read iscsi/{}/tpgt_1/acls/{}/info", target(&v), iqn("host1"));
    switch.pause_before(&look);
    let agent = node.start_on(switch);
    let address = serve(&agent);
    let of = |name: &str| value(&scrape(address), &format!("mooring_agent_{name}"), &[]);
    eventually("the first pass", || of("nexus_in_force") == Some(1.0));
    assert_eq!((of("nexus_sessions"), of("nexus_commands_total")), (None, None));
    assert_eq!(of("volume_looked_timestamp_seconds"), None);
    agent.switch.go_on();
    eventually("the first look", || of("nexus_sessions") == Some(1.0));
}

#[test]
fn a_volume_that_is_cut_off_is_counted_until_it_is_given_back() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    let address = serve(&agent);
    let cut = || value(&scrape(address), "mooring_agent_cut_volumes", &[]);
    agent.make(put_volume(&v, 1));
    assert_eq!(cut(), Some(0.0));
    agent.make(put_volume_spec(&v, 2, v1::VolumeSpec { cut_us: 1, ..volume_spec(SIZE) }));
    assert_eq!(cut(), Some(1.0));
    agent.make(put_volume(&v, 3));
    assert_eq!(cut(), Some(0.0));
}
