//! Version documents, microversions, unknown addresses.

use serde_json::json;

use crate::client::{Api, DEAD, PROJECT};

#[tokio::test]
async fn the_documents() {
    let api = Api::new();
    for (path, status) in [("/", 300), ("/v3", 200), ("/v3/", 200)] {
        let answer = api.call("GET", path).send().await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(
            answer.body,
            json!({ "versions": [{
                "id": "v3.0",
                "status": "CURRENT",
                "version": "3.69",
                "min_version": "3.0",
                "updated": "2026-11-21T00:00:00Z",
                "links": [
                    { "rel": "describedby", "type": "text/html", "href": "https://docs.openstack.org/" },
                    { "rel": "self", "href": "http://localhost:8776/v3/" },
                ],
                "media-types": [{
                    "base": "application/json",
                    "type": "application/vnd.openstack.volume+json;version=3",
                }],
            }] })
        );
        assert_eq!(answer.header("openstack-api-version"), Some("volume 3.0"));
        assert_eq!(answer.header("vary"), Some("OpenStack-API-Version"));
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    let at = api.call("GET", "/").version("3.60").send().await;
    assert_eq!((at.status.as_u16(), at.header("openstack-api-version")), (300, Some("volume 3.60")));
}

#[tokio::test]
async fn microversions() {
    const MALFORMED: &str =
        "The server could not comply with the request since it is either malformed or otherwise incorrect.";
    let unsupported = |asked: &str| {
        format!("Version {asked} is not supported by the API. Minimum is 3.0 and maximum is 3.69.")
    };
    let invalid = |asked: &str| {
        format!("API Version String {asked} is of invalid format. Must be of format MajorNum.MinorNum.")
    };
    let api = Api::new();
    let path = format!("/v3/{PROJECT}/types?limit=1");
    for (header, status, echo, text) in [
        (None, 200, Some("volume 3.0"), None),
        (Some("volume 3.0"), 200, Some("volume 3.0"), None),
        (Some("volume 3.69"), 200, Some("volume 3.69"), None),
        (Some("volume latest"), 200, Some("volume 3.69"), None),
        (Some("compute 2.1,volume 3.27"), 200, Some("volume 3.27"), None),
        (Some("compute 2.1 , volume 3.27"), 200, Some("volume 3.27"), None),
        (Some("volume 3.999"), 406, Some("volume 3.999"), Some(unsupported("3.999"))),
        (Some("volume 3.70"), 406, Some("volume 3.70"), Some(unsupported("3.70"))),
        (Some("volume 4.0"), 406, Some("volume 4.0"), Some(unsupported("4.0"))),
        (Some("volume 2.0"), 406, None, Some(unsupported("2.0"))),
        (Some("volume 3"), 400, None, Some(invalid("3"))),
        (Some("volume abc"), 400, None, Some(invalid("abc"))),
        (Some("volume 3.01"), 400, None, Some(invalid("3.01"))),
        (Some("volume -3.1"), 400, None, Some(invalid("-3.1"))),
        (Some("volume 3.\u{b2}"), 400, None, Some(MALFORMED.to_owned())),
        (Some("compute 2.1"), 400, None, Some(MALFORMED.to_owned())),
        (Some("3.27"), 400, None, Some(MALFORMED.to_owned())),
        (Some(""), 400, None, Some(MALFORMED.to_owned())),
    ] {
        let mut call = api.call("GET", &path);
        if let Some(header) = header {
            call = call.header("OpenStack-API-Version", header);
        }
        let answer = call.send().await;
        assert_eq!(answer.status, status, "{header:?}");
        assert_eq!(answer.header("openstack-api-version"), echo, "{header:?}");
        assert_eq!(answer.header("vary"), echo.map(|_| "OpenStack-API-Version"), "{header:?}");
        if let Some(text) = text {
            answer.is_fault(status, if status == 406 { "computeFault" } else { "badRequest" }, &text);
        }
    }
}

/// Advertised versions are true: a method is 404 before its version, and there from it on.
#[tokio::test]
async fn methods_begin_with_their_version() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let id = api.reserved(&volume).await;
    let connector = json!({ "attachment": { "connector": { "initiator": "iqn.2026-01.org.example:a" } } });
    let new = json!({ "attachment": { "volume_uuid": DEAD } });
    let complete = json!({ "os-complete": null });
    for (before, from, method, path, body) in [
        ("3.26", "3.27", "GET", "/attachments".to_owned(), None),
        ("3.26", "3.27", "GET", "/attachments/detail".to_owned(), None),
        ("3.26", "3.27", "GET", format!("/attachments/{id}"), None),
        ("3.26", "3.27", "POST", "/attachments".to_owned(), Some(new)),
        ("3.26", "3.27", "PUT", format!("/attachments/{id}"), Some(connector)),
        ("3.43", "3.44", "POST", format!("/attachments/{id}/action"), Some(complete)),
        ("3.26", "3.27", "DELETE", format!("/attachments/{id}"), None),
    ] {
        let early = api.v3(before, method, &path, body.clone()).await;
        early.is_fault(404, "itemNotFound", "The resource could not be found.");
        assert_eq!(early.header("openstack-api-version"), Some(format!("volume {before}").as_str()));
        let answer = api.v3(from, method, &path, body).await;
        assert_ne!(answer.body["itemNotFound"]["message"], "The resource could not be found.", "{path}");
    }
}

