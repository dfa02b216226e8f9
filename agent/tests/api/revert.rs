//! Reverts of a volume to a snapshot, through the whole agent: killed at every step, and only while
//! nobody has a grant.

use mooring_api::v1;
use tonic::Code;

use crate::rig::*;
use crate::switch::Kill;

const FIRST: &str = "0a0a0a0a-0000-4000-8000-000000000001";
const SECOND: &str = "0a0a0a0a-0000-4000-8000-000000000002";

pub(crate) fn node() -> Node {
    Node::with_group("thin_pool = \"256MiB\"\n")
}

pub(crate) fn thin() -> v1::VolumeSpec {
    v1::VolumeSpec { provisioning: v1::Provisioning::Thin.into(), ..volume_spec(SIZE) }
}

pub(crate) fn snapshot(id: &str, of: &str) -> v1::PutVolumeRequest {
    let source = v1::VolumeSource { of: Some(v1::volume_source::Of::VolumeId(of.to_owned())) };
    let spec = v1::VolumeSpec { kind: v1::VolumeKind::Snapshot.into(), source: Some(source), ..thin() };
    put_volume_spec(id, 1, spec)
}

fn revert(id: &str, counter: u64, snapshot: &str, revert: &str) -> v1::PutVolumeRequest {
    let revert = v1::Revert { snapshot_id: snapshot.to_owned(), revert_id: revert.to_owned() };
    put_volume_spec(id, counter, v1::VolumeSpec { revert: Some(revert), ..thin() })
}

/// A volume of zeros, its snapshot, and an export without grants; then data fill the volume.
fn prepared(node: &Node, v: &str, s: &str) {
    let agent = node.start();
    agent.make(put_volume_spec(v, 1, thin()));
    agent.make(snapshot(s, v));
    node.fake.blocks().fill(device(v));
    agent.make(put_export(v, 1, &[("host1", RW)]));
    agent.make(put_export(v, 2, &[]));
    agent.crash();
}

fn is_reverted(node: &Node, v: &str) -> bool {
    node.fake.blocks().is_zeroed(device(v))
}

fn reverted(agent: &Agent, v: &str) -> String {
    agent.get(v).unwrap().volume.unwrap().reverted_id
}

#[test]
fn it_holds_what_the_snapshot_held_under_the_same_names() {
    let (node, v, s) = (node(), volume(1), volume(2));
    prepared(&node, &v, &s);
    let agent = node.start();
    let naa = agent.get(&v).unwrap().export.unwrap().naa;
    agent.make(revert(&v, 2, &s, FIRST));
    assert_eq!((is_reverted(&node, &v), reverted(&agent, &v).as_str()), (true, FIRST));
    // The revert leaves the spec when it is done, as the controller does it; then the volume is
    // granted again.
    agent.make(put_volume_spec(&v, 3, thin()));
    agent.make(put_export(&v, 3, &[("host1", RW)]));
    node.login(&v, "host1").unwrap();
    assert_eq!(agent.get(&v).unwrap().export.unwrap().naa, naa);
    assert_eq!(node.reach(&v), ["host1 rw"]);
    assert!(!node.lvs().contains("mooring-back"), "{}", node.lvs());
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
    // The snapshot remains, and a second revert to it is done again.
    node.fake.blocks().fill(device(&v));
    agent.make(put_export(&v, 4, &[]));
    agent.make(revert(&v, 4, &s, SECOND));
    assert_eq!((is_reverted(&node, &v), reverted(&agent, &v).as_str()), (true, SECOND));
}

