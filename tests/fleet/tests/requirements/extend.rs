//! Volumes that grow, with any number of hosts at work on them.

use mooring_fleet::{Client, Fleet, Node, until};
use mooring_host::Errno;
use serde_json::json;

use crate::{OTHER_SERVER, SERVER};

const GIB: u64 = 1 << 30;

fn extend(client: &Client, volume: &str, gib: u64) -> mooring_fleet::Answer {
    client.action(&format!("/volumes/{volume}"), "os-extend", &json!({ "new_size": gib }))
}

/// Waits until the volume is shown with this size and status.
fn until_shown(client: &Client, volume: &str, gib: u64, status: &str) {
    until(&format!("{gib} GiB, {status}"), || {
        let seen = client.show(volume);
        if seen["size"] == gib && seen["status"] == status { Ok(()) } else { Err(seen.to_string()) }
    });
}

/// Returns `true` if the added space reads as zeros.
fn tail_is_zeroed(fleet: &Fleet, volume: &str, from: u64, to: u64) -> bool {
    let device = Node::device("vg0", volume);
    let zeroed = fleet.storage("s1").machine().blocks().zeroed_ranges(device);
    zeroed.iter().any(|(start, end)| *start <= from * GIB && *end == to * GIB)
}

#[test]
fn a_shared_volume_grows_under_all_its_hosts() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 50)]).host("h1").host("h2").start();
    let member = fleet.member();
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let stock = fleet.stock("node1");
    let attached = member.attach(&volume, &stock, None);
    let session = stock.login(&attached.info).unwrap();
    let paths: Vec<_> = ["h1", "h2"]
        .map(|host| (host, fleet.admin().attach_natively(&volume, host, "rw")))
        .into_iter()
        .map(|(host, id)| (host, fleet.host(host).path_of(&id), id))
        .collect();
    let tree = fleet.storage("s1").tree();
    extend(&member, &volume, 3).expect(202);
    until_shown(&member, &volume, 3, "in-use");
    for (host, path, id) in &paths {
        let host = fleet.host(host);
        until("the new size on the host", || match host.world().size_of(volume.parse().unwrap()) {
            Some(size) if size == 3 * GIB => Ok(()),
            other => Err(format!("{other:?}")),
        });
        assert_eq!(host.path_of(id), *path, "the path is the same disk's");
        host.hold_open(&volume, true);
    }
    assert!(session.write().is_ok() && tail_is_zeroed(&fleet, &volume, 1, 3));
    assert_eq!(fleet.storage("s1").tree(), tree, "the target has nothing to do");
    // Nobody notices another extend, with the disks held open.
    extend(&member, &volume, 4).expect(202);
    until_shown(&member, &volume, 4, "in-use");
    assert!(session.write().is_ok() && tail_is_zeroed(&fleet, &volume, 3, 4));
}

#[test]
fn what_is_in_use_grows_for_clients_that_know_that_it_may() {
    let fleet = Fleet::small();
    let (member, stock) = (fleet.member(), fleet.stock("node1"));
    let volume = member.volume(None, 1);
    extend(&member.at("3.0"), &volume, 2).expect(202);
    until_shown(&member, &volume, 2, "available");
    let attached = member.attach(&volume, &stock, None);
    stock.login(&attached.info).unwrap();
    extend(&member.at("3.41"), &volume, 3).refused(400, "currently in-use");
    extend(&member.at("3.42"), &volume, 3).expect(202);
    until_shown(&member, &volume, 3, "in-use");
    for wrong in [3, 1] {
        extend(&member.at("3.42"), &volume, wrong).refused(400, "must be greater than current size");
    }
    // Neither the pool nor the project has enough space.
    assert!(matches!(extend(&member.at("3.42"), &volume, 900).status, 400 | 413));
    assert_eq!(member.show(&volume)["size"], 3);
}

#[test]
fn a_growth_that_fails_is_said_cuts_nobody_off_and_goes_on_when_it_can() {
    let fleet = Fleet::small();
    let (member, stock) = (fleet.member(), fleet.stock("node1"));
    let volume = member.volume(None, 1);
    let attached = member.attach(&volume, &stock, None);
    let session = stock.login(&attached.info).unwrap();
    let storage = fleet.storage("s1");
    storage.machine().blocks().fail_zeroing(Some(Errno::EIO));
    extend(&member, &volume, 2).expect(202);
    until_shown(&member, &volume, 1, "error_extending");
    assert!(session.write().is_ok());
    let messages = member.get("/messages").expect(200);
    let told = messages["messages"].as_array().unwrap().iter().any(|message| {
        message["user_message"].as_str().is_some_and(|text| text.starts_with("extend volume: "))
    });
    assert!(told, "{messages}");
    storage.machine().blocks().fail_zeroing(None);
    storage.restart();
    until_shown(&member, &volume, 2, "in-use");
    assert!(session.write().is_ok() && tail_is_zeroed(&fleet, &volume, 1, 2));
}

