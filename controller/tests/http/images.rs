//! `POST /mooring/v1/volumes`: what is asked for, and what is wrong with it.

use mooring_model::ImageFormat;
use serde_json::{Value, json};

use crate::client::Api;

fn body(image: &Value) -> Value {
    json!({ "volume": { "name": "n", "size": 3, "image": image } })
}

#[tokio::test]
async fn an_image_becomes_a_volume() {
    let api = Api::new();
    let image = json!({ "host": "storage1", "name": "debian-12.qcow2", "format": "qcow2" });
    let answer = api.call("POST", "/mooring/v1/volumes").json(&body(&image)).send().await;
    assert_eq!((answer.status.as_u16(), &answer.body["volume"]["name"]), (202, &json!("n")));
    let asked = api.fake.state().hints.image.clone().unwrap();
    assert_eq!((asked.host.as_str(), asked.image.name.as_str()), ("storage1", "debian-12.qcow2"));
    assert_eq!(asked.image.format, ImageFormat::Qcow2);
}

#[tokio::test]
async fn nothing_is_guessed_and_no_path_is_a_name() {
    let api = Api::new();
    let image =
        |host: &str, name: &str, format: &str| json!({ "host": host, "name": name, "format": format });
    for (wrong, why) in [
        (json!({ "volume": { "name": "n", "image": image("h", "a", "raw") } }), "size"),
        (json!({ "volume": { "name": "n", "size": 1 } }), "image"),
        (body(&json!({ "host": "h", "name": "a" })), "format"),
        (body(&json!({ "host": "h", "format": "raw" })), "name"),
        (body(&json!({ "name": "a", "format": "raw" })), "host"),
        (body(&image("h", "a", "auto")), "want raw or qcow2"),
        (body(&image("h", "../../etc/shadow", "raw")), "no path"),
        (body(&image("h", "/dev/sda", "raw")), "no path"),
        (body(&image("h", ".hidden", "raw")), "no path"),
        (body(&image("h", "", "raw")), "name"),
        (body(&json!({ "host": "h", "name": "a", "format": "raw", "backing": "x" })), "backing"),
        (
            json!({ "volume": { "size": 1, "image": image("h", "a", "raw"), "snapshot_id": null } }),
            "snapshot_id",
        ),
        (json!({ "volume": { "size": 0, "image": image("h", "a", "raw") } }), "size"),
    ] {
        let answer = api.call("POST", "/mooring/v1/volumes").json(&wrong).send().await;
        let said = answer.body.to_string();
        assert!(answer.status == 400 && said.contains(why), "{wrong}: {} {said}", answer.status);
    }
    assert_eq!(api.fake.state().hints.image, None);
}
