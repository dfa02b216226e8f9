//! Enrolment with the real controller and real agents over TLS: a token, a join, a certificate that
//! is renewed, a revocation, and everything that must not open an agent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod leaving;
#[path = "../../../../controller/tests/support/pg.rs"]
mod pg;
mod program;
mod rotation;
mod second;
mod site;

use std::time::{Duration, SystemTime};

use mooring_agent::args::Role;
use mooring_agent::join::JoinError;
use mooring_controller::authority;
use mooring_controller::domain::{AuditCall, AuditQuery};
use mooring_controller::service::Refusal;
use mooring_model::Chain;

use site::{Site, admin, read, request, until};

#[test]
fn a_host_joins_is_renewed_and_revoked_without_a_restart() {
    let site = Site::new();
    let node = site.node("node1");
    let token = site.token("node1").unwrap();
    assert!(token.command().contains(&format!("--token {} --pin sha256:", token.token)));
    assert!(token.token.starts_with('j'), "a dash would make it an option");
    node.join(&token).unwrap();
    assert!(!site.host("node1").unwrap().up, "it is dialled, and not there yet");
    let agent = node.start();
    let host = site.until_up("node1");
    let joined = host.enrolment.unwrap();
    assert_eq!(
        (joined.roles.to_string().as_str(), host.address),
        ("storage", format!("https://{}", node.address))
    );

    // Two thirds of its life are over.
    let before = read(&node.identity());
    site.age();
    site.runtime.block_on(site.service.renew_certificates()).unwrap();
    let after = read(&node.identity());
    assert!(before != after, "key and certificate are new");
    let renewed = site.host("node1").unwrap().enrolment.unwrap();
    assert_eq!(renewed.id, joined.id);
    assert!(renewed.expires_at > SystemTime::now() + Duration::from_hours(80 * 24));
    assert!(site.host("node1").unwrap().up, "its connection is as it was");
    drop(agent);
    until("node1 is down", || site.host("node1").filter(|host| !host.up));
    let agent = node.start();
    site.until_up("node1");

    site.revoke("node1").unwrap();
    assert!(site.host("node1").is_none());
    assert!(!node.identity().exists() || read(&node.identity()).is_empty(), "the agent was told");
    drop(agent);
    // Its old token and certificate are no longer valid, although the name joins again.
    let again = site.token("node1").unwrap();
    node.join(&again).unwrap();
    let new = read(&node.identity());
    std::fs::write(node.identity(), &after).unwrap();
    let agent = node.start();
    site.until_refused("node1", "not valid for name");
    drop(agent);
    std::fs::write(node.identity(), new).unwrap();
    let _agent = node.start();
    site.until_up("node1");
}

#[test]
fn a_token_is_for_one_name_one_key_and_one_hour() {
    let site = Site::new();
    let (one, two) = (site.node("one"), site.node("two"));
    let token = site.token("node1").unwrap();
    let refused = |result: Result<(), JoinError>| Chain(&result.unwrap_err()).to_string();
    let text = refused(one.join_by(&token.url, "another", &token.pin));
    assert!(text.contains("is not known"), "{text}");
    assert!(site.hosts().is_empty());
    // The answer to its first request is lost: the key waits, and may ask again.
    let first = site.runtime.block_on(site.service.join(request(&one, &token))).unwrap();
    one.join(&token).unwrap();
    assert_eq!(site.host("node1").unwrap().enrolment.unwrap().id, first.enrolment.id);
    assert_eq!(site.hosts().len(), 1);
    let text = refused(two.join(&token));
    assert!(text.contains("was used already"), "{text}");
    assert!(!two.config().exists(), "nothing is written");
    // The name is taken until it is revoked.
    let taken = site.token("node1").unwrap_err();
    assert!(matches!(&taken, Refusal::Conflict(text) if text.contains("host revoke node1")), "{taken}");
    // A newer token takes the place of an older one.
    let (old, new) = (site.token("node2").unwrap(), site.token("node2").unwrap());
    assert!(refused(two.join(&old)).contains("a newer one took its place"));
    let expire = "UPDATE join_tokens SET expires_us = 0 WHERE name = 'node2'";
    let database = rusqlite::Connection::open(site.dir.path().join("state/mooring-controller.db")).unwrap();
    database.execute(expire, []).unwrap();
    let text = refused(two.join(&new));
    assert!(text.contains("has expired"), "{text}");
    // A revoked name's token is gone, and so is the join that it was used for.
    site.revoke("node1").unwrap();
    assert!(refused(one.join(&token)).contains("is not known"));
    assert!(matches!(site.revoke("nobody"), Err(Refusal::NotFound { .. })));
    for name in ["", "-x", "a b", "ä", &"x".repeat(65)] {
        assert!(matches!(site.token(name), Err(Refusal::Invalid(_))), "{name:?}");
    }
}

