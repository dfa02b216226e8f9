//! Metrics: they tell the truth, the documentation lists exactly those that exist, and no text of a
//! client becomes a series.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use mooring_controller::auth::Auth;
use mooring_controller::domain::{NewAttachment, NewConnector};
use mooring_controller::http::{BODY_TIMEOUT, Options, router};
use mooring_controller::metrics::Metrics;
use mooring_controller::service::Service;
use mooring_model::Mode;
use prometheus_parse::{Sample, Scrape, Value};
use tower::ServiceExt;

use crate::client::PROJECT;
use crate::support::{LONG, Rig, admin, client};

const OPERATIONS: &str = include_str!("../../../docs/operations/metrics.md");

/// A control plane's metrics that have counted nothing yet, and its API.
fn measured(service: &Service) -> (Arc<Metrics>, Router) {
    let options = Options {
        auth: Auth::NoAuth,
        policies: Arc::default(),
        public_url: None,
        tls: false,
        body_timeout: BODY_TIMEOUT,
    };
    let metrics = Metrics::new(service.clone());
    let router = metrics.measured(router(service.clone(), options));
    (metrics, router)
}

async fn send(router: &Router, method: &str, path: &str) -> StatusCode {
    let request = Request::builder().method(method).uri(path).header("host", "localhost:8776");
    let request = request.header("OpenStack-API-Version", "volume 3.60").body(Body::empty()).unwrap();
    router.clone().oneshot(request).await.unwrap().status()
}

fn samples(text: &str) -> Vec<Sample> {
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap().samples
}

/// The value of the only sample with this name and these labels, beside others. `None`: there is
/// none.
fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let is = |sample: &Sample| {
        sample.metric == format!("mooring_controller_{name}")
            && labels.iter().all(|(key, value)| sample.labels.get(key) == Some(value))
    };
    let found: Vec<_> = samples(text).into_iter().filter(is).collect();
    assert!(found.len() <= 1, "{found:?}");
    match found.first()?.value {
        Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => Some(value),
        ref other => panic!("{other:?}"),
    }
}

/// The names of a text's families as a query uses them, with their explanations.
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