#[test]
fn who_reaches_it_goes_first_and_comes_back_when_it_is_done() {
    let (node, v, s) = (node(), volume(1), volume(2));
    prepared(&node, &v, &s);
    let agent = node.start();
    agent.make(put_export(&v, 3, &[("host1", RO)]));
    let words = ["revoke them first"];
    assert_refused(agent.put_volume(revert(&v, 2, &s, FIRST)), Code::FailedPrecondition, "fix_spec", &words);
    assert!(!is_reverted(&node, &v));
    let other = revert(&v, 2, &volume(7), FIRST);
    agent.make(put_export(&v, 4, &[]));
    assert_refused(
        agent.put_volume(other),
        Code::FailedPrecondition,
        "operator",
        &["snapshot", "it is not in"],
    );
    // A program on this host holds the LV open: the volume keeps its content, and is served.
    agent.make(delete_export(&v, 5));
    node.fake.set_busy(device(&v), true);
    let begun = agent.begin(revert(&v, 2, &s, FIRST));
    // The reason is reported as long as it holds, and the volume is reported as whole.
    eventually("it is said", || {
        let seen = agent.get(&v).unwrap().volume.unwrap();
        seen.phase() == v1::Phase::Ready
            && seen.problems.iter().any(|problem| problem.text.contains("in use"))
    });
    agent.assert_not_done(begun);
    assert_eq!(reverted(&agent, &v), "");
    assert_refused(
        agent.put_export(put_export(&v, 6, &[("host1", RW)])),
        Code::FailedPrecondition,
        "retry",
        &["is being reverted"],
    );
    assert!(!is_reverted(&node, &v));
    node.fake.set_busy(device(&v), false);
    eventually("it is reverted", || reverted(&agent, &v) == FIRST);
    // The revert is done: the controller may remove it from the spec, or grant the volume at once.
    agent.make(put_export(&v, 6, &[("host1", RW)]));
    assert_eq!(node.reach(&v), ["host1 rw"]);
}

#[test]
fn withdrawn_before_it_is_done_nothing_has_happened() {
    let (node, v, s) = (node(), volume(1), volume(2));
    prepared(&node, &v, &s);
    let agent = node.start();
    agent.make(delete_export(&v, 3));
    node.fake.set_busy(device(&v), true);
    let begun = agent.begin(revert(&v, 2, &s, FIRST));
    eventually("the copy is made", || node.lvs().contains("mooring-back"));
    agent.assert_not_done(begun);
    agent.make(put_volume_spec(&v, 3, thin()));
    node.fake.set_busy(device(&v), false);
    assert!(reverted(&agent, &v).is_empty() && !is_reverted(&node, &v));
    assert!(!node.lvs().contains("mooring-back"), "{}", node.lvs());
}

/// Sends a spec to an agent that may be killed meanwhile. `true` if the spec was reached and the
/// agent lives.
pub(crate) fn done_or_dead(agent: &Agent, put: v1::PutVolumeRequest) -> bool {
    let (mut client, mut died) = (agent.client(), agent.switch.died());
    agent.wait(async move {
        tokio::select! {
            biased;
            _ = died.wait_for(|died| *died) => false,
            answer = client.put_volume(put) => answer.unwrap().into_inner().done,
        }
    })
}

/// Sends a revert to an agent that is killed at one of its calls. `false` if the agent was not
/// killed.
fn killed(kill: Kill, reboots: bool) -> bool {
    let (node, v, s) = (node(), volume(1), volume(2));
    prepared(&node, &v, &s);
    let agent = node.start_with(Some(kill));
    let mut alive = agent.is_up();
    if alive {
        alive = done_or_dead(&agent, revert(&v, 2, &s, FIRST));
    }
    if !alive {
        agent.crash();
        if reboots {
            node.fake.reboot();
        }
        let agent = node.start();
        agent.make(revert(&v, 2, &s, FIRST));
        agent.crash();
    }
    // After any kill, the revert is done, once, and nothing is left of it.
    assert!(is_reverted(&node, &v), "{kill:?}");
    node.fake.blocks().fill(device(&v));
    let agent = node.start();
    agent.make(put_volume_spec(&v, 3, thin()));
    agent.make(put_export(&v, 3, &[("host1", RW)]));
    assert_eq!(node.reach(&v), ["host1 rw"]);
    assert!(!is_reverted(&node, &v) && !node.lvs().contains("mooring-back"), "{kill:?}");
    assert_eq!(agent.plan(""), v1::PlanResponse::default());
    !alive
}

fn at_every_step(kill: fn(u64) -> Kill, reboots: bool) {
    let mut steps = 0;
    while killed(kill(steps + 1), reboots) {
        steps += 1;
    }
    println!("killed at each of {steps} steps");
    assert!(steps > 10, "a revert has more steps than {steps}");
}

#[test]
fn killed_before_every_step_of_a_revert_it_is_done_once() {
    at_every_step(Kill::Before, false);
}

#[test]
fn killed_after_every_step_of_a_revert_it_is_done_once() {
    at_every_step(Kill::After, false);
}

#[test]
fn without_power_at_every_step_of_a_revert_it_is_done_once() {
    at_every_step(Kill::After, true);
}
