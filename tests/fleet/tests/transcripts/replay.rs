//! Replays one recorded scenario.

use std::fmt;
use std::path::Path;

use mooring_fleet::{Answer, Client, Fleet, until};
use serde_json::{Value, json};

use crate::compare::Names;

/// A difference between the answers.
pub(crate) struct Difference {
    pub(crate) scenario: String,
    pub(crate) step: usize,
    /// The request as recorded: `POST /volumes/<vol1>/action os-retype`.
    pub(crate) request: String,
    pub(crate) what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}: {}", self.scenario, self.step, self.request, self.what)
    }
}

/// Headers that clients read.
const HEADERS: [&str; 3] = ["content-type", "openstack-api-version", "vary"];

/// States that a volume leaves by itself.
const PASSING: [&str; 5] = ["creating", "deleting", "detaching", "extending", "retyping"];

/// Replays all requests of a file.
pub(crate) fn scenario(file: &Path) -> Vec<Difference> {
    let recorded: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let scenario = recorded["scenario"].as_str().unwrap().to_owned();
    let fleet = Fleet::builder();
    // Only thin volumes have snapshots, and if there is a thin pool a volume is placed in it.
    let fleet = match scenario.as_str() {
        "snapshots" => fleet.storage_with_thin("s1", &[("vg0", 100)], 80),
        _ => fleet.storage("s1", &[("vg0", 100)]),
    };
    let fleet = fleet.no_auth().start();
    let client = fleet.admin();
    let mut names = Names::default();
    names.set("project", client.project());
    let mut all = Vec::new();
    for (step, recorded) in recorded["steps"].as_array().unwrap().iter().enumerate() {
        let request = &recorded["request"];
        let what = match ask(&client, &mut names, request) {
            Ok(answer) => compare(&mut names, &recorded["response"], &answer),
            Err(name) => vec![format!("cannot be asked: there is no <{name}>")],
        };
        settle(&client, &names);
        let request = name_of(request);
        let found = what.into_iter().map(|what| Difference {
            scenario: scenario.clone(),
            step,
            request: request.clone(),
            what,
        });
        all.extend(found);
    }
    all
}

fn name_of(request: &Value) -> String {
    let text = |key: &str| request[key].as_str().unwrap_or_default();
    let action = request["body"].as_object().and_then(|body| body.keys().next());
    let action = action.filter(|_| text("path").ends_with("/action")).map(|action| format!(" {action}"));
    format!("{} {}{}", text("method"), text("path"), action.unwrap_or_default())
}

fn ask(client: &Client, names: &mut Names, request: &Value) -> Result<Answer, String> {
    let method = request["method"].as_str().unwrap();
    let mut client = match request["microversion"].as_str() {
        Some(version) => client.at(version),
        None => client.unversioned(),
    };
    if request["token"] == json!(false) {
        client = client.nobody();
    }
    for (name, value) in request["headers"].as_object().into_iter().flatten() {
        client = client.with(name, value.as_str().unwrap());
    }
    // The request chooses a type's name.
    if let Some(name) =
        request["body"]["volume_type"]["name"].as_str().and_then(|name| name.strip_prefix('<'))
    {
        let name = name.trim_end_matches('>');
        names.set(name, name);
    }
    let path = names.fill(request["path"].as_str().unwrap())?;
    if let Some(raw) = request["raw"].as_str() {
        return Ok(client.with("Content-Type", "application/json").send_raw(method, &path, raw.into()));
    }
    match request.get("body") {
        Some(body) => Ok(client.send(method, &path, Some(&names.fill_value(body)?))),
        None => Ok(client.send(method, &path, None)),
    }
}

fn compare(names: &mut Names, recorded: &Value, answer: &Answer) -> Vec<String> {
    let want = recorded["status"].as_u64().unwrap();
    if u64::from(answer.status) != want {
        return vec![format!("status {}, recorded {want}", answer.status)];
    }
    let mut found = Vec::new();
    for name in HEADERS {
        let (want, seen) = (recorded["headers"][name].as_str(), answer.header(name));
        // Cinder sends a content type with answers that have no content.
        if want != seen && !(name == "content-type" && answer.body.is_null()) {
            found.push(format!("header {name}: {seen:?}, recorded {want:?}"));
        }
    }
    let id = answer.header("x-openstack-request-id").is_some_and(|id| id.starts_with("req-"));
    if recorded["request_id"] == json!(true) && !id {
        found.push("header x-openstack-request-id: missing".to_owned());
    }
    names.compare("", &recorded["body"], &answer.body, &mut found);
    found
}

/// Waits until nothing is at work, as when the answers were recorded.
fn settle(client: &Client, names: &Names) {
    for snapshot in ["snap1", "snap2"].into_iter().filter_map(|name| names.get(name)) {
        until("the snapshot's rest", || {
            let seen = client.get(&format!("/snapshots/{snapshot}"));
            if seen.body["snapshot"]["status"] == "creating" { Err(seen.body.to_string()) } else { Ok(()) }
        });
    }
    let Some(volume) = names.get("vol1") else { return };
    until("the volume's rest", || {
        let seen = client.get(&format!("/volumes/{volume}"));
        match seen.body["volume"]["status"].as_str() {
            Some(status) if PASSING.contains(&status) => Err(seen.body.to_string()),
            _ => Ok(()),
        }
    });
}