/// An agent's certificate neither opens another agent nor stands for it.
#[test]
fn the_certificate_of_one_host_is_worth_nothing_at_another() {
    let site = Site::new();
    let (one, two) = (site.node("one"), site.node("two"));
    one.join(&site.token("node1").unwrap()).unwrap();
    two.join(&site.token("node2").unwrap()).unwrap();
    let own = read(&one.identity());
    std::fs::write(one.identity(), read(&two.identity())).unwrap();
    let agent = one.start();
    site.until_refused("node1", "not valid for name");
    drop(agent);
    std::fs::write(one.identity(), own).unwrap();
    let _agent = one.start();
    site.until_up("node1");
    // The other host dials it, with what it has.
    let files = mooring_api::TlsFiles {
        ca: Some(two.dir.join("agent-ca.crt")),
        cert: Some(two.identity()),
        key: Some(two.identity()),
        server_name: Some(authority::agent_server_name(site.host("node1").unwrap().enrolment.unwrap().id)),
    };
    let address = format!("https://{}", one.address).parse().unwrap();
    let asked = site.runtime.block_on(async {
        let channel = mooring_api::connect(&address, &files).await.map_err(|error| error.to_string())?;
        let mut client = mooring_api::v1::agent_client::AgentClient::new(channel);
        let hello = client.get_capabilities(mooring_api::v1::GetCapabilitiesRequest {}).await;
        hello.map(drop).map_err(|status| status.to_string())
    });
    assert!(asked.is_err(), "a host's certificate opened another host's agent");
}

/// Whatever else reads the rows meanwhile: a revoked host is no longer dialled, and one that joined
/// is.
#[test]
fn joins_and_revocations_beside_each_other_leave_what_the_rows_say() {
    let site = Site::new();
    let node = site.node("node");
    for round in 0..8 {
        let [stays, goes] = ["stays", "goes"].map(|name| format!("{name}{round}"));
        let token = site.token(&goes).unwrap();
        site.runtime.block_on(site.service.join(request(&node, &token))).unwrap();
        let comes = request(&node, &site.token(&stays).unwrap());
        site.runtime.block_on(async {
            let (service, name) = (site.service.clone(), goes.clone());
            let revoked = tokio::spawn(async move { service.revoke_host(&admin(), &name).await });
            let service = site.service.clone();
            let joined = tokio::spawn(async move { service.join(comes).await.map(drop) });
            revoked.await.unwrap().unwrap();
            joined.await.unwrap().unwrap();
        });
        assert!(site.host(&goes).is_none(), "revoked, and still there");
        assert!(site.host(&stays).is_some(), "joined, and not there");
    }
}

/// Two controllers with one database and one authority. A join at either is known to both. A
/// revocation at the one that does not drive the agent ends it at both, and at the agent.
#[test]
fn a_join_and_a_revocation_reach_the_other_controller() {
    let server = pg::Server::new();
    let url = server.database("enrolment");
    let one = Site::with(None, Some(&url));
    let other = Site::with(Some(&one), Some(&url));
    let both = [&one, &other];
    let node = one.node("node1");
    for (asked, told) in [(0, 1), (1, 0)] {
        let [asked, told] = [asked, told].map(|at: usize| both[at]);
        node.join(&asked.token("node1").unwrap()).unwrap();
        let agent = node.start();
        for site in both {
            site.until_up("node1");
        }
        // Either of them may drive it: each is asked once.
        told.revoke("node1").unwrap();
        until("the agent was told", || {
            (!node.identity().exists() || read(&node.identity()).is_empty()).then_some(())
        });
        for site in both {
            until("node1 is gone", || site.host("node1").is_none().then_some(()));
        }
        drop(agent);
    }
}

