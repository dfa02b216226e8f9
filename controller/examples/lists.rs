//! Lists at size: 100,000 volumes with 250,000 attachments in a store of their own, asked through
//! the router, without a network. Prints how long pages and single volumes take:
//! `cargo run --release -p mooring-controller --example lists`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a measurement")]

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use mooring_controller::auth::Auth;
use mooring_controller::http::{BODY_TIMEOUT, Options, router};
use mooring_controller::service::{Service, ServiceOptions};
use rusqlite::{Connection, params};
use tower::ServiceExt;

const VOLUMES: u32 = 100_000;
const ATTACHMENTS: u32 = 250_000;
const PROJECT: &str = "0123456789abcdef0123456789abcdef";

fn open(dir: &std::path::Path) -> Service {
    Service::open(ServiceOptions::new(dir.to_owned())).unwrap()
}

fn volume_id(number: u32) -> String {
    // Spread, as random ids are.
    format!("{:08x}-0000-4000-8000-{number:012x}", number.wrapping_mul(2_654_435_761))
}

/// Rows as the service would have written them.
fn fill(path: &std::path::Path) {
    let mut conn = Connection::open(path).unwrap();
    let kind: String = conn.query_row("SELECT id FROM volume_types", [], |row| row.get(0)).unwrap();
    let transaction = conn.transaction().unwrap();
    for number in 0..VOLUMES {
        let sql = "INSERT INTO volumes (id, name, size_gib, type_id, multiattach, status, attach_status, project, user_id, \
                   metadata, agent_id, pool, created_us) VALUES (?1, ?2, 10, ?3, 1, 'in-use', 'attached', ?4, 'u', ?5, ?6, \
                   'vg0', ?7)";
        let project = if number % 2 == 0 { PROJECT } else { "fedcba9876543210fedcba9876543210" };
        let (name, agent) = (format!("volume-{number}"), "00000000-0000-4000-8000-000000000057");
        let created = 1_795_000_000_000_000 + i64::from(number) * 1_000;
        let metadata = format!("{{\"k\":\"{}\"}}", number % 100);
        let values = params![volume_id(number), name, kind, project, metadata, agent, created];
        transaction.prepare_cached(sql).unwrap().execute(values).unwrap();
    }
    for number in 0..ATTACHMENTS {
        let sql = "INSERT INTO attachments (id, volume_id, project, instance, mode, status, initiator, host, mountpoint, \
                   access, moving, wish_epoch, wish_counter, created_us, attached_us) \
                   VALUES (?1, ?2, ?3, ?1, 'rw', 'attached', ?4, ?5, '/dev/vdb', 20, 0, 1, 1, ?6, ?6)";
        let id = format!("{:08x}-0000-4000-9000-{number:012x}", number.wrapping_mul(2_654_435_761));
        let host = format!("host{}", number / VOLUMES);
        let initiator = format!("iqn.2026-01.org.example:{host}");
        let created = 1_795_000_000_000_000 + i64::from(number) * 1_000;
        let values = params![id, volume_id(number % VOLUMES), PROJECT, initiator, host, created];
        transaction.prepare_cached(sql).unwrap().execute(values).unwrap();
    }
    transaction.commit().unwrap();
}

async fn ask(router: &Router, path: &str) -> (Duration, usize) {
    let uri = format!("/v3/{PROJECT}{path}");
    let request =
        Request::get(uri).header("host", "localhost").header("openstack-api-version", "volume 3.69");
    let begun = Instant::now();
    let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (begun.elapsed(), body.len())
}

async fn measure(router: &Router, path: impl Fn(u32) -> String, times: u32) {
    let mut all = Vec::new();
    let mut bytes = 0;
    for number in 0..times {
        let (took, size) = ask(router, &path(number)).await;
        all.push(took);
        bytes = size;
    }
    all.sort();
    let at = |percent: usize| all[(all.len() - 1) * percent / 100];
    println!("{:<60} p50 {:>9.2?}  p99 {:>9.2?}  {bytes} bytes", path(0), at(50), at(99));
}

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    drop(open(&state));
    fill(&state.join("mooring-controller.db"));
    let options = Options {
        auth: Auth::NoAuth,
        policies: std::sync::Arc::default(),
        public_url: None,
        tls: false,
        body_timeout: BODY_TIMEOUT,
    };
    let router = router(open(&state), options);
    for list in [
        "/volumes/detail?limit=1000",
        "/volumes/detail?limit=1000&all_tenants=1",
        "/volumes?limit=1000&all_tenants=1",
        "/volumes/detail?all_tenants=1&sort=name:asc",
        "/volumes/detail?all_tenants=1&name~=volume-4242",
        "/volumes/detail?all_tenants=1&with_count=1",
        "/volumes/detail?all_tenants=1&metadata=%7B%27k%27:%277%27%7D",
        "/volumes/summary?all_tenants=1",
        "/attachments/detail?limit=1000",
    ] {
        measure(&router, |_| list.to_owned(), 20).await;
    }
    let far = volume_id(VOLUMES / 10);
    measure(&router, |_| format!("/volumes/detail?all_tenants=1&marker={far}"), 20).await;
    measure(&router, |number| format!("/volumes/{}", volume_id(number * 97 % VOLUMES)), 2_000).await;
    let instance = format!("{:08x}-0000-4000-9000-{:012x}", 7_u32.wrapping_mul(2_654_435_761), 7);
    measure(&router, |_| format!("/attachments?instance_id={instance}"), 200).await;
}
