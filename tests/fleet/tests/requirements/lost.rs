//! Survival of everything when an agent's database is lost, and of everything else when an LV is.

use mooring_fleet::{Attached, Client, Fleet, Session, Stock, until, until_some};
use mooring_host::fake::{IoRefusal, PrOut};
use serde_json::json;

use crate::granted;

/// Storage and host lose their state folders while sessions run, together and alone: everything
/// returns by itself.
#[test]
fn s18_an_agent_that_loses_its_database_loses_nothing() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).host("h1").start();
    let (member, node) = (fleet.member(), fleet.stock("node1"));
    let volume = member.volume(Some(&fleet.shared_type()), 1);
    let attached = member.attach(&volume, &node, Some("ro"));
    let session = node.login(&attached.info).unwrap();
    let native = fleet.admin().attach_natively(&volume, "h1", "rw");
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

/// The reason that Mooring's own API names for a volume's trouble.
fn fault(client: &Client, volume: &str) -> Option<String> {
    let shown = client.get(&format!("/mooring/v1/volumes/{volume}")).expect(200);
    shown["volume"]["fault"].as_str().map(str::to_owned)
}

/// An LV is removed by hand while its storage node serves nothing. Whoever may see storage nodes is
/// told, no other volume is touched, and the volume is deleted.
#[test]
fn a_volume_whose_lv_was_removed_by_hand_says_so_and_is_deleted() {
    let fleet = Fleet::small();
    let (admin, member, storage) = (fleet.admin(), fleet.member(), fleet.storage("s1"));
    let (gone, stays) = (member.volume(None, 1), member.volume(None, 1));
    // The control: nothing is the matter yet.
    assert_eq!((fault(&admin, &gone), fault(&admin, &stays)), (None, None));
    storage.kill();
    storage.machine().reboot();
    storage.machine().lvm().lose_volume("vg0", &format!("mooring-{gone}"));
    storage.start();
    let why = until_some("the reason", || fault(&admin, &gone));
    for word in ["s1", "its LV is gone", &format!("vg0/mooring-{gone}")] {
        assert!(why.contains(word), "{word:?} is not in {why}");
    }
    assert_eq!(fault(&member, &gone), None, "the names of groups and LVs are no member's matter");
    let node = fleet.stock("node1");
    let session = log_in(&node, &member.attach(&stays, &node, None));
    until("nothing is the matter with the other one", || fault(&admin, &stays).map_or(Ok(()), Err));
    member.delete(&format!("/volumes/{gone}")).expect(202);
    member.until_deleted(&gone);
    assert!(session.write().is_ok() && storage.has_volume("vg0", &stays));
    assert!(!storage.has_volume("vg0", &gone) && !storage.has_export(&gone), "nothing was made in its place");
}

/// WRITE EXCLUSIVE, registrants only.
const KIND: u8 = 5;

fn register(session: &Session, key: u64, durable: bool) {
    session.persistent_reserve(PrOut::Register { key: 0, new: key, durable }).unwrap();
}

/// Logs in as soon as the volume is served.
fn log_in(host: &Stock, attached: &Attached) -> Session {
    until_some("the volume is served", || host.login(&attached.info).ok())
}

/// The power of a storage node fails, and its state folder is lost with it. Reservations return
/// from the controller's copy, as of the last change. Those that were not to survive do not.
#[test]
fn reservations_outlive_a_storage_node_that_loses_power_and_database() {
    let fleet = Fleet::builder().storage("s1", &[("vg0", 100)]).start();
    let (member, storage) = (fleet.member(), fleet.storage("s1"));
    let hosts = [fleet.stock("node1"), fleet.stock("node2")];
    let kept = member.volume(Some(&fleet.shared_type()), 1);
    let brief = member.volume(Some(&fleet.shared_type()), 1);
    let attach = |volume: &String| hosts.each_ref().map(|host| member.attach(volume, host, None));
    let (of_kept, of_brief) = (attach(&kept), attach(&brief));
    let sessions = |of: &[Attached; 2]| [0, 1].map(|host: usize| log_in(&hosts[host], &of[host]));
    let copy = |volume: &str| {
        let database = fleet.database().join("mooring-controller.db");
        let text = rusqlite::Connection::open(database).unwrap().query_row(
            "SELECT coalesce(max(payload), '') FROM volume_operations WHERE volume_id = ?1 AND kind = 'reservations'",
            [volume],
            |row| row.get::<_, String>(0),
        );
        text.unwrap()
    };
    let reserve = |of: &[Attached; 2], durable: bool| {
        let [one, two] = sessions(of);
        register(&one, 0xa1, durable);
        one.persistent_reserve(PrOut::Reserve { key: 0xa1, kind: KIND }).unwrap();
        assert_eq!((one.write(), two.write()), (Ok(()), Err(IoRefusal::ReservationConflict)));
    };
    reserve(&of_kept, true);
    reserve(&of_brief, false);
    until("the controller has a copy", || {
        if copy(&kept).contains("sa_res_key=161") { Ok(()) } else { Err(copy(&kept)) }
    });
    assert!(!copy(&brief).contains("sa_res_key"));

    let lose = || {
        storage.lose_database();
        storage.reboot();
    };
    // A new login has another ISID here, so that nobody is registered: only the restored
    // reservation fences.
    let may_write = |of: &[Attached; 2]| sessions(of).map(|session| session.write().is_ok());
    let registered = |volume: &str| {
        let seen = fleet.admin().get(&format!("/mooring/v1/volumes/{volume}/reservations")).expect(200);
        let seen = &seen["reservations"];
        let keys = seen["registrations"].as_array().unwrap().iter();
        let keys: Vec<_> = keys.map(|one| one["key"].as_str().unwrap().to_owned()).collect();
        (keys, seen["holder"]["initiator"].as_str().map(str::to_owned))
    };
    let of = |host: usize, key: &str| (vec![key.to_owned()], Some(hosts[host].initiator().to_owned()));
    lose();
    assert_eq!(may_write(&of_kept), [false, false]);
    assert_eq!(registered(&kept), of(0, "0x00000000000000a1"));
    // Control: the reservation that was not to be kept is gone.
    assert_eq!(may_write(&of_brief), [true, true]);

    // The second host takes over; the copy follows, and the older one does not return.
    let [_, two] = sessions(&of_kept);
    register(&two, 0xb2, true);
    two.persistent_reserve(PrOut::Preempt { key: 0xb2, victim: 0xa1, kind: KIND }).unwrap();
    until("the copy follows", || {
        let text = copy(&kept);
        if text.contains("sa_res_key=178") && !text.contains("sa_res_key=161") { Ok(()) } else { Err(text) }
    });
    lose();
    assert_eq!(may_write(&of_kept), [false, false]);
    assert_eq!(registered(&kept), of(1, "0x00000000000000b2"));

    // The copy goes with the last registration.
    let [one, _] = sessions(&of_kept);
    register(&one, 0xa1, true);
    one.persistent_reserve(PrOut::Clear { key: 0xa1 }).unwrap();
    until("there is nothing to copy", || {
        let text = copy(&kept);
        if text.contains("sa_res_key") { Err(text) } else { Ok(()) }
    });
    lose();
    assert_eq!(may_write(&of_kept), [true, true]);
}
