//! Growing volumes: the state that is shown, the order in which agents are told, and the end of a
//! growth that fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_api::v1;
use mooring_controller::domain::{
    AttachAction, AttachmentStatus, NewSnapshot, PoolFilter, Volume, VolumeAction, VolumeStatus,
};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};
use tonic::Code;

const GIB: u64 = 1 << 30;

async fn extend(rig: &Rig, id: VolumeId, size_gib: u32) -> Result<(), Refusal> {
    rig.service.volume_action(&admin(), id, VolumeAction::Extend { size_gib, online: true }).await
}

async fn shown(rig: &Rig, id: VolumeId) -> (VolumeStatus, u32) {
    let volume = rig.service.volume(&admin(), id).await.unwrap();
    (volume.status, volume.size_gib)
}

/// The size in the volume's spec at the storage agent, in GiB.
fn told(rig: &Rig, id: VolumeId) -> u64 {
    rig.storage.state().volumes[&id.to_string()].spec.as_ref().unwrap().size_bytes / GIB
}

/// The size in a host's spec, in GiB.
fn told_host(rig: &Rig, host: usize, id: VolumeId) -> u64 {
    rig.hosts[host].state().connections[&id.to_string()].spec.as_ref().unwrap().size_bytes / GIB
}

async fn until_told(rig: &Rig, id: VolumeId, gib: u64) {
    until("the storage agent's spec", async || match told(rig, id) {
        told if told == gib => Ok(()),
        told => Err(format!("{told} GiB")),
    })
    .await;
}

fn hold(rig: &Rig, problem: Option<(&str, v1::Cure)>) {
    let problem = problem.map(|(text, cure)| v1::Problem {
        object: "volume group vg0".to_owned(),
        text: text.to_owned(),
        cure: cure.into(),
    });
    let mut state = rig.storage.state();
    (state.knobs.hold_growth, state.knobs.growth_problem) = (true, problem);
}

fn release(rig: &Rig, id: VolumeId) {
    rig.storage.state().knobs.hold_growth = false;
    rig.storage.publish(&id.to_string());
}

async fn cancel(rig: &Rig, id: VolumeId) -> Result<(), Refusal> {
    rig.service.cancel_extend(&admin(), id).await
}

fn conflict(refused: Result<(), Refusal>, words: &str) {
    match refused.map_err(in_words) {
        Err(Refusal::Conflict(text)) if text.contains(words) => {}
        other => panic!("{other:?}"),
    }
}

async fn is_told(rig: &Rig, words: &str) -> bool {
    let messages = rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items;
    messages.iter().any(|kept| kept.text.contains(words))
}

/// Makes the agent refuse smaller sizes with this cure, as one of another release or at another
/// moment does.
fn refuse_smaller(rig: &Rig, cure: Option<&str>) {
    let status = cure.map(|cure| cured(Code::FailedPrecondition, "volumes never shrink here", cure));
    rig.storage.state().knobs.refuse_smaller = status;
}

