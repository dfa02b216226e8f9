//! Tokens of an identity service: the questions to it, the answers that are remembered, and the
//! refusals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_controller::auth::keystone::Options;
use mooring_controller::auth::{Auth, Keystone, KeystoneError};
use mooring_controller::domain::Caller;
use serde_json::{Value, json};

use crate::client::{Answer, Api, PROJECT};
use crate::fake_keystone::{FakeKeystone, Fault};

const LONG: Duration = Duration::from_mins(5);
const OTHER: &str = "fedcba9876543210fedcba9876543210";

async fn site(remember: Duration) -> (FakeKeystone, Api) {
    let keystone = filled().await;
    let auth = keystone.auth(remember);
    (keystone, Api::with(auth, None))
}

/// A site whose controller waits for an answer no longer than this.
async fn site_that_waits(timeout: Duration) -> (FakeKeystone, Api) {
    let keystone = filled().await;
    let options = Options { timeout, ..keystone.options(LONG) };
    (keystone, Api::with(Auth::Keystone(Keystone::open(&options).unwrap()), None))
}

async fn filled() -> FakeKeystone {
    let keystone = FakeKeystone::start().await;
    keystone.give("member", PROJECT, &["Member", "reader"]);
    keystone.give("admin", PROJECT, &["admin"]);
    keystone.give("nova", OTHER, &["service", "member"]);
    keystone
}

async fn get(api: &Api, path: &str, token: &str) -> Answer {
    api.call("GET", path).header("x-auth-token", token).send().await
}

async fn with_service(api: &Api, token: &str, service: &str) -> Answer {
    let call = api.call("GET", "/v3/volumes").header("x-auth-token", token);
    call.header("x-service-token", service).send().await
}

fn caller(api: &Api) -> Caller {
    api.fake.state().caller.take().unwrap()
}

fn unknown(answer: &Answer) {
    answer.is_fault(401, "unauthorized", "The token is not known.");
    let wanted = "Keystone uri=\"https://cloud.example/identity\"";
    assert_eq!(answer.header("www-authenticate"), Some(wanted));
}

fn unavailable(answer: &Answer) {
    let text = "The identity service cannot be asked about the token now: try again.";
    answer.is_fault(503, "serviceUnavailable", text);
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_hundred_requests_ask_once() {
    let (keystone, api) = site(LONG).await;
    for _ in 0..50 {
        assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
        let bearer = api.call("GET", "/v3/volumes").header("authorization", "Bearer member").send().await;
        assert_eq!(bearer.status, 200);
    }
    assert_eq!(keystone.asked(), (1, 1));
    let seen = caller(&api);
    assert_eq!((seen.project.as_str(), seen.user.as_str()), (PROJECT, "id-of-member"));
    assert_eq!(seen.roles, ["member", "reader"]);
    assert!(!seen.admin && !seen.service);
    assert_eq!(get(&api, "/v3/volumes", "admin").await.status, 200);
    assert!(caller(&api).admin);
    // A wrong token is not asked about again either.
    for _ in 0..10 {
        unknown(&get(&api, "/v3/volumes", "forged").await);
    }
    assert_eq!(keystone.asked(), (1, 3));
    // The versions need no token.
    assert_eq!(api.call("GET", "/").send().await.status, 300);
    assert_eq!(api.call("GET", "/v3/volumes").send().await.status, 401);
    assert_eq!(keystone.asked(), (1, 3));
}

#[tokio::test]
async fn requests_that_come_at_once_share_a_question() {
    let (keystone, api) = site(LONG).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    keystone.inside().gate = Some(Arc::clone(&gate));
    let api = Arc::new(api);
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let api = Arc::clone(&api);
        all.spawn(async move { get(&api, "/v3/volumes", "member").await.status.as_u16() });
    }
    while keystone.asked().1 == 0 {
        tokio::task::yield_now().await;
    }
    // A request that gives up does not cancel the shared question.
    let gone = tokio::time::timeout(Duration::from_millis(20), get(&api, "/v3/volumes", "member")).await;
    assert!(gone.is_err());
    gate.close();
    assert!(all.join_all().await.iter().all(|status| *status == 200));
    assert_eq!(keystone.asked(), (1, 1));
}

