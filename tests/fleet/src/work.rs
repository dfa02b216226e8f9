//! Common first steps of tests: types, volumes, attachments, each through the API and each expected
//! to work.

use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::stock::Stock;
use crate::wait::until;

/// An attachment that is complete.
#[derive(Debug, Clone)]
pub struct Attached {
    /// The attachment's id.
    pub id: String,
    /// The connection info for its host's login.
    pub info: Value,
}

#[track_caller]
fn id_of(answer: &Value, key: &str) -> String {
    answer[key]["id"].as_str().unwrap_or_else(|| panic!("no {key} in {answer}")).to_owned()
}

impl Client {
    /// Makes a volume type with these extra specs, or finds the one of this name.
    #[track_caller]
    pub fn volume_type(&self, name: &str, specs: &[(&str, &str)]) -> String {
        let specs: Map<_, _> = specs.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let body = json!({ "volume_type": { "name": name, "extra_specs": specs } });
        let made = self.post("/types", &body);
        assert!(matches!(made.status, 200 | 409), "{made:?}");
        name.to_owned()
    }

    /// Makes a volume, and waits until it is available.
    #[track_caller]
    pub fn volume(&self, volume_type: Option<&str>, gib: u64) -> String {
        let body = json!({ "volume": { "name": "v", "size": gib, "volume_type": volume_type } });
        let id = id_of(&self.post("/volumes", &body).expect(202), "volume");
        self.until_status(&id, "available");
        id
    }

    /// Gets a volume.
    #[track_caller]
    pub fn show(&self, volume: &str) -> Value {
        self.get(&format!("/volumes/{volume}")).expect(200)["volume"].take()
    }

    /// Gets a volume's status.
    #[track_caller]
    pub fn status(&self, volume: &str) -> String {
        self.show(volume)["status"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits for a volume's status.
    #[track_caller]
    pub fn until_status(&self, volume: &str, want: &str) {
        until(&format!("the status {want}"), || {
            let seen = self.show(volume);
            if seen["status"] == want { Ok(()) } else { Err(seen.to_string()) }
        });
    }

    /// Waits until a volume is gone.
    #[track_caller]
    pub fn until_deleted(&self, volume: &str) {
        until("the end of the volume", || {
            let seen = self.get(&format!("/volumes/{volume}"));
            if seen.status == 404 { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    /// Makes an attachment without a connector: Nova's first step.
    #[track_caller]
    pub fn reserve(&self, volume: &str, instance: Option<&str>) -> String {
        let mut attachment = json!({ "volume_uuid": volume });
        if let Some(instance) = instance {
            attachment["instance_uuid"] = json!(instance);
        }
        id_of(&self.post("/attachments", &json!({ "attachment": attachment })).expect(200), "attachment")
    }

    /// Gives an attachment its connector. Returns its connection info.
    #[track_caller]
    pub fn connect(&self, attachment: &str, connector: &Value) -> Value {
        let body = json!({ "attachment": { "connector": connector } });
        self.put(&format!("/attachments/{attachment}"), &body).expect(200)["attachment"]["connection_info"]
            .take()
    }

    /// Completes an attachment: the host has it.
    #[track_caller]
    pub fn complete(&self, attachment: &str) {
        self.action(&format!("/attachments/{attachment}"), "os-complete", &Value::Null).expect(204);
    }

    /// Gets an attachment.
    #[track_caller]
    pub fn show_attachment(&self, attachment: &str) -> Value {
        self.get(&format!("/attachments/{attachment}")).expect(200)["attachment"].take()
    }

    /// Makes all three steps for a host without a server, in this mode; `None`: without a mode.
    #[track_caller]
    pub fn attach(&self, volume: &str, node: &Stock, mode: Option<&str>) -> Attached {
        let mut attachment = json!({ "volume_uuid": volume, "connector": node.connector() });
        if let Some(mode) = mode {
            attachment["mode"] = json!(mode);
        }
        let mut made = self.post("/attachments", &json!({ "attachment": attachment })).expect(200);
        let id = id_of(&made, "attachment");
        self.complete(&id);
        Attached { id, info: made["attachment"]["connection_info"].take() }
    }

    /// Attaches to a host with an agent. Returns the id once it is attached.
    #[track_caller]
    pub fn attach_natively(&self, volume: &str, host: &str, mode: &str) -> String {
        let body = json!({ "attachment": { "volume": volume, "host": host, "mode": mode } });
        let id = id_of(&self.post("/mooring/v1/attachments", &body).expect(202), "attachment");
        until("the attachment on its host", || {
            let live = self.get(&format!("/mooring/v1/attachments/{id}")).expect(200);
            if live["attachment"]["status"] == "attached" { Ok(()) } else { Err(live.to_string()) }
        });
        id
    }

    /// Detaches, and expects the answer at once. Returns the remaining attachments.
    #[track_caller]
    pub fn detach(&self, attachment: &str) -> Value {
        self.delete(&format!("/attachments/{attachment}")).expect(200)["attachments"].take()
    }
}