fn invalid(refused: Result<(), Refusal>, words: &str) {
    match refused.map_err(in_words) {
        Err(Refusal::Invalid(text)) if text.contains(words) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_told_when_the_storage_agent_has_seen_it_and_not_before() {
    let rig = Rig::new(2).await;
    let id = rig.volume(true).await;
    for host in ["host1", "host2"] {
        rig.attach(id, host, Mode::ReadWrite).await;
    }
    hold(&rig, None);
    extend(&rig, id, 3).await.unwrap();
    assert_eq!(shown(&rig, id).await, (VolumeStatus::Extending, 1));
    until_told(&rig, id, 3).await;
    // The volume is served while it grows: one host leaves and comes back, with the old size.
    let volume = rig.service.volume(&admin(), id).await.unwrap();
    rig.service.delete_attachment(&admin(), volume.attachments[0].id, false, LONG).await.unwrap();
    assert_eq!(rig.storage.granted(id).len(), 1);
    rig.attach(id, "host1", Mode::ReadOnly).await;
    assert_eq!((rig.storage.granted(id).len(), told_host(&rig, 0, id)), (2, 1));
    invalid(extend(&rig, id, 4).await, "currently extending");
    invalid(rig.service.delete_volume(&admin(), id).await.map(drop), "Volume status must be available");
    assert_eq!((shown(&rig, id).await, told_host(&rig, 1, id)), ((VolumeStatus::Extending, 1), 1));
    release(&rig, id);
    let grown = rig.until_volume(id, VolumeStatus::InUse).await;
    assert_eq!((grown.size_gib, &grown.fault), (3, &None));
    until("the hosts' specs", async || match (told_host(&rig, 0, id), told_host(&rig, 1, id)) {
        (3, 3) => Ok(()),
        told => Err(format!("{told:?} GiB")),
    })
    .await;
    assert_eq!(grown.attachments.len(), 2);
    assert!(grown.attachments.iter().all(|one| one.status == AttachmentStatus::Attached), "{grown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_attached_after_a_growth_that_was_refused() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    let full = cured(Code::ResourceExhausted, "volume group vg0: 2 GiB more are wanted", "operator");
    rig.storage.state().knobs.refuse_volume = Some(full);
    extend(&rig, id, 3).await.unwrap();
    rig.until_volume(id, VolumeStatus::ErrorExtending).await;
    rig.storage.state().knobs.refuse_volume = None;
    // A client's reservation is connected by a second call: neither is refused.
    let reserved = rig.service.create_attachment(&admin(), reserve(id), LONG).await.unwrap();
    let connected = rig.service.update_attachment(&admin(), reserved.id, connector(1), LONG).await.unwrap();
    assert!(connected.connection_info.is_some(), "{connected:?}");
    rig.service.delete_attachment(&admin(), reserved.id, false, LONG).await.unwrap();
    rig.attach(id, "host1", Mode::ReadWrite).await;
    assert_eq!((shown(&rig, id).await, told_host(&rig, 0, id)), ((VolumeStatus::ErrorExtending, 1), 1));
    // The failure is taken off as before, and the volume grows under its host.
    let reset = VolumeAction::ResetStatus { status: Some(VolumeStatus::InUse), attached: None };
    rig.service.volume_action(&admin(), id, reset).await.unwrap();
    extend(&rig, id, 3).await.unwrap();
    assert_eq!(rig.until_volume(id, VolumeStatus::InUse).await.size_gib, 3);
    until("the host's spec", async || match told_host(&rig, 0, id) {
        3 => Ok(()),
        told => Err(format!("{told} GiB")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detach_is_announced_while_the_volume_grows() {
    let rig = Rig::new(1).await;
    for problem in [None, Some(("a disk is missing", v1::Cure::Operator))] {
        let id = rig.volume(false).await;
        let announce =
            async || rig.service.attach_action(&admin(), id, AttachAction::BeginDetaching, LONG).await;
        let own = rig.attach(id, "host1", Mode::ReadWrite).await.attachment.id;
        hold(&rig, problem);
        extend(&rig, id, 2).await.unwrap();
        let grows = if problem.is_some() { VolumeStatus::ErrorExtending } else { VolumeStatus::Extending };
        rig.until_volume(id, grows).await;
        announce().await.unwrap();
        assert_eq!(shown(&rig, id).await, (grows, 1));
        // The control: one attachment, one announcement.
        invalid(announce().await.map(drop), "1 attached, 1 announced");
        release(&rig, id);
        assert_eq!(rig.until_volume(id, VolumeStatus::Detaching).await.size_gib, 2);
        rig.service.delete_attachment(&admin(), own, false, LONG).await.unwrap();
        rig.until_volume(id, VolumeStatus::Available).await;
        // Nobody is there any more whose detach could be announced.
        invalid(announce().await.map(drop), "0 attached, 0 announced");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_attached_while_its_growth_is_stopped() {
    let rig = Rig::new(2).await;
    let id = rig.volume(true).await;
    rig.attach(id, "host1", Mode::ReadWrite).await;
    hold(&rig, Some(("a disk is missing", v1::Cure::Operator)));
    extend(&rig, id, 2).await.unwrap();
    rig.until_volume(id, VolumeStatus::ErrorExtending).await;
    rig.attach(id, "host2", Mode::ReadOnly).await;
    assert_eq!((shown(&rig, id).await, told_host(&rig, 1, id)), ((VolumeStatus::ErrorExtending, 1), 1));
    release(&rig, id);
    assert_eq!(rig.until_volume(id, VolumeStatus::InUse).await.size_gib, 2);
    until("the hosts' specs", async || match (told_host(&rig, 0, id), told_host(&rig, 1, id)) {
        (2, 2) => Ok(()),
        told => Err(format!("{told:?} GiB")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_does_not_take_is_taken_back() {
    let rig = Rig::new(0).await;
    let id = rig.volume(false).await;
    let full = cured(Code::ResourceExhausted, "volume group vg0: 2 GiB more are wanted", "operator");
    rig.storage.state().knobs.refuse_volume = Some(full);
    extend(&rig, id, 3).await.unwrap();
    let failed = rig.until_volume(id, VolumeStatus::ErrorExtending).await;
    assert_eq!(failed.size_gib, 1);
    assert!(failed.fault.as_deref().is_some_and(|why| why.contains("2 GiB more are wanted")), "{failed:?}");
    let cure = format!("`mooring volume reset-status {id} available`");
    assert!(failed.fault.as_deref().is_some_and(|why| why.contains(&cure)), "{failed:?}");
    let messages = rig.service.messages(&admin(), ListQuery::default()).await.unwrap().items;
    assert!(messages.iter().any(|kept| kept.text.starts_with("extend volume: ")), "{messages:?}");
    rig.storage.state().knobs.refuse_volume = None;
    // The spec has the old size again, at the agent, too.
    until_told(&rig, id, 1).await;
    invalid(extend(&rig, id, 3).await, "currently error_extending");
    let reset = VolumeAction::ResetStatus { status: Some(VolumeStatus::Available), attached: None };
    rig.service.volume_action(&admin(), id, reset).await.unwrap();
    assert_eq!(shown(&rig, id).await, (VolumeStatus::Available, 1));
    extend(&rig, id, 2).await.unwrap();
    assert_eq!(rig.until_volume(id, VolumeStatus::Available).await.size_gib, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stops_a_growth_is_said_and_when_it_is_cured_it_has_grown() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    rig.attach(id, "host1", Mode::ReadWrite).await;
    hold(&rig, Some(("a disk is missing", v1::Cure::Operator)));
    extend(&rig, id, 2).await.unwrap();
    let stopped = rig.until_volume(id, VolumeStatus::ErrorExtending).await;
    assert_eq!((stopped.size_gib, stopped.attachments.len()), (1, 1));
    assert!(stopped.fault.as_deref().is_some_and(|why| why.contains("a disk is missing")), "{stopped:?}");
    // The agent keeps the spec and goes on: no caller may say that the growth is over.
    let reset = VolumeAction::ResetStatus { status: Some(VolumeStatus::InUse), attached: None };
    invalid(rig.service.volume_action(&admin(), id, reset).await, "its status cannot be reset");
    assert_eq!(told(&rig, id), 2);
    release(&rig, id);
    let grown = rig.until_volume(id, VolumeStatus::InUse).await;
    assert_eq!((grown.size_gib, grown.fault), (2, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_pass_by_itself_is_waited_for() {
    let rig = Rig::new(0).await;
    let id = rig.volume(false).await;
    hold(&rig, Some(("its extents were taken meanwhile", v1::Cure::Retry)));
    extend(&rig, id, 2).await.unwrap();
    until_told(&rig, id, 2).await;
    rig.storage.publish(&id.to_string());
    assert_eq!(shown(&rig, id).await, (VolumeStatus::Extending, 1));
    release(&rig, id);
    assert_eq!(rig.until_volume(id, VolumeStatus::Available).await.size_gib, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_meanwhile_goes_on() {
    let mut rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    rig.attach(id, "host1", Mode::ReadWrite).await;
    hold(&rig, None);
    extend(&rig, id, 2).await.unwrap();
    rig.restart().await;
    assert_eq!(shown(&rig, id).await, (VolumeStatus::Extending, 1));
    until_told(&rig, id, 2).await;
    release(&rig, id);
    assert_eq!(rig.until_volume(id, VolumeStatus::InUse).await.size_gib, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_new_size_counts_from_the_request_on() {
    let rig = Rig::new(0).await;
    let id = rig.volume(false).await;
    hold(&rig, None);
    extend(&rig, id, 400).await.unwrap();
    let other = rig.volume(false).await;
    assert!(matches!(extend(&rig, other, 700).await.map_err(in_words), Err(Refusal::Exceeded(_))));
    release(&rig, id);
    let grown: Volume = rig.until_volume(id, VolumeStatus::Available).await;
    assert_eq!(grown.size_gib, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_certainly_does_not_fit_is_refused_at_once() {
    let rig = Rig::new(0).await;
    let id = rig.volume(false).await;
    // The pool has 512 GiB left.
    // The pool's state forbids it. Control: a request that can never be right begins otherwise.
    let full = format!("Invalid volume: the pool of volume {id} has no room for 599 GiB more.");
    invalid(extend(&rig, id, 600).await, &full);
    invalid(
        extend(&rig, id, 1).await,
        "Invalid input received: New size for extend must be greater than current size",
    );
    assert_eq!(shown(&rig, id).await, (VolumeStatus::Available, 1));
    assert_eq!(told(&rig, id), 1);
}

/// Has the storage agent report how full its thin pool is, and waits until the controller has it.
async fn report_pool(rig: &Rig, free_gib: u16, data: u32, metadata: u32) {
    {
        let mut state = rig.storage.state();
        let pool = &mut state.pools[0];
        pool.free_bytes = u64::from(free_gib) * GIB;
        (pool.data_used, pool.metadata_used) = (Some(data), Some(metadata));
    }
    // An agent that comes up again is asked for its pools.
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    rig.storage.set_down(false);
    rig.until_host("storage", |host| host.up).await;
    until("the report", async || {
        let pools = rig.service.pools(&admin(), PoolFilter::default()).await.unwrap();
        let free = pools[0].capabilities.get("free_capacity_gb").cloned().unwrap_or_default();
        if free == f64::from(free_gib) { Ok(()) } else { Err(free.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_takes_nothing_new_refuses_growth_and_snapshots_at_once() {
    let (rig, id, _) = Rig::thin(0).await;
    let full = format!("Invalid volume: the pool of volume {id} is almost full, and takes no snapshot");
    let take = async || {
        let new =
            NewSnapshot { volume: id, name: None, description: None, metadata: [].into(), in_use: false };
        rig.service.create_snapshot(&member("p"), new).await.map(drop)
    };
    for (free_gib, data, metadata) in [(300, 9_500, 100), (301, 100, 9_000)] {
        report_pool(&rig, free_gib, data, metadata).await;
        invalid(extend(&rig, id, 2).await, &full);
        invalid(take().await, &full);
        assert_eq!((shown(&rig, id).await, told(&rig, id)), ((VolumeStatus::Available, 1), 1));
        assert_eq!(rig.storage.state().volumes.len(), 1, "no snapshot is asked for");
    }
    // The control, and the end of it: one part less.
    report_pool(&rig, 302, 9_499, 8_999).await;
    extend(&rig, id, 2).await.unwrap();
    rig.until_volume(id, VolumeStatus::Available).await;
    take().await.unwrap();
    assert_eq!(shown(&rig, id).await.1, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growth_that_is_taken_back_leaves_the_volume_as_it_was() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    conflict(
        cancel(&rig, id).await,
        "does not grow, or not any more: it has 1 GiB, and its status is: available",
    );
    rig.attach(id, "host1", Mode::ReadWrite).await;
    hold(&rig, None);
    extend(&rig, id, 400).await.unwrap();
    until_told(&rig, id, 400).await;
    let other = rig.volume(false).await;
    assert!(
        matches!(extend(&rig, other, 700).await.map_err(in_words), Err(Refusal::Exceeded(_))),
        "both are too much"
    );
    let put = format!("volume {id} ");
    let puts = || rig.storage.state().calls.iter().filter(|call| call.starts_with(&put)).count();
    let before = puts();
    cancel(&rig, id).await.unwrap();
    let back = rig.until_volume(id, VolumeStatus::InUse).await;
    assert_eq!((back.size_gib, back.fault, back.attachments.len()), (1, None, 1));
    // The agent's data for a rebuild has the old size from the first spec on: there is no second
    // one.
    assert_eq!(puts(), before + 1);
    let kept = rig.storage.state().volumes[&id.to_string()].opaque.clone();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&kept).unwrap()["size_gib"], 1);
    assert_eq!((told(&rig, id), told_host(&rig, 0, id)), (1, 1));
    conflict(cancel(&rig, id).await, "does not grow, or not any more");
    assert!(!is_told(&rig, "extend volume: ").await, "nothing has failed");
    // The project gets the quota of the growth back, and the volume grows when asked again.
    assert!(!matches!(extend(&rig, other, 700).await.map_err(in_words), Err(Refusal::Exceeded(_))));
    release(&rig, id);
    extend(&rig, id, 2).await.unwrap();
    assert_eq!(rig.until_volume(id, VolumeStatus::InUse).await.size_gib, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_growth_is_taken_back_even_across_a_controller_kill() {
    let mut rig = Rig::new(0).await;
    let id = rig.volume(false).await;
    hold(&rig, Some(("a disk is missing", v1::Cure::Operator)));
    extend(&rig, id, 2).await.unwrap();
    rig.until_volume(id, VolumeStatus::ErrorExtending).await;
    // The agent is appending, and will stop.
    refuse_smaller(&rig, Some("retry"));
    for _ in 0..2 {
        // A repeated call is the same cancellation.
        cancel(&rig, id).await.unwrap();
        assert_eq!(shown(&rig, id).await, (VolumeStatus::Extending, 1));
    }
    // A rename meanwhile asks for no other size.
    let name = Some(Some("other".to_owned()));
    rig.service.update_volume(&admin(), id, name, None, None).await.unwrap();
    rig.restart().await;
    assert_eq!((shown(&rig, id).await, told(&rig, id)), ((VolumeStatus::Extending, 1), 2));
    refuse_smaller(&rig, None);
    rig.storage.publish(&id.to_string());
    let back = rig.until_volume(id, VolumeStatus::Available).await;
    assert_eq!((back.size_gib, back.fault, told(&rig, id)), (1, None, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_grown_already_stays_and_that_is_told() {
    let rig = Rig::new(1).await;
    let id = rig.volume(false).await;
    rig.attach(id, "host1", Mode::ReadWrite).await;
    hold(&rig, None);
    extend(&rig, id, 2).await.unwrap();
    until_told(&rig, id, 2).await;
    rig.storage.state().knobs.grown_when_smaller = true;
    cancel(&rig, id).await.unwrap();
    let grown = rig.until_volume(id, VolumeStatus::InUse).await;
    assert_eq!((grown.size_gib, grown.fault, told(&rig, id)), (2, None, 2));
    assert!(is_told(&rig, "extend volume: it had grown already").await);
    until("the host's spec", async || match told_host(&rig, 0, id) {
        2 => Ok(()),
        told => Err(format!("{told} GiB")),
    })
    .await;
    extend(&rig, id, 3).await.unwrap();
    assert_eq!(rig.until_volume(id, VolumeStatus::InUse).await.size_gib, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_takes_no_smaller_size_goes_on_and_that_is_said() {
    let rig = Rig::new(0).await;
    let id = rig.volume(false).await;
    hold(&rig, None);
    extend(&rig, id, 2).await.unwrap();
    until_told(&rig, id, 2).await;
    refuse_smaller(&rig, Some("fix_spec"));
    cancel(&rig, id).await.unwrap();
    let kept = rig.until_volume(id, VolumeStatus::ErrorExtending).await;
    assert!(kept.fault.as_deref().is_some_and(|why| why.contains("volumes never shrink here")), "{kept:?}");
    assert_eq!((kept.size_gib, told(&rig, id)), (1, 2));
    assert!(is_told(&rig, "its growth could not be cancelled").await);
    // The spec has the size that the agent goes on with: a rebuild finds it so.
    release(&rig, id);
    let grown = rig.until_volume(id, VolumeStatus::Available).await;
    assert_eq!((grown.size_gib, grown.fault, told(&rig, id)), (2, None, 2));
}
