//! Long work is reported while it runs, is slowed at once, gives way, and resumes after a crash.

use mooring_api::v1;
use tonic::Code;

use crate::rig::*;
use crate::switch::Switch;

const LARGE: u64 = 900 * MIB;

fn jobs(agent: &Agent, id: &str) -> v1::ListJobsResponse {
    let mut client = agent.client();
    let asked = v1::ListJobsRequest { volume_id: id.to_owned() };
    agent.wait(async move { client.list_jobs(asked).await }).unwrap().into_inner()
}

fn limit(agent: &Agent, limit_bytes: u64) -> Result<u64, tonic::Status> {
    let mut client = agent.client();
    let set = v1::SetJobLimitRequest { sender: Some(sender()), limit_bytes };
    agent.wait(async move { client.set_job_limit(set).await }).map(|set| set.into_inner().was_bytes)
}

fn zeroing(lv: &str) -> String {
    format!("zero /dev/vg0/{lv}")
}

fn stamp_of(agent: &Agent, v: &str) -> u64 {
    agent.get(v).unwrap().volume_stamp.unwrap().generation.unwrap().counter
}

#[test]
fn each_kind_of_job_is_told_and_none_is_left_when_it_is_done() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    let call = zeroing(&format!("mooring-{v}"));
    agent.switch.pause_before(&call);
    agent.begin_to_pause("it zeroes", put_volume_spec(&v, 1, volume_spec(40 * MIB)));
    agent.switch.let_one_go();
    eventually("a piece is done", || jobs(&agent, "").jobs[0].done_bytes == 16 * MIB);
    let seen = jobs(&agent, "");
    let job = &seen.jobs[0];
    assert_eq!((seen.jobs.len(), seen.limit_bytes), (1, 0));
    assert_eq!(
        (job.volume_id.as_str(), job.kind(), job.total_bytes),
        (v.as_str(), v1::JobKind::Zero, 40 * MIB)
    );
    assert!(job.since_us > 0 && job.resumed_bytes == 0 && !job.limited, "{job:?}");
    assert_eq!(jobs(&agent, &v).jobs.len(), 1);
    assert_eq!(jobs(&agent, &volume(2)).jobs, []);
    agent.switch.go_on();
    eventually("it is there", || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Ready);
    assert_eq!(jobs(&agent, "").jobs, []);

    let growth = zeroing(&format!("mooring-grow-{v}"));
    agent.switch.pause_before(&growth);
    agent.begin_to_pause("it grows", put_volume_spec(&v, 2, volume_spec(100 * MIB)));
    let job = &jobs(&agent, "").jobs[0];
    assert_eq!((job.kind(), job.total_bytes), (v1::JobKind::Grow, 60 * MIB));
    agent.switch.go_on();
    eventually("it has grown", || agent.get(&v).unwrap().volume.unwrap().size_bytes == 100 * MIB);

    agent.switch.pause_before(&call);
    agent.begin_to_pause("it is wiped", delete_volume(&v, 3));
    let job = &jobs(&agent, "").jobs[0];
    assert_eq!((job.kind(), job.total_bytes), (v1::JobKind::Wipe, 100 * MIB));
    agent.switch.go_on();
    eventually("it is gone", || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Gone);
    assert_eq!(jobs(&agent, "").jobs, []);
}

