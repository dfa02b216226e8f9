//! The agent on a fake host as a process of its own: killed, it returns with its whole state.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Child, Command};

use mooring_fleet::Fleet;
use serde_json::json;

/// A process that does not outlive its test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // A process that has already ended is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path) -> Agent {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooring-fleet-agent"));
    command.arg("--listen").arg(format!("unix:{}/a.sock", folder.display())).arg("--state-dir").arg(folder);
    Agent(command.args(["--name", "a1", "--pools", "vg0=50", "--volumes-present", "3"]).spawn().unwrap())
}

#[test]
fn a_killed_agent_comes_back_with_its_volumes_and_its_grants() {
    let folder = tempfile::tempdir().unwrap();
    let agent = start(folder.path());
    let address = format!("unix:{}/a.sock", folder.path().display());
    let fleet = Fleet::builder().agent("a1", &address).start();
    let member = fleet.member();
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let first = member.attach(&volume, &fleet.stock("node1"), Some("ro"));
    drop(agent);
    let body =
        json!({ "attachment": { "volume_uuid": volume, "connector": fleet.stock("node2").connector() } });
    fleet.until_missed("a1");
    let refused = member.post("/attachments", &body);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(member.status(&volume), "in-use");
    let _agent = start(folder.path());
    fleet.until_up();
    let kept = member.show_attachment(&first.id);
    assert_eq!(
        (&kept["status"], &kept["connection_info"]["access_mode"]),
        (&json!("attached"), &json!("ro"))
    );
    member.attach(&volume, &fleet.stock("node3"), None);
    member.detach(&first.id);
    assert_eq!(member.volume(None, 1).len(), volume.len());
}
