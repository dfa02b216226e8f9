//! The audit log: each call that changes something has its line, refused or done, and no line has a
//! secret.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use mooring_controller::auth::{Auth, NewToken, Tokens};
use mooring_controller::http::{BODY_TIMEOUT, Options, router};
use mooring_controller::metrics::Metrics;
use serde_json::{Value, json};

use crate::client::{Answer, Api, DEAD, INSTANCE, PROJECT};
use crate::openapi::{filled, schema_named, writing};
use crate::support::Rig;
use crate::support::log::Log;

/// A text that stands wherever a body, a query or a header takes one.
const SENTINEL: &str = "swordfish-trout-salmon";

/// The tokens of an admin and of a caller without any useful role. Hashing them takes time: they
/// are made once.
static TOKENS: LazyLock<[NewToken; 2]> =
    LazyLock::new(|| ["admin", "guest"].map(|role| NewToken::make(role, PROJECT, None, &[role]).unwrap()));

fn auth() -> Auth {
    let [admin, guest] = &*TOKENS;
    let file = format!("{}\n{}", admin.block, guest.block);
    Auth::Tokens(Tokens::parse(&file, "tokens").unwrap())
}

/// A body in which every text is the sentinel, or a value that the schema demands in its place.
fn body_of(schema: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let content = json!({ "application/json": { "schema": { "$ref": reference } } });
        return body_of(schema_named(&content));
    }
    for several in ["anyOf", "oneOf", "allOf"] {
        if let Some(first) = schema[several].get(0) {
            return body_of(first);
        }
    }
    if let Some(one) = schema["enum"].get(0).or_else(|| schema.get("const")) {
        return one.clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str()).unwrap_or("object");
    match kind {
        "string" if schema["format"] == "uuid" => json!(DEAD),
        "string" => json!(SENTINEL),
        "integer" | "number" => json!(1),
        "boolean" => json!(true),
        "array" => json!([body_of(&schema["items"])]),
        _ => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let mut body: BTreeMap<_, _> = fields.map(|(key, inner)| (key.clone(), body_of(inner))).collect();
            if body.is_empty() {
                body.insert("k".to_owned(), json!(SENTINEL));
            }
            json!(body)
        }
    }
}

async fn ask(api: &Api, token: Option<&str>, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let mut call = api.call(method, path).version("latest").peer("192.0.2.7").header("x-extra", SENTINEL);
    if let Some(token) = token {
        call = call.header("x-auth-token", token);
    }
    match body {
        Some(body) => call.json(body).send().await,
        None => call.send().await,
    }
}

