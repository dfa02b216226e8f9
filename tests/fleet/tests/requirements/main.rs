//! The requirements of the control plane by number: one test each, named after it, through HTTP
//! with the real agents on fake hosts. A test asserts the fake kernel's state and the clients'
//! answers; rows in a database are nobody's requirement.
//!
//! To add one, write a function `sNN_what_holds` in the module of its area; a whole new area gets a
//! module here. `docs/requirements.md` names the test that holds each number; `table` compares the
//! two.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod attach;
mod callers;
mod detach;
mod extend;
mod fibre_channel;
mod lost;
mod modes;
mod nova;
mod older;
mod partition;
mod placement;
mod policies;
mod restart;
mod retype;
mod revert;
mod rotate;
mod routes;
mod snapshots;
mod specs;
mod status;
mod table;
mod types;

use mooring_fleet::Fleet;
use serde_json::json;

/// A server's id.
pub(crate) const SERVER: &str = "aaaaaaaa-0000-4000-8000-000000000000";
/// Another's.
pub(crate) const OTHER_SERVER: &str = "bbbbbbbb-0000-4000-8000-000000000000";
/// An id that nothing has.
pub(crate) const NOTHING: &str = "00000000-0000-4000-8000-00000000dead";

/// A fleet and a volume that may be shared.
pub(crate) fn shared() -> (Fleet, String) {
    let fleet = Fleet::small();
    let volume = fleet.member().volume(Some(&fleet.shared_type()), 1);
    (fleet, volume)
}

/// The codes of the answers to requests that are made at the same time.
pub(crate) fn at_once<F: FnOnce() -> u16 + Send>(requests: impl IntoIterator<Item = F>) -> Vec<u16> {
    std::thread::scope(|scope| {
        let running: Vec<_> = requests.into_iter().map(|request| scope.spawn(request)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The codes of eight hosts that attach one volume at the same time.
pub(crate) fn attached_at_once(fleet: &Fleet, volume: &str) -> Vec<u16> {
    let member = fleet.member();
    let nodes: Vec<_> = (1..=8).map(|n| fleet.stock(&format!("node{n}"))).collect();
    at_once(nodes.iter().map(|node| {
        let body = json!({ "attachment": { "volume_uuid": volume, "connector": node.connector() } });
        let member = member.clone();
        move || member.post("/attachments", &body).status
    }))
}

/// All grants of a volume, as `node1 LUN 1 rw`.
pub(crate) fn granted(fleet: &Fleet, volume: &str) -> Vec<String> {
    let grants = fleet.storage("s1").grants(volume);
    grants
        .iter()
        .map(|(name, grant)| format!("{} {grant}", name.rsplit(':').next().unwrap_or_default()))
        .collect()
}