#[test]
fn a_limit_holds_jobs_back_at_once_and_lets_them_go_at_once() {
    // The limit comes from the configuration, or from a call.
    for (node, call) in [(Node::with("job_limit = \"1MiB\""), None), (Node::new(), Some(MIB))] {
        let v = volume(1);
        let agent = node.start();
        if let Some(bytes) = call {
            assert_eq!(limit(&agent, bytes).unwrap(), 0);
        }
        // The job would take a quarter of an hour.
        let begun = agent.begin(put_volume_spec(&v, 1, volume_spec(LARGE)));
        eventually("it zeroes", || jobs(&agent, &v).jobs.iter().any(|job| job.done_bytes > 0));
        agent.assert_not_done(begun);
        let seen = jobs(&agent, &v);
        assert!(
            seen.jobs[0].limited && seen.limit_bytes == MIB && seen.jobs[0].done_bytes < LARGE / 2,
            "{seen:?}"
        );
        // Pieces are as small as the limit, so that no other I/O waits behind 16 MiB.
        let pieces = agent.switch.log().iter().filter(|call| call.starts_with("zero ")).count();
        let done = seen.jobs[0].done_bytes;
        assert!(u64::try_from(pieces).unwrap() >= done / MIB, "{pieces} pieces for {done} bytes");
        // A change of the volume does not wait for the job's turn.
        let begun = agent.begin(delete_volume(&v, 2));
        assert_eq!(stamp_of(&agent, &v), 2);
        agent.assert_not_done(begun);
        eventually("what it was done for has ended", || {
            jobs(&agent, &v).jobs.iter().any(|job| job.kind() == v1::JobKind::Wipe)
        });
        assert_eq!(limit(&agent, 0).unwrap(), MIB);
        eventually("it is gone", || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Gone);
    }
}

#[test]
fn who_may_limit_and_how_little() {
    let (node, v) = (Node::new(), volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    assert_refused(
        limit(&agent, MIB - 1),
        Code::InvalidArgument,
        "fix_spec",
        &["limit_bytes", "1 MiB or more"],
    );
    let mut client = agent.client();
    let other = v1::Sender { cluster_id: "00000000-0000-0000-0000-0000000000aa".to_owned() };
    let set = v1::SetJobLimitRequest { sender: Some(other), limit_bytes: MIB };
    let refused = agent.wait(async move { client.set_job_limit(set).await });
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(jobs(&agent, "").limit_bytes, 0);
    assert_eq!(limit(&agent, 5 * MIB).unwrap(), 0);
    assert_eq!(jobs(&agent, "").limit_bytes, 5 * MIB);
}

#[test]
fn killed_it_goes_on_near_where_it_was_and_says_what_that_saved() {
    const GIB: u64 = 1 << 30;
    let (node, v) = (Node::new(), volume(1));
    node.fake.add_vg("vg0", 8 * GIB);
    let agent = node.start();
    // The call after the first mark.
    let call = zeroing(&format!("mooring-{v}"));
    begin_and_stop_behind(&agent, &v, &call, 3 * GIB, GIB);
    agent.crash();
    let switch = Switch::new(&node.fake, None);
    switch.pause_before(&call);
    let agent = node.start_on(switch);
    eventually("it goes on", || agent.switch.paused().is_some());
    let job = jobs(&agent, "").jobs.remove(0);
    assert_eq!((job.done_bytes, job.resumed_bytes, job.total_bytes), (GIB, GIB, 3 * GIB));
    agent.switch.go_on();
    eventually("it is there", || agent.get(&v).unwrap().volume.unwrap().phase() == v1::Phase::Ready);
    let pieces = agent.switch.log().iter().filter(|done| **done == call).count();
    assert_eq!(pieces, 128, "2 GiB of 16 MiB each");
    assert!(node.fake.blocks().is_zeroed(device(&v)));
    assert!(!node.lvs().contains("mooring-zeroed"), "{}", node.lvs());
}

/// Zeroes a new volume until this much is done, and stops there.
fn begin_and_stop_behind(agent: &Agent, v: &str, call: &str, size: u64, done: u64) {
    agent.switch.pause_before(call);
    let begun = agent.begin(put_volume_spec(v, 1, volume_spec(size)));
    eventually("so much is done", || {
        let so_far = jobs(agent, v).jobs.first().map_or(0, |job| job.done_bytes);
        if so_far < done {
            agent.switch.let_one_go();
        }
        so_far >= done && agent.switch.paused().is_some()
    });
    agent.assert_not_done(begun);
}
