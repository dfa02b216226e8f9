//! Quotas: counted where they are used, and shown as they are counted.

use std::collections::BTreeMap;

use mooring_controller::domain::NewVolume;
use mooring_controller::http::in_words;
use mooring_controller::quota::{Entry, Key, Limit};
use mooring_controller::service::Refusal;
use serde_json::{Value, json};

use crate::api::{Api, kind, of_project};
use crate::support::{Rig, admin, new_volume, until};

fn limits(pairs: &[(&str, i64)]) -> BTreeMap<Key, Limit> {
    let entry =
        |(key, limit): &(&str, i64)| (Key::from_name(key).unwrap(), Limit::from_number(*limit).unwrap());
    pairs.iter().map(entry).collect()
}

fn in_use(entries: &[Entry], key: &str) -> u64 {
    entries.iter().find(|entry| entry.key.to_string() == key).unwrap().in_use
}

fn of_size(size_gib: u32, volume_type: Option<&str>) -> NewVolume {
    NewVolume { size_gib: Some(size_gib), volume_type: volume_type.map(str::to_owned), ..new_volume() }
}

#[track_caller]
fn over<T: std::fmt::Debug>(answer: Result<T, Refusal>, name: &str) {
    match answer.map_err(in_words) {
        Err(Refusal::Exceeded(text)) => {
            assert!(text.starts_with(name) && text.contains("xceed"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_at_the_edge_and_exactly_the_limit_succeed() {
    let rig = Rig::new(0).await;
    rig.service.set_quotas(&admin(), "edge", limits(&[("volumes", 7)])).await.unwrap();
    let made: Vec<_> = (0..20)
        .map(|_| {
            let service = rig.service.clone();
            tokio::spawn(async move { service.create_volume(&of_project("edge"), new_volume()).await })
        })
        .collect();
    let mut done = 0;
    for task in made {
        match task.await.unwrap() {
            Ok(_) => done += 1,
            refused => over(refused, "VolumeLimitExceeded: "),
        }
    }
    assert_eq!(done, 7);
    let shown = rig.service.quotas(&admin(), "edge").await.unwrap();
    assert_eq!((in_use(&shown, "volumes"), in_use(&shown, "gigabytes")), (7, 7));
    // Another project has a quota of its own.
    rig.service.create_volume(&of_project("other"), new_volume()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_that_volumes_have_is_enforced_and_given_back() {
    let rig = Rig::new(0).await;
    let gold = kind(&rig, "gold", &[]).await;
    let user = of_project("q");
    let set =
        limits(&[("gigabytes", 6), ("per_volume_gigabytes", 4), ("volumes_gold", 1), ("gigabytes_gold", 2)]);
    rig.service.set_quotas(&admin(), "q", set).await.unwrap();
    let create = async |size, kind| rig.service.create_volume(&user, of_size(size, kind)).await;
    over(create(5, None).await, "VolumeSizeExceedsLimit: ");
    over(create(3, Some("gold")).await, "VolumeSizeExceedsAvailableQuota: ");
    let golden = create(2, Some("gold")).await.unwrap().id;
    over(create(1, Some("gold")).await, "VolumeSizeExceedsAvailableQuota: ");
    create(4, None).await.unwrap();
    over(create(1, None).await, "VolumeSizeExceedsAvailableQuota: ");
    let shown = rig.service.quotas(&user, "q").await.unwrap();
    for (key, used) in [("volumes", 2), ("gigabytes", 6), ("volumes_gold", 1), ("gigabytes_gold", 2)] {
        assert_eq!(in_use(&shown, key), used, "{key}");
    }
    // A renamed type keeps its limits, and a new type with the old name begins without.
    rig.service.update_type(&admin(), gold.id, Some("au"), None, None).await.unwrap();
    let shown = rig.service.quotas(&user, "q").await.unwrap();
    let au = shown.iter().find(|entry| entry.key.to_string() == "gigabytes_au").unwrap();
    assert_eq!((au.limit, au.in_use), (Limit::At(2), 2));
    kind(&rig, "gold", &[]).await;
    let shown = rig.service.quotas(&user, "q").await.unwrap();
    let fresh = shown.iter().find(|entry| entry.key.to_string() == "gigabytes_gold").unwrap();
    assert_eq!((fresh.limit, fresh.in_use), (Limit::Unlimited, 0));
    // A deleted volume gives its quota back.
    rig.until_volume(golden, mooring_controller::domain::VolumeStatus::Available).await;
    rig.service.delete_volume(&user, golden).await.unwrap();
    until("the end of the volume", async || {
        let shown = rig.service.quotas(&user, "q").await.unwrap();
        if in_use(&shown, "gigabytes") == 4 { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
    create(2, None).await.unwrap();
    // A deleted type takes its limits along.
    rig.service.delete_type(&admin(), gold.id).await.unwrap();
    kind(&rig, "au", &[]).await;
    create(1, None).await.unwrap_err();
    let shown = rig.service.quotas(&user, "q").await.unwrap();
    let au = shown.iter().find(|entry| entry.key.to_string() == "gigabytes_au").unwrap();
    assert_eq!(au.limit, Limit::Unlimited);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nearest_limit_holds() {
    let rig = Rig::quiet_with(0, |options| options.quotas = limits(&[("volumes", 2), ("groups", 3)]));
    rig.up().await;
    let limit = async |project: &str, key: &str| {
        let shown = rig.service.quotas(&admin(), project).await.unwrap();
        shown.iter().find(|entry| entry.key.to_string() == key).unwrap().limit.number()
    };
    assert_eq!(
        (limit("a", "volumes").await, limit("a", "groups").await, limit("a", "backups").await),
        (2, 3, 10)
    );
    rig.service.set_class_quotas(&admin(), limits(&[("volumes", 1)])).await.unwrap();
    rig.service.set_quotas(&admin(), "b", limits(&[("volumes", 0)])).await.unwrap();
    assert_eq!((limit("a", "volumes").await, limit("b", "volumes").await), (1, 0));
    over(rig.service.create_volume(&of_project("b"), new_volume()).await, "VolumeLimitExceeded: ");
    rig.service.create_volume(&of_project("a"), new_volume()).await.unwrap();
    over(rig.service.create_volume(&of_project("a"), new_volume()).await, "VolumeLimitExceeded: ");
    rig.service.delete_quotas(&admin(), "b").await.unwrap();
    assert_eq!(limit("b", "volumes").await, 1);
    let defaults = rig.service.default_quotas(&of_project("b"), "b").await.unwrap();
    assert_eq!(defaults.iter().find(|entry| entry.key == Key::Volumes).unwrap().limit, Limit::At(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_ask_and_set() {
    let rig = Rig::new(0).await;
    let user = of_project("p");
    rig.service.quotas(&user, "p").await.unwrap();
    for refused in [
        rig.service.quotas(&user, "q").await.map(drop),
        rig.service.default_quotas(&user, "q").await.map(drop),
        rig.service.set_quotas(&user, "p", limits(&[("volumes", 99)])).await.map(drop),
        rig.service.delete_quotas(&user, "p").await,
        rig.service.class_quotas(&user).await.map(drop),
        rig.service.set_class_quotas(&user, limits(&[("volumes", 99)])).await.map(drop),
    ] {
        assert!(matches!(refused, Err(Refusal::Forbidden(_))), "{refused:?}");
    }
    // The empty text stands for the class, and for no project.
    assert!(matches!(
        rig.service.set_quotas(&admin(), "", limits(&[("volumes", 0)])).await,
        Err(Refusal::Invalid(_))
    ));
    // A user's query for another project's limits is ignored, an admin's is not.
    rig.service.set_quotas(&admin(), "q", limits(&[("volumes", 3)])).await.unwrap();
    let volumes = |entries: Vec<Entry>| entries.iter().find(|entry| entry.key == Key::Volumes).unwrap().limit;
    assert_eq!(volumes(rig.service.limits(&user, Some("q")).await.unwrap()), Limit::At(10));
    assert_eq!(volumes(rig.service.limits(&admin(), Some("q")).await.unwrap()), Limit::At(3));
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_sets_over_http() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let sets = "/os-quota-sets/p";
    let plain = [
        "backup_gigabytes",
        "backups",
        "gigabytes",
        "gigabytes___DEFAULT__",
        "groups",
        "id",
        "per_volume_gigabytes",
        "snapshots",
        "snapshots___DEFAULT__",
        "volumes",
        "volumes___DEFAULT__",
    ];
    for path in [sets, "/os-quota-sets/p/defaults"] {
        let shown = api.get(path).await;
        assert_eq!((shown.status.as_u16(), keys(&shown.body["quota_set"])), (200, plain.to_vec()));
        assert_eq!(
            (&shown.body["quota_set"]["id"], &shown.body["quota_set"]["volumes"]),
            (&json!("p"), &json!(10))
        );
    }
    let set =
        api.put(sets, json!({ "quota_set": { "volumes": "1", "gigabytes": -1, "tenant_id": "p" } })).await;
    assert_eq!((set.status.as_u16(), &set.body["quota_set"]["volumes"]), (200, &json!(1)));
    let made = api.post("/volumes", json!({ "volume": { "size": 1 } })).await;
    assert_eq!(made.status, 202);
    let refused = api.post("/volumes", json!({ "volume": { "size": 1 } })).await;
    refused.is(413, "VolumeLimitExceeded: Maximum number of volumes allowed (1) exceeded");
    assert_eq!(refused.headers["retry-after"], "0");
    assert_eq!(keys(&refused.body), ["overLimit"]);
    let used = api.get("/os-quota-sets/p?usage=true").await;
    let wanted = json!({ "limit": 1, "in_use": 1, "reserved": 0, "allocated": 0 });
    assert_eq!(used.body["quota_set"]["volumes"], wanted);

    api.put(sets, json!({ "quota_set": { "volumes": 0 } })).await.is(400, "Current usage is 1");
    for (bad, part) in [
        (json!({}), "'quota_set' is a required property"),
        (json!({ "quota_set": [] }), "is not of type 'object'"),
        (json!({ "quota_set": { "nosuch": 1 } }), "Bad key(s) in quota set: nosuch"),
        (json!({ "quota_set": { "volumes_nosuch": 1 } }), "there is no such volume type"),
        (json!({ "quota_set": { "volumes": -2 } }), "is not a whole number"),
        (json!({ "quota_set": { "volumes": 2_147_483_648_u64 } }), "is not a whole number"),
        (json!({ "quota_set": { "volumes": 1.5 } }), "is not a whole number"),
        (json!({ "quota_set": { "volumes": "x" } }), "is not a whole number"),
        (json!({ "quota_set": { "volumes": null } }), "is not a whole number"),
        (json!({ "quota_set": { "volumes": 5, "nosuch": 1 } }), "Bad key(s)"),
    ] {
        api.put(sets, bad).await.is(400, part);
    }
    assert_eq!(api.get(sets).await.body["quota_set"]["volumes"], 1, "nothing was set by halves");
    api.get("/os-quota-sets/b%20ad").await.is(400, "is not a project's id");

    let class = "/os-quota-class-sets/default";
    let set = api.put(class, json!({ "quota_class_set": { "snapshots": 4 } })).await;
    assert_eq!((set.status.as_u16(), &set.body["quota_class_set"]["snapshots"]), (200, &json!(4)));
    assert_eq!(api.get(class).await.body["quota_class_set"]["id"], "default");
    assert_eq!(api.get(sets).await.body["quota_set"]["snapshots"], 4);
    api.get("/os-quota-class-sets/other").await.is(404, "Quota class other could not be found.");

    let gone = api.delete(sets).await;
    assert_eq!((gone.status.as_u16(), gone.body), (200, Value::Null));
    assert_eq!(api.get(sets).await.body["quota_set"]["volumes"], 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_set_without_a_key_is_refused() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    let (set, class) = ("/os-quota-sets/p", "/os-quota-class-sets/default");
    let before = api.get(set).await.body;
    api.put(set, json!({ "quota_set": {} })).await.is(400, "{} does not have enough properties");
    // The control: a set with a key that is no limit, and a class, which needs no key.
    assert_eq!(api.put(set, json!({ "quota_set": { "tenant_id": "p" } })).await.status, 200);
    assert_eq!(api.put(class, json!({ "quota_class_set": {} })).await.status, 200);
    assert_eq!(api.get(set).await.body, before, "nothing was set");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_over_http() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig);
    assert_eq!(api.post("/volumes", json!({ "volume": { "size": 3 } })).await.status, 202);
    let shown = api.get("/limits").await.body;
    let wanted = json!({ "limits": { "rate": [], "absolute": {
        "maxTotalVolumes": 10, "maxTotalVolumeGigabytes": 1000, "maxTotalSnapshots": 10, "maxTotalBackups": 10,
        "maxTotalBackupGigabytes": 1000, "totalVolumesUsed": 1, "totalGigabytesUsed": 3, "totalSnapshotsUsed": 0,
        "totalBackupsUsed": 0, "totalBackupGigabytesUsed": 0,
    } } });
    assert_eq!(shown, wanted);
    let other = api.get("/limits?project_id=q").await.body;
    assert_eq!(other["limits"]["absolute"]["totalVolumesUsed"], 0);
    // Before 3.39 the filter does not exist.
    let own = api.call("3.38", "GET", "/limits?project_id=q", None).await.body;
    assert_eq!(own, wanted);
    let closed = Api::ruled(&rig, "\"limits_extension:used_limits\": \"!\"\n").get("/limits").await.body;
    assert_eq!(keys(&closed["limits"]["absolute"]).len(), 5);
}