#[tokio::test]
async fn questions_are_bounded() {
    let (keystone, api) = site(LONG).await;
    keystone.inside().gate = Some(Arc::new(tokio::sync::Semaphore::new(0)));
    let api = Arc::new(api);
    let mut all = tokio::task::JoinSet::new();
    for number in 0..256 {
        let api = Arc::clone(&api);
        all.spawn(
            async move { get(&api, "/v3/volumes", &format!("stranger-{number}")).await.status.as_u16() },
        );
    }
    while keystone.asked().1 < 32 {
        tokio::task::yield_now().await;
    }
    let one_more = get(&api, "/v3/volumes", "one-more").await;
    let text = "Too many tokens are being looked at: try again.";
    one_more.is_fault(503, "serviceUnavailable", text);
    assert_eq!(one_more.header("retry-after"), Some("1"));
    assert_eq!(keystone.asked().1, 32, "no more at once");
}

#[tokio::test]
async fn one_address_leaves_questions_to_the_others() {
    let (keystone, api) = site(LONG).await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    keystone.inside().gate = Some(Arc::clone(&gate));
    let api = Arc::new(api);
    let from = |address: &'static str, token: String| {
        let api = Arc::clone(&api);
        async move {
            let call = api.call("GET", "/v3/volumes").header("x-auth-token", token).peer(address);
            call.send().await.status.as_u16()
        }
    };
    let mut random = tokio::task::JoinSet::new();
    for number in 0..300 {
        random.spawn(from("192.0.2.1", format!("random-{number}")));
    }
    // 64 of these are asked about; the others are told to come again.
    for _ in 64..300 {
        assert_eq!(random.join_next().await.unwrap().unwrap(), 503);
    }
    let other = tokio::spawn(from("192.0.2.2", "member".to_owned()));
    let here = tokio::spawn(from("127.0.0.1", "admin".to_owned()));
    while keystone.asked().1 < 32 {
        tokio::task::yield_now().await;
    }
    gate.close();
    assert_eq!((other.await.unwrap(), here.await.unwrap()), (200, 200));
    assert!(random.join_all().await.iter().all(|status| *status == 401));
}

#[tokio::test]
async fn what_is_remembered_ends() {
    let (keystone, api) = site(Duration::from_millis(300)).await;
    let since = Instant::now();
    assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
    keystone.inside().tokens.clear();
    // A revoked token counts until the remembered answer ends, and no longer.
    if since.elapsed() < Duration::from_millis(250) {
        assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
    }
    tokio::time::sleep(Duration::from_millis(350)).await;
    unknown(&get(&api, "/v3/volumes", "member").await);

    // No answer is remembered past the token's own end.
    let (keystone, api) = site(LONG).await;
    keystone.give_until("short", 4, json!({ "project": { "id": PROJECT } }), &["member"]);
    assert_eq!(get(&api, "/v3/volumes", "short").await.status, 200);
    tokio::time::sleep(Duration::from_millis(4_100)).await;
    unknown(&get(&api, "/v3/volumes", "short").await);

    // No answer is remembered if the operator says so.
    let (keystone, api) = site(Duration::ZERO).await;
    for asked in 1..4 {
        assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
        assert_eq!(keystone.asked(), (1, asked));
    }
}

