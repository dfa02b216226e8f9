//! Hosts that are renamed, and hosts that are given up.
use mooring_agent::args::Role;
use mooring_controller::domain::{Caller, NewFence, VolumeStatus};
use mooring_controller::service::{FORGET_AFTER, JoinRequest, NewJoinToken, Refusal, Wait};
use mooring_model::Chain;

use super::pg;
use super::site::{PATIENCE, Site, admin, read, request, until};

/// Only the controller knows a host's name: the agent serves on, with the certificate that it has.
#[test]
fn a_host_is_renamed_and_serves_on() {
    let site = Site::new();
    let node = site.node("node1");
    node.join(&site.token("node1").unwrap()).unwrap();
    let agent = node.start();
    until("its pool", || site.host("node1").filter(|host| host.up && host.pools.len() == 1));
    let volume = site.volume();
    assert_eq!(volume.place.host.as_deref(), Some("node1@lvm#vg0"));
    let before = (site.host("node1").unwrap().agent, site.host("node1").unwrap().enrolment.unwrap().id);
    site.runtime
        .block_on(site.service.fence_host(&admin(), "node1", NewFence::default(), Wait(PATIENCE)))
        .unwrap();
    let (config, certificate) = (read(&node.config()), read(&node.identity()));

    assert_eq!(site.rename("node1", "rack4").unwrap(), Vec::<String>::new());
    assert!(site.host("node1").is_none());
    let host = site.until_up("rack4");
    assert_eq!((host.agent, host.enrolment.unwrap().id), before);
    assert!(
        host.problems.iter().any(|problem| problem.contains("host unfence rack4")),
        "{:?}",
        host.problems
    );
    // Nothing has changed on the host, nor on its volume.
    assert!((read(&node.config()), read(&node.identity())) == (config, certificate));
    let renamed = site.look(volume.id).unwrap();
    assert_eq!(
        (renamed.place.host.as_deref(), renamed.status),
        (Some("rack4@lvm#vg0"), VolumeStatus::Available)
    );
    until("its pool", || site.host("rack4").filter(|host| host.pools.len() == 1));
    assert_eq!(site.volume().place.host.as_deref(), Some("rack4@lvm#vg0"));

    // The old name is free for another machine, and opens nothing of the first one.
    let other = site.node("other");
    other.join(&site.token("node1").unwrap()).unwrap();
    let own = read(&other.identity());
    std::fs::write(other.identity(), read(&node.identity())).unwrap();
    let stranger = other.start();
    site.until_refused("node1", "not valid for name");
    drop(stranger);
    std::fs::write(other.identity(), own).unwrap();
    let _other = other.start();
    site.until_up("node1");
    assert_ne!(site.host("node1").unwrap().agent, before.0);

    // Its certificate is renewed under the new name, and a restart may rename it again.
    site.age();
    site.runtime.block_on(site.service.renew_certificates()).unwrap();
    drop(agent);
    until("rack4 is down", || site.host("rack4").filter(|host| !host.up));
    site.rename("rack4", "rack5").unwrap();
    let _agent = node.start();
    assert_eq!(site.until_up("rack5").agent, before.0);
}

#[test]
fn a_name_that_cannot_be_had_is_refused_with_the_reason() {
    let site = Site::new();
    let node = site.node("node");
    for name in ["one", "two"] {
        let token = site.token(name).unwrap();
        site.runtime.block_on(site.service.join(request(&node, &token))).unwrap();
    }
    let refused = |old: &str, new: &str| site.rename(old, new).unwrap_err();
    for wrong in ["", "-x", "a b", "ä", "a@lvm", "a#b", &"x".repeat(65)] {
        assert!(matches!(refused("one", wrong), Refusal::Invalid(_)), "{wrong:?}");
    }
    assert!(matches!(refused("one", "one"), Refusal::Invalid(why) if why.contains("already")));
    assert!(matches!(refused("one", "two"), Refusal::Conflict(why) if why.contains("another host")));
    assert!(matches!(refused("nosuch", "three"), Refusal::NotFound { kind: "Host", .. }));
    let member = Caller { admin: false, roles: vec!["member".to_owned()], ..admin() };
    let rename = site.service.rename_host(&member, "one", "three");
    assert!(matches!(site.runtime.block_on(rename), Err(Refusal::Forbidden(_))));
    site.revoke("two").unwrap();
    assert!(matches!(refused("two", "three"), Refusal::Conflict(why) if why.contains("was revoked")));
    // The name of a host that was revoked and has nothing is free.
    site.rename("one", "two").unwrap();
    assert!(site.host("two").is_some() && site.host("one").is_none());
    // A token of either name is no longer valid.
    let token = site.token("one").unwrap();
    site.rename("two", "one").unwrap();
    let join = site.runtime.block_on(site.service.join(request(&node, &token))).unwrap_err();
    assert!(join.to_string().contains("is not known"), "{join}");
}

