//! Authentication: who may call, and what each caller may see.

use mooring_controller::auth::{Auth, NewToken, Tokens};
use serde_json::json;

use crate::client::{Api, PROJECT, words};
use crate::support::log::Log;

const OTHER: &str = "fedcba9876543210fedcba9876543210";

struct Site {
    api: Api,
    admin: String,
    member: String,
    other: String,
}

fn site() -> Site {
    let make = |name: &str, project: &str, role: &str| NewToken::make(name, project, None, &[role]).unwrap();
    let (admin, member, other) =
        (make("admin", PROJECT, "admin"), make("member", PROJECT, "member"), make("other", OTHER, "member"));
    let file = [&admin, &member, &other].map(|new| new.block.as_str()).join("\n");
    let api =
        Api::with(Auth::Tokens(Tokens::parse(&file, "tokens").unwrap()), Some("https://proxy.example/block"));
    Site { api, admin: admin.token, member: member.token, other: other.token }
}

#[tokio::test]
async fn nothing_but_the_versions_without_a_token() {
    let site = site();
    for path in ["/", "/v3", "/v3/"] {
        assert!(site.api.call("GET", path).send().await.status.as_u16() < 400, "{path}");
    }
    let volumes = format!("/v3/{PROJECT}/volumes");
    for path in
        [volumes.as_str(), "/v3/volumes", "/v3/snapshots", "/v3/nosuch", "/mooring/v1/hosts", "/mooring/v1/x"]
    {
        let answer = site.api.call("GET", path).send().await;
        let text = "The request you have made requires authentication: send a token as X-Auth-Token or as Authorization: Bearer.";
        answer.is_fault(401, "unauthorized", text);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"mooring\""), "{path}");
        let wrong = site.api.call("GET", path).header("x-auth-token", "0".repeat(64)).send().await;
        wrong.is_fault(401, "unauthorized", "The token is not known.");
        let bytes = site.api.call("GET", path).header("x-auth-token", [0xff, 0xfe]).send().await;
        assert_eq!(bytes.status, 401);
    }
    assert!(site.api.fake.state().caller.is_none(), "nobody got through");
}

#[tokio::test]
async fn both_headers_and_who_it_is() {
    let site = site();
    let bearer = format!("Bearer {}", site.member);
    for (name, value) in [("x-auth-token", site.member.as_str()), ("authorization", &bearer)] {
        let answer = site.api.call("GET", "/v3/volumes").header(name, value).send().await;
        assert_eq!(answer.status, 200);
        let caller = site.api.fake.state().caller.take().unwrap();
        assert_eq!((caller.project.as_str(), caller.user.as_str(), caller.admin), (PROJECT, "member", false));
        assert_eq!(answer.header("x-openstack-request-id"), Some(caller.request.as_str()));
    }
}

#[tokio::test]
async fn another_projects_things() {
    let site = site();
    let path = format!("/v3/{PROJECT}/volumes");
    let body = json!({ "volume": { "size": 1 } });
    let made = site.api.call("POST", &path).header("x-auth-token", &site.member).json(&body).send().await;
    let id = made.body["volume"]["id"].as_str().unwrap();
    let href = &made.body["volume"]["links"][0]["href"];
    assert_eq!(href, &json!(format!("https://proxy.example/block/v3/{PROJECT}/volumes/{id}")));
    let malformed = site.api.call("GET", &path).header("x-auth-token", &site.other).send().await;
    malformed.is_fault(400, "badRequest", "Malformed request url");
    let unseen = site.api.call("GET", &format!("/v3/volumes/{id}")).header("x-auth-token", &site.other);
    unseen.send().await.is_fault(404, "itemNotFound", &format!("Volume {id} could not be found."));
    // all_tenants is for admins. For others it is no error, and adds nothing.
    for (token, seen) in [(&site.other, 0), (&site.member, 1), (&site.admin, 1)] {
        let list =
            site.api.call("GET", "/v3/volumes?all_tenants=1").header("x-auth-token", token).send().await;
        assert_eq!(list.body["volumes"].as_array().unwrap().len(), seen);
    }
}

