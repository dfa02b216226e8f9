//! Bad input of every kind: refused, bounded, in the API's words, and without effect.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use mooring_controller::auth::{Auth, NewToken, Tokens};
use mooring_controller::http::{
    BODY_BYTES_MAX, BODY_TIMEOUT, HEAD_TIMEOUT, Options, Serving, bind, router, serve,
};
use mooring_controller::permits::WORK;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::client::{Api, DEAD, PROJECT};
use crate::fake::Fake;

/// Time limit for everything that works.
const PATIENCE: Duration = Duration::from_mins(1);

async fn until(mut done: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !done() {
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect("it did not happen");
}

#[tokio::test]
async fn bodies_that_are_no_json() {
    let api = Api::new();
    let path = format!("/v3/{PROJECT}/volumes");
    let good = json!({ "volume": { "size": 1 } }).to_string();
    let malformed = "Malformed request body";
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let deep_inside = format!("{{\"volume\": {}1{}}}", "{\"a\":".repeat(500), "}".repeat(500));
    let too_deep = "Malformed request body: it is nested too deeply.";
    for (body, text) in [
        ("{\"volume\": ".as_bytes().to_vec(), malformed),
        (b"{not json".to_vec(), malformed),
        (b"".to_vec(), malformed),
        (b"null null".to_vec(), malformed),
        (b"{\"volume\": {\"size\": 1e999}}".to_vec(), malformed),
        (b"\xff\xfe{\"volume\": {}}".to_vec(), "Malformed request body: it is not UTF-8."),
        (b"{\"volume\": {\"name\": \"\xc3\x28\"}}".to_vec(), "Malformed request body: it is not UTF-8."),
        (b"{\"volume\": {\"name\": \"\\ud800\"}}".to_vec(), malformed),
        (deep.into_bytes(), too_deep),
        (deep_inside.into_bytes(), too_deep),
    ] {
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        let answer = api.call("POST", &path).raw("application/json", body).send().await;
        assert_eq!(answer.body["badRequest"]["message"], text, "{shown}");
        assert_eq!((answer.status.as_u16(), &answer.body["badRequest"]["code"]), (400, &json!(400)));
    }
    for (kind, code) in [
        ("text/plain", 415),
        ("application/xml", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
        ("application/json", 202),
        ("application/json; charset=UTF-8", 202),
        ("Application/JSON", 202),
    ] {
        let answer = api.call("POST", &path).raw(kind, good.clone()).send().await;
        assert_eq!(answer.status, code, "{kind}");
        if code == 415 {
            answer.is_fault(415, "badMediaType", "Unsupported Content-Type");
        }
    }
    let missing = api.call("POST", &path).untyped(good).send().await;
    missing.is_fault(400, "badRequest", "Malformed request body: Content-Type: application/json is missing.");
}

#[tokio::test]
async fn bodies_that_are_too_large() {
    let api = Api::new();
    let path = format!("/v3/{PROJECT}/volumes");
    let fault = json!({ "overLimit": {
        "code": 413,
        "message": "Request is too large: a body has at most 114688 bytes.",
        "retryAfter": "0",
    } });
    let body = |size: usize| {
        let body = json!({ "volume": { "size": 1 } }).to_string();
        format!("{body}{}", " ".repeat(size - body.len()))
    };
    let fits = api.call("POST", &path).raw("application/json", body(BODY_BYTES_MAX)).send().await;
    assert_eq!(fits.status, 202);
    let known = api.call("POST", &path).raw("application/json", body(BODY_BYTES_MAX + 1)).send().await;
    assert_eq!((known.status.as_u16(), &known.body), (413, &fault));
    // A length that is announced, and never sent.
    let announced = api.call("POST", &path).header("content-length", "999999999999");
    let announced = announced.raw("application/json", "{}").send().await;
    assert_eq!((announced.status.as_u16(), &announced.body), (413, &fault));
    // A body without an announced length, and without an end.
    let endless = tokio_stream::iter(std::iter::repeat_with(|| {
        Ok::<_, std::convert::Infallible>(Bytes::from_static(&[b' '; 4096]))
    }));
    let endless = api.call("POST", &path).raw("application/json", Body::from_stream(endless)).send().await;
    assert_eq!((endless.status.as_u16(), &endless.body), (413, &fault));
    assert_eq!(api.fake.state().volumes.len(), 1);
}

/// Method, address, the body's one key, a correct start of the object below it, and the fields that
/// are tried.
type Form = (&'static str, String, &'static str, Value, &'static [&'static str]);

const VOLUME_FIELDS: [&str; 16] = [
    "size",
    "name",
    "display_name",
    "description",
    "display_description",
    "volume_type",
    "metadata",
    "multiattach",
    "snapshot_id",
    "source_volid",
    "imageRef",
    "image_id",
    "availability_zone",
    "group_id",
    "backup_id",
    "consistencygroup_id",
];

fn forms(volume: &str, attachment: &str) -> [Form; 8] {
    let kind = "/types/00000000-0000-0000-0000-000000000001";
    let v3 = |path: &str| format!("/v3/{PROJECT}{path}");
    let reserve = json!({ "volume_uuid": volume });
    let native = json!({ "volume": volume, "host": "host1" });
    let new_type: &[&str] = &["name", "description", "os-volume-type-access:is_public", "extra_specs"];
    let updated_type: &[&str] = &["name", "description", "is_public"];
    let reserved: &[&str] = &["volume_uuid", "instance_uuid", "connector", "mode"];
    [
        ("POST", v3("/volumes"), "volume", json!({ "size": 1 }), &VOLUME_FIELDS),
        ("PUT", v3(&format!("/volumes/{volume}")), "volume", json!({}), &["name", "description", "metadata"]),
        ("POST", v3("/types"), "volume_type", json!({ "name": "t" }), new_type),
        ("PUT", v3(kind), "volume_type", json!({}), updated_type),
        ("POST", v3(&format!("{kind}/extra_specs")), "extra_specs", json!({}), &["k", "multiattach"]),
        ("POST", v3("/attachments"), "attachment", reserve, reserved),
        ("PUT", v3(&format!("/attachments/{attachment}")), "attachment", json!({}), &["connector"]),
        ("POST", "/mooring/v1/attachments".into(), "attachment", native, &["id", "volume", "host", "mode"]),
    ]
}

/// Every field of every body gets every kind of wrong value: a fault in the API's words, and
/// nothing changes.
#[tokio::test]
async fn wrong_values_for_every_field() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let attachment = api.reserved(&volume).await;
    let before = snapshot(&api.fake);
    for (method, path, name, base, fields) in forms(&volume, &attachment) {
        let wrong_whole = [json!(null), json!(1), json!("x"), json!([]), json!(true)];
        for whole in wrong_whole {
            refused(&api, method, &path, &json!({ name: whole })).await;
        }
        for field in fields {
            for value in [json!(-1.5), json!([1]), json!([[]]), json!({ "": {} }), json!("x\u{0}y")] {
                let mut inner = base.clone();
                inner[field] = value;
                refused(&api, method, &path, &json!({ name: inner })).await;
            }
        }
    }
    assert_eq!(snapshot(&api.fake), before);
}

