//! A thin pool that fills: it takes nothing new, its volumes say so, and all of that ends by itself.

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