/// Two controllers with one database: both know the new name, whichever was asked, and the agent is
/// up at both.
#[test]
fn a_new_name_reaches_the_other_controller() {
    let server = pg::Server::new();
    let url = server.database("rename");
    let one = Site::with(None, Some(&url));
    let other = Site::with(Some(&one), Some(&url));
    let both = [&one, &other];
    let node = one.node("node0");
    node.join(&one.token("node0").unwrap()).unwrap();
    let _agent = node.start();
    for site in both {
        site.until_up("node0");
    }
    // Whichever drives it.
    for (round, asked) in both.into_iter().enumerate() {
        let [old, new] = [round, round + 1].map(|number| format!("node{number}"));
        asked.rename(&old, &new).unwrap();
        for site in both {
            site.until_up(&new);
            until("the old name is gone", || site.host(&old).is_none().then_some(()));
        }
    }
}

/// A host that was given up returns: nothing of it is accepted, under whatever name it joins.
#[test]
fn a_forgotten_host_comes_back_as_a_stranger() {
    let site = Site::new();
    let node = site.node("node1");
    node.join(&site.token("node1").unwrap()).unwrap();
    let agent = node.start();
    until("its pool", || site.host("node1").filter(|host| host.up && host.pools.len() == 1));
    let volume = site.volume();
    let forget = || site.runtime.block_on(site.service.forget_host(&admin(), "node1", "node1"));
    assert!(matches!(forget(), Err(Refusal::Conflict(why)) if why.contains("answers")));
    drop(agent);
    until("node1 is down", || site.host("node1").filter(|host| !host.up));
    assert!(matches!(forget(), Err(Refusal::Conflict(why)) if why.contains("was heard")));
    site.put_forward(FORGET_AFTER);
    let lost = forget().unwrap();
    assert_eq!((lost.total().volumes, lost.enrolled), (1, true));
    assert!(site.look(volume.id).is_none() && site.host("node1").is_none());

    // It starts again with its whole state: the controller does not dial it. Its certificate is
    // invalid also under the same name.
    let agent = node.start();
    let again = site.token("node1").unwrap();
    let hidden = read(&node.config());
    let store = format!("{}\"", node.dir.join("state").display());
    std::fs::write(node.config(), hidden.replace("/var/lib/mooring\"", &store)).unwrap();
    let refused = Chain(&node.join(&again).unwrap_err()).to_string();
    assert!(refused.contains("was forgotten as node1") && refused.contains("state_dir"), "{refused}");
    assert!(site.host("node1").is_none(), "it did not join");
    // An agent that does not say whose store it has, like an older release, is refused when it
    // answers.
    std::fs::write(node.config(), hidden).unwrap();
    node.join_as(Role::Storage, &again.url, &site.token("node2").unwrap().token, &again.pin).unwrap();
    drop(agent);
    let agent = node.start();
    site.until_refused("node2", "was forgotten as node1");
    assert_eq!(site.host("node2").unwrap().pools.len(), 0);
    drop(agent);

    // With another store it is another agent.
    std::fs::remove_dir_all(node.dir.join("state")).unwrap();
    let _agent = node.start();
    until("its pool", || site.host("node2").filter(|host| host.up && host.pools.len() == 1));
}

/// A machine has one enrolment, and keeps its volumes, under whatever name it joins.
#[test]
fn a_machine_is_known_by_its_id_when_it_joins_under_another_name() {
    let site = Site::new();
    let node = site.node("node1");
    node.join(&site.token("node1").unwrap()).unwrap();
    let agent = node.start();
    until("its pool", || site.host("node1").filter(|host| host.up && host.pools.len() == 1));
    let volume = site.volume();
    let id = site.host("node1").unwrap().agent;
    assert!(id.is_some());
    drop(agent);
    until("node1 is down", || site.host("node1").filter(|host| !host.up));
    let keys = site.node("keys");
    let join = |token: &NewJoinToken| {
        let asked = JoinRequest { agent: id, ..request(&keys, token) };
        site.runtime.block_on(site.service.join(asked))
    };

    // It is enrolled as node1 still: the token is not used, and node1's certificate stays good.
    let token = site.token("node2").unwrap();
    let refused = join(&token).unwrap_err().to_string();
    for way in ["has joined, as node1", "`mooring host rename node1 node2`", "`mooring host revoke node1`"] {
        assert!(refused.contains(way), "{refused}");
    }
    assert!(site.host("node2").is_none());
    let agent = node.start();
    site.until_up("node1");
    drop(agent);
    until("node1 is down", || site.host("node1").filter(|host| !host.up));

    // A token for another role would take its volume from its projects.
    site.revoke("node1").unwrap();
    let refused = join(&site.token_for("node3", "host", None).unwrap()).unwrap_err().to_string();
    assert!(refused.contains("this machine has 1 volumes") && refused.contains("role storage"), "{refused}");
    assert!(site.host("node3").is_none() && site.look(volume.id).is_some());
    assert_eq!(join(&token).unwrap().enrolment.name, "node2");
}
