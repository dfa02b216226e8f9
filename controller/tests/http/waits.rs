//! Requests that wait for agents: their limits per project, and their end when their clients go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use mooring_controller::auth::{Auth, NewToken, Tokens};
use mooring_controller::http::{BODY_TIMEOUT, Options, router};
use mooring_controller::permits::WAITS;
use mooring_controller::policy::Policies;
use mooring_controller::service::Wait;
use mooring_model::AttachmentId;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic::Code;
use tower::ServiceExt;

use crate::support::{LONG, Rig, SHORT, admin, client, cured, member, reserve, until};

/// A control plane, and a token for a member of p, a member of q and an admin.
struct Site {
    rig: Rig,
    router: Router,
    p: String,
    q: String,
    admin: String,
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    body: Value,
}

async fn ask(
    router: Router,
    token: String,
    method: &'static str,
    path: String,
    body: Option<Value>,
) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "localhost:8776");
    let request = request.header("x-auth-token", token).header("content-type", "application/json");
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let response = router.oneshot(request.body(body).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    Answer { status: parts.status, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

impl Site {
    async fn new() -> Self {
        let rig = Rig::new(0).await;
        let made = [("p", "member"), ("q", "member"), ("ops", "admin")]
            .map(|(project, role)| NewToken::make(project, project, None, &[role]).unwrap());
        let file: String = made.iter().map(|token| token.block.clone() + "\n").collect();
        let options = Options {
            auth: Auth::Tokens(Tokens::parse(&file, "tokens").unwrap()),
            policies: Arc::new(Policies::default()),
            public_url: None,
            tls: false,
            body_timeout: BODY_TIMEOUT,
        };
        let router = router(rig.service.clone(), options);
        let [p, q, admin] = made.map(|token| token.token);
        let site = Self { rig, router, p, q, admin };
        // Their hashes are computed once, here.
        for token in [&site.p, &site.q, &site.admin] {
            assert_eq!(site.ask(token, "GET", "/v3/volumes", None).await.status, 200);
        }
        site
    }

    async fn ask(&self, token: &str, method: &'static str, path: &str, body: Option<Value>) -> Answer {
        ask(self.router.clone(), token.to_owned(), method, path.to_owned(), body).await
    }

    /// Asks many times at once, in the background.
    fn many(&self, count: usize, token: &str, method: &'static str, path: &str) -> JoinSet<Answer> {
        let mut all = JoinSet::new();
        for _ in 0..count {
            all.spawn(ask(self.router.clone(), token.to_owned(), method, path.to_owned(), None));
        }
        all
    }

    /// Address of a long poll for this attachment, once its agents have reported all that its
    /// creation causes.
    async fn poll(&self, id: AttachmentId) -> String {
        const QUIET: Wait = Wait(Duration::from_secs(2));
        let service = &self.rig.service;
        let mut known = service.live(&admin(), id, None, SHORT).await.unwrap().revision;
        let began = Instant::now();
        loop {
            let revision = service.live(&admin(), id, Some(known), QUIET).await.unwrap().revision;
            if revision == known {
                return format!("/mooring/v1/attachments/{id}?after={known}&wait_ms=60000");
            }
            assert!(began.elapsed() < LONG.0, "something new comes all the time");
            known = revision;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_polls_of_one_member_stop_nobody() {
    let site = Site::new().await;
    let volume = site.rig.volume(true).await;
    let made = site.rig.service.create_attachment(&member("p"), reserve(volume), LONG).await.unwrap().id;
    let poll = site.poll(made).await;
    // More than there are permits of work.
    let more = 600;
    let mut polls = site.many(WAITS.of_project + more, &site.p, "GET", &poll);
    for _ in 0..more {
        let refused = polls.join_next().await.unwrap().unwrap();
        let text = refused.body["serviceUnavailable"]["message"].as_str().unwrap_or_default();
        assert!(refused.status == 503 && text.contains(&WAITS.of_project.to_string()), "{refused:?}");
    }
    assert_eq!(polls.len(), WAITS.of_project, "these wait");
    // Each request counts as work until it waits.
    until("all polls to wait", async || {
        let own = site.ask(&site.p, "GET", "/v3/volumes", None).await;
        if own.status == 200 { Ok(()) } else { Err(format!("{own:?}")) }
    })
    .await;
    for token in [&site.p, &site.q, &site.admin] {
        let others = site.ask(token, "GET", "/v3/volumes", None).await;
        assert_eq!(others.status, 200, "{others:?}");
    }
    // Other projects wait, too, and hosts are fenced.
    let theirs = site.rig.service.create_volume(&member("q"), crate::support::new_volume()).await.unwrap().id;
    let theirs = format!("/mooring/v1/volumes/{theirs}");
    assert_eq!(site.ask(&site.q, "GET", &theirs, None).await.status, 200);
    let short = poll.replace("60000", "50");
    assert_eq!(site.ask(&site.admin, "GET", &short, None).await.status, 200);
    let fence = site.ask(
        &site.admin,
        "POST",
        "/mooring/v1/hosts/iqn.2026-01.org.example:gone/fence",
        Some(json!({})),
    );
    let fence = fence.await;
    assert_eq!(fence.status, 200, "{fence:?}");
    polls.abort_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_ends_its_wait_and_not_its_change() {
    let site = Site::new().await;
    let volume = site.rig.volume(true).await;
    let owner = member("p");
    let made = site.rig.service.create_attachment(&owner, client(volume, 1), LONG).await.unwrap().id;
    // A volume at which no work goes on.
    let quiet = site.rig.volume(true).await;
    let other = site.rig.service.create_attachment(&owner, reserve(quiet), LONG).await.unwrap().id;
    // The storage agent revokes nothing for now.
    let busy = cured(Code::Unavailable, "its disk does not answer", "retry");
    site.rig.storage.state().knobs.refuse_revoke = Some(busy);
    let detach = format!("/mooring/v1/attachments/{made}?wait_ms=60000");
    let mut waiting = site.many(WAITS.of_project, &site.p, "DELETE", &detach);
    let poll = site.poll(other).await.replace("60000", "50");
    let waits = || async { site.ask(&site.p, "GET", &poll, None).await.status };
    let limit = Instant::now() + LONG.0;
    // A waiting poll has one of the permits, too. The request that found none is repeated, and has
    // time to take that permit before the next poll does.
    while waits().await != StatusCode::SERVICE_UNAVAILABLE {
        assert!(Instant::now() < limit, "they do not wait");
        waiting.spawn(ask(site.router.clone(), site.p.clone(), "DELETE", detach.clone(), None));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let gone = Instant::now();
    drop(waiting);
    until("their permits", async || match waits().await {
        StatusCode::OK => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    assert!(gone.elapsed() < Duration::from_secs(25), "their waits went on without them");
    // The changes that they ordered go on.
    site.rig.storage.state().knobs.refuse_revoke = None;
    until("the end of the attachment", async || match site.rig.service.attachment(&owner, made).await {
        Err(_) => Ok(()),
        Ok(seen) => Err(format!("{seen:?}")),
    })
    .await;
}