/// The names in the documentation's table.
fn documented() -> BTreeSet<String> {
    let rows = OPERATIONS.lines().filter_map(|line| line.strip_prefix("| `mooring_controller_"));
    rows.map(|row| format!("mooring_controller_{}", row.split_once('`').unwrap().0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_documented_and_every_documented_one_is_there() {
    let rig = Rig::new(0).await;
    let (metrics, router) = measured(&rig.service);
    assert_eq!(send(&router, "GET", "/mooring/v1/hosts").await, 200);
    let text = metrics.text().await.unwrap();
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let families = families(&text);
    let there: BTreeSet<_> = families.keys().cloned().collect();
    assert_eq!(there, documented(), "left: what is there; right: what docs/operations/metrics.md lists");
    // Dashboards and alerts rely on the types.
    let types: BTreeSet<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    insta::assert_snapshot!(types.into_iter().collect::<Vec<_>>().join("\n"));
    assert!(families.values().all(|help| help.len() > 10), "{families:?}");
    let of = |name: &String| {
        let of_histogram = ["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}"));
        let has = |sample: &Sample| sample.metric == *name || of_histogram.contains(&sample.metric);
        samples(&text).iter().any(has)
    };
    let silent: Vec<_> = there.iter().filter(|name| !of(name)).collect();
    assert!(silent.is_empty(), "{silent:?} have no sample\n{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_are_those_of_the_database_and_of_the_agents() {
    let rig = Rig::new(2).await;
    let (one, two) = (rig.volume(true).await, rig.volume(false).await);
    let stays = rig.attach(one, "host1", Mode::ReadWrite).await.attachment.id;
    let goes = rig.attach(one, "host2", Mode::ReadWrite).await.attachment.id;
    // A new counter each time: counts are cached for a while.
    let count = async || measured(&rig.service).0.text().await.unwrap();
    let text = count().await;
    let of = |name: &str, labels: &[(&str, &str)]| value(&text, name, labels);
    assert_eq!(
        (of("agents", &[("state", "up")]), of("agents", &[("state", "down")])),
        (Some(3.0), Some(0.0))
    );
    assert_eq!((of("agent_up", &[("agent", "storage")]), of("leases_held", &[])), (Some(1.0), Some(3.0)));
    assert!(of("agent_last_report_timestamp_seconds", &[("agent", "host1")]) > Some(1e9));
    assert_eq!(
        (of("volumes", &[("status", "in-use")]), of("volumes", &[("status", "available")])),
        (Some(1.0), Some(1.0))
    );
    assert_eq!(of("volumes", &[("status", "error")]), Some(0.0), "nothing counted is 0");
    assert_eq!(of("attachments", &[("status", "attached")]), Some(2.0));
    assert_eq!((of("attachments_session_missing", &[]), of("fences", &[])), (Some(0.0), Some(0.0)));
    assert_eq!((of("database_answers", &[]), of("reviews", &[("kind", "lost")])), (Some(1.0), Some(0.0)));
    assert_eq!(
        (of("receipts", &[("proof", "proven")]), of("detaches_waiting", &[("receipt", "unproven")])),
        (Some(0.0), Some(0.0))
    );
    assert!(!text.contains(&one.to_string()) && !text.contains(&two.to_string()), "no volume has a series");

    // One host has logged out behind the controller, one is force detached with an unproven
    // receipt, one agent is gone.
    rig.storage.state().knobs.unproven = true;
    rig.force(goes).await;
    rig.world.sessions.lock().unwrap().clear();
    assert_eq!(rig.service.live(&admin(), stays, None, LONG).await.unwrap().session, Some(false));
    rig.write("UPDATE volumes SET review = 'why', review_kind = 'lost' WHERE multiattach = 0");
    rig.hosts[1].set_down(true);
    rig.until_host("host2", |host| !host.up).await;
    let text = count().await;
    let of = |name: &str, labels: &[(&str, &str)]| value(&text, name, labels);
    assert_eq!(
        (of("agents", &[("state", "up")]), of("agents", &[("state", "down")])),
        (Some(2.0), Some(1.0))
    );
    assert_eq!(
        (of("agent_up", &[("agent", "host2")]), of("agent_up", &[("agent", "host1")])),
        (Some(0.0), Some(1.0))
    );
    assert_eq!(
        (of("receipts", &[("proof", "unproven")]), of("detaches_waiting", &[("receipt", "unproven")])),
        (Some(1.0), Some(1.0))
    );
    assert_eq!(
        (of("attachments_session_missing", &[]), of("reviews", &[("kind", "lost")])),
        (Some(1.0), Some(1.0))
    );
}

/// A missing login over Fibre Channel is counted, too.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_missing_over_fibre_channel_is_counted() {
    let rig = Rig::quiet(0);
    let (target, port) = ("fc/20:00:52:54:00:14:00:01", "20:00:52:54:00:14:00:0b");
    let logins = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        rig.storage.state().knobs.fc.0.insert(target.to_owned(), names);
    };
    logins(&[port]);
    rig.up().await;
    let volume = rig.volume(false).await;
    let connector = serde_json::json!({ "host": "node1", "wwpns": [port], "wwnns": [port] });
    let connector = NewConnector::Client(connector.as_object().unwrap().clone());
    let new = NewAttachment { connector, ..client(volume, 1) };
    let id = rig.service.create_attachment(&admin(), new, LONG).await.unwrap().id;
    rig.service.complete_attachment(&admin(), id).await.unwrap();
    let missing = async || {
        rig.service.live(&admin(), id, None, LONG).await.unwrap();
        value(&measured(&rig.service).0.text().await.unwrap(), "attachments_session_missing", &[])
    };
    assert_eq!(missing().await, Some(0.0));
    logins(&[]);
    assert_eq!(missing().await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_route_and_not_by_what_clients_write() {
    let rig = Rig::new(0).await;
    let (metrics, router) = measured(&rig.service);
    for n in 0..3 {
        let id = uuid::Uuid::from_u128(n);
        assert_eq!(send(&router, "GET", &format!("/v3/{PROJECT}/volumes/{id}")).await, 404);
        assert_eq!(send(&router, "GET", &format!("/v3/volumes/{id}")).await, 404);
        assert_eq!(send(&router, "GET", &format!("/nosuch/{id}")).await, 404);
        assert_eq!(send(&router, &format!("BREW{n}"), &format!("/v3/{PROJECT}/volumes")).await, 404);
    }
    assert_eq!(send(&router, "GET", &format!("/v3/{PROJECT}/volumes/detail")).await, 200);
    assert_eq!(send(&router, "GET", "/mooring/v1/hosts").await, 200);
    assert_eq!(send(&router, "GET", "/").await, 300);
    let text = metrics.text().await.unwrap();
    // Line by line: the parser takes no braces in a label's text, where the format has them.
    let counted = |name: &str| -> BTreeSet<String> {
        let name = format!("mooring_controller_{name}");
        text.lines().filter_map(|line| line.strip_prefix(&name)).map(str::to_owned).collect()
    };
    let want = [
        r#"{method="GET",route="/mooring/v1/hosts",status="2xx"} 1"#,
        r#"{method="GET",route="/v3/volumes/detail",status="2xx"} 1"#,
        r#"{method="GET",route="/v3/volumes/{id}",status="4xx"} 6"#,
        r#"{method="GET",route="none",status="3xx"} 1"#,
        r#"{method="GET",route="none",status="4xx"} 3"#,
        r#"{method="other",route="none",status="4xx"} 3"#,
    ];
    assert_eq!(counted("http_requests_total"), want.map(str::to_owned).into(), "{text}");
    let times = counted("http_request_duration_seconds_count");
    assert!(times.contains(r#"{method="GET",route="/v3/volumes/{id}"} 6"#), "{times:?}");
}

/// However often the metrics are read, the database is asked once in a while.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_counted_is_not_counted_again_so_soon() {
    let rig = Rig::new(0).await;
    let (metrics, _) = measured(&rig.service);
    let first = metrics.text().await.unwrap();
    rig.volume(false).await;
    let again = metrics.text().await.unwrap();
    let at = |text: &str| value(text, "counted_timestamp_seconds", &[]);
    assert!(at(&first).is_some() && at(&first) == at(&again));
    assert_eq!(value(&again, "volumes", &[("status", "available")]), Some(0.0));
    let (anew, _) = measured(&rig.service);
    assert_eq!(value(&anew.text().await.unwrap(), "volumes", &[("status", "available")]), Some(1.0));
}