fn snapshot(fake: &Fake) -> String {
    let state = fake.state();
    format!("{:?} {:?} {:?}", state.types, state.volumes, state.attachments)
}

async fn refused(api: &Api, method: &str, path: &str, body: &Value) {
    // A connector belongs to the client: Nova and os-brick put what they like into it.
    if body["attachment"]["connector"].as_object().is_some_and(|map| !map.is_empty()) {
        return;
    }
    let answer = api.call(method, path).version("3.69").json(body).send().await;
    let status = answer.status.as_u16();
    assert!(
        (400..500).contains(&status) || status == 501,
        "{method} {path} {body}: {status} {}",
        answer.body
    );
    let fault = answer.body.as_object().and_then(|map| map.values().next()).unwrap();
    assert_eq!(fault["code"], status);
    assert!(!fault["message"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn addresses_that_are_none() {
    let api = Api::new();
    for path in [
        format!("/v3/{PROJECT}/volumes/%FF"),
        format!("/v3/{PROJECT}/volumes/..%2F..%2Fetc"),
        format!("/v3/{PROJECT}/volumes/{}", "a".repeat(5_000)),
        format!("/v3/{PROJECT}/attachments/%00"),
        format!("/v3/{PROJECT}/types/{DEAD}/extra_specs/%FF"),
        format!("/v3/{PROJECT}/volumes?name=%FF"),
        format!("/v3/{}/volumes", "a".repeat(65)),
        "/v3//volumes".to_owned(),
        "//v3/volumes".to_owned(),
        "/mooring/v1/".to_owned(),
    ] {
        let answer = api.call("GET", &path).version("3.60").send().await;
        let status = answer.status.as_u16();
        assert!(status == 400 || status == 404, "{path}: {status}");
        assert!(
            answer.body.to_string().len() < 1_000,
            "{path}: what is wrong is not repeated without a bound"
        );
    }
}

/// A client that goes away cancels nothing that it has begun.
#[tokio::test]
async fn what_was_begun_is_finished() {
    let api = Api::new();
    let volume = api.volume("v").await;
    let gate = Arc::new(Semaphore::new(0));
    api.fake.state().gate = Some(Arc::clone(&gate));
    let body = json!({ "attachment": { "volume_uuid": volume } });
    let attach = Box::pin(api.post("/attachments", body));
    let fake = api.fake.clone();
    tokio::select! {
        _ = attach => panic!("it waits at the gate"),
        () = until(|| fake.state().waiting == 1) => {}
    }
    // The request was dropped above, as the server does when its connection ends.
    assert!(api.fake.state().attachments.is_empty());
    gate.close();
    until(|| api.fake.state().attachments.len() == 1).await;
}

/// A caller with a token of a project.
struct Someone {
    project: &'static str,
    token: String,
}

impl Someone {
    async fn ask(&self, api: &Api, method: &str, path: &str, body: Option<&Value>) -> crate::client::Answer {
        let path = format!("/v3/{}{path}", self.project);
        let call = api.call(method, &path).version("3.60").header("x-auth-token", &self.token);
        match body {
            Some(body) => call.json(body).send().await,
            None => call.send().await,
        }
    }
}

#[tokio::test]
async fn too_many_at_once_are_told_to_come_again() {
    let made = [("a", "member"), ("b", "member"), ("c", "member"), ("a", "admin")].map(|(project, role)| {
        let new = NewToken::make(&format!("{project}-{role}"), project, None, &[role]).unwrap();
        (Someone { project, token: new.token }, new.block)
    });
    let file: Vec<_> = made.iter().map(|(_, block)| block.as_str()).collect();
    let auth = Auth::Tokens(Tokens::parse(&file.join("\n"), "tokens").unwrap());
    let api = Arc::new(Api::with(auth, None));
    let [a, b, c, admin] = made.map(|(someone, _)| Arc::new(someone));
    for someone in [&a, &b, &c, &admin] {
        assert_eq!(someone.ask(&api, "GET", "/volumes", None).await.status, 200, "{}", someone.project);
    }
    let gate = Arc::new(Semaphore::new(0));
    api.fake.state().gate = Some(Arc::clone(&gate));
    let mut all = tokio::task::JoinSet::new();
    for someone in [&a, &b] {
        for _ in 0..WORK.of_project {
            let (api, someone) = (Arc::clone(&api), Arc::clone(someone));
            let body = json!({ "attachment": { "volume_uuid": DEAD } });
            all.spawn(async move { someone.ask(&api, "POST", "/attachments", Some(&body)).await.status });
        }
        let of_one = if Arc::ptr_eq(someone, &a) { WORK.of_project } else { WORK.all };
        until(|| api.fake.state().waiting == of_one).await;
        // A project that uses its whole share leaves the other projects theirs.
        let own = a.ask(&api, "GET", "/volumes", None).await;
        let text = format!(
            "{} requests of this project are being worked on: try again in a second.",
            WORK.of_project
        );
        own.is_fault(503, "serviceUnavailable", &text);
        let other = c.ask(&api, "GET", "/volumes", None).await;
        assert_eq!(other.status.as_u16(), if of_one == WORK.all { 503 } else { 200 });
    }
    let one_more = c.ask(&api, "GET", "/volumes", None).await;
    assert_eq!((one_more.status.as_u16(), one_more.header("retry-after")), (503, Some("1")));
    // An unknown caller gets no place in the reserve, and a caller who fences hosts always gets
    // one.
    let unknown = Someone { project: "a", token: "x".to_owned() };
    assert_eq!(unknown.ask(&api, "GET", "/volumes", None).await.status, 401);
    assert_eq!(admin.ask(&api, "GET", "/volumes", None).await.status, 200);
    gate.close();
    let answers = all.join_all().await;
    assert!(answers.len() == WORK.all && answers.iter().all(|status| *status == 404), "they were worked on");
    assert_eq!(c.ask(&api, "GET", "/volumes", None).await.status, 200);
}

/// A server on a real socket, for tests that need a socket.
async fn server(head: Duration, body: Duration) -> (std::net::SocketAddr, tokio::sync::watch::Sender<bool>) {
    let options = Options {
        auth: Auth::NoAuth,
        policies: Arc::default(),
        public_url: None,
        tls: false,
        body_timeout: body,
    };
    let router = router(Fake::new(), options);
    let bound = bind(&["127.0.0.1:0".parse().unwrap()]).await.unwrap();
    let address = bound[0].address();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let serving = Serving { head_timeout: head, ..Serving::default() };
    tokio::spawn(serve(router, bound, serving, stopped));
    (address, stop)
}

/// Sends a beginning, waits for the end, and returns the answer.
async fn stall(address: std::net::SocketAddr, beginning: String) -> String {
    let talk = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(beginning.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    });
    talk.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut_off() {
    // Long enough for a client to send its beginning on a busy machine.
    let (address, _stop) = server(Duration::from_secs(3), BODY_TIMEOUT).await;
    // No byte at all, and half a head: closed.
    for beginning in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: localhost\r\nX-"] {
        let answer = stall(address, beginning.to_owned()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{beginning:?}: {answer}");
    }
    // Half a body: answered with the reason.
    let (address, _stop) = server(BODY_TIMEOUT, Duration::from_millis(200)).await;
    let head = format!(
        "POST /v3/{PROJECT}/volumes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\nConnection: close\r\n\r\n{{\"volume\""
    );
    let answer = stall(address, head).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("requestTimeout") && answer.contains("did not arrive within 0.2 s"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http() {
    let (address, _stop) = server(Duration::from_secs(3), BODY_TIMEOUT).await;
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(200_000));
    for wrong in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &long] {
        // Some are answered with 4xx, some only closed (a close with unread bytes may be a reset):
        // the connection ends.
        let wrong = wrong.to_owned();
        let talk = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(wrong.as_bytes());
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it does not end"),
                _ => String::from_utf8_lossy(&answer).into_owned(),
            }
        });
        let answer = talk.await.unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let alive =
        stall(address, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned()).await;
    assert!(alive.starts_with("HTTP/1.1 300"), "{alive}");
}

#[tokio::test]
async fn a_request_id_of_the_client_is_not_ours() {
    let api = Api::new();
    for id in ["req-b0c1d2e3-0001-4002-8003-00000000000a", "req-x", "\u{7f}", "a b"] {
        let request = Request::get("/v3/volumes").header("host", "localhost");
        let Ok(request) = request.header("x-openstack-request-id", id).body(Body::empty()) else { continue };
        let answer = api.router().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_ne!(answer.headers()["x-openstack-request-id"], id);
    }
}

/// Sends a request whose body comes in pieces. Sends all of it before it reads anything, as simple
/// clients do.
async fn send_in_pieces(
    address: std::net::SocketAddr,
    head: String,
    bytes: usize,
) -> std::io::Result<String> {
    let talk = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(head.as_bytes())?;
        for piece in vec![b'x'; bytes].chunks(20_000) {
            stream.write_all(piece)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    talk.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_too_much_hears_why_and_not_of_a_broken_connection() {
    let (address, _stop) = server(HEAD_TIMEOUT, BODY_TIMEOUT).await;
    let head = |path: &str, more: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\
             Connection: close\r\n{more}\r\n"
        )
    };
    let volumes = format!("/v3/{PROJECT}/volumes");
    for (path, code) in [(volumes.as_str(), "413"), ("/nowhere", "404")] {
        let answer = send_in_pieces(address, head(path, ""), 200_000).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{path}: {answer}");
    }
    // A client that asks first is answered at once, and never told to go on.
    let answer = send_in_pieces(address, head(&volumes, "Expect: 100-continue\r\n"), 0).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // A client that announces more and sends nothing gets the answer, too.
    let answer = send_in_pieces(address, head(&volumes, ""), 0).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}