/// The bytes that an agent may zero in a second.
fn limit_jobs(fleet: &Fleet, bytes: Option<u64>) {
    let limit = json!({ "bytes_per_second": bytes });
    fleet.admin().put("/mooring/v1/hosts/s1/job-limit", &limit).expect(200);
}

fn used_gib(fleet: &Fleet) -> serde_json::Value {
    let path = format!("/os-quota-sets/{}?usage=true", fleet.member().project());
    fleet.admin().get(&path).expect(200)["quota_set"]["gigabytes"]["in_use"].take()
}

#[test]
fn a_growth_that_is_zeroed_still_is_taken_back_under_its_session() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 50)]).start();
    let (member, stock) = (fleet.member(), fleet.stock("node1"));
    let volume = member.volume(None, 1);
    let session = stock.login(&member.attach(&volume, &stock, None).info).unwrap();
    let storage = fleet.storage("s1");
    let (path, tree) = (format!("/mooring/v1/volumes/{volume}/extend"), storage.tree());
    let grows = || storage.has_volume("vg0", &format!("grow-{volume}"));
    member.delete(&path).refused(409, "does not grow");
    limit_jobs(&fleet, Some(1 << 20));
    extend(&member, &volume, 9).expect(202);
    until("its growth is zeroed", || if grows() { Ok(()) } else { Err("none".to_owned()) });
    assert_eq!((used_gib(&fleet), member.status(&volume)), (json!(9), "extending".to_owned()));
    fleet.stranger().delete(&path).refused(404, "could not be found");
    let told = member.delete(&path).expect(202);
    assert_eq!(told["volume"]["id"], volume, "{told}");
    until_shown(&member, &volume, 1, "in-use");
    until("nothing is left of it", || if grows() { Err("there".to_owned()) } else { Ok(()) });
    assert_eq!((used_gib(&fleet), storage.tree()), (json!(1), tree));
    assert!(session.write().is_ok());
    member.delete(&path).refused(409, "does not grow, or not any more: it has 1 GiB");
    // It grows once the limit is gone; and completed extends stay.
    limit_jobs(&fleet, None);
    extend(&member, &volume, 2).expect(202);
    until_shown(&member, &volume, 2, "in-use");
    member.delete(&path).refused(409, "it has 2 GiB");
    assert!(session.write().is_ok() && tail_is_zeroed(&fleet, &volume, 1, 2));
}

#[test]
fn a_server_moves_and_others_come_while_the_volume_grows() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 50)]).host("h1").start();
    let member = fleet.member();
    let (alone, shared) = (member.volume(None, 1), member.volume(Some(&fleet.shared_type()), 1));
    let (here, there) = (fleet.stock("node1"), fleet.stock("node2"));
    let reserved = member.reserve(&alone, Some(SERVER));
    let source = here.login(&member.connect(&reserved, &here.connector())).unwrap();
    member.complete(&reserved);
    let storage = fleet.storage("s1");
    limit_jobs(&fleet, Some(1 << 20));
    for volume in [&alone, &shared] {
        extend(&member, volume, 9).expect(202);
        let grows = || storage.has_volume("vg0", &format!("grow-{volume}"));
        until("its growth is zeroed", || if grows() { Ok(()) } else { Err("none".to_owned()) });
        assert_eq!(
            (member.status(volume), member.show(volume)["size"].take()),
            ("extending".to_owned(), json!(1))
        );
    }
    // The second attachment of a live migration, reserved first; another server's is refused as
    // ever.
    let moves = member.reserve(&alone, Some(SERVER));
    let target = there.login(&member.connect(&moves, &there.connector())).unwrap();
    member.complete(&moves);
    assert!(source.write().is_ok() && target.write().is_ok());
    let other = json!({ "attachment": { "volume_uuid": alone, "instance_uuid": OTHER_SERVER } });
    member.post("/attachments", &other).refused(400, "the current status is in-use");
    // A shared volume takes a client and a host with an agent, with the old size.
    let session = there.login(&member.attach(&shared, &there, None).info).unwrap();
    let native = fleet.admin().attach_natively(&shared, "h1", "rw");
    let host = fleet.host("h1");
    let path = host.path_of(&native);
    let size = || host.world().size_of(shared.parse().unwrap());
    assert_eq!((member.status(&shared), size()), ("extending".to_owned(), Some(GIB)));
    // All of them see the new one, without a new login.
    limit_jobs(&fleet, None);
    for volume in [&alone, &shared] {
        until_shown(&member, volume, 9, "in-use");
        assert!(tail_is_zeroed(&fleet, volume, 1, 9));
    }
    until("the new size on the host", || match size() {
        Some(size) if size == 9 * GIB => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(host.path_of(&native), path, "the path is the same disk's");
    assert!(source.write().is_ok() && target.write().is_ok() && session.write().is_ok());
}