/// The host of a refused token is shown to auditors, and not to the caller who presented the token.
#[test]
fn a_refused_join_is_in_the_audit_log_with_the_host_of_its_token() {
    let site = Site::new();
    let (one, two) = (site.node("one"), site.node("two"));
    let token = site.token("node1").unwrap();
    one.join(&token).unwrap();
    let error = Chain(&two.join(&token).unwrap_err()).to_string();
    assert!(!error.contains("node1"), "{error}");
    two.join_by(&token.url, "another", &token.pin).unwrap_err();
    let query = AuditQuery { limit: 100, ..AuditQuery::default() };
    let lines = until("the lines", || {
        let lines = site.runtime.block_on(site.service.audit(&admin(), query.clone())).unwrap();
        let joins = lines.into_iter().map(|line| line.entry.call);
        let joins: Vec<_> = joins.filter(|call| call.operation.as_deref() == Some("join")).collect();
        (joins.len() == 3).then_some(joins)
    });
    let named = |call: &AuditCall| {
        call.objects.iter().map(|object| format!("{} {}", object.kind, object.id)).collect::<Vec<_>>()
    };
    let told: Vec<_> = lines.iter().map(|call| (call.status, named(call))).collect();
    let of_node1 = vec!["host node1".to_owned()];
    assert_eq!(told, [(401, vec![]), (401, of_node1.clone()), (200, of_node1)]);
}

/// A host whose certificate was not renewed in time is down, and the reason is said.
#[test]
fn a_host_whose_certificate_has_expired_is_down_for_that_reason() {
    let site = Site::new();
    let node = site.node("node1");
    node.join(&site.token("node1").unwrap()).unwrap();
    let own = read(&node.identity());
    let id = site.host("node1").unwrap().enrolment.unwrap().id;
    let file = |name: &str| site.dir.path().join(name);
    let signer = authority::Authority::load(&file("authority.crt"), &file("authority.key")).unwrap();
    let key = authority::make_key().unwrap();
    let a_year_ago = SystemTime::now() - Duration::from_hours(365 * 24);
    let old = signer.sign_server(&key, &[authority::agent_server_name(id)], a_year_ago).unwrap();
    std::fs::write(node.identity(), format!("{key}{}", old.certificate)).unwrap();
    let agent = node.start();
    site.until_refused("node1", "certificate expired");
    drop(agent);
    // The control: with its own certificate it is up.
    std::fs::write(node.identity(), own).unwrap();
    let _agent = node.start();
    site.until_up("node1");
}

/// The controller uses only those roles of an agent with which it joined, whatever the agent's
/// configuration says.
#[test]
fn roles_are_those_of_the_token_and_so_is_the_zone() {
    let site = Site::new();
    let node = site.node("node1");
    for wrong in ["", "a,b", " a", "a\n"] {
        let refused = site.token_for("node1", "storage", Some(wrong)).unwrap_err();
        assert!(matches!(&refused, Refusal::Invalid(why) if why.starts_with("zone: ")), "{refused}");
    }
    let token = site.token_for("node1", "host", Some("az2")).unwrap();
    node.join_as(Role::Host, &token.url, &token.token, &token.pin).unwrap();
    // The node's administrator would have it serve volumes all the same.
    let config = read(&node.config()).replace("\n[host]\n", "\n# [host]\n");
    let config = config.replacen("# portals = ", "portals = ", 1);
    std::fs::write(node.config(), format!("{config}\n[[groups]]\nname = \"vg0\"\n")).unwrap();
    let agent = node.start();
    let host = site.until_up("node1");
    assert_eq!((host.zone.as_str(), host.pools.len()), ("az2", 0));
    let told = "role storage: its configuration has `groups`";
    until("the problem", || {
        site.host("node1").filter(|host| host.problems.iter().any(|problem| problem.starts_with(told)))
    });
    drop(agent);
    site.revoke("node1").unwrap();
    std::fs::remove_file(node.config()).unwrap();
    node.join(&site.token("node1").unwrap()).unwrap();
    let _agent = node.start();
    let host = until("its pool", || site.host("node1").filter(|host| host.up && host.pools.len() == 1));
    assert_eq!(host.zone, "nova");
    assert!(!host.problems.iter().any(|problem| problem.starts_with("role ")), "{:?}", host.problems);
}
