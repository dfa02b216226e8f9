//! What outlives the loss of an agent's database: everything.

use mooring_fleet::{Fleet, until};
use serde_json::json;

use crate::granted;

/// Storage and host lose their state folders while sessions run, together and alone: everything returns by itself.
#[test]
fn s18_an_agent_that_loses_its_database_loses_nothing() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").start();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let attached = member.attach(&volume, &node, Some("ro"));
    let session = node.login(&attached.info).unwrap();
    let native = member.attach_natively(&volume, "h1", "rw");
    let (storage, host) = (fleet.storage("s1"), fleet.host("h1"));
    let hosts = || fleet.admin().get("/mooring/v1/hosts").expect(200)["hosts"].take();
    let ids = |hosts: &serde_json::Value| -> Vec<_> {
        hosts.as_array().unwrap().iter().map(|host| (host["id"].clone(), host["initiator"].clone())).collect()
    };
    let (known, tree) = (ids(&hosts()), storage.tree());
    let (device, sessions) = (host.path_of(&native).unwrap(), storage.sessions(&volume));
    for lost in [&[storage][..], &[host], &[storage, host]] {
        for node in lost {
            node.lose_database();
        }
        for node in lost {
            node.start();
        }
        until("everything as it was", || {
            let hosts = hosts();
            let up = hosts.as_array().unwrap().iter().all(|host| host["up"] == true);
            let live = member.get(&format!("/mooring/v1/attachments/{native}")).expect(200);
            let live = &live["attachment"];
            let told = live["session"] == true && live["host_phase"] == "ready";
            if up && told && hosts[0]["problems"] == json!([]) {
                Ok(())
            } else {
                Err(format!("{hosts} {live}"))
            }
        });
        assert_eq!(ids(&hosts()), known);
        assert_eq!(storage.tree(), tree, "byte for byte");
        assert_eq!(storage.sessions(&volume), sessions);
        assert_eq!(host.path_of(&native).as_ref(), Some(&device));
        assert!(session.is_live() && session.read().is_ok());
    }
    assert_eq!(member.status(&volume), "in-use");
    member.detach(&native);
    member.detach(&attached.id);
    assert!(granted(&fleet, &volume).is_empty() && host.path_of(&native).is_none());
    member.delete(&format!("/volumes/{volume}")).expect(202);
    member.until_deleted(&volume);
    assert!(!storage.has_volume("vg0", &volume));
}
