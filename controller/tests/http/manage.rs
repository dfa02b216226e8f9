//! `/manageable_volumes`, `/os-volume-manage` and `os-unmanage`: codes, bodies, order and pages.

use mooring_controller::domain::{LvReference, ManageableVolume};
use mooring_controller::service::Refusal;
use mooring_model::VolumeId;
use serde_json::{Value, json};

use crate::client::{Api, DEAD};

const HOST: &str = "storage1@lvm%23vg0";

fn lv(name: &str, gib: u64) -> ManageableVolume {
    ManageableVolume {
        group: "vg0".to_owned(),
        name: name.to_owned(),
        uuid: format!("uuid-{name}"),
        bytes: gib << 30,
        thin: false,
        volume: None,
        unsafe_because: None,
    }
}

fn api() -> Api {
    let api = Api::new();
    let ours = ManageableVolume {
        volume: Some(VolumeId::from_u128(7)),
        unsafe_because: Some("it is a volume already".to_owned()),
        thin: true,
        ..lv("c", 3)
    };
    api.fake.state().lvs = vec![lv("a", 2), ManageableVolume { bytes: 5, ..lv("b", 0) }, ours];
    api
}

fn names(body: &Value) -> Vec<&str> {
    let all = body["manageable-volumes"].as_array().unwrap().iter();
    all.map(|one| one["reference"]["source-name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn lvs_are_listed_as_cinder_does() {
    let api = api();
    for collection in ["manageable_volumes", "os-volume-manage"] {
        let plain =
            api.v3("3.8", "GET", &format!("/{collection}?host={HOST}&sort=reference:asc"), None).await;
        let first = json!({ "reference": { "source-name": "vg0/a" }, "size": 2, "safe_to_manage": true });
        assert_eq!((plain.status.as_u16(), &plain.body["manageable-volumes"][0]), (200, &first));
        assert_eq!(plain.body["manageable-volumes"][1]["size"], 1, "rounded up");
        let full = api.v3("3.8", "GET", &format!("/{collection}/detail?host={HOST}"), None).await;
        let last = json!({
            "reference": { "source-name": "vg0/c" }, "size": 3, "safe_to_manage": false,
            "reason_not_safe": "it is a volume already", "cinder_id": VolumeId::from_u128(7),
            "extra_info": { "provisioning": "thin", "source-id": "uuid-c" },
        });
        assert_eq!(full.body["manageable-volumes"][0], last, "the last reference comes first");
        assert_eq!(full.body["manageable-volumes"][2]["reason_not_safe"], json!(null));
        assert_eq!(api.v3("3.7", "GET", &format!("/{collection}?host={HOST}"), None).await.status, 404);
    }
}

#[tokio::test]
async fn lists_are_sorted_and_paged() {
    let api = api();
    let list = async |query: &str| {
        api.v3("3.8", "GET", &format!("/manageable_volumes?host={HOST}{query}"), None).await
    };
    assert_eq!(names(&list("&sort=size:asc").await.body), ["vg0/b", "vg0/a", "vg0/c"]);
    assert_eq!(names(&list("&sort_key=size&sort_dir=desc&limit=2").await.body), ["vg0/c", "vg0/a"]);
    assert_eq!(names(&list("&sort_dir=asc&offset=1").await.body), ["vg0/b", "vg0/c"]);
    for marker in ["vg0/b", "%7B%27source-name%27:%20%27vg0/b%27%7D"] {
        assert_eq!(names(&list(&format!("&marker={marker}")).await.body), ["vg0/a"], "{marker}");
    }
    for wrong in ["&marker=nosuch", "&sort=name", "&sort_key=name", "&sort_dir=up", "&limit=-1"] {
        assert_eq!(list(wrong).await.status, 400, "{wrong}");
    }
    let unknown = api.v3("3.8", "GET", "/manageable_volumes?host=nosuch@lvm", None).await;
    unknown.is_fault(404, "itemNotFound", "Service nosuch@lvm could not be found.");
    for query in ["", "?host=", &format!("?host={HOST}&cluster=c")] {
        let answer = api.v3("3.17", "GET", &format!("/manageable_volumes{query}"), None).await;
        answer.is_fault(
            400,
            "badRequest",
            "Invalid input received: One and only one of cluster and host must be set.",
        );
    }
    assert_eq!(api.v3("3.17", "GET", "/manageable_volumes?cluster=c", None).await.status, 404);
}

#[tokio::test]
async fn a_list_of_lvs_drops_no_key() {
    let api = api();
    for collection in ["manageable_volumes", "manageable_volumes/detail"] {
        let ask = async |version: &str, query: &str| {
            api.v3(version, "GET", &format!("/{collection}?host={HOST}{query}"), None).await
        };
        assert_eq!(names(&ask("3.31", "&limit=1000").await.body).len(), 3, "the control");
        assert!(names(&ask("3.30", "&size=2").await.body).is_empty());
        let text = "Invalid filters size are found in query options.";
        ask("3.31", "&size=2").await.is_fault(400, "badRequest", text);
    }
}

#[tokio::test]
async fn an_lv_becomes_a_volume() {
    let api = api();
    let body = |reference: Value| {
        json!({ "volume": {
            "host": "storage1@lvm#vg0", "ref": reference, "name": "n", "description": null, "volume_type": null,
            "availability_zone": null, "metadata": { "k": "v" }, "bootable": true,
        } })
    };
    for (reference, meant) in [
        (json!({ "source-name": "vg0/a" }), LvReference::Name("vg0/a".to_owned())),
        (json!({ "source-id": "uuid-a" }), LvReference::Uuid("uuid-a".to_owned())),
        (json!("a"), LvReference::Name("a".to_owned())),
    ] {
        let answer = api.v3("3.8", "POST", "/manageable_volumes", Some(body(reference.clone()))).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.body["volume"]["name"]),
            (202, &json!("n")),
            "{reference}"
        );
        let managed = api.fake.state().managed.clone().unwrap();
        assert_eq!(
            (managed.reference, managed.host.as_str(), managed.bootable),
            (meant, "storage1@lvm#vg0", true)
        );
    }
    // The older path knows no version.
    let older = api.v3("3.0", "POST", "/os-volume-manage", Some(body(json!({ "source-name": "a" })))).await;
    assert_eq!(older.status, 202);
    let early = api.v3("3.7", "POST", "/manageable_volumes", Some(body(json!("a")))).await;
    assert_eq!(early.status, 404);
    for wrong in [
        json!({}),
        json!({ "volume": {} }),
        json!({ "volume": { "host": "storage1@lvm" } }),
        json!({ "volume": { "ref": { "source-name": "a" } } }),
        json!({ "volume": { "host": "h@lvm", "ref": 1 } }),
        json!({ "volume": { "host": "h@lvm", "ref": {} } }),
        json!({ "volume": { "host": "h@lvm", "ref": { "source-name": 1 } } }),
        json!({ "volume": { "host": "h@lvm", "ref": "a", "size": 1 } }),
        json!({ "volume": { "host": "h@lvm", "ref": "a", "cluster": null } }),
    ] {
        let answer = api.v3("3.8", "POST", "/manageable_volumes", Some(wrong.clone())).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
    api.fake.state().refuse = Some(Refusal::Invalid("in use".to_owned()));
    let refused = api.v3("3.8", "POST", "/manageable_volumes", Some(body(json!("a")))).await;
    refused.is_fault(400, "badRequest", "in use");
}

#[tokio::test]
async fn a_volume_is_let_go() {
    let api = api();
    for body in [json!(null), json!({})] {
        let volume = api.volume("v").await;
        let answer = api.post(&format!("/volumes/{volume}/action"), json!({ "os-unmanage": body })).await;
        assert_eq!((answer.status.as_u16(), answer.body), (202, json!(null)));
    }
    let unknown = api.post(&format!("/volumes/{DEAD}/action"), json!({ "os-unmanage": null })).await;
    unknown.is_fault(404, "itemNotFound", &format!("Volume {DEAD} could not be found."));
}
