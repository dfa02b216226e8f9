//! Nova's own call sequences, with its microversions and headers.

use std::collections::BTreeSet;
use std::sync::Mutex;

use mooring_fleet::{Answer, Client, Fleet, Session, Stock};
use serde_json::{Value, json};

use crate::{OTHER_SERVER, SERVER, granted, shared};

/// A third server.
const THIRD_SERVER: &str = "cccccccc-0000-4000-8000-000000000000";

/// Nova, as its compute service calls: with the user's request id.
struct Nova {
    client: Client,
}

impl Nova {
    fn new(fleet: &Fleet) -> Self {
        let client =
            fleet.member().with("X-OpenStack-Request-ID", "req-9a6bd94c-1e07-4c58-9d70-3f1d17a4e5c2");
        // As in an installation: the user's token, and Nova's own beside it.
        let client = client.with("X-Service-Token", fleet.service().token());
        Self { client: client.with("User-Agent", "python-cinderclient") }
    }

    /// Nova asks for the newest version that it knows, and falls back if that is refused.
    fn volume(&self, id: &str) -> Value {
        self.client.at("3.69").get(&format!("/volumes/{id}")).expect(200)["volume"].take()
    }

    /// The API's part of an attach: checks, and a reservation without a connector.
    fn reserve(&self, volume: &str, server: &str) -> Answer {
        self.client.unversioned().get("//").expect(300);
        self.volume(volume);
        let body = json!({ "attachment": { "volume_uuid": volume, "instance_uuid": server } });
        self.client.at("3.44").post("/attachments", &body)
    }

    /// The compute host's part of an attach.
    fn connect(&self, attachment: &str, connector: &Value) -> Value {
        let body = json!({ "attachment": { "connector": connector } });
        let put = self.client.at("3.44").put(&format!("/attachments/{attachment}"), &body).expect(200);
        put["attachment"]["connection_info"].clone()
    }

    fn complete(&self, attachment: &str) {
        let path = format!("/attachments/{attachment}");
        self.client.at("3.44").action(&path, "os-complete", &Value::Null).expect(204);
    }

    fn attachment(&self, id: &str) -> Value {
        self.client.at("3.44").get(&format!("/attachments/{id}")).expect(200)["attachment"].take()
    }

    fn delete(&self, attachment: &str) -> Answer {
        self.client.at("3.44").delete(&format!("/attachments/{attachment}"))
    }

    /// An action of a volume in Nova's form, without a version.
    fn action(&self, volume: &str, name: &str) -> Answer {
        self.client.unversioned().action(&format!("/volumes/{volume}"), name, &json!({}))
    }

    /// The whole of an attach.
    fn attach(&self, volume: &str, server: &str, node: &Stock) -> (String, Session) {
        let id = id_of(&self.reserve(volume, server).expect(200));
        let session = node.login(&self.connect(&id, &node.connector())).unwrap();
        self.complete(&id);
        (id, session)
    }

    /// A whole detach: the API announces it, the compute host looks it up and does it. No connector
    /// was kept.
    fn detach(&self, volume: &str, attachment: &str) {
        self.volume(volume);
        self.action(volume, "os-begin_detaching").expect(202);
        self.volume(volume);
        self.delete(attachment).expect(200);
    }
}

fn id_of(answer: &Value) -> String {
    answer["attachment"]["id"].as_str().unwrap().to_owned()
}

#[test]
fn s48_nova_attaches_one_volume_to_two_servers_and_detaches_them() {
    let (fleet, volume) = shared();
    let nova = Nova::new(&fleet);
    let mut attached = Vec::new();
    for (server, node) in [(SERVER, "node1"), (OTHER_SERVER, "node2")] {
        let node = fleet.stock(node);
        let made = nova.reserve(&volume, server).expect(200);
        assert_eq!(made["attachment"]["connection_info"], json!({}));
        let id = id_of(&made);
        let info = nova.connect(&id, &node.connector());
        assert_eq!((&info["driver_volume_type"], &info["access_mode"]), (&json!("iscsi"), &json!("rw")));
        let session = node.login(&info).unwrap();
        nova.complete(&id);
        // A reboot of the server asks again.
        assert_eq!(nova.attachment(&id)["connection_info"]["target_iqn"], info["target_iqn"]);
        attached.push((id, session));
    }
    let shown = nova.volume(&volume);
    assert_eq!((&shown["status"], &shown["multiattach"]), (&json!("in-use"), &json!(true)));
    assert_eq!(shown["shared_targets"], false, "Nova need not take turns");
    // Detach, without the connector: the attachment is enough.
    let (id, session) = attached.remove(0);
    nova.delete(&id).expect(200);
    assert!(!session.is_live() && attached[0].1.is_live());
    assert_eq!(nova.volume(&volume)["status"], "in-use");
    // A retry after a lost answer: gone is fine for Nova.
    nova.delete(&id).expect(404);
    nova.delete(&attached[0].0).expect(200);
    assert_eq!(nova.volume(&volume)["status"], "available");
}

