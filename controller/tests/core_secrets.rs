//! No secret in a log, an error or a `Debug`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::log::Log;
use crate::support::{LONG, Rig, SHORT, admin, client, connection_info};
use mooring_model::Mode;

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_printed() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_env_filter("debug,mooring_controller=trace")
        .with_writer(move || writer.clone())
        .init();
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let made = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    let live = rig.attach(volume, "host1", Mode::ReadWrite).await;
    let mut secrets = vec![connection_info(&made)["auth_password"].as_str().unwrap().to_owned()];
    let spec = rig.storage.state().exports[&volume.to_string()].spec.clone().unwrap();
    for chap in spec.grants.into_iter().filter_map(|grant| grant.chap) {
        secrets.extend([chap.initiator, chap.mutual].into_iter().flatten().map(|side| side.secret));
    }
    secrets.sort_unstable();
    secrets.dedup();
    assert_eq!(secrets.len(), 3, "a client's, a host's and the target's for it");
    let mut printed = format!("{made:?} {live:?} {:?}", rig.service);
    // With faults, too: a refused detach, an agent that goes down, a restart.
    rig.hosts[0].state().knobs.holders = vec!["dd (pid 1)".to_owned()];
    let id = live.attachment.id;
    printed += &rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap_err().to_string();
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    printed += &rig.service.delete_attachment(&admin(), made.id, true, SHORT).await.unwrap_err().to_string();
    rig.storage.set_down(false);
    rig.restart().await;
    rig.until_gone(made.id).await;
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("an agent is up") && logged.contains("dd (pid 1)"), "the log is there: {logged}");
    for secret in secrets {
        assert!(!logged.contains(&secret) && !printed.contains(&secret));
    }
}
