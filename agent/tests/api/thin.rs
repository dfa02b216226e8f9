//! A thin pool that fills: it takes nothing new, its volumes say so, and all of that ends by
//! itself.

use mooring_api::v1;
use tonic::Code;

use crate::revert::thin;
use crate::rig::*;

const POOL: &str = "thin pool vg0/mooring-pool";

#[test]
fn a_full_pool_is_told_and_closed_until_there_is_room() {
    let node = Node::with_both("resync_seconds = 1", "thin_pool = \"256MiB\"\n");
    let (agent, lvm, v) = (node.start(), node.fake.lvm(), volume(1));
    agent.make(put_volume_spec(&v, 1, thin()));
    agent.make(put_export(&v, 1, &[("host1", RW)]));
    let seen = || agent.get(&v).unwrap().volume.unwrap();
    let told = || seen().problems.iter().any(|problem| problem.object == POOL);
    let code = || {
        let pool = agent.capabilities().pools.into_iter().find(|pool| !pool.thick).unwrap();
        let mut codes = pool.health.unwrap().reasons.into_iter().map(|reason| reason.code);
        codes.find(|code| code.starts_with("thin_pool")).unwrap_or_default()
    };
    let new = |n: u8| agent.put_volume(put_volume_spec(&volume(n), 1, thin()));
    assert!(!told() && code().is_empty(), "the control");

    // Nine tenths of the metadata: what is left is for the volumes that are there.
    lvm.set_pool_metadata("vg0", 9_000);
    assert_refused(new(2), Code::ResourceExhausted, "operator", &[POOL, "90 % of its metadata"]);
    let larger = v1::VolumeSpec { size_bytes: 2 * SIZE, ..thin() };
    let growth = put_volume_spec(&v, 2, larger);
    assert_refused(agent.put_volume(growth.clone()), Code::ResourceExhausted, "operator", &[POOL]);
    eventually("the pool is nearly full", || code() == "thin_pool_nearly_full");
    assert!(!told(), "its volumes work");
    lvm.set_pool_metadata("vg0", 100);
    assert!(new(2).unwrap().done);
    agent.make(growth);

    lvm.set_pool_used("vg0", 256 * MIB);
    eventually("the volume tells it", told);
    assert_eq!((seen().phase(), code().as_str()), (v1::Phase::Ready, "thin_pool_full"));
    assert_eq!(node.reach(&v), ["host1 rw"]);
    assert_refused(new(3), Code::ResourceExhausted, "operator", &[POOL, "it is full"]);
    lvm.set_pool_used("vg0", 0);
    eventually("it is over", || !told() && code().is_empty());
    assert!(new(3).unwrap().done);
}

/// Metadata are read-only where they are full, which more room ends, and where they are damaged.
#[test]
fn read_only_metadata_are_told_as_full_or_as_to_be_repaired() {
    let node = Node::with_both("resync_seconds = 1", "thin_pool = \"256MiB\"\n");
    let (agent, lvm, v) = (node.start(), node.fake.lvm(), volume(1));
    agent.make(put_volume_spec(&v, 1, thin()));
    let told = || {
        let problems = agent.get(&v).unwrap().volume.unwrap().problems;
        problems.into_iter().find(|problem| problem.object == POOL).map(|problem| problem.text)
    };
    let code = || {
        let pool = agent.capabilities().pools.into_iter().find(|pool| !pool.thick).unwrap();
        let mut codes = pool.health.unwrap().reasons.into_iter().map(|reason| reason.code);
        codes.find(|code| code.starts_with("thin_pool")).unwrap_or_default()
    };
    assert!(told().is_none() && code().is_empty(), "the control");
    for (level, says, wanted) in
        [(10_000, "lvextend --poolmetadatasize", "thin_pool_full"), (100, "--repair", "thin_pool_unusable")]
    {
        lvm.set_pool_metadata("vg0", level);
        lvm.set_pool_health("vg0", "metadata_read_only");
        eventually("the volume tells it", || told().is_some_and(|text| text.contains(says)));
        eventually("the pool tells it", || code() == wanted);
        lvm.set_pool_metadata("vg0", 100);
        lvm.set_pool_health("vg0", "");
        eventually("it is over", || told().is_none() && code().is_empty());
    }
}

#[test]
fn what_was_taken_before_its_pool_closed_comes_when_there_is_room() {
    let node = Node::with_both("resync_seconds = 1", "thin_pool = \"256MiB\"\n");
    let (agent, lvm, v) = (node.start(), node.fake.lvm(), volume(2));
    agent.make(put_volume_spec(&volume(1), 1, thin()));
    let creates = |call: &String| call.contains("--virtualsize");
    let first = agent.switch.log().into_iter().find(creates).unwrap();
    agent.switch.pause_before(&first.replace(&volume(1), &v));
    agent.begin_to_pause("its LV is about to be made", put_volume_spec(&v, 1, thin()));
    lvm.set_pool_metadata("vg0", 9_000);
    lvm.fail_next("lvcreate", 5, "  Cannot change VG vg0 while PVs are missing.\n");
    agent.switch.go_on();
    let seen = || agent.get(&v).unwrap().volume.unwrap();
    eventually("it waits for room", || seen().problems.iter().any(|problem| problem.object == POOL));
    assert_ne!(seen().phase(), v1::Phase::Ready);
    lvm.set_pool_metadata("vg0", 100);
    eventually("it comes by itself", || seen().phase() == v1::Phase::Ready);
    assert!(seen().problems.is_empty(), "{:?}", seen());
}

#[test]
fn first_volumes_that_come_at_once_share_the_pool_that_one_of_them_makes() {
    let node = Node::with_both("", "thin_pool = \"256MiB\"\n");
    let agent = node.start();
    std::thread::scope(|scope| {
        for n in 1..=8 {
            let agent = &agent;
            scope.spawn(move || agent.put_volume(put_volume_spec(&volume(n), 1, thin())));
        }
    });
    for n in 1..=8 {
        let phase = || agent.get(&volume(n)).unwrap().volume.unwrap().phase();
        eventually("the volume is made", || phase() == v1::Phase::Ready);
    }
}