#[test]
fn s48_an_attach_that_fails_on_the_host_is_taken_back() {
    let (fleet, volume) = shared();
    let nova = Nova::new(&fleet);
    let id = id_of(&nova.reserve(&volume, SERVER).expect(200));
    // A host whose initiator name is not configured.
    let mut connector = fleet.stock("node1").connector();
    connector.as_object_mut().unwrap().remove("initiator");
    let body = json!({ "attachment": { "connector": connector } });
    nova.client.at("3.44").put(&format!("/attachments/{id}"), &body).refused(400, "initiator");
    assert_eq!(nova.attachment(&id)["status"], "reserved", "a refused connector changes nothing");
    nova.delete(&id).expect(200);
    assert_eq!(nova.volume(&volume)["status"], "available");
    assert!(granted(&fleet, &volume).is_empty());
}

#[test]
fn s48_what_nova_cannot_handle_is_never_answered_to_a_reservation() {
    let fleet = Fleet::small();
    let (nova, volume) = (Nova::new(&fleet), fleet.member().volume(None, 1));
    nova.reserve(&volume, SERVER).expect(200);
    // 409 and 500 would become a 500 to the user: a refusal is 400.
    nova.reserve(&volume, OTHER_SERVER).expect(400);
}

/// A live migration up to the memory copy: the target's attachment is made with its connector, and
/// completed.
fn begin_migration(nova: &Nova, volume: &str, there: &Stock) -> (String, Session) {
    let body = json!({ "attachment": {
        "volume_uuid": volume, "instance_uuid": SERVER, "connector": there.connector(),
    } });
    let id = id_of(&nova.client.at("3.44").post("/attachments", &body).expect(200));
    let info = nova.attachment(&id)["connection_info"].take();
    let session = there.login(&info).unwrap();
    nova.complete(&id);
    (id, session)
}