#[tokio::test]
async fn what_only_admins_see() {
    let site = site();
    let kind = json!({ "volume_type": {
        "name": "t", "extra_specs": { "multiattach": "<is> True", "secret-pool": "vg7" },
    } });
    let refused =
        site.api.call("POST", "/v3/types").header("x-auth-token", &site.member).json(&kind).send().await;
    assert_eq!(refused.status, 403);
    let made =
        site.api.call("POST", "/v3/types").header("x-auth-token", &site.admin).json(&kind).send().await;
    let id = made.body["volume_type"]["id"].as_str().unwrap();
    let path = format!("/v3/types/{id}");
    let get = async |token: &str, path: &str| {
        site.api.call("GET", path).header("x-auth-token", token).version("latest").send().await
    };
    let shown = get(&site.member, &path).await;
    assert_eq!(
        shown.keys("volume_type"),
        words("id name is_public description extra_specs os-volume-type-access:is_public")
    );
    assert_eq!(shown.body["volume_type"]["extra_specs"], json!({ "multiattach": "<is> True" }));
    assert_eq!(get(&site.member, &format!("{path}/extra_specs/secret-pool")).await.status, 404);
    assert_eq!(get(&site.admin, &format!("{path}/extra_specs/secret-pool")).await.status, 200);
    // A filter must not reveal what a view hides.
    let filter = "/v3/types?extra_specs=%7B'secret-pool':'vg7'%7D";
    assert_eq!(get(&site.member, filter).await.body["volume_types"], json!([]));

    let body = json!({ "volume": { "size": 1 } });
    let made =
        site.api.call("POST", "/v3/volumes").header("x-auth-token", &site.member).json(&body).send().await;
    let path = format!("/v3/volumes/{}", made.body["volume"]["id"].as_str().unwrap());
    let (member, admin) = (get(&site.member, &path).await, get(&site.admin, &path).await);
    let hidden: Vec<_> =
        admin.keys("volume").into_iter().filter(|key| !member.keys("volume").contains(key)).collect();
    assert_eq!(
        hidden,
        words(
            "cluster_name migration_status provider_id os-vol-host-attr:host os-vol-mig-status-attr:migstat \
             os-vol-mig-status-attr:name_id"
        )
    );
}

#[tokio::test]
async fn without_authentication() {
    let api = Api::new();
    let path = format!("/v3/{PROJECT}/volumes");
    assert_eq!(api.call("GET", &path).send().await.status, 200);
    let caller = api.fake.state().caller.take().unwrap();
    assert_eq!((caller.project.as_str(), caller.user.as_str(), caller.admin), (PROJECT, "admin", true));
    let said = api.call("GET", "/v3/volumes").header("x-auth-token", format!("eve:{OTHER}")).send().await;
    assert_eq!(said.status, 200);
    let caller = api.fake.state().caller.take().unwrap();
    assert_eq!((caller.project.as_str(), caller.user.as_str()), (OTHER, "eve"));
    // A web page whose own name was pointed at this machine, also a name that is too long or too
    // odd.
    let long = format!("{}:8776", vec!["a".repeat(63); 4].join("."));
    for name in ["evil.example:8776", &long, "evil~.example:8776"] {
        let request = axum::http::Request::get("/v3/volumes").header("host", name);
        let request = request.body(axum::body::Body::empty()).unwrap();
        let answer = tower::ServiceExt::oneshot(api.router(), request).await.unwrap();
        assert_eq!(answer.status(), 403, "{name}");
        assert!(api.fake.state().caller.is_none());
    }
}

/// The log has each refused caller by default: without a token, with too few rights, or with too
/// much data. The line is short, and has no token.
#[tokio::test]
async fn refusals_are_logged() {
    let (site, log) = (site(), Log::default());
    let writer = log.clone();
    let to_log = tracing_subscriber::fmt()
        .with_env_filter("info")
        .with_ansi(false)
        .with_writer(move || writer.clone());
    // Set for this thread only, on which the whole test runs.
    let _guard = tracing::subscriber::set_default(to_log.finish());
    let said = || String::from_utf8(std::mem::take(&mut *log.0.lock().unwrap())).unwrap();
    let long = format!("/v3/volumes/{}", "a".repeat(10_000));
    let wrong = "swordfish".repeat(4);
    site.api.call("GET", &long).header("x-auth-token", &wrong).send().await;
    let line = said();
    assert!(
        line.contains("refused") && line.contains("code=401") && line.contains("path=\"/v3/volumes/aaa"),
        "{line}"
    );
    assert!(!line.contains("swordfish") && line.len() < 1_000, "{line}");
    for (method, path, body, code) in [
        ("POST", "/v3/types", json!({ "volume_type": { "name": "t" } }).to_string(), 403),
        ("POST", "/v3/volumes", " ".repeat(200_000), 413),
    ] {
        let call = site.api.call(method, path).header("x-auth-token", &site.member);
        assert_eq!(call.raw("application/json", body).send().await.status, code);
        let line = said();
        assert!(line.contains("refused") && line.contains(&format!("code={code}")), "{line}");
        assert!(!line.contains(&site.member), "{line}");
    }
    // An answered call is not logged.
    assert_eq!(
        site.api.call("GET", "/v3/volumes").header("x-auth-token", &site.member).send().await.status,
        200
    );
    assert_eq!(said(), "");
}