#[tokio::test]
async fn a_service_beside_a_user() {
    let (keystone, api) = site(LONG).await;
    assert_eq!(with_service(&api, "member", "nova").await.status, 200);
    let seen = caller(&api);
    assert_eq!((seen.project.as_str(), seen.user.as_str(), seen.service), (PROJECT, "id-of-member", true));
    assert!(!seen.roles.contains(&"service".to_owned()), "the user has his own roles only");
    // A valid token, but of no service.
    assert_eq!(with_service(&api, "member", "admin").await.status, 200);
    assert!(!caller(&api).service);
    // A forged one is refused, whatever the user's token is.
    for service in ["forged", "é", &"x".repeat(9_000)] {
        let answer = with_service(&api, "admin", service).await;
        answer.is_fault(401, "unauthorized", "The service token is not known.");
        assert!(answer.header("www-authenticate").is_some());
    }
    unknown(&with_service(&api, "forged", "nova").await);
    assert!(api.fake.state().caller.is_none());

    // A service may go on with an ended token of its user; the user himself may not.
    keystone.give_until("ended", -60, json!({ "project": { "id": PROJECT } }), &["member"]);
    let lenient = keystone.inside().lenient;
    unknown(&get(&api, "/v3/volumes", "ended").await);
    assert_eq!(keystone.inside().lenient, lenient);
    unknown(&with_service(&api, "ended", "admin").await);
    for _ in 0..3 {
        assert_eq!(with_service(&api, "ended", "nova").await.status, 200);
        assert!(caller(&api).service);
    }
    assert_eq!(keystone.inside().lenient, lenient + 1);
    // The rights with a service are not remembered for the user alone.
    unknown(&get(&api, "/v3/volumes", "ended").await);
}

#[tokio::test]
async fn nobody_is_let_in_by_an_answer_that_is_none() {
    for fault in [
        Fault::Code(500),
        Fault::Code(503),
        Fault::Code(403),
        Fault::Code(302),
        Fault::Code(204),
        Fault::Text(""),
        Fault::Text("<html>welcome</html>"),
        Fault::Text("{\"token\":{}}"),
        Fault::Text(
            "{\"token\":{\"user\":{\"id\":\"u\"},\"project\":{\"id\":\"a/b\"},\"expires_at\":\"2099-01-01T00:00:00Z\"}}",
        ),
        Fault::Endless,
        Fault::Silence,
    ] {
        let (keystone, api) = match fault {
            // An answer that never comes is waited for.
            Fault::Silence => site_that_waits(Duration::from_secs(3)).await,
            _ => site(LONG).await,
        };
        assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
        keystone.inside().fault = Some(fault);
        let since = Instant::now();
        unavailable(&get(&api, "/v3/volumes", "admin").await);
        assert!(since.elapsed() < Duration::from_secs(10), "slow answers are cut off");
        unavailable(&with_service(&api, "member", "nova").await);
        // A caller who is remembered goes on.
        assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
        keystone.inside().fault = None;
        let mut answer = get(&api, "/v3/volumes", "admin").await;
        while answer.status == 503 {
            assert!(since.elapsed() < Duration::from_secs(30), "it is never asked again");
            tokio::time::sleep(Duration::from_millis(50)).await;
            answer = get(&api, "/v3/volumes", "admin").await;
        }
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn silence_is_waited_for_once() {
    let (keystone, api) = site_that_waits(Duration::from_millis(500)).await;
    keystone.inside().fault = Some(Fault::Silence);
    unavailable(&get(&api, "/v3/volumes", "member").await);
    let asked = keystone.asked();
    // The next ones get the error at once.
    let since = Instant::now();
    for number in 0..20 {
        unavailable(&get(&api, "/v3/volumes", &format!("t{number}")).await);
    }
    if since.elapsed() < Duration::from_millis(500) {
        assert_eq!(keystone.asked(), asked);
    }
}

#[tokio::test]
async fn nobody_at_the_address() {
    let keystone = FakeKeystone::start().await;
    let mut options = keystone.options(LONG);
    // A port that was free a moment ago, at an address where nobody else listens.
    let free = std::net::TcpListener::bind("127.0.99.1:0").unwrap().local_addr().unwrap();
    options.url = format!("http://{free}");
    let api = Api::with(Auth::Keystone(Keystone::open(&options).unwrap()), None);
    unavailable(&get(&api, "/v3/volumes", "member").await);
}

#[tokio::test]
async fn our_own_token_is_renewed() {
    let (keystone, api) = site(Duration::ZERO).await;
    assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
    // Revoked: a new token is requested, once, and the question is asked again.
    keystone.inside().own.clear();
    assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
    assert_eq!(keystone.asked(), (2, 3));
    // A new token is requested before the old one ends, too.
    keystone.inside().own.clear();
    keystone.inside().own_life = Some(Duration::from_secs(1));
    assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
    assert_eq!(keystone.asked(), (3, 5));
    tokio::time::sleep(Duration::from_millis(950)).await;
    assert_eq!(get(&api, "/v3/volumes", "member").await.status, 200);
    assert_eq!(keystone.asked(), (4, 6));
}

#[tokio::test]
async fn our_own_password_is_wrong_or_open_to_others() {
    let keystone = FakeKeystone::start().await;
    keystone.give("member", PROJECT, &["member"]);
    let options = keystone.options(LONG);
    std::fs::write(&options.password_file, "wrong\n").unwrap();
    let opened = Keystone::open(&options).unwrap();
    assert!(!format!("{opened:?}").contains("wrong"));
    let api = Api::with(Auth::Keystone(opened), None);
    unavailable(&get(&api, "/v3/volumes", "member").await);
    assert_eq!(keystone.asked(), (1, 0));

    let mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&options.password_file, mode).unwrap();
        Keystone::open(&options)
    };
    assert!(matches!(mode(0o644), Err(KeystoneError::Open { mode: 0o644, .. })));
    assert!(mode(0o640).is_ok());
    std::fs::write(&options.password_file, "\n").unwrap();
    assert!(matches!(Keystone::open(&options), Err(KeystoneError::Content { .. })));
    std::fs::remove_file(&options.password_file).unwrap();
    assert!(matches!(Keystone::open(&options), Err(KeystoneError::Read { .. })));
}

