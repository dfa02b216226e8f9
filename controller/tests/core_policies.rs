//! Policies at the control plane itself, and who reads secrets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{
    LONG, Rig, admin, client, connection_info, connector, member, native, new_volume, reserve,
};
use mooring_controller::domain::{Caller, ExportAsk, NewSnapshot, NewVolume, VolumeAction};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::policy::Policies;
use mooring_controller::service::{Refusal, SecretsOnGet};
use mooring_model::Mode;

fn with_roles(project: &str, roles: &[&str]) -> Caller {
    Caller { roles: roles.iter().map(|role| (*role).to_owned()).collect(), ..member(project) }
}

/// A rig with an operator's policies.
async fn ruled(file: &str, enforced: bool) -> Rig {
    let policies = Arc::new(Policies::parse(file, "policy.yaml", enforced).unwrap());
    let rig = Rig::quiet_with(1, move |options| options.policies = Arc::clone(&policies));
    rig.up().await;
    rig
}

#[track_caller]
fn forbidden<T: std::fmt::Debug>(answer: Result<T, Refusal>, policy: &str) {
    let wanted = format!("Policy doesn't allow {policy} to be performed.");
    match answer {
        Err(Refusal::Forbidden(text)) => assert_eq!(text, wanted),
        other => panic!("{other:?} instead of {wanted}"),
    }
}

#[track_caller]
fn unseen<T: std::fmt::Debug>(answer: &Result<T, Refusal>) {
    assert!(matches!(answer, Err(Refusal::NotFound { .. })), "{answer:?}");
}

