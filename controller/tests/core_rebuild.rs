//! Rebuilds of a lost database from the agents, also in the middle of work.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;

use crate::support::{LONG, Rig, SHORT, admin, client, connection_info, native, new_volume, reserve, until};
use mooring_controller::domain::{AttachmentStatus, NewVolume, VolumeAction, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::rebuild::RebuildError;
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};

/// All calls that reached any agent and concern a volume.
fn calls(rig: &Rig) -> Vec<String> {
    let agents = std::iter::once(&rig.storage).chain(&rig.hosts);
    agents.flat_map(|agent| agent.state().calls.clone()).collect()
}

/// Starts the rebuilt controller, and waits until its agents are up and nothing is in review.
async fn back(rig: &mut Rig) {
    rig.restart_on("rebuilt", false).await;
    for name in rig.names.clone() {
        rig.until_host(&name, |host| host.up && !host.problems.iter().any(|text| text.contains("in review")))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_true_is_true_and_nothing_is_sent() {
    let mut rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let hosted = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment;
    let reader = rig.attach(volume, "host2", Mode::ReadOnly).await.attachment;
    let stock = rig.service.create_attachment(&admin(), client(volume, 1), LONG).await.unwrap();
    rig.service.complete_attachment(&admin(), stock.id).await.unwrap();
    let reserved = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap();
    rig.until_quiet().await;
    let before = (rig.service.volume(&admin(), volume).await.unwrap(), calls(&rig));
    let report = rig.rebuild("rebuilt").await.unwrap();
    assert_eq!((report.types, report.agents[0].volumes, report.agents[0].attachments), (1, 1, 3));
    assert!(report.agents.iter().all(|agent| agent.notes.is_empty()), "{report}");
    assert!(report.to_string().contains("only reserved"), "{report}");
    back(&mut rig).await;
    for (id, host) in [(hosted.id, "host1"), (reader.id, "host2")] {
        let live = rig.service.live(&admin(), id, None, SHORT).await.unwrap();
        assert_eq!((live.attachment.status, live.session), (AttachmentStatus::Attached, Some(true)));
        assert_eq!(live.attachment.attached_host.as_deref(), Some(host));
        assert!(live.device_path.is_some());
    }
    let now = rig.service.attachment(&admin(), stock.id).await.unwrap();
    assert_eq!(connection_info(&now), connection_info(&stock));
    assert_eq!((now.connector, now.mountpoint), (stock.connector, stock.mountpoint));
    let lost = rig.service.attachment(&admin(), reserved.id).await.unwrap_err();
    assert!(matches!(lost, Refusal::NotFound { .. }));
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!((seen.status, &seen.volume_type), (VolumeStatus::InUse, &before.0.volume_type));
    assert_eq!((seen.created_at, seen.place.agent), (before.0.created_at, before.0.place.agent));
    assert_eq!(calls(&rig), before.1, "nothing was sent");
    // All of it works, and can be detached.
    let more = rig.service.create_attachment(&admin(), client(volume, 2), LONG).await.unwrap();
    for id in [hosted.id, reader.id, stock.id, more.id] {
        rig.service.delete_attachment(&admin(), id, false, LONG).await.unwrap();
    }
    rig.service.delete_volume(&admin(), volume).await.unwrap();
    // Every later spec is newer than all before, and no live session ended for it.
    let later: Vec<_> = calls(&rig).into_iter().filter(|call| !before.1.contains(call)).collect();
    assert!(!later.is_empty() && later.iter().all(|call| call.contains(" 2.")), "{later:?}");
}

/// The report that came with the volumes already includes them: they do not count twice.
#[tokio::test(flavor = "multi_thread")]
async fn space_that_the_report_shows_as_taken_is_not_counted_twice() {
    let mut rig = Rig::new(0).await;
    rig.volume(false).await;
    rig.service.stop().await;
    // The rest is one volume's, and the agent reports nothing more until the end.
    rig.storage.state().pools[0].free_bytes = 1 << 30;
    rig.rebuild("rebuilt").await.unwrap();
    rig.storage.set_down(true);
    rig.restart_on("rebuilt", false).await;
    let made = rig.service.create_volume(&admin(), new_volume()).await.unwrap();
    let refused = rig.service.create_volume(&admin(), new_volume()).await.map_err(in_words).unwrap_err();
    assert!(matches!(refused, Refusal::Invalid(_)), "{refused}");
    rig.storage.set_down(false);
    rig.until_volume(made.id, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_rebuild_and_one_over_something_is_refused() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.rebuild("rebuilt").await.unwrap();
    for state in ["rebuilt", "state"] {
        let refused = rig.rebuild(state).await.unwrap_err();
        assert!(matches!(refused, RebuildError::NotEmpty(_)), "{refused}");
        assert!(refused.to_string().contains("only an empty one"), "{refused}");
    }
    back(&mut rig).await;
    rig.until_volume(volume, VolumeStatus::InUse).await;
}

/// The storage agent has granted access, and the host was not told yet; or it was told to
/// disconnect.
#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_was_on_its_way_goes_on() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let made = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment;
    rig.service.stop().await;
    rig.hosts[0].state().connections.clear();
    rig.rebuild("rebuilt").await.unwrap();
    back(&mut rig).await;
    let live = rig.until_attached(made.id).await;
    assert!(live.device_path.is_some());
    assert_eq!(rig.storage.granted(volume).len(), 1);
}

/// The target has force detached a host that was not told: now it is, and no other host notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_revoked_is_told_so() {
    let mut rig = Rig::new(2).await;
    let volume = rig.volume(true).await;
    let cut = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment;
    rig.attach(volume, "host2", Mode::ReadWrite).await;
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    rig.service.delete_attachment(&admin(), cut.id, true, LONG).await.unwrap();
    rig.service.stop().await;
    rig.hosts[0].set_down(false);
    rig.rebuild("rebuilt").await.unwrap();
    back(&mut rig).await;
    until("the host's end", async || {
        let state = rig.hosts[0].state();
        let kept = &state.connections[&volume.to_string()];
        if kept.spec.is_none() && kept.hard { Ok(()) } else { Err(format!("{:?}", state.calls)) }
    })
    .await;
    assert_eq!(rig.storage.granted(volume).len(), 1);
    assert!(rig.hosts[1].state().connections[&volume.to_string()].spec.is_some());
}

/// The volume's review ends when its storage agent is heard. The host was up before, and waited for
/// that.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_up_before_the_storage_agent_is_told_as_well() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    let cut = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment;
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    rig.service.delete_attachment(&admin(), cut.id, true, LONG).await.unwrap();
    rig.service.stop().await;
    rig.hosts[0].set_down(false);
    rig.rebuild("rebuilt").await.unwrap();
    rig.storage.set_down(true);
    rig.restart_on("rebuilt", false).await;
    rig.until_host("host1", |host| host.up).await;
    rig.storage.set_down(false);
    until("the host's end", async || {
        let state = rig.hosts[0].state();
        let kept = state.connections[&volume.to_string()].spec.is_none();
        if kept { Ok(()) } else { Err(format!("{:?}", state.calls)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuild_resumes_new_volumes_and_never_remakes_existing_ones() {
    let mut rig = Rig::new(0).await;
    let there = rig.volume(false).await;
    rig.storage.state().knobs.pending = true;
    let made = rig.service.create_volume(&admin(), new_volume()).await.unwrap().id;
    until("its spec at the agent", async || {
        let known = rig.storage.state().volumes.contains_key(&made.to_string());
        if known { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    rig.rebuild("rebuilt").await.unwrap();
    back(&mut rig).await;
    rig.until_volume(made, VolumeStatus::Creating).await;
    rig.storage.state().knobs.pending = false;
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    rig.storage.set_down(false);
    rig.until_volume(made, VolumeStatus::Available).await;
    // The specs of their exports, which follow, prove that the volumes were there once.
    until("the specs of their exports at the agent", async || {
        let state = rig.storage.state();
        let known = [there, made].iter().all(|id| state.exports.contains_key(&id.to_string()));
        if known { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    // A pool that lost its disk: every volume fails, and none counts as one that was never made.
    rig.storage.state().knobs.fail_volumes = true;
    rig.rebuild("again").await.unwrap();
    rig.restart_on("again", false).await;
    for id in [there, made] {
        rig.until_volume(id, VolumeStatus::Available).await;
    }
    let deleted = rig.storage.state().calls.iter().any(|call| call.starts_with("delete"));
    assert!(!deleted, "{:?}", rig.storage.state().calls);
}

#[tokio::test(flavor = "multi_thread")]
async fn types_come_back_as_their_newest_volume_has_them() {
    let mut rig = Rig::new(0).await;
    let specs = BTreeMap::from([("mooring:mixed_modes".to_owned(), "<is> False".to_owned())]);
    let kind = rig.service.create_type(&admin(), "gold", None, false, specs.clone()).await.unwrap();
    rig.service.set_type_access(&admin(), kind.id, "q", true).await.unwrap();
    let new = |name: &str| NewVolume { volume_type: Some(name.to_owned()), ..new_volume() };
    let first = rig.service.create_volume(&admin(), new("gold")).await.unwrap().id;
    rig.until_volume(first, VolumeStatus::Available).await;
    // A type in use can change in these parts.
    rig.service.update_type(&admin(), kind.id, Some("silver"), Some("less"), None).await.unwrap();
    let second = rig.service.create_volume(&admin(), new("silver")).await.unwrap().id;
    rig.until_volume(second, VolumeStatus::Available).await;
    let default = rig.volume(false).await;
    let before = rig.service.volume(&admin(), default).await.unwrap().volume_type;
    let report = rig.rebuild("rebuilt").await.unwrap();
    // The first volume's data at the agent is still as it was made, unless something happened to it
    // meanwhile.
    let first_says =
        String::from_utf8(rig.storage.state().volumes[&first.to_string()].opaque.clone()).unwrap();
    let named = report.notes.iter().any(|note| note.contains("type silver was changed"));
    assert_eq!(named, first_says.contains("\"gold\""), "{report}");
    back(&mut rig).await;
    for id in [first, second] {
        let seen = rig.service.volume(&admin(), id).await.unwrap().volume_type;
        assert_eq!((seen.id, seen.name.as_str(), seen.is_public), (kind.id, "silver", false));
        assert_eq!((seen.description.as_deref(), &seen.extra_specs), (Some("less"), &specs));
    }
    assert_eq!(rig.service.volume(&admin(), default).await.unwrap().volume_type, before);
    assert_eq!(rig.service.type_access(&admin(), kind.id).await.unwrap(), ["q"]);
}

/// A type's session settings come back with it, and the unchanged spec is not sent again.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_about_sessions_is_said_again() {
    let mut rig = Rig::new(1).await;
    let specs = BTreeMap::from([("mooring:queue_depth".to_owned(), "16".to_owned())]);
    rig.service.create_type(&admin(), "deep", None, true, specs.clone()).await.unwrap();
    let new = NewVolume { volume_type: Some("deep".to_owned()), ..new_volume() };
    let id = rig.service.create_volume(&admin(), new).await.unwrap().id;
    rig.until_volume(id, VolumeStatus::Available).await;
    let stock = rig.service.create_attachment(&admin(), client(id, 1), LONG).await.unwrap();
    let said = |rig: &Rig| rig.storage.state().exports[&id.to_string()].spec.clone().unwrap().tuning;
    rig.until_quiet().await;
    let (before, sent) = (said(&rig), calls(&rig));
    assert_eq!(before.len(), 1);
    let report = rig.rebuild("rebuilt").await.unwrap();
    assert!(report.agents.iter().all(|agent| agent.notes.is_empty()), "{report}");
    back(&mut rig).await;
    assert_eq!(rig.service.volume(&admin(), id).await.unwrap().volume_type.extra_specs, specs);
    assert_eq!((said(&rig), calls(&rig)), (before.clone(), sent), "nothing was sent");
    rig.service.delete_attachment(&admin(), stock.id, true, LONG).await.unwrap();
    assert_eq!(said(&rig), before);
}

/// The agent's data beside its specs is damaged in several ways: nothing is guessed.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_explain_its_grants_is_left_as_it_is() {
    let mut rig = Rig::new(1).await;
    let mut volumes = Vec::new();
    for _ in 0..6 {
        let volume = rig.volume(false).await;
        rig.attach(volume, "host1", Mode::ReadWrite).await;
        volumes.push(volume);
    }
    let [good, volume_text, export_text, mode, size, foreign] = volumes[..] else { panic!("six") };
    rig.service.stop().await;
    let key = |volume: VolumeId| volume.to_string();
    {
        let mut state = rig.storage.state();
        state.volumes.get_mut(&key(volume_text)).unwrap().opaque = b"{\"name\":".to_vec();
        state.exports.get_mut(&key(export_text)).unwrap().opaque = b"{\"attachments\":[]}".to_vec();
        let kept = state.exports.get_mut(&key(mode)).unwrap();
        kept.opaque =
            String::from_utf8(kept.opaque.clone()).unwrap().replace("\"rw\"", "\"ro\"").into_bytes();
        state.volumes.get_mut(&key(size)).unwrap().spec.as_mut().unwrap().size_bytes = 5 << 30;
        let spec = state.exports.get_mut(&key(foreign)).unwrap().spec.as_mut().unwrap();
        spec.portals.push("10.0.0.9:3260".to_owned());
    }
    let before = calls(&rig);
    let report = rig.rebuild("rebuilt").await.unwrap();
    for volume in [volume_text, export_text, mode, size, foreign] {
        let named = report.agents[0].notes.iter().any(|note| note.contains(&key(volume)));
        assert!(named, "{volume}: {report}");
    }
    assert_eq!((report.agents[0].volumes, report.agents[1].connections), (1, 1), "{report}");
    back(&mut rig).await;
    rig.until_volume(good, VolumeStatus::InUse).await;
    for volume in [volume_text, export_text, mode, size, foreign] {
        let seen = rig.service.volume(&admin(), volume).await;
        assert!(matches!(seen, Err(Refusal::NotFound { .. })), "{seen:?}");
    }
    assert_eq!(calls(&rig), before);
    assert_eq!(rig.storage.state().exports.values().filter(|export| export.spec.is_some()).count(), 6);
    rig.until_host("storage", |host| host.problems.iter().any(|text| text.contains(&key(mode)))).await;
    // A new volume has room beside them.
    rig.service.create_attachment(&admin(), native(good, "host1", Mode::ReadWrite), SHORT).await.unwrap_err();
    let other = rig.volume(false).await;
    rig.attach(other, "host1", Mode::ReadWrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growth_that_was_under_way_still_is() {
    let mut rig = Rig::new(1).await;
    let volume = rig.volume(false).await;
    rig.attach(volume, "host1", Mode::ReadWrite).await;
    rig.storage.state().knobs.hold_growth = true;
    let action = VolumeAction::Extend { size_gib: 3, online: true };
    rig.service.volume_action(&admin(), volume, action).await.unwrap();
    until("the agent's spec", async || {
        let told = rig.storage.state().volumes[&volume.to_string()].spec.as_ref().unwrap().size_bytes;
        if told == 3 << 30 { Ok(()) } else { Err(format!("{told}")) }
    })
    .await;
    rig.rebuild("rebuilt").await.unwrap();
    back(&mut rig).await;
    let seen = rig.service.volume(&admin(), volume).await.unwrap();
    assert_eq!((seen.status, seen.size_gib), (VolumeStatus::Extending, 1));
    rig.storage.state().knobs.hold_growth = false;
    rig.storage.publish(&volume.to_string());
    assert_eq!(rig.until_volume(volume, VolumeStatus::InUse).await.size_gib, 3);
}