#[tokio::test]
async fn bytes_that_are_no_token_are_not_asked_about() {
    let (keystone, api) = site(LONG).await;
    let long = "x".repeat(9_000);
    let strange: [&[u8]; 4] = [&[0xff, 0xfe], "é".as_bytes(), b"two words", long.as_bytes()];
    for bytes in strange {
        unknown(&api.call("GET", "/v3/volumes").header("x-auth-token", bytes).send().await);
    }
    assert_eq!(keystone.asked(), (0, 0));
}

#[tokio::test]
async fn a_token_is_of_one_project() {
    let (keystone, api) = site(LONG).await;
    let path = |project: &str| format!("/v3/{project}/volumes");
    assert_eq!(get(&api, &path(PROJECT), "member").await.status, 200);
    for token in ["member", "admin"] {
        let malformed = get(&api, &path(OTHER), token).await;
        malformed.is_fault(400, "badRequest", "Malformed request url");
    }
    // A token without a project: its holder must not choose whose volumes he changes.
    keystone.give_until("unscoped", 3_600, json!({}), &[]);
    keystone.give_until("domain", 3_600, json!({ "domain": { "id": "d" } }), &["admin"]);
    for token in ["unscoped", "domain"] {
        for path in [path(PROJECT), "/v3/volumes".to_owned(), "/mooring/v1/hosts".to_owned()] {
            let text = "The token is of no project: ask for one that is.";
            get(&api, &path, token).await.is_fault(403, "forbidden", text);
        }
    }
}

#[tokio::test]
async fn a_token_of_the_system_needs_a_project_in_the_address() {
    let (keystone, api) = site(LONG).await;
    let system = || -> Value { json!({ "system": { "all": true } }) };
    keystone.give_until("root", 3_600, system(), &["admin"]);
    keystone.give_until("auditor", 3_600, system(), &["reader"]);
    let path = format!("/v3/{OTHER}/volumes");
    assert_eq!(get(&api, &path, "root").await.status, 200);
    let seen = caller(&api);
    assert_eq!((seen.project.as_str(), seen.admin), (OTHER, true));
    let text = "The token is for the whole system: name a project in the address, as /v3/PROJECT/volumes.";
    get(&api, "/v3/volumes", "root").await.is_fault(400, "badRequest", text);
    // Mooring's own API is about the system.
    assert_eq!(get(&api, "/mooring/v1/hosts", "root").await.status, 200);
    assert_eq!(caller(&api).project, "");
    for path in [&path, "/mooring/v1/hosts"] {
        assert_eq!(get(&api, path, "auditor").await.status, 403);
    }
}
