//! Types and extra specs, as recorded.

use serde_json::json;

use crate::client::{Api, DEAD, words};

const SHOWN: &str = "id name is_public description extra_specs qos_specs_id os-volume-type-access:is_public";

#[tokio::test]
async fn from_create_to_delete() {
    let api = Api::new();
    let made = api.post("/types", json!({ "volume_type": { "name": "t", "description": "d" } })).await;
    assert_eq!(made.status, 200);
    assert_eq!(made.keys("volume_type"), words(&SHOWN.replace("qos_specs_id", "")));
    let id = made.body["volume_type"]["id"].as_str().unwrap().to_owned();
    let path = format!("/types/{id}");

    let again = api.post("/types", json!({ "volume_type": { "name": "t" } })).await;
    again.is_fault(409, "conflictingRequest", "Volume Type t already exists.");
    let shown = api.get(&path).await;
    assert_eq!((shown.status.as_u16(), shown.keys("volume_type")), (200, words(SHOWN)));
    assert_eq!(shown.body["volume_type"]["os-volume-type-access:is_public"], true);
    api.get("/types/t").await.is_fault(404, "itemNotFound", "Volume type t could not be found.");

    let updated = api.put(&path, json!({ "volume_type": { "description": "e", "is_public": false } })).await;
    assert_eq!(updated.status, 200);
    assert_eq!(updated.keys("volume_type"), words("id name is_public extra_specs description"));
    assert_eq!(updated.body["volume_type"]["is_public"], false);
    assert_eq!(updated.body["volume_type"]["description"], "e");
    let nothing = "Specify volume type name, description, is_public or a combination thereof.";
    api.put(&path, json!({ "volume_type": {} })).await.is_fault(400, "badRequest", nothing);
    let empty = "Invalid input for field/attribute name. Value: . '' should be non-empty";
    api.put(&path, json!({ "volume_type": { "name": "" } })).await.is_fault(400, "badRequest", empty);

    let gone = api.delete(&path).await;
    assert_eq!((gone.status.as_u16(), gone.body), (202, json!(null)));
    let text = format!("Volume type {id} could not be found.");
    api.get(&path).await.is_fault(404, "itemNotFound", &text);
    api.delete(&path).await.is_fault(404, "itemNotFound", &text);

    let default = api.get("/types/default").await;
    let keys = words("id name is_public description extra_specs qos_specs_id");
    assert_eq!((default.status.as_u16(), default.keys("volume_type")), (200, keys));
}

#[tokio::test]
async fn extra_specs() {
    let api = Api::new();
    let made = api.post("/types", json!({ "volume_type": { "name": "t" } })).await;
    let id = made.body["volume_type"]["id"].as_str().unwrap().to_owned();
    let specs = format!("/types/{id}/extra_specs");
    let key = format!("{specs}/multiattach");

    let wanted = json!({ "extra_specs": { "multiattach": "<is> True" } });
    for answer in [api.post(&specs, wanted.clone()).await, api.get(&specs).await] {
        assert_eq!((answer.status.as_u16(), &answer.body), (200, &wanted));
    }
    assert_eq!(api.get(&key).await.body, json!({ "multiattach": "<is> True" }));
    let missing = format!("Volume Type {id} has no extra specs with key nosuch.");
    api.get(&format!("{specs}/nosuch")).await.is_fault(404, "itemNotFound", &missing);
    let put = api.put(&key, json!({ "multiattach": "<is> False" })).await;
    assert_eq!((put.status.as_u16(), put.body), (200, json!({ "multiattach": "<is> False" })));
    let mismatch = "Request body and URI mismatch";
    api.put(&key, json!({ "other": "x" })).await.is_fault(400, "badRequest", mismatch);
    let two = "{'b': 'c', 'multiattach': 'a'} has too many properties";
    api.put(&key, json!({ "multiattach": "a", "b": "c" })).await.is_fault(400, "badRequest", two);

    let long = "x".repeat(256);
    for (bad, text) in [
        (
            json!({ "bad/key": "v" }),
            "extra_specs. Value: {'bad/key': 'v'}. 'bad/key' does not match any of the regexes: \
             '^[a-zA-Z0-9-_:.]{1,255}$'"
                .to_owned(),
        ),
        (json!({ "k": 1 }), "k. Value: 1. 1 is not of type 'string', 'null'".to_owned()),
        (json!({ "k": long }), format!("k. Value: {long}. '{long}' is too long")),
    ] {
        let text = format!("Invalid input for field/attribute {text}");
        api.post(&specs, json!({ "extra_specs": bad })).await.is_fault(400, "badRequest", &text);
    }
    let nothing = api.post(&specs, json!({ "extra_specs": {} })).await;
    assert_eq!((nothing.status.as_u16(), nothing.body), (200, json!({ "extra_specs": {} })));

    assert_eq!(api.delete(&key).await.status, 202);
    let missing = format!("Volume Type {id} has no extra specs with key multiattach.");
    api.delete(&key).await.is_fault(404, "itemNotFound", &missing);
    let unknown = format!("Volume type {DEAD} could not be found.");
    api.get(&format!("/types/{DEAD}/extra_specs")).await.is_fault(404, "itemNotFound", &unknown);
    let set = api.post(&format!("/types/{DEAD}/extra_specs"), json!({ "extra_specs": { "a": "b" } })).await;
    set.is_fault(404, "itemNotFound", &unknown);
}

#[tokio::test]
async fn wrong_bodies() {
    let api = Api::new();
    let long = "x".repeat(256);
    let booleans = "[True, 'True', 'TRUE', 'true', '1', 'ON', 'On', 'on', 'YES', 'Yes', 'yes', 'y', 't', False, \
                    'False', 'FALSE', 'false', '0', 'OFF', 'Off', 'off', 'NO', 'No', 'no', 'n', 'f']";
    let field = |text: &str| format!("Invalid input for field/attribute {text}");
    for (body, text) in [
        (json!({}), "'volume_type' is a required property".to_owned()),
        (json!({ "type": { "name": "x" } }), "'volume_type' is a required property".to_owned()),
        (json!({ "volume_type": null }), field("volume_type. Value: None. None is not of type 'object'")),
        (json!({ "volume_type": {} }), field("volume_type. Value: {}. 'name' is a required property")),
        (json!({ "volume_type": { "name": "" } }), field("name. Value: . '' should be non-empty")),
        (
            json!({ "volume_type": { "name": " " } }),
            "An invalid 'name' value was provided. The 'name' can not be empty.".to_owned(),
        ),
        (
            json!({ "volume_type": { "name": long } }),
            field(&format!("name. Value: {long}. '{long}' is too long")),
        ),
        (json!({ "volume_type": { "name": 5 } }), field("name. Value: 5. 5 is not of type 'string'")),
        (
            json!({ "volume_type": { "name": "x", "description": long } }),
            field(&format!("description. Value: {long}. '{long}' is too long")),
        ),
        (
            json!({ "volume_type": { "name": "x", "os-volume-type-access:is_public": "maybe" } }),
            field(&format!(
                "os-volume-type-access:is_public. Value: maybe. 'maybe' is not one of {booleans}"
            )),
        ),
    ] {
        api.post("/types", body).await.is_fault(400, "badRequest", &text);
    }
    assert_eq!(api.fake.state().types.len(), 1, "nothing was made");
}