/// All lines, through the API, by the ids of their requests.
async fn lines(api: &Api, token: &str) -> BTreeMap<String, Value> {
    let (mut all, mut marker) = (BTreeMap::new(), String::new());
    loop {
        let path = format!("/mooring/v1/audit?limit=50{marker}");
        let answer = ask(api, Some(token), "GET", &path, None).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let page = answer.body["audit"].as_array().unwrap();
        let Some(last) = page.last() else { return all };
        marker = format!("&marker={}", last["seq"]);
        for line in page {
            let id = line["request_id"].as_str().unwrap().to_owned();
            assert!(all.insert(id, line.clone()).is_none(), "{line} is there twice");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_route_leaves_its_line_refused_or_done() {
    let rig = Rig::new(0).await;
    let api = Api::of(&rig.service, auth());
    let [admin, guest] = &*TOKENS;
    let callers = [None, Some(("guest", guest.token.as_str())), Some(("admin", admin.token.as_str()))];
    let mut asked = Vec::new();
    for (method, template, operation) in writing() {
        let content = &operation["requestBody"]["content"];
        let body = content.is_object().then(|| body_of(schema_named(content)));
        for caller in callers {
            let path = format!("{}?x={SENTINEL}", filled(template));
            let token = caller.map(|(_, token)| token);
            let answer = ask(&api, token, method.as_str(), &path, body.as_ref()).await;
            let request = answer.header("x-openstack-request-id").unwrap().to_owned();
            asked.push((request, caller.map(|(user, _)| user), method.clone(), operation, answer.status));
        }
    }
    assert!(asked.len() > 3 * 60);
    let lines = lines(&api, &admin.token).await;
    assert_eq!(lines.len(), asked.len(), "a line for each, and none for reads");
    let mut seen = BTreeMap::<u16, usize>::new();
    for (request, user, method, operation, status) in asked {
        let line = &lines[&request];
        let id = &operation["operationId"];
        // A joining agent has no identity yet; here none can join.
        let open = operation["x-mooring-open"].is_string() && id == "join";
        let user = user.filter(|_| !open);
        assert_eq!(
            (&line["operation"], &line["method"], &line["status"], &line["user_id"], &line["from"]),
            (id, &json!(method.as_str()), &json!(status.as_u16()), &json!(user), &json!("192.0.2.7")),
        );
        assert_eq!(line["problem"].is_null(), status.is_success(), "{line}");
        assert_eq!(user.is_none() && !open, status == 401, "{line}");
        let named = operation["parameters"].as_array().into_iter().flatten();
        let named = named.filter(|one| one["in"] == "path" && one["name"] != "project_id").count();
        assert!(line["objects"].as_array().unwrap().len() >= named, "{line}");
        *seen.entry(status.as_u16()).or_default() += 1;
    }
    assert!([200, 401, 403, 404].iter().all(|status| seen.contains_key(status)), "{seen:?}");
    let text = format!("{lines:?}");
    for secret in [SENTINEL, &admin.token, &guest.token] {
        assert!(!text.contains(secret), "a line repeats what a client sent");
    }
}

/// Bodies that are too large, of another kind, or no JSON; addresses and methods that do not exist.
#[tokio::test]
async fn what_no_handler_sees_has_a_line() {
    let api = Api::new();
    let path = format!("/v3/{PROJECT}/volumes");
    let large = "x".repeat(200_000);
    assert_eq!(api.call("POST", &path).raw("application/json", large).send().await.status, 413);
    assert_eq!(api.call("POST", &path).raw("text/plain", "x").send().await.status, 415);
    assert_eq!(api.call("POST", &path).raw("application/json", "{").send().await.status, 400);
    assert_eq!(api.call("POST", "/v3/nosuch/nosuch").send().await.status, 404);
    assert_eq!(api.call("DELETE", "/nosuch").send().await.status, 404);
    assert_eq!(api.call("PATCH", "/mooring/v1/hosts").send().await.status, 405);
    assert_eq!(api.call("GET", &path).send().await.status, 200);
    let state = api.fake.state();
    let found: Vec<_> = state
        .calls
        .iter()
        .map(|call| (call.method.as_str(), call.operation.as_deref(), call.status))
        .collect();
    let create = Some("createVolume");
    assert_eq!(
        found,
        [
            ("POST", create, 413),
            ("POST", create, 415),
            ("POST", create, 400),
            ("POST", None, 404),
            ("DELETE", None, 404),
            ("PATCH", None, 405),
        ]
    );
}

#[tokio::test]
async fn a_line_names_the_action_and_the_objects() {
    let api = Api::new();
    let volume = api.volume("data").await;
    let attachment = api.reserved(&volume).await;
    let path = format!("/volumes/{volume}/action");
    assert_eq!(api.post(&path, json!({ "os-extend": { "new_size": 2 } })).await.status, 202);
    assert_eq!(api.post(&path, json!({ SENTINEL: { "x": 2 } })).await.status, 400);
    let state = api.fake.state();
    let line = |number: usize| {
        let call = &state.calls[number];
        let objects = call.objects.iter().map(|object| format!("{} {}", object.kind, object.id));
        (call.operation.as_deref().unwrap(), call.action.as_deref(), objects.collect::<Vec<_>>())
    };
    let of_volume = format!("volume {volume}");
    let all = [of_volume.clone(), format!("instance {INSTANCE}"), format!("attachment {attachment}")];
    assert_eq!(line(0), ("createVolume", None, vec![of_volume.clone()]));
    assert_eq!(line(1), ("createAttachment", None, all.to_vec()));
    assert_eq!(line(2), ("actOnVolume", Some("os-extend"), vec![of_volume.clone()]));
    assert_eq!(line(3), ("actOnVolume", None, vec![of_volume]), "a word that is no action is not repeated");
}

#[tokio::test]
async fn the_log_is_asked_by_time_user_and_object() {
    let api = Api::new();
    let ask = async |query: &str| {
        api.call("GET", &format!("/mooring/v1/audit{query}")).send().await.status.as_u16()
    };
    assert_eq!(ask("").await, 200);
    assert_eq!(api.fake.state().audit_query.as_ref().unwrap().limit, 100);
    let query = "?since=2026-11-18T11:06:40Z&until=2026-11-19T00:00:00%2B01:00&user=u&limit=7&marker=9";
    assert_eq!(ask(&format!("{query}&object={}", DEAD.to_uppercase())).await, 200);
    let found = api.fake.state().audit_query.clone().unwrap();
    assert_eq!((found.limit, found.marker, found.user.as_deref()), (7, Some(9), Some("u")));
    assert_eq!(found.object.as_deref(), Some(DEAD), "an id has one spelling");
    assert!(found.since.unwrap() < found.until.unwrap());
    for wrong in ["?since=yesterday", "?until=1", "?limit=-1", "?marker=x"] {
        assert_eq!(ask(wrong).await, 400, "{wrong}");
    }
}

/// A database that cannot take the lines makes no call fail, and gets them later.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_takes_no_line_fails_no_call() {
    let rig = Rig::new(0).await;
    let (api, metrics) = (Api::on(&rig.service), Metrics::new(rig.service.clone()));
    rig.write("ALTER TABLE audit RENAME TO audit_away");
    let answer = api.call("POST", "/mooring/v1/epoch").json(&json!({})).send().await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let waiting = async |number: u64| {
        let text = metrics.text().await.unwrap();
        text.contains(&format!("\nmooring_controller_audit_waiting {number}\n"))
            && text.contains("\nmooring_controller_audit_lost_total 0\n")
    };
    assert_eq!(api.call("GET", "/mooring/v1/audit").send().await.status, 500);
    assert!(waiting(1).await, "the line waits");
    rig.write("ALTER TABLE audit_away RENAME TO audit");
    let answer = api.call("GET", "/mooring/v1/audit").send().await;
    assert_eq!(answer.body["audit"][0]["operation"], "raiseEpoch");
    assert!(waiting(0).await);
}

/// The stop writes the lines that wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_writes_the_lines_that_wait() {
    let rig = Rig::new(0).await;
    let api = Api::on(&rig.service);
    for _ in 0..3 {
        api.call("POST", "/mooring/v1/epoch").json(&json!({})).send().await;
    }
    rig.service.stop().await;
    let path = rig.path("state").join("mooring-controller.db");
    let database = rusqlite::Connection::open(path).unwrap();
    let count: i64 = database.query_row("SELECT COUNT(*) FROM audit", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 3);
    let change = database.execute("UPDATE audit SET status = 200", []).unwrap_err();
    assert!(change.to_string().contains("append-only"), "{change}");
}

/// The client is gone and the change is made: its line is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_client_is_gone_has_its_line() {
    let api = Api::new();
    let volume = api.volume("data").await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    api.fake.state().gate = Some(Arc::clone(&gate));
    let body = json!({ "attachment": { "volume_uuid": volume } });
    tokio::select! {
        biased;
        _ = api.post("/attachments", body) => panic!("it was to wait"),
        () = crate::support::until("somebody waits", async || {
            (api.fake.state().waiting > 0).then_some(()).ok_or_else(|| "nobody".to_owned())
        }) => {}
    }
    gate.close();
    let is_there = async || {
        let found =
            api.fake.state().calls.iter().any(|call| call.operation.as_deref() == Some("createAttachment"));
        found.then_some(()).ok_or_else(|| "none".to_owned())
    };
    crate::support::until("the line", is_there).await;
}

#[tokio::test]
async fn the_journal_has_the_line_with_its_fields() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let guard = tracing::subscriber::set_default(subscriber.finish());
    let options = Options {
        auth: auth(),
        policies: Arc::default(),
        public_url: None,
        tls: false,
        body_timeout: BODY_TIMEOUT,
    };
    let fake = crate::fake::Fake::new();
    let line = async {
        let request = axum::http::Request::delete(format!("/v3/{PROJECT}/volumes/{DEAD}"));
        let request = request.header("x-auth-token", SENTINEL).body(axum::body::Body::empty()).unwrap();
        tower::ServiceExt::oneshot(router(fake, options), request).await.unwrap()
    };
    assert_eq!(line.await.status(), 401);
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = text.lines().find(|line| line.contains(" audit: call ")).unwrap();
    for field in
        [r#"operation="deleteVolume""#, r#"method="DELETE""#, r#"status="401""#, DEAD, r#"request_id="req-"#]
    {
        assert!(line.contains(field), "{field}: {line}");
    }
    assert!(!line.contains("user_id="), "the caller is not known: {line}");
    assert!(!text.contains(SENTINEL), "{text}");
}
