//! Shutdowns wait while a data job or a revoke is at work. A job records its progress, and resumes
//! from there.

use std::time::Duration;

use mooring_api::v1;
use mooring_bus::fake::{Daemon, Fake};

use crate::rig::*;

const LARGE: u64 = 900 * MIB;

fn jobs(agent: &Agent) -> Vec<v1::Job> {
    let mut client = agent.client();
    agent
        .wait(async move { client.list_jobs(v1::ListJobsRequest::default()).await })
        .unwrap()
        .into_inner()
        .jobs
}

/// Returns the zeroed MiB according to the mark on the node's only LV; `None` without a mark.
fn marked(node: &Node) -> Option<u64> {
    let lvs = node.lvs();
    let digits = lvs.split("mooring-zeroed-").nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[test]
fn a_job_at_a_shutdown_marks_how_far_it_is_and_goes_on_from_there() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let daemon = Daemon::started();
    let fake = runtime.block_on(Fake::serve(&daemon, &[]));
    let (node, v) = (Node { bus: Some(daemon.bus()), ..Node::with("job_limit = \"8MiB\"") }, volume(1));
    let agent = node.start();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(fake.locks(), Vec::<String>::new(), "nothing is at work");
    let begun = agent.begin(put_volume_spec(&v, 1, volume_spec(LARGE)));
    let why = "shutdown delay Mooring agent: data jobs write down how far they are (1 zero)";
    eventually("the lock", || fake.locks() == [why]);
    eventually("it zeroes", || jobs(&agent).iter().any(|job| job.done_bytes >= 4 * MIB));
    assert_eq!(marked(&node), None, "a mark is due after a GiB");
    agent.assert_not_done(begun);

    runtime.block_on(fake.shutdown(true));
    eventually("the end of the lock", || fake.locks().is_empty());
    let mark = marked(&node).expect("a mark where it stopped");
    assert!(mark >= 4, "{mark}");
    assert_eq!(jobs(&agent), [], "nothing begins while the machine goes down");

    // The shutdown is cancelled.
    runtime.block_on(fake.shutdown(false));
    eventually("it goes on", || jobs(&agent).iter().any(|job| job.done_bytes > mark * MIB));
    eventually("the lock", || fake.locks() == [why]);
    runtime.block_on(fake.shutdown(true));
    eventually("the end of the lock", || fake.locks().is_empty());
    let mark = marked(&node).expect("a mark where it stopped");
    drop(agent);

    let agent = node.start();
    eventually("it goes on", || jobs(&agent).iter().any(|job| job.resumed_bytes == mark * MIB));
}

#[test]
fn a_revoke_that_takes_its_time_delays_a_shutdown_until_it_is_proven() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let daemon = Daemon::started();
    let fake = runtime.block_on(Fake::serve(&daemon, &[]));
    let (node, v) = (Node { bus: Some(daemon.bus()), ..Node::new() }, volume(1));
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    eventually("nothing is at work", || fake.locks().is_empty());
    let one = node.login(&v, "host1").unwrap();
    node.fake.hold(device(&v));
    node.fake.start_write(one, 1).unwrap();
    assert!(!agent.put_export(brief(put_export(&v, 2, &[]))).unwrap().done);
    eventually("the lock", || {
        fake.locks() == ["shutdown delay Mooring agent: access to 1 volume is being revoked"]
    });
    node.fake.release(device(&v));
    eventually("the proof", || agent.get(&v).unwrap().receipts.iter().any(|receipt| receipt.proven));
    eventually("its end", || fake.locks().is_empty());
}

#[test]
fn a_lock_that_is_refused_or_a_bus_that_is_not_there_holds_up_no_job() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let daemon = Daemon::started();
    let fake = runtime.block_on(Fake::serve(&daemon, &[]));
    fake.state().refuses = Some("org.freedesktop.DBus.Error.AccessDenied");
    for bus in [daemon.bus(), Daemon::absent().bus()] {
        let (node, v) = (Node { bus: Some(bus), ..Node::with("job_limit = \"32MiB\"") }, volume(1));
        let agent = node.start();
        agent.make(put_volume_spec(&v, 1, volume_spec(32 * MIB)));
        assert_eq!(agent.get(&v).unwrap().volume.unwrap().phase(), v1::Phase::Ready);
    }
    assert_eq!(
        fake.state().calls.iter().filter(|call| *call == "Inhibit").count(),
        1,
        "it was asked for once"
    );
}
