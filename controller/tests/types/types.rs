//! Types: who sees them, the values of their specs, and the projects' defaults.

use mooring_controller::domain::{NewVolume, VolumeStatus};
use mooring_controller::list::ListQuery;
use mooring_controller::service::Refusal;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{Api, DEAD, kind, of_project, specs};
use crate::support::{Rig, admin, new_volume};

#[track_caller]
fn unseen<T: std::fmt::Debug>(answer: &Result<T, Refusal>) {
    assert!(matches!(answer, Err(Refusal::NotFound { .. })), "{answer:?}");
}

fn of(name: &str) -> NewVolume {
    NewVolume { volume_type: Some(name.to_owned()), ..new_volume() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_type_is_there_for_those_with_access_only() {
    let rig = Rig::new(0).await;
    let (friend, stranger) = (of_project("friend"), of_project("stranger"));
    let hidden = rig.service.create_type(&admin(), "hidden", None, false, specs(&[])).await.unwrap();
    let id = hidden.id.to_string();
    let sees = async |caller: mooring_controller::domain::Caller| {
        let caller = &caller;
        let seen = [
            rig.service.volume_type(caller, "hidden").await.is_ok(),
            rig.service.volume_type(caller, &id).await.is_ok(),
            rig.service
                .types(caller, ListQuery::default())
                .await
                .unwrap()
                .items
                .iter()
                .any(|kind| kind.id == hidden.id),
        ];
        assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
        seen[0]
    };
    assert!(sees(admin()).await && !sees(friend.clone()).await);
    unseen(&rig.service.create_volume(&friend, of("hidden")).await);
    rig.service.set_type_access(&admin(), hidden.id, "friend", true).await.unwrap();
    assert!(sees(friend.clone()).await && !sees(stranger.clone()).await);
    rig.service.create_volume(&friend, of("hidden")).await.unwrap();
    unseen(&rig.service.create_volume(&stranger, of(&id)).await);
    assert_eq!(rig.service.type_access(&admin(), hidden.id).await.unwrap(), ["friend"]);
    for refused in [
        rig.service.set_type_access(&friend, hidden.id, "stranger", true).await,
        rig.service.set_type_access(&friend, hidden.id, "friend", false).await,
        rig.service.type_access(&friend, hidden.id).await.map(drop),
    ] {
        assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    }
    rig.service.set_type_access(&admin(), hidden.id, "friend", false).await.unwrap();
    assert!(!sees(friend.clone()).await);
    // The project keeps its volumes of the type, and can read them.
    let own = rig.service.volumes(&friend, ListQuery::default()).await.unwrap().items;
    assert_eq!(own[0].volume_type.name, "hidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn type_access_over_http() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let body = json!({ "volume_type": { "name": "hidden", "os-volume-type-access:is_public": false } });
    let id = api.post("/types", body).await.body["volume_type"]["id"].as_str().unwrap().to_owned();
    let (action, list) = (format!("/types/{id}/action"), format!("/types/{id}/os-volume-type-access"));
    assert_eq!(api.get(&list).await.body, json!({ "volume_type_access": [] }));
    let add = json!({ "addProjectAccess": { "project": "q" } });
    let added = api.post(&action, add.clone()).await;
    assert_eq!((added.status.as_u16(), added.body), (202, Value::Null));
    let wanted = json!({ "volume_type_access": [{ "volume_type_id": id, "project_id": "q" }] });
    assert_eq!(api.get(&list).await.body, wanted);
    api.post(&action, add.clone()).await.is(409, "combination already exists");
    let remove = json!({ "removeProjectAccess": { "project": "q" } });
    assert_eq!(api.post(&action, remove.clone()).await.status, 202);
    api.post(&action, remove.clone()).await.is(404, "could not be found");
    for (bad, part) in [
        (json!({ "addProjectAccess": {} }), "'project' is a required property"),
        (json!({ "addProjectAccess": null }), "is not of type 'object'"),
        (json!({ "addProjectAccess": { "project": 1 } }), "is not of type 'string'"),
        (json!({ "addProjectAccess": { "project": "" } }), "should be non-empty"),
        (json!({ "addProjectAccess": { "project": "a b" } }), "not a project's id"),
        (json!({ "addProjectAccess": { "project": "a", "x": 1 } }), "Additional properties"),
        (json!({ "nosuch": {} }), "There is no such action: nosuch"),
        (json!({}), "Malformed request body"),
        (json!([]), "Malformed request body"),
    ] {
        api.post(&action, bad).await.is(400, part);
    }
    api.post(&format!("/types/{DEAD}/action"), add.clone()).await.is(404, DEAD);
    let default = api.get("/types/default").await.body["volume_type"]["id"].as_str().unwrap().to_owned();
    api.post(&format!("/types/{default}/action"), add).await.is(400, "not applicable to public");
    api.post(&format!("/types/{default}/action"), remove).await.is(400, "not applicable to public");
    api.get(&format!("/types/{default}/os-volume-type-access")).await.is(404, "could not be found");
}

#[tokio::test(flavor = "multi_thread")]
async fn s1_one_spelling_whatever_was_written() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    for (n, text) in ["<is> True", "<is> true", " <IS>  1 ", "<is> yes"].into_iter().enumerate() {
        let body =
            json!({ "volume_type": { "name": format!("t{n}"), "extra_specs": { "multiattach": text } } });
        let made = api.post("/types", body).await;
        assert_eq!(
            made.body["volume_type"]["extra_specs"],
            json!({ "multiattach": "<is> True" }),
            "{text:?}"
        );
        let volume = rig.service.create_volume(&admin(), of(&format!("t{n}"))).await.unwrap();
        assert!(volume.multiattach, "{text:?}");
    }
    let later = kind(&rig, "later", &[]).await.id;
    let specs = format!("/types/{later}/extra_specs");
    let set = api.post(&specs, json!({ "extra_specs": { "multiattach": "<is> false", "a": "b" } })).await;
    assert_eq!(set.body, json!({ "extra_specs": { "multiattach": "<is> False", "a": "b" } }));
    let set = api.put(&format!("{specs}/multiattach"), json!({ "multiattach": "<is> t" })).await;
    assert_eq!(set.body, json!({ "multiattach": "<is> True" }));
    for wrong in ["True", "<is>", "<is> maybe", "", "<in> True", "<is> True False"] {
        api.put(&format!("{specs}/multiattach"), json!({ "multiattach": wrong }))
            .await
            .is(400, "multiattach is");
        let body = json!({ "volume_type": { "name": "wrong", "extra_specs": { "multiattach": wrong } } });
        api.post("/types", body).await.is(400, "multiattach is");
    }
    assert_eq!(api.get(&specs).await.body["extra_specs"]["multiattach"], "<is> True");
}

/// A type's session settings are checked by name, on every call that writes them.
#[tokio::test(flavor = "multi_thread")]
async fn tuning_is_checked_where_it_is_written() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let of_specs = |specs: Value| json!({ "volume_type": { "name": "tuned", "extra_specs": specs } });
    for (wrong, says) in [
        (json!({ "mooring:max_burst": "100" }), "mooring:max_burst is \"100\": want 512 to 16777215 bytes"),
        (json!({ "mooring:header_digest": "sha" }), "want none, crc32c, or crc32c,none"),
        (json!({ "mooring:que_depth": "8" }), "there is no extra spec"),
        (json!({ "mooring:first_burst": "300000" }), "is more than max_burst (262144, the default)"),
    ] {
        api.post("/types", of_specs(wrong)).await.is(400, says);
    }
    let right = json!({ "mooring:header_digest": "CRC32C", "mooring:max_burst": "1048576" });
    let made = api.post("/types", of_specs(right)).await.body["volume_type"].clone();
    let written = json!({ "mooring:header_digest": "crc32c", "mooring:max_burst": "1048576" });
    assert_eq!(made["extra_specs"], written);
    let specs = format!("/types/{}/extra_specs", made["id"].as_str().unwrap());
    let more = json!({ "extra_specs": { "mooring:first_burst": "524288" } });
    assert_eq!(api.post(&specs, more).await.status, 200);
    api.post(&specs, json!({ "extra_specs": { "mooring:max_burst": "512" } })).await.is(400, "is more than");
    api.put(&format!("{specs}/mooring:queue_depth"), json!({ "mooring:queue_depth": "0" }))
        .await
        .is(400, "want 1 to 512 commands");
    // Without it the first burst would be longer than the default.
    api.delete(&format!("{specs}/mooring:max_burst")).await.is(400, "is more than");
    assert_eq!(api.delete(&format!("{specs}/mooring:first_burst")).await.status, 202);
    assert_eq!(api.delete(&format!("{specs}/mooring:max_burst")).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn s15_the_specs_of_a_type_in_use_do_not_change() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let used = kind(&rig, "used", &[("vendor:a", "b")]).await.id;
    let id = rig.service.create_volume(&admin(), of("used")).await.unwrap().id;
    let specs = format!("/types/{used}/extra_specs");
    let in_use = "Volume Type is currently in use.";
    api.post(&specs, json!({ "extra_specs": { "multiattach": "<is> True" } })).await.is(400, in_use);
    api.put(&format!("{specs}/vendor:a"), json!({ "vendor:a": "c" })).await.is(400, in_use);
    api.delete(&format!("{specs}/vendor:a")).await.is(400, in_use);
    api.delete(&format!("/types/{used}")).await.is(400, "still in use");
    assert_eq!(api.get(&specs).await.body, json!({ "extra_specs": { "vendor:a": "b" } }));
    // After a retype to another type, the first type is free again.
    rig.until_volume(id, VolumeStatus::Available).await;
    let away = json!({ "os-retype": { "new_type": "__DEFAULT__" } });
    assert_eq!(api.post(&format!("/volumes/{id}/action"), away).await.status, 202);
    assert_eq!(api.put(&format!("{specs}/vendor:a"), json!({ "vendor:a": "c" })).await.status, 200);
    assert_eq!(api.delete(&format!("/types/{used}")).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn s16_s17_shared_is_neither_cached_nor_encrypted_in_any_order_by_any_way() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let shared = ("multiattach", "<is> True");
    for (n, other) in
        [("cacheable", "<is> True"), ("cacheable", "true"), ("encryption", "<is> True")].iter().enumerate()
    {
        for (first, second) in [(shared, *other), (*other, shared)] {
            let name = format!("{n}{}", first.0);
            let id = kind(&rig, &name, &[first]).await.id;
            let specs = format!("/types/{id}/extra_specs");
            let posted = api.post(&specs, json!({ "extra_specs": { second.0: second.1 } })).await;
            posted.is(400, "together");
            let put = api.put(&format!("{specs}/{}", second.0), json!({ second.0: second.1 })).await;
            put.is(400, "together");
            assert_eq!(api.get(&specs).await.body, json!({ "extra_specs": { first.0: first.1 } }));
        }
        let both = json!({ "volume_type": { "name": "both", "extra_specs": { shared.0: shared.1, other.0: other.1 } } });
        api.post("/types", both).await.is(400, "together");
    }
    let id = kind(&rig, "later", &[]).await.id;
    let encryption = api.post(&format!("/types/{id}/encryption"), json!({ "encryption": {} })).await;
    assert_eq!(encryption.status, 501);
}

#[tokio::test(flavor = "multi_thread")]
async fn s14_who_may_not_read_sensitive_specs_sees_what_sharing_needs() {
    let rig = Rig::new(0).await;
    let all = [("RESKEY:availability_zones", "nova"), ("media", "nvme"), ("multiattach", "<is> True")];
    let id = kind(&rig, "t", &all).await.id;
    let few = json!({ "RESKEY:availability_zones": "nova", "multiattach": "<is> True" });
    let open = Api::of(&rig);
    let closed = Api::ruled(&rig, "\"volume_extension:types_extra_specs:read_sensitive\": \"!\"\n");
    assert_eq!(open.get(&format!("/types/{id}")).await.body["volume_type"]["extra_specs"]["media"], "nvme");
    assert_eq!(closed.get(&format!("/types/{id}")).await.body["volume_type"]["extra_specs"], few);
    assert_eq!(closed.get(&format!("/types/{id}/extra_specs")).await.body["extra_specs"], few);
    closed.get(&format!("/types/{id}/extra_specs/media")).await.is(404, "media");
    let listed = closed.get("/types").await.body["volume_types"].clone();
    assert_eq!(
        listed.as_array().unwrap().iter().find(|kind| kind["name"] == "t").unwrap()["extra_specs"],
        few
    );
    let none = Api::ruled(&rig, "\"volume_extension:access_types_extra_specs\": \"!\"\n");
    let shown = none.get(&format!("/types/{id}")).await.body["volume_type"].clone();
    assert!(shown.get("extra_specs").is_none() && shown["name"] == "t", "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_bounds_the_size_of_new_volumes() {
    let rig = Rig::new(0).await;
    kind(&rig, "bounded", &[("provisioning:min_vol_size", "2"), ("provisioning:max_vol_size", "3")]).await;
    for (size_gib, fits) in [(1, false), (2, true), (3, true), (4, false)] {
        let made = rig
            .service
            .create_volume(&admin(), NewVolume { size_gib: Some(size_gib), ..of("bounded") })
            .await;
        assert_eq!(made.is_ok(), fits, "{size_gib}: {made:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn projects_have_defaults_of_their_own() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let fast = kind(&rig, "fast", &[]).await.id;
    let hidden = rig.service.create_type(&admin(), "hidden", None, false, specs(&[])).await.unwrap().id;
    assert_eq!(api.get("/default-types").await.body, json!({ "default_types": [] }));
    api.get("/default-types/q").await.is(404, "could not be found");
    let set = api.put("/default-types/q", json!({ "default_type": { "volume_type": "fast" } })).await;
    let entry = json!({ "project_id": "q", "volume_type_id": fast.to_string() });
    assert_eq!((set.status.as_u16(), set.body), (200, json!({ "default_type": entry })));
    assert_eq!(api.get("/default-types").await.body, json!({ "default_types": [entry] }));
    assert_eq!(api.get("/default-types/q").await.body, json!({ "default_type": entry }));
    let default = async |project: &str| -> (String, Uuid) {
        let user = of_project(project);
        let made = rig.service.create_volume(&user, new_volume()).await.unwrap();
        let shown = rig.service.default_type(&user).await.unwrap();
        assert_eq!(made.volume_type.id, shown.id);
        (shown.name, shown.id)
    };
    assert_eq!(default("q").await, ("fast".to_owned(), fast));
    assert_eq!(default("r").await.0, "__DEFAULT__");
    api.delete(&format!("/types/{fast}")).await.is(400, "default volume type");
    // A type that the project may not use is refused; a default that it may no longer use does not
    // count.
    let private = json!({ "default_type": { "volume_type": hidden.to_string() } });
    api.put("/default-types/q", private.clone()).await.is(400, "may not use");
    rig.service.set_type_access(&admin(), hidden, "q", true).await.unwrap();
    assert_eq!(api.put("/default-types/q", private).await.status, 200);
    assert_eq!(default("q").await.1, hidden);
    rig.service.set_type_access(&admin(), hidden, "q", false).await.unwrap();
    assert_eq!(default("q").await.0, "__DEFAULT__");
    assert_eq!(api.delete("/default-types/q").await.status, 204);
    for (bad, code) in [
        (json!({}), 400),
        (json!({ "default_type": {} }), 400),
        (json!({ "default_type": { "volume_type": null } }), 400),
        (json!({ "default_type": { "volume_type": "fast", "x": 1 } }), 400),
        (json!({ "default_type": { "volume_type": "nosuch" } }), 404),
    ] {
        assert_eq!(api.put("/default-types/q", bad.clone()).await.status, code, "{bad}");
    }
    assert_eq!(api.call("3.61", "GET", "/default-types", None).await.status, 404);
    let user = of_project("q");
    for refused in [
        rig.service.default_types(&user).await.map(drop),
        rig.service.project_default(&user, "q").await.map(drop),
        rig.service.set_project_default(&user, "q", "fast").await.map(drop),
        rig.service.unset_project_default(&user, "q").await,
    ] {
        assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    }
}