#[test]
fn s21_a_live_migration_has_two_connected_attachments_of_one_server() {
    let fleet = Fleet::small();
    let (nova, volume) = (Nova::new(&fleet), fleet.member().volume(None, 1));
    let here = fleet.stock("node1");
    let source = id_of(&nova.reserve(&volume, SERVER).expect(200));
    let on_source = here.login(&nova.connect(&source, &here.connector())).unwrap();
    nova.complete(&source);

    let (target, on_target) = begin_migration(&nova, &volume, &fleet.stock("node2"));
    // Both write: the guest switches somewhere in between.
    assert!(on_source.write().is_ok() && on_target.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
    let shown = nova.volume(&volume);
    let servers: Vec<_> =
        shown["attachments"].as_array().unwrap().iter().map(|entry| &entry["server_id"]).collect();
    assert_eq!(servers, [&json!(SERVER), &json!(SERVER)]);
    assert_eq!(shown["status"], "in-use");

    on_source.clone().logout();
    nova.delete(&source).expect(200);
    assert!(on_target.is_live() && on_target.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
    let mine = nova.client.at("3.44").get(&format!("/attachments?instance_id={SERVER}")).expect(200);
    assert_eq!(
        (mine["attachments"].as_array().unwrap().len(), &mine["attachments"][0]["id"]),
        (1, &json!(target))
    );
}

#[test]
fn s21_a_migration_that_is_rolled_back_leaves_the_source_as_it_was() {
    let fleet = Fleet::small();
    let (nova, volume) = (Nova::new(&fleet), fleet.member().volume(None, 1));
    let here = fleet.stock("node1");
    let source = id_of(&nova.reserve(&volume, SERVER).expect(200));
    let on_source = here.login(&nova.connect(&source, &here.connector())).unwrap();
    nova.complete(&source);
    let (target, on_target) = begin_migration(&nova, &volume, &fleet.stock("node2"));
    on_target.clone().logout();
    nova.delete(&target).expect(200);
    assert!(on_source.is_live() && on_source.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    assert_eq!(nova.attachment(&source)["status"], "attached");
    assert_eq!(nova.volume(&volume)["attachments"].as_array().unwrap().len(), 1);
}

#[test]
fn s21_a_cold_migration_reserves_deletes_and_connects_elsewhere() {
    let fleet = Fleet::small();
    let (nova, volume) = (Nova::new(&fleet), fleet.member().volume(None, 1));
    let (here, there) = (fleet.stock("node1"), fleet.stock("node2"));
    let old = id_of(&nova.reserve(&volume, SERVER).expect(200));
    nova.connect(&old, &here.connector());
    nova.complete(&old);
    let new = id_of(&nova.reserve(&volume, SERVER).expect(200));
    nova.delete(&old).expect(200);
    assert_eq!(nova.volume(&volume)["status"], "reserved", "nobody else takes it meanwhile");
    nova.reserve(&volume, OTHER_SERVER).expect(400);
    let session = there.login(&nova.connect(&new, &there.connector())).unwrap();
    nova.complete(&new);
    assert!(session.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
}

#[test]
fn s49_nova_detaches_without_the_connector_and_the_others_stay() {
    let (fleet, volume) = shared();
    let nova = Nova::new(&fleet);
    let (one, gone) = nova.attach(&volume, SERVER, &fleet.stock("node1"));
    let (two, stays) = nova.attach(&volume, OTHER_SERVER, &fleet.stock("node2"));
    nova.detach(&volume, &one);
    assert!(!gone.is_live() && stays.is_live() && stays.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node2 LUN 1 rw"]);
    assert_eq!(nova.volume(&volume)["status"], "in-use");
    // The last detach is announced, and then not made (the guest keeps its disk).
    nova.action(&volume, "os-begin_detaching").expect(202);
    assert_eq!(nova.volume(&volume)["status"], "detaching");
    nova.action(&volume, "os-begin_detaching").expect(400);
    nova.action(&volume, "os-roll_detaching").expect(202);
    assert_eq!(nova.volume(&volume)["status"], "in-use");
    assert!(stays.write().is_ok());
    nova.detach(&volume, &two);
    assert_eq!(nova.volume(&volume)["status"], "available");
    assert!(granted(&fleet, &volume).is_empty() && !stays.is_live());
    nova.action(&volume, "os-begin_detaching").expect(400);
}

#[test]
fn s49_a_user_does_not_take_a_disk_from_a_running_server() {
    let (fleet, volume) = shared();
    let nova = Nova::new(&fleet);
    let (id, session) = nova.attach(&volume, SERVER, &fleet.stock("node1"));
    let path = format!("/volumes/{volume}");
    let user = fleet.member();
    // A token that only claims to be a service's does not help, nor does a user's in its place.
    let forged = user.with("X-Service-Token", "gAAAAABforged");
    let own = user.with("X-Service-Token", user.token());
    for user in [user, forged, own] {
        for answer in [
            user.delete(&format!("/attachments/{id}")),
            user.action(&path, "os-detach", &json!({ "attachment_id": id })),
            user.action(&path, "os-terminate_connection", &json!({})),
            user.action(&path, "os-force_detach", &json!({ "attachment_id": id })),
        ] {
            assert!(matches!(answer.status, 401 | 403 | 409), "{answer:?}");
        }
    }
    assert!(session.is_live() && session.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    // With the server its session is gone: the user may remove what it left behind.
    session.logout();
    fleet.member().detach(&id);
    assert!(granted(&fleet, &volume).is_empty());
}

#[test]
fn s48_a_rebuild_attaches_the_same_host_again() {
    let fleet = Fleet::small();
    let (nova, volume, node) = (Nova::new(&fleet), fleet.member().volume(None, 1), fleet.stock("node1"));
    let (old, session) = nova.attach(&volume, SERVER, &node);
    // Reserved first, so that no other caller takes it while the server has no disk.
    let new = id_of(&nova.reserve(&volume, SERVER).expect(200));
    session.clone().logout();
    nova.delete(&old).expect(200);
    assert!(granted(&fleet, &volume).is_empty());
    let session = node.login(&nova.connect(&new, &node.connector())).unwrap();
    nova.complete(&new);
    assert!(session.write().is_ok());
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw"]);
    let own = nova.client.at("3.44").get(&format!("/attachments?instance_id={SERVER}")).expect(200);
    assert_eq!(own["attachments"].as_array().unwrap().len(), 1);
}

#[test]
fn s48_a_swap_counts_writers_and_holds_the_volume() {
    let (fleet, volume) = shared();
    let nova = Nova::new(&fleet);
    let (one, _) = nova.attach(&volume, SERVER, &fleet.stock("node1"));
    nova.attach(&volume, OTHER_SERVER, &fleet.stock("node2"));
    // Reserved while Nova looks for writers.
    nova.action(&volume, "os-begin_detaching").expect(202);
    assert_eq!(nova.volume(&volume)["status"], "in-use", "two have it");
    nova.reserve(&volume, THIRD_SERVER).refused(400, "os-begin_detaching");
    let shown = nova.volume(&volume);
    let attachments = shown["attachments"].as_array().unwrap();
    let writers = attachments.iter().filter(|entry| {
        let id = entry["attachment_id"].as_str().unwrap();
        nova.attachment(id)["attach_mode"] == "rw"
    });
    assert_eq!(writers.count(), 2, "so Nova refuses the swap");
    nova.action(&volume, "os-roll_detaching").expect(202);
    let third = id_of(&nova.reserve(&volume, THIRD_SERVER).expect(200));
    nova.delete(&third).expect(200);
    // Only a migration of ours would begin one, and there is none.
    let body = json!({ "new_volume": volume, "error": false });
    let path = format!("/volumes/{volume}");
    fleet.admin().action(&path, "os-migrate_volume_completion", &body).refused(501, "implement");
    assert_eq!(nova.attachment(&one)["status"], "attached");
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

#[test]
fn s48_a_server_boots_from_a_volume_and_takes_it_along() {
    let fleet = Fleet::small();
    let nova = Nova::new(&fleet);
    let create = json!({ "volume": { "size": 1, "name": "", "description": "", "volume_type": null,
        "metadata": {}, "availability_zone": null, "snapshot_id": null, "source_volid": null } });
    let made = nova.client.unversioned().post("/volumes", &create).expect(202);
    let volume = made["volume"]["id"].as_str().unwrap().to_owned();
    fleet.member().until_status(&volume, "available");
    let (id, session) = nova.attach(&volume, SERVER, &fleet.stock("node1"));
    session.write().unwrap();
    // Other requests that Nova makes.
    nova.client.unversioned().get("/limits").expect(200);
    nova.client.unversioned().get("/types").expect(200);
    nova.client.unversioned().get("/snapshots/detail").expect(200);
    // The server is deleted, and its volume with it.
    nova.delete(&id).expect(200);
    nova.client.unversioned().delete(&format!("/volumes/{volume}")).expect(202);
    fleet.member().until_deleted(&volume);
    assert!(!fleet.storage("s1").has_volume("vg0", &volume) && !fleet.storage("s1").has_export(&volume));
}

#[test]
fn s48_a_reboot_finds_what_nova_does_not_know() {
    let (fleet, volume) = shared();
    let nova = Nova::new(&fleet);
    let (known, _) = nova.attach(&volume, SERVER, &fleet.stock("node1"));
    nova.attach(&volume, OTHER_SERVER, &fleet.stock("node2"));
    let dangling = id_of(&nova.reserve(&volume, SERVER).expect(200));
    // Exactly the server's attachments: Nova deletes every one that it does not know.
    let of = |server: &str| -> Vec<String> {
        let listed = nova.client.at("3.44").get(&format!("/attachments?instance_id={server}")).expect(200);
        let ids = listed["attachments"].as_array().unwrap().iter();
        ids.map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
    };
    let mut found = of(SERVER);
    found.sort();
    let mut wanted = vec![known.clone(), dangling.clone()];
    wanted.sort();
    assert_eq!((found, of(OTHER_SERVER).len()), (wanted, 1));
    nova.delete(&dangling).expect(200);
    assert_eq!(of(SERVER), [known]);
    assert_eq!(granted(&fleet, &volume), ["node1 LUN 1 rw", "node2 LUN 1 rw"]);
}

/// Rounds in which one server leaves its host while another one is deleted there.
const ROUNDS: usize = 100;

/// A compute host with one session for all its servers with the volume.
struct Shared {
    session: Session,
    /// Servers that Nova has on this host.
    servers: Mutex<BTreeSet<&'static str>>,
}

impl Shared {
    /// A server leaves. The host logs out only if Nova sees no other server of this host with the
    /// volume; two servers that leave at once may see each other, and then nobody logs out.
    fn leave(&self, nova: &Nova, volume: &str, server: &str, attachment: &str) {
        let shown = nova.volume(volume);
        let stays = |entry: &Value| {
            let other = entry["server_id"].as_str().unwrap_or_default();
            other != server && self.servers.lock().unwrap().contains(other)
        };
        if !shown["attachments"].as_array().unwrap().iter().any(stays) {
            self.session.clone().logout();
        }
        nova.delete(attachment).expect(200);
        self.servers.lock().unwrap().remove(server);
    }
}

/// The ids of a volume's attachments.
fn attachments_of(nova: &Nova, volume: &str) -> BTreeSet<String> {
    let shown = nova.volume(volume);
    let entries = shown["attachments"].as_array().unwrap().iter();
    entries.map(|entry| entry["attachment_id"].as_str().unwrap().to_owned()).collect()
}

/// One round: both servers are on `here`, one migrates to `there`, the other one is deleted.
/// Returns the attachment and the session that remain.
fn part(
    nova: &Nova,
    volume: &str,
    round: usize,
    from: (&str, Session),
    to: [&Stock; 2],
) -> (String, Session) {
    let ((first, session), [here, there]) = (from, to);
    // The host has a session of this target: the second server gets no login of its own.
    let second = id_of(&nova.reserve(volume, OTHER_SERVER).expect(200));
    nova.connect(&second, &here.connector());
    nova.complete(&second);
    let host = Shared { session, servers: Mutex::new(BTreeSet::from([SERVER, OTHER_SERVER])) };
    // In every other round the deletion begins when the target has its session already.
    let begun = (round % 2 == 1).then(|| begin_migration(nova, volume, there));
    std::thread::scope(|scope| {
        let deletion = scope.spawn(|| host.leave(nova, volume, OTHER_SERVER, &second));
        let (moved, on_target) = begun.unwrap_or_else(|| begin_migration(nova, volume, there));
        // The guest switches: until then it writes through the host that loses its other server.
        let both = (host.session.write(), on_target.write());
        assert!(both.0.is_ok() && both.1.is_ok(), "round {round}: {both:?}");
        host.leave(nova, volume, SERVER, first);
        deletion.join().unwrap();
        assert!(!host.session.is_live(), "round {round}: {} has a session", here.name());
        (moved, on_target)
    })
}

#[test]
fn one_server_migrates_while_another_of_its_host_is_deleted() {
    let (fleet, volume) = shared();
    let nova = Nova::new(&fleet);
    let nodes = [fleet.stock("node1"), fleet.stock("node2")];
    let (third, onlooker) = nova.attach(&volume, THIRD_SERVER, &fleet.stock("node3"));
    let (mut first, mut session) = nova.attach(&volume, SERVER, &nodes[0]);
    for round in 0..ROUNDS {
        let (here, there) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        (first, session) = part(&nova, &volume, round, (&first, session), [here, there]);
        let works = (session.write(), onlooker.write());
        assert!(works.0.is_ok() && works.1.is_ok(), "round {round}: {works:?}");
        let left = [format!("{} LUN 1 rw", there.name()), "node3 LUN 1 rw".to_owned()];
        assert_eq!(granted(&fleet, &volume), left, "round {round}");
        assert_eq!(fleet.storage("s1").sessions(&volume).len(), 2, "round {round}");
        let wanted = BTreeSet::from([first.clone(), third.clone()]);
        assert_eq!(attachments_of(&nova, &volume), wanted, "round {round}");
        assert_eq!(nova.attachment(&first)["status"], "attached", "round {round}");
    }
    assert!(session.is_live() && onlooker.is_live(), "sessions of the last round and of the first");
    nova.delete(&first).expect(200);
    nova.delete(&third).expect(200);
    assert_eq!(nova.volume(&volume)["status"], "available");
    assert!(granted(&fleet, &volume).is_empty() && fleet.storage("s1").sessions(&volume).is_empty());
    nova.client.unversioned().delete(&format!("/volumes/{volume}")).expect(202);
    fleet.member().until_deleted(&volume);
    assert!(!fleet.storage("s1").has_volume("vg0", &volume) && !fleet.storage("s1").has_export(&volume));
}
