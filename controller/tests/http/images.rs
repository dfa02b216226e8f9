//! `POST /mooring/v1/volumes`, and exports of volumes: requests, and their errors.

use mooring_controller::domain::ExportAsk;
use mooring_model::{ImageFormat, UploadId};
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

#[tokio::test]
async fn a_volume_becomes_an_image() {
    let api = Api::new();
    let id = api.volume("data").await;
    let path = format!("/mooring/v1/volumes/{id}/export");
    let none = api.call("GET", &path).send().await;
    assert_eq!(none.status, 404, "{}", none.body);
    let asked = json!({ "export": { "image": { "name": "new.qcow2", "format": "qcow2" } } });
    let answer = api.call("POST", &path).json(&asked).send().await;
    assert_eq!((answer.status.as_u16(), &answer.body["export"]["status"]), (202, &json!("exporting")));
    assert_eq!(answer.body["export"]["image"], asked["export"]["image"]);
    let mut again = asked.clone();
    again["export"]["id"] = json!("0a0a0a0a-0000-4000-8000-000000000001");
    let answer = api.call("POST", &path).json(&again).send().await;
    assert_eq!(answer.body["export"]["id"], again["export"]["id"]);
    let answer = api.call("DELETE", &path).send().await;
    assert_eq!((answer.status.as_u16(), &answer.body["export"]["status"]), (202, &json!("ending")));
    let image = mooring_model::ImageSource { name: "new.qcow2".parse().unwrap(), format: ImageFormat::Qcow2 };
    let given: UploadId = "0a0a0a0a-0000-4000-8000-000000000001".parse().unwrap();
    let begin = |id| ExportAsk::Begin { id, image: image.clone() };
    let expected = [ExportAsk::Look, begin(None), begin(Some(given)), ExportAsk::Cancel];
    assert_eq!(api.fake.state().exports, expected);
    let image =
        |name: &str, format: &str| json!({ "export": { "image": { "name": name, "format": format } } });
    for (wrong, why) in [
        (json!({ "export": {} }), "image"),
        (json!({ "export": { "image": { "name": "a" } } }), "format"),
        (json!({ "export": { "image": { "format": "raw" } } }), "name"),
        (image("a", "vmdk"), "want raw or qcow2"),
        (image("../a", "raw"), "no path"),
        (image("/dev/sda", "raw"), "no path"),
        (image(".mooring-a.part", "raw"), "no path"),
        (json!({ "export": { "image": { "name": "a", "format": "raw", "host": "h" } } }), "host"),
        (json!({ "export": { "image": { "name": "a", "format": "raw" }, "force": true } }), "force"),
        (json!({ "export": { "image": { "name": "a", "format": "raw" }, "id": "x" } }), "id"),
    ] {
        let answer = api.call("POST", &path).json(&wrong).send().await;
        let said = answer.body.to_string();
        assert!(answer.status == 400 && said.contains(why), "{wrong}: {} {said}", answer.status);
    }
    assert_eq!(api.fake.state().exports.len(), 4);
}