#[tokio::test]
async fn unknown_addresses() {
    let api = Api::new();
    let below = |path: &str| format!("/v3/{PROJECT}{path}");
    for (method, path) in [
        ("GET", below("/nosuch")),
        ("POST", below("/nosuch")),
        ("PATCH", below("/volumes")),
        ("PUT", below("/volumes")),
        ("DELETE", below("/volumes")),
        ("POST", below(&format!("/volumes/{DEAD}"))),
        ("GET", below(&format!("/volumes/{DEAD}/action"))),
        ("GET", "/v3/p%2Fq/volumes".to_owned()),
        ("GET", "/v3/a.b/volumes".to_owned()),
        ("GET", "/nosuch".to_owned()),
        ("GET", "/v2/".to_owned()),
        ("POST", "/".to_owned()),
        ("GET", "/mooring/v2/hosts".to_owned()),
    ] {
        let answer = api.call(method, &path).version("3.60").send().await;
        assert_eq!(answer.status, 404, "{method} {path}");
        let text = "The resource could not be found.<br /><br />\n\n\n";
        assert_eq!(
            answer.body,
            json!({ "message": text, "code": "404 Not Found", "title": "Not Found" }),
            "{method} {path}"
        );
        assert_eq!(answer.header("openstack-api-version"), None, "{method} {path}");
    }
    let listed = api.call("GET", &below("/volumes.json")).header("accept", "application/xml").send().await;
    assert_eq!((listed.status.as_u16(), listed.body), (200, json!({ "volumes": [] })));
}

/// A feature of Cinder that Mooring lacks is answered as such, not as a wrong address.
#[tokio::test]
async fn later_features_say_so() {
    let api = Api::new();
    let volume = api.volume("v").await;
    for (method, path) in [
        ("POST", "/backups".to_owned()),
        ("POST", "/qos-specs".to_owned()),
        ("GET", format!("/types/{DEAD}/encryption")),
    ] {
        let answer = api.v3("3.60", method, &path, None).await;
        assert_eq!(answer.status, 501, "{method} {path}");
        let text = answer.body["notImplemented"]["message"].as_str().unwrap();
        assert!(text.starts_with("Mooring does not implement "), "{text}");
        assert_eq!(answer.header("openstack-api-version"), Some("volume 3.60"));
    }
    for action in ["os-migrate_volume", "os-volume_upload_image", "os-reimage"] {
        let known = api.post(&format!("/volumes/{volume}/action"), json!({ action: {} })).await;
        known.is_fault(
            501,
            "notImplemented",
            &format!("Mooring does not implement the action {action} yet."),
        );
        let unknown = api.post(&format!("/volumes/{DEAD}/action"), json!({ action: {} })).await;
        unknown.is_fault(404, "itemNotFound", &format!("Volume {DEAD} could not be found."));
    }
    let wrong = api.post(&format!("/volumes/{volume}/action"), json!({ "os-nosuch": {} })).await;
    wrong.is_fault(400, "badRequest", "There is no such action: os-nosuch");
}

#[tokio::test]
async fn addresses_without_a_project_mean_the_same() {
    let api = Api::new();
    let volume = api.call("POST", "/v3/volumes").header("x-auth-token", format!("eve:{PROJECT}"));
    let made = volume.json(&json!({ "volume": { "size": 1 } })).send().await;
    assert_eq!(made.status, 202);
    let id = made.body["volume"]["id"].as_str().unwrap();
    assert_eq!(api.get(&format!("/volumes/{id}")).await.body["volume"]["user_id"], "eve");
    let href = &made.body["volume"]["links"][0]["href"];
    assert_eq!(href, &json!(format!("http://localhost:8776/v3/{PROJECT}/volumes/{id}")));
    let other = api.call("GET", &format!("/v3/{PROJECT}/volumes")).header("x-auth-token", "eve:abc");
    other.send().await.is_fault(400, "badRequest", "Malformed request url");
}