fn metadata(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_have_policies_of_their_own() {
    let new = |volume| NewSnapshot {
        volume,
        name: None,
        description: None,
        metadata: BTreeMap::new(),
        in_use: false,
    };
    let rig = ruled("volume:create_snapshot: \"!\"\nvolume:get_all_snapshots: \"!\"\n", true).await;
    let owner = member("p");
    let id = rig.service.create_volume(&owner, new_volume()).await.unwrap().id;
    rig.until_volume(id, mooring_controller::domain::VolumeStatus::Available).await;
    forbidden(rig.service.create_snapshot(&owner, new(id)).await, "volume:create_snapshot");
    forbidden(rig.service.snapshots(&owner, ListQuery::default()).await, "volume:get_all_snapshots");
    // A caller who may is told of the next obstacle: these agents have no thin pool.
    let open = ruled("", true).await;
    let id = open.service.create_volume(&owner, new_volume()).await.unwrap().id;
    open.until_volume(id, mooring_controller::domain::VolumeStatus::Available).await;
    match open.service.create_snapshot(&owner, new(id)).await {
        Err(Refusal::Invalid(text)) => assert!(text.contains("only thin volumes have snapshots"), "{text}"),
        other => panic!("{other:?}"),
    }
    forbidden(
        open.service.create_snapshot(&with_roles("p", &["reader"]), new(id)).await,
        "volume:create_snapshot",
    );
    assert!(open.service.snapshots(&owner, ListQuery::default()).await.unwrap().items.is_empty());
    unseen(&open.service.snapshot(&owner, id).await);
    unseen(&open.service.delete_snapshot(&owner, id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_read_and_members_change_once_the_new_defaults_are_enforced() {
    let rig = ruled("", true).await;
    let (reader, owner) = (with_roles("p", &["reader"]), member("p"));
    forbidden(rig.service.create_volume(&reader, new_volume()).await, "volume:create");
    let id = rig.service.create_volume(&owner, new_volume()).await.unwrap().id;
    rig.until_volume(id, mooring_controller::domain::VolumeStatus::Available).await;
    assert_eq!(rig.service.volume(&reader, id).await.unwrap().id, id);
    assert_eq!(rig.service.volumes(&reader, ListQuery::default()).await.unwrap().items.len(), 1);
    assert!(!rig.service.types(&reader, ListQuery::default()).await.unwrap().items.is_empty());
    let name = || Some(Some("n".to_owned()));
    forbidden(rig.service.update_volume(&reader, id, name(), None, None).await, "volume:update");
    forbidden(rig.service.delete_volume(&reader, id).await, "volume:delete");
    forbidden(rig.service.cancel_extend(&reader, id).await, "mooring:extend_cancel");
    forbidden(rig.service.create_attachment(&reader, reserve(id), LONG).await, "volume:attachment_create");
    let made = rig.service.create_attachment(&owner, reserve(id), LONG).await.unwrap().id;
    assert_eq!(rig.service.attachment(&reader, made).await.unwrap().id, made);
    let update = rig.service.update_attachment(&reader, made, connector(1), LONG).await;
    forbidden(update, "volume:attachment_update");
    forbidden(rig.service.complete_attachment(&reader, made).await, "volume:attachment_complete");
    let delete = rig.service.delete_attachment(&reader, made, false, LONG).await;
    forbidden(delete, "volume:attachment_delete");
    // A caller without roles does not even see the volume.
    let nobody = with_roles("p", &[]);
    unseen(&rig.service.volume(&nobody, id).await);
    forbidden(rig.service.volumes(&nobody, ListQuery::default()).await, "volume:get_all");
    forbidden(rig.service.types(&nobody, ListQuery::default()).await, "volume_extension:type_get_all");
    forbidden(rig.service.default_type(&nobody).await, "volume_extension:type_get");
    // Other projects' volumes are hidden from every role: 404 and not 403.
    for stranger in [with_roles("q", &["reader"]), member("q"), with_roles("q", &["service"])] {
        unseen(&rig.service.volume(&stranger, id).await);
        unseen(&rig.service.delete_volume(&stranger, id).await);
        unseen(&rig.service.delete_attachment(&stranger, made, false, LONG).await);
    }
    rig.service.delete_attachment(&owner, made, false, LONG).await.unwrap();
    rig.service.delete_volume(&owner, id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_them_a_user_of_a_project_needs_no_role() {
    let rig = ruled("", false).await;
    let user = with_roles("p", &[]);
    let id = rig.service.create_volume(&user, new_volume()).await.unwrap().id;
    assert_eq!(rig.service.volume(&user, id).await.unwrap().id, id);
    forbidden(rig.service.hosts(&user).await, "mooring:hosts");
    forbidden(rig.service.raise_epoch(&user).await, "mooring:raise_epoch");
    forbidden(rig.service.confirm_review(&user, id).await, "mooring:confirm_review");
    forbidden(rig.service.volume_export(&user, id, ExportAsk::Look).await, "mooring:export");
    let specs = BTreeMap::new();
    let refused = rig.service.create_type(&user, "t", None, true, specs).await;
    forbidden(refused, "volume_extension:type_create");
}

#[tokio::test(flavor = "multi_thread")]
async fn sharing_for_admins_only_is_one_line() {
    let rig = ruled("\"volume:multiattach\": \"rule:admin_api\"", false).await;
    let shared = || NewVolume { volume_type: None, ..new_volume() };
    let volume_type = Some(rig.shared_type().await);
    let new = NewVolume { volume_type, ..shared() };
    forbidden(rig.service.create_volume(&member("p"), new.clone()).await, "volume:multiattach");
    assert!(rig.service.volumes(&member("p"), ListQuery::default()).await.unwrap().items.is_empty());
    assert!(rig.service.create_volume(&admin(), new).await.unwrap().multiattach);
    rig.service.create_volume(&member("p"), shared()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_the_storage_cuts_off_and_sees_without_being_admin() {
    let file = "\"volume:get\": \"rule:admin_or_owner or role:operator\"\n\
                \"volume:attachment_delete\": \"rule:admin_or_owner or role:operator\"\n\
                \"volume_extension:volume_admin_actions:force_detach\": \"rule:admin_api or role:operator\"\n\
                \"mooring:hosts\": \"rule:admin_api or role:operator\"\n\"mooring:live_all\": \"role:operator\"\n";
    let rig = ruled(file, false).await;
    let id = rig.volume(false).await;
    let live = rig.attach(id, "host1", Mode::ReadWrite).await;
    let (owner, operator) = (member("p"), with_roles("p", &["operator"]));
    let attachment = live.attachment.id;
    let refused = rig.service.delete_attachment(&owner, attachment, true, LONG).await;
    forbidden(refused, "volume_extension:volume_admin_actions:force_detach");
    forbidden(rig.service.hosts(&owner).await, "mooring:hosts");
    assert_eq!(rig.service.hosts(&operator).await.unwrap().len(), 2);
    let elsewhere = with_roles("q", &["operator"]);
    assert_eq!(rig.service.live_all(&elsewhere).await.unwrap().len(), 1);
    // The operator's line replaces the default: admins are not in it, and see their own project's
    // only.
    let admin_elsewhere = Caller { project: "q".to_owned(), ..admin() };
    for other in [member("q"), admin_elsewhere] {
        assert!(rig.service.live_all(&other).await.unwrap().is_empty());
    }
    let (receipt, _) = rig.service.delete_attachment(&operator, attachment, true, LONG).await.unwrap();
    assert!(receipt.receipt.is_some());
    assert_eq!(rig.service.receipt(&owner, attachment).await.unwrap().receipt, receipt.receipt);
    unseen(&rig.service.receipt(&member("q"), attachment).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_ruled_by_what_becomes_of_its_keys() {
    let owner = member("p");
    for denied in ["create", "update", "delete"] {
        let rig = ruled(&format!("\"volume:{denied}_volume_metadata\": \"!\""), false).await;
        for (kind, wanted) in [
            ("create", &[("a", "1"), ("b", "1")][..]),
            ("update", &[("a", "2")]),
            ("update", &[("a", "1")]),
            ("delete", &[]),
        ] {
            let new = NewVolume { metadata: metadata(&[("a", "1")]), ..new_volume() };
            let id = rig.service.create_volume(&owner, new).await.unwrap().id;
            let answer = rig.service.update_volume(&owner, id, None, None, Some(metadata(wanted))).await;
            if kind == denied {
                forbidden(answer, &format!("volume:{denied}_volume_metadata"));
            } else {
                assert_eq!(answer.unwrap().metadata, metadata(wanted));
            }
            // The volume's name has another policy.
            let name = Some(Some("n".to_owned()));
            rig.service.update_volume(&owner, id, name, None, None).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extra_specs_have_a_policy_each_for_new_and_changed_keys() {
    let line = |kind: &str| format!("\"volume_extension:types_extra_specs:{kind}\": \"!\"");
    let specs = |value: &str| BTreeMap::from([("k".to_owned(), value.to_owned())]);
    let rig = ruled(&line("update"), false).await;
    let kind = rig.service.create_type(&admin(), "t", None, true, BTreeMap::new()).await.unwrap().id;
    rig.service.set_extra_specs(&admin(), kind, specs("1")).await.unwrap();
    let again = rig.service.set_extra_specs(&admin(), kind, specs("2")).await;
    forbidden(again, "volume_extension:types_extra_specs:update");
    let rig = ruled(&line("create"), false).await;
    let kind = rig.service.create_type(&admin(), "t", None, true, specs("1")).await.unwrap().id;
    rig.service.set_extra_specs(&admin(), kind, specs("2")).await.unwrap();
    let more = BTreeMap::from([("l".to_owned(), "1".to_owned())]);
    let more = rig.service.set_extra_specs(&admin(), kind, more).await;
    forbidden(more, "volume_extension:types_extra_specs:create");
    // The policy for changing a type does not cover its specs.
    let member = rig.service.set_extra_specs(&member("p"), kind, specs("3")).await;
    forbidden(member, "volume_extension:types_extra_specs:update");
}

/// Number of keys in a client's connection info: without credentials, and with them (`auth_…`).
async fn credentials(rig: &Rig, caller: &Caller, id: mooring_model::AttachmentId) -> (usize, usize) {
    let shown = rig.service.attachment(caller, id).await.unwrap();
    let info = connection_info(&shown);
    let secret = info.keys().filter(|key| key.starts_with("auth_")).count();
    let listed = rig.service.attachments(caller, ListQuery::default()).await.unwrap().items;
    let same = connection_info(&listed[0]).keys().filter(|key| key.starts_with("auth_")).count();
    assert_eq!(secret, same, "lists and shows say the same");
    (info.len() - secret, secret)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_read_again_by_services_and_admins_only() {
    let owner = member("p");
    let service = Caller { service: true, ..member("p") };
    for (option, of_owner) in [(SecretsOnGet::Service, 0), (SecretsOnGet::All, 3)] {
        let rig = Rig::quiet_with(1, move |options| options.secrets_on_get = option);
        rig.up().await;
        let id = rig.service.create_volume(&owner, new_volume()).await.unwrap().id;
        rig.until_volume(id, mooring_controller::domain::VolumeStatus::Available).await;
        // A caller who connects gets the secrets: with a create, with an update, and when he asks
        // again.
        let made = rig.service.create_attachment(&owner, client(id, 1), LONG).await.unwrap();
        assert!(connection_info(&made).contains_key("auth_password"));
        let again = rig.service.update_attachment(&owner, made.id, connector(1), LONG).await.unwrap();
        assert_eq!(connection_info(&again), connection_info(&made));

        let all = connection_info(&made).len();
        assert_eq!(credentials(&rig, &owner, made.id).await, (all - 3, of_owner));
        for reader in [&service, &admin()] {
            assert_eq!(credentials(&rig, reader, made.id).await, (all - 3, 3));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_belongs_to_its_volumes_project() {
    let rig = ruled("", false).await;
    let owner = member("theirs");
    let id = rig.service.create_volume(&owner, new_volume()).await.unwrap().id;
    rig.until_volume(id, mooring_controller::domain::VolumeStatus::Available).await;
    let made =
        rig.service.create_attachment(&admin(), native(id, "host1", Mode::ReadOnly), LONG).await.unwrap();
    assert_eq!(rig.service.attachment(&owner, made.id).await.unwrap().id, made.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn extending_what_is_attached_has_a_policy_of_its_own() {
    let extend = |size_gib, online| VolumeAction::Extend { size_gib, online };
    for (line, may) in [("", true), ("\"volume:extend_attached_volume\": \"!\"", false)] {
        let rig = ruled(line, false).await;
        let owner = member("p");
        let id = rig.service.create_volume(&owner, new_volume()).await.unwrap().id;
        rig.until_volume(id, mooring_controller::domain::VolumeStatus::Available).await;
        rig.service.volume_action(&owner, id, extend(2, true)).await.unwrap();
        rig.until_volume(id, mooring_controller::domain::VolumeStatus::Available).await;
        let made = rig.service.create_attachment(&owner, reserve(id), LONG).await.unwrap().id;
        rig.service.complete_attachment(&owner, made).await.unwrap();
        // For an older client it is a wrong state, whoever asks.
        let older = rig.service.volume_action(&owner, id, extend(3, false)).await.map_err(in_words);
        assert!(matches!(older, Err(Refusal::Invalid(_))), "{older:?}");
        let attached = rig.service.volume_action(&owner, id, extend(3, true)).await;
        if may {
            attached.unwrap();
        } else {
            forbidden(attached, "volume:extend_attached_volume");
        }
    }
}
