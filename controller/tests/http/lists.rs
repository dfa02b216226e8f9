//! Lists of a control plane with a store: filters, orders, pages.

use mooring_controller::domain::NewVolume;
use mooring_controller::service::Service;
use serde_json::{Value, json};

use crate::client::{Api, DEAD, INSTANCE, PROJECT, keys};
use crate::support::{Rig, new_volume, until};

/// Name, GiB, metadata.
type Wanted<'a> = (Option<&'a str>, u32, &'a [(&'a str, &'a str)]);

/// Makes volumes of the tests' project, and returns their ids.
async fn volumes(service: &Service, all: &[Wanted<'_>]) -> Vec<String> {
    let caller =
        mooring_controller::domain::Caller { project: PROJECT.to_owned(), ..crate::support::admin() };
    let mut ids = Vec::new();
    for (name, size_gib, metadata) in all {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let metadata = metadata.iter().map(pair).collect();
        let name = name.map(str::to_owned);
        let new = NewVolume { name, size_gib: Some(*size_gib), metadata, ..new_volume() };
        ids.push(service.create_volume(&caller, new).await.unwrap().id.to_string());
    }
    ids
}

async fn listed(api: &Api, version: &str, path: &str, list: &str, of: &str) -> Vec<Value> {
    let answer = api.v3(version, "GET", path, None).await;
    let all = answer.body[list].as_array().unwrap_or_else(|| panic!("{path}: {}", answer.body));
    all.iter().map(|item| item[of].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_filtered_and_sorted() {
    let rig = Rig::new(0).await;
    let ids = volumes(
        &rig.service,
        &[
            (Some("a"), 3, &[("k", "a")]),
            (Some("bB"), 1, &[("k", "b\"%_"), ("x.y/z", "1")]),
            (Some("b"), 2, &[]),
            (None, 1, &[]),
        ],
    )
    .await;
    for id in &ids {
        rig.until_volume(id.parse().unwrap(), mooring_controller::domain::VolumeStatus::Available).await;
    }
    let api = Api::on(&rig.service);
    let all = json!([null, "b", "bB", "a"]);
    for (version, query, wanted) in [
        ("3.60", "", &all),
        ("3.60", "?sort=name:asc", &json!([null, "a", "b", "bB"])),
        ("3.60", "?sort=size:desc,name:asc", &json!(["a", "b", null, "bB"])),
        ("3.60", "?sort=size:asc,name", &json!(["bB", null, "b", "a"])),
        ("3.60", "?sort_key=size&sort_dir=asc", &json!(["bB", null, "b", "a"])),
        ("3.60", "?name=b", &json!(["b"])),
        ("3.34", "?name~=b", &json!(["b", "bB"])),
        ("3.34", "?name~=B", &json!(["bB"])),
        ("3.34", "?name~=%25", &json!([])),
        ("3.34", "?name~=", &all),
        ("3.33", "?name=b'%20OR%20''='", &json!([])),
        ("3.60", "?status=available", &all),
        ("3.60", "?status~=avail", &all),
        ("3.60", "?status=error", &json!([])),
        ("3.60", "?size=2", &json!(["b"])),
        ("3.60", "?size=x", &json!([])),
        ("3.60", "?size=99999999999999999999", &json!([])),
        ("3.60", "?metadata=%7B'k':%20'a'%7D", &json!(["a"])),
        ("3.60", "?metadata=%7B%22k%22:%22b%5C%22%25_%22,%22x.y/z%22:%221%22%7D", &json!(["bB"])),
        ("3.60", "?metadata=%7B'k':%20'b'%7D", &json!([])),
        ("3.60", "?metadata=%7B'%22':%20'b'%7D", &json!([])),
        ("3.60", "?metadata=%7B%7D", &all),
        ("3.60", "?bootable=true", &json!([])),
        ("3.60", "?bootable=false", &all),
        ("3.60", "?availability_zone=nova", &all),
        ("3.60", "?consumes_quota=true", &all),
        ("3.60", "?consumes_quota=false", &json!([])),
        ("3.60", "?group_id=x", &json!([])),
        ("3.60", "?created_at=gt:2026-01-01T00:00:00", &all),
        ("3.60", "?created_at=lt:2026-01-01T00:00:00", &json!([])),
        ("3.59", "?created_at=gt:2026-01-01T00:00:00", &json!([])),
        ("3.60", "?limit=2", &json!([null, "b"])),
        ("3.60", "?offset=1&limit=1", &json!(["b"])),
        ("3.60", "?offset=99999999999999999999999", &json!([])),
        ("3.60", "?limit=99999999999999999999999", &all),
        ("3.60", "?limit=0", &json!([])),
        ("3.60", &format!("?marker={}", ids[2]), &json!(["bB", "a"])),
        // Before 3.31 an admin's unknown filter finds nothing.
        ("3.30", "?nosuch=1", &json!([])),
        ("3.33", "?name~=b", &all),
    ] {
        let path = format!("/volumes/detail{query}");
        if query.contains("name~") && version == "3.33" {
            assert_eq!(api.v3(version, "GET", &path, None).await.status, 400, "{query}");
            continue;
        }
        assert_eq!(
            json!(listed(&api, version, &path, "volumes", "name").await),
            *wanted,
            "{version} {query}"
        );
        let summary = format!("/volumes{query}");
        assert_eq!(json!(listed(&api, version, &summary, "volumes", "name").await), *wanted, "{query}");
    }
}

/// An admin's filters: the host in its three forms, the type, the sources.
#[tokio::test(flavor = "multi_thread")]
async fn admins_filter_by_host_type_and_source() {
    let rig = Rig::new(0).await;
    let ids = volumes(&rig.service, &[(Some("a"), 1, &[]), (Some("b"), 1, &[])]).await;
    for id in &ids {
        rig.until_volume(id.parse().unwrap(), mooring_controller::domain::VolumeStatus::Available).await;
    }
    rig.write(&format!("UPDATE volumes SET source_snapshot = '{DEAD}' WHERE id = '{}'", ids[0]));
    let api = Api::on(&rig.service);
    let shown = api.v3("3.63", "GET", &format!("/volumes/{}", ids[0]), None).await.body["volume"].clone();
    let host = shown["os-vol-host-attr:host"].as_str().unwrap();
    let (backend, pool) = host.split_once('#').unwrap();
    let name = backend.strip_suffix("@lvm").unwrap();
    let kind = shown["volume_type_id"].as_str().unwrap();
    let (both, none) = (json!(["b", "a"]), json!([]));
    for (query, wanted) in [
        (format!("host={name}"), &both),
        (format!("host={backend}"), &both),
        (format!("host={backend}%23{pool}"), &both),
        (format!("os-vol-host-attr:host={name}"), &both),
        (format!("host={backend}%23nosuch"), &none),
        (format!("host={backend}%23"), &none),
        (format!("host={name}@nosuch"), &none),
        ("host=nosuch".to_owned(), &none),
        ("encrypted=false".to_owned(), &both),
        ("encrypted=true".to_owned(), &none),
        ("volume_type=__DEFAULT__".to_owned(), &both),
        (format!("volume_type={kind}"), &both),
        (format!("volume_type={}", kind.replace('-', "")), &both),
        ("volume_type=nosuch".to_owned(), &none),
        (format!("snapshot_id={DEAD}"), &json!(["a"])),
        (format!("snapshot_id={}", ids[0]), &none),
        (format!("source_volid={DEAD}"), &none),
    ] {
        for version in ["3.30", "3.60"] {
            let found = listed(&api, version, &format!("/volumes?{query}"), "volumes", "name").await;
            assert_eq!(json!(found), *wanted, "{version} {query}");
        }
    }
    assert_eq!(api.get("/volumes?encrypted=x").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_questions_are_refused() {
    let rig = Rig::new(0).await;
    let api = Api::on(&rig.service);
    for list in ["/volumes", "/volumes/detail", "/attachments", "/types", "/messages", "/snapshots"] {
        for (query, code) in [
            ("?nosuch=1", 400),
            ("?limit=-1", 400),
            ("?limit=x", 400),
            ("?limit=", 400),
            ("?offset=1.5", 400),
            ("?sort=nosuch", 400),
            ("?sort=id:up", 400),
            ("?sort=id&sort_key=id", 400),
            ("?all_tenants=perhaps", 400),
            ("?limit=1&limit=2", 400),
            ("?id=%FF", 400),
            ("?id=%00", 400),
            (&format!("?marker={DEAD}"), 404),
            ("?marker=%27", 404),
            (&format!("?marker={}", "a".repeat(5_000)), 404),
        ] {
            let answer = api.get(&format!("{list}{query}")).await;
            assert_eq!(answer.status, code, "{list}{query}: {}", answer.body);
            assert!(answer.body.to_string().len() < 1_000, "what is wrong is not repeated without a bound");
        }
    }
    for query in ["?created_at=yesterday", "?metadata=x", "?bootable=x", "?consumes_quota=x"] {
        assert_eq!(api.get(&format!("/volumes{query}")).await.status, 400, "{query}");
    }
}

/// Pairs of a dictionary, as a filter.
fn pairs(name: &str, count: usize) -> String {
    let pairs: Vec<_> = (0..count).map(|n| format!("'k{n}':'v'")).collect();
    format!("?{name}=%7B{}%7D", pairs.join(","))
}

/// Conditions on a time, as a filter.
fn times(name: &str, count: usize) -> String {
    format!("?{name}={}", vec!["gt:2026-01-01"; count].join(","))
}

/// A query with this number of conditions.
type Of = fn(usize) -> String;

#[tokio::test(flavor = "multi_thread")]
async fn filters_are_bounded_and_the_refusal_names_the_bound() {
    let rig = Rig::new(0).await;
    volumes(&rig.service, &[(Some("a"), 1, &[("k0", "v")])]).await;
    let api = Api::on(&rig.service);
    // Each list, with a filter of that many conditions.
    let lists: [(&str, Of); 10] = [
        ("/volumes", |count| pairs("metadata", count)),
        ("/volumes/detail", |count| pairs("metadata", count)),
        ("/volumes/summary", |count| pairs("metadata", count)),
        ("/volumes/detail", |count| times("created_at", count)),
        ("/volumes/detail", |count| times("updated_at", count)),
        ("/volumes/detail", |count| {
            format!("{}&{}", pairs("metadata", count - 9), &times("created_at", 9)[1..])
        }),
        ("/snapshots/detail", |count| pairs("metadata", count)),
        ("/types", |count| pairs("extra_specs", count)),
        ("/attachments/detail", |count| times("created_at", count)),
        ("/messages", |count| times("guaranteed_until", count)),
    ];
    for (list, filter) in lists {
        for count in [257, 1_001, 1_200] {
            let answer = api.get(&format!("{list}{}", filter(count))).await;
            let text = answer.body["badRequest"]["message"].as_str().unwrap_or_default();
            assert!(
                text.contains("at most 256") && text.contains(&count.to_string()),
                "{list}: {}",
                answer.body
            );
        }
        let answer = api.get(&format!("{list}{}", filter(256))).await;
        assert_eq!(answer.status, 200, "{list}: {}", answer.body);
    }
    // The control: few conditions still find.
    let found = listed(&api, "3.60", &format!("/volumes{}", pairs("metadata", 1)), "volumes", "name").await;
    assert_eq!(json!(found), json!(["a"]));
}

/// In every order, page after page is the whole list: none missing and none twice.
#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_each_other_and_end() {
    let rig = Rig::new(0).await;
    let names = [Some("x"), Some("y"), Some("z"), None, Some("x"), Some("y"), Some("z")];
    let named: Vec<Wanted<'_>> = (0..).zip(names).map(|(n, name)| (name, 1 + n % 2, &[][..])).collect();
    volumes(&rig.service, &named).await;
    let api = Api::on(&rig.service);
    for sort in [
        "",
        "sort=name:asc&",
        "sort=name:desc&",
        "sort=size:asc,name:desc&",
        "sort=name:asc,size:desc&",
        "sort=id&",
    ] {
        let whole = listed(&api, "3.60", &format!("/volumes?{sort}"), "volumes", "id").await;
        assert_eq!(whole.len(), 7);
        for limit in [1, 2, 3, 7] {
            let mut path = format!("/volumes?{sort}limit={limit}&with_count=true");
            let mut seen = Vec::new();
            loop {
                let page = api.get(&path).await;
                let items = page.body["volumes"].as_array().unwrap();
                assert_eq!(page.body["count"], 7);
                seen.extend(items.iter().map(|item| item["id"].clone()));
                // Only a full page has a next one.
                assert_eq!(page.body["volumes_links"].is_array(), items.len() == limit, "{path}");
                let Some(next) = page.body["volumes_links"][0]["href"].as_str() else { break };
                path = next.split_once(PROJECT).unwrap().1.to_owned();
            }
            assert_eq!(seen, whole, "{sort}{limit}");
        }
    }
    let page = api.get("/volumes?limit=1&with_count=true&name~=x").await;
    assert_eq!(keys(&page.body), ["count", "volumes", "volumes_links"]);
    assert_eq!(page.body["count"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_link_has_the_form_of_its_request() {
    const HOST: &str = "http://localhost:8776";
    let rig = Rig::new(0).await;
    volumes(&rig.service, &[(Some("a"), 1, &[]), (Some("b"), 1, &[])]).await;
    let api = Api::on(&rig.service);
    assert_eq!(api.post("/types", json!({ "volume_type": { "name": "t" } })).await.status, 200);
    let get = async |address: &str| {
        let call = api.call("GET", address).version("3.60");
        call.header("x-auth-token", format!("eve:{PROJECT}")).send().await.body
    };
    // With the project, and without it.
    for form in [format!("/v3/{PROJECT}"), "/v3".to_owned()] {
        for (path, list, links) in [
            ("/volumes", "volumes", "volumes_links"),
            ("/volumes/detail", "volumes", "volumes_links"),
            ("/types", "volume_types", "volume_type_links"),
        ] {
            let page = get(&format!("{form}{path}?limit=1")).await;
            let id = page[list][0]["id"].as_str().unwrap();
            let next = page[links][0]["href"].as_str().unwrap();
            assert_eq!(next, format!("{HOST}{form}{path}?limit=1&marker={id}"));
            let following = get(next.strip_prefix(HOST).unwrap()).await;
            assert!(following[list][0]["id"].is_string(), "{next}: {following}");
            assert_ne!(following[list][0]["id"], id);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn projects_see_their_own() {
    let rig = Rig::new(0).await;
    volumes(&rig.service, &[(Some("mine"), 1, &[])]).await;
    let other = rig.volume(false).await;
    let api = Api::on(&rig.service);
    let names =
        async |query: &str| listed(&api, "3.60", &format!("/volumes{query}"), "volumes", "name").await;
    assert_eq!(names("").await, ["mine"]);
    assert_eq!(names("?all_tenants=1").await, ["v", "mine"]);
    assert_eq!(names("?all_tenants=1&project_id=p").await, ["v"]);
    // Without all projects another one is not seen, and the own is no answer for it.
    assert_eq!(names("?project_id=p").await, [""; 0]);
    assert_eq!(names(&format!("?project_id={PROJECT}")).await, ["mine"]);
    assert_eq!(api.get(&format!("/volumes?marker={other}")).await.status, 404);
    assert_eq!(names(&format!("?all_tenants=1&marker={other}")).await, ["mine"]);
    let sums = api.get("/volumes/summary?all_tenants=1").await;
    assert_eq!(sums.body["volume-summary"], json!({ "total_count": 2, "total_size": 2, "metadata": {} }));
}

/// More metadata than agents take is not kept beside the spec, and the volume has it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_has_up_to_128_whole_pairs_of_metadata() {
    let rig = Rig::new(0).await;
    let id = volumes(&rig.service, &[(Some("v"), 1, &[])]).await.remove(0);
    rig.until_volume(id.parse().unwrap(), mooring_controller::domain::VolumeStatus::Available).await;
    let api = Api::on(&rig.service);
    let path = format!("/volumes/{id}/metadata");
    let pairs = |count: usize| -> Value {
        let pair = |number: usize| (format!("{number:0>255}"), json!("v".repeat(255)));
        (0..count).map(pair).collect::<serde_json::Map<String, Value>>().into()
    };
    for (count, fits) in [(100, true), (128, false), (1, true)] {
        let set = api.put(&path, json!({ "metadata": pairs(count) })).await;
        assert_eq!(set.status, 200, "{}", set.body);
        assert_eq!(api.get(&path).await.body["metadata"], pairs(count));
        until("the agent keeps what it takes", async || {
            let kept = rig.storage.state().volumes[&id].opaque.clone();
            let kept: Value = serde_json::from_slice(&kept).unwrap();
            let wanted = if fits { pairs(count) } else { json!({}) };
            let truncated = kept["truncated"] == true;
            let same = kept["name"] == "v" && kept["metadata"] == wanted && truncated != fits;
            if same { Ok(()) } else { Err(format!("{count}: truncated {truncated}")) }
        })
        .await;
    }
    let more = api.put(&path, json!({ "metadata": pairs(129) })).await;
    more.is_fault(400, "badRequest", "Invalid input received: more than 128 metadata keys");
    assert_eq!(api.get(&path).await.body["metadata"], pairs(1), "nothing was set");
}

#[tokio::test(flavor = "multi_thread")]
async fn summaries() {
    let rig = Rig::new(0).await;
    let api = Api::on(&rig.service);
    let empty = api.v3("3.12", "GET", "/volumes/summary", None).await;
    assert_eq!(empty.body, json!({ "volume-summary": { "total_count": 0, "total_size": 0 } }));
    volumes(
        &rig.service,
        &[(None, 3, &[("k", "b")]), (None, 4, &[("k", "a"), ("l", "c")]), (None, 1, &[("k", "a")])],
    )
    .await;
    let sums = api.v3("3.36", "GET", "/volumes/summary", None).await;
    let metadata = json!({ "k": ["a", "b"], "l": ["c"] });
    let wanted = json!({ "total_count": 3, "total_size": 8, "metadata": metadata });
    assert_eq!(sums.body["volume-summary"], wanted);
    assert_eq!(api.v3("3.11", "GET", "/volumes/summary", None).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments() {
    let rig = Rig::new(0).await;
    let ids = volumes(&rig.service, &[(Some("1"), 1, &[]), (Some("2"), 1, &[])]).await;
    for id in &ids {
        rig.until_volume(id.parse().unwrap(), mooring_controller::domain::VolumeStatus::Available).await;
    }
    let api = Api::on(&rig.service);
    let first = api.reserved(&ids[0]).await;
    let second = api.reserved(&ids[1]).await;
    let found = async |query: &str| -> Vec<String> {
        let answer = api.get(&format!("/attachments{query}")).await;
        assert_eq!(keys(&answer.body), ["attachments"], "{query}: never a link");
        let list = answer.body["attachments"].as_array().unwrap().clone();
        list.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    };
    let both = [second.clone(), first.clone()];
    assert_eq!(found("").await, both);
    assert_eq!(found("?limit=1").await, [second.as_str()]);
    assert_eq!(found(&format!("?limit=1&marker={second}")).await, [first.as_str()]);
    assert_eq!(found(&format!("?volume_id={}", ids[0])).await, [first.as_str()]);
    assert_eq!(found("?volume_id=x").await, [""; 0]);
    assert_eq!(found("?status=reserved").await, both);
    assert_eq!(found("?attach_status=attached").await, [""; 0]);
    assert_eq!(found(&format!("?instance_id={}", INSTANCE.to_uppercase())).await, both);
    assert_eq!(found(&format!("?instance_id={DEAD}")).await, [""; 0]);
    assert_eq!(found("?instance_id~=aaaa").await, both);
    assert_eq!(found("?sort=created_at:asc").await, [first.clone(), second]);

    // A list shows an attachment as it is shown alone: with the connection info, and the secret of
    // its own nexus.
    let connector = json!({ "attachment": { "connector": crate::support::connector(1) } });
    assert_eq!(api.put(&format!("/attachments/{first}"), connector).await.status, 200);
    let alone = api.get(&format!("/attachments/{first}")).await;
    assert!(alone.body["attachment"]["connection_info"]["auth_password"].is_string());
    let all = api.get("/attachments/detail?sort=created_at:asc").await;
    assert_eq!(all.body["attachments"][0], alone.body["attachment"]);
    assert_eq!(all.body["attachments"][1]["connection_info"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn types() {
    let rig = Rig::new(0).await;
    let api = Api::on(&rig.service);
    for (name, specs) in [("a", json!({})), ("b", json!({ "multiattach": "<is> True" }))] {
        let body = json!({ "volume_type": { "name": name, "extra_specs": specs } });
        assert_eq!(api.post("/types", body).await.status, 200);
    }
    let body = json!({ "volume_type": { "name": "hidden", "os-volume-type-access:is_public": "no" } });
    assert_eq!(api.post("/types", body).await.status, 200);
    let names =
        async |query: &str| listed(&api, "3.60", &format!("/types{query}"), "volume_types", "name").await;
    assert_eq!(names("").await, ["b", "a", "__DEFAULT__"]);
    assert_eq!(names("?is_public=None").await, ["hidden", "b", "a", "__DEFAULT__"]);
    assert_eq!(names("?is_public=false").await, ["hidden"]);
    assert_eq!(names("?sort=name:desc&limit=2").await, ["b", "a"]);
    assert_eq!(names("?extra_specs=%7B'multiattach':'%3Cis%3E%20True'%7D").await, ["b"]);
    assert_eq!(names("?extra_specs=%7B'multiattach':'x'%7D").await, [""; 0]);
    let old =
        async |query: &str| listed(&api, "3.51", &format!("/types{query}"), "volume_types", "name").await;
    assert_eq!(old("").await.len(), 3);
    assert_eq!(old("?extra_specs=x").await, [""; 0], "before 3.52 types have no such filter");
    assert_eq!(old("?nosuch=1").await, [""; 0]);

    let page = api.get("/types?limit=1").await;
    let id = page.body["volume_types"][0]["id"].as_str().unwrap();
    let next = page.body["volume_type_links"][0]["href"].as_str().unwrap();
    assert!(next.ends_with(&format!("/types?limit=1&marker={id}")), "{next}");
    assert_eq!(names(&format!("?limit=1&marker={id}")).await, ["a"]);
}

/// An accepted volume that could not be made has a message for its project.
#[tokio::test(flavor = "multi_thread")]
async fn messages() {
    let rig = Rig::new(0).await;
    rig.storage.state().knobs.fail_volumes = true;
    let id = volumes(&rig.service, &[(None, 1, &[])]).await.remove(0);
    rig.until_volume(id.parse().unwrap(), mooring_controller::domain::VolumeStatus::Error).await;
    let api = Api::on(&rig.service);
    // Only operators see which node and pool it was, and why.
    let text = "create volume: a storage node could not make it (attempt 1 of 3): there is no other one";
    let list = api.get(&format!("/messages?resource_uuid={id}")).await;
    let message = &list.body["messages"][0];
    for (key, value) in [
        ("event_id", json!("VOLUME_VOLUME_008_001")),
        ("message_level", json!("ERROR")),
        ("resource_type", json!("VOLUME")),
        ("resource_uuid", json!(id)),
        ("user_message", json!(text)),
    ] {
        assert_eq!(message[key], value, "{key}");
    }
    assert_eq!(list.body["messages"].as_array().unwrap().len(), 1);
    let path = format!("/messages/{}", message["id"].as_str().unwrap());
    assert_eq!(api.get(&path).await.body["message"], *message);
    assert_eq!(api.get("/messages?message_level=INFO").await.body, json!({ "messages": [] }));
    assert_eq!(api.v3("3.2", "GET", "/messages", None).await.status, 404);
    // Before 3.5 messages have no filters: an admin's are applied all the same.
    for (query, count) in [("", 1), ("?message_level=INFO", 0), ("?all_tenants=1&project_id=nosuch", 0)] {
        let old = listed(&api, "3.4", &format!("/messages{query}"), "messages", "id").await;
        assert_eq!(old.len(), count, "{query}");
    }
    let gone = api.delete(&path).await;
    assert_eq!((gone.status.as_u16(), gone.body), (204, Value::Null));
    assert_eq!(api.get(&path).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attach_leaves_a_message() {
    let rig = Rig::new(0).await;
    let ids = volumes(&rig.service, &[(None, 1, &[])]).await;
    let id = ids[0].parse().unwrap();
    rig.until_volume(id, mooring_controller::domain::VolumeStatus::Available).await;
    let why = tonic::Status::failed_precondition("no portal");
    rig.storage.state().knobs.refuse_export = Some(why);
    let api = Api::on(&rig.service);
    let body = json!({ "attachment": { "volume_uuid": ids[0], "connector": crate::support::connector(1) } });
    assert_eq!(api.post("/attachments", body).await.status, 400);
    let list = api.get("/messages?event_id=VOLUME_VOLUME_002_001").await;
    let text = list.body["messages"][0]["user_message"].as_str().unwrap();
    assert!(text.starts_with("attach volume: attachment ") && text.contains("no portal"), "{text}");
    assert_eq!(list.body["messages"].as_array().unwrap().len(), 1);
}
