//! Agents' own words: operators read them, and projects read what follows for them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{LONG, Rig, SHORT, admin, client, connector, cured, member, native, new_volume, until};
use mooring_api::v1;
use mooring_controller::domain::{
    AttachAction, AttachmentStatus, Caller, NewAttachment, NewConnector, NewFence, Rotating, VolumeAction,
    VolumeStatus,
};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::service::{NewSecrets, Refusal};
use mooring_model::{Cache, Mode, VolumeId};
use tonic::Code;
use uuid::Uuid;

/// A text that names a device, with characters that a terminal obeys.
const OWN: &str = "/dev/mapper/backing\u{202e} is\u{7} full\nsecond line";

/// Checks that a text has nothing of the agent's.
fn is_for_projects(text: &str) {
    for word in ["/dev", "backing", "storage:", "host1:", "full", "\u{1f}"] {
        assert!(!text.contains(word), "{word:?}: {text:?}");
    }
    assert!(text.contains("ask the operator"), "{text:?}");
}

/// Checks that a text is the agent's, cleaned.
fn is_for_operators(text: &str) {
    assert!(text.contains("/dev/mapper/backing"), "{text:?}");
    assert!(!text.contains(['\u{202e}', '\u{7}', '\u{1f}', '\n']), "{text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_attach_is_told_to_its_project_without_the_agents_words() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    rig.storage.state().knobs.refuse_export = Some(cured(Code::InvalidArgument, OWN, "operator"));
    let user = member("p");
    let told = async |caller: &Caller, node: u32| {
        let answer = rig.service.create_attachment(caller, client(volume, node), LONG).await;
        answer.map_err(in_words).unwrap_err().to_string()
    };
    is_for_projects(&told(&user, 1).await);
    is_for_operators(&told(&admin(), 2).await);
    let messages = async |caller: &Caller| {
        let items = rig.service.messages(caller, ListQuery::default()).await.unwrap().items;
        items.into_iter().map(|one| (one.id, one.text)).collect::<Vec<_>>()
    };
    let (theirs, ours) = (messages(&user).await, messages(&admin()).await);
    assert_eq!((theirs.len(), ours.len()), (2, 2));
    for (id, text) in &theirs {
        assert!(text.starts_with("attach volume: "), "{text}");
        is_for_projects(text);
        assert_eq!(&rig.service.message(&user, *id).await.unwrap().text, text);
    }
    for (id, text) in &ours {
        assert!(text.starts_with("attach volume: attachment "), "{text}");
        is_for_operators(text);
        assert_eq!(&rig.service.message(&admin(), *id).await.unwrap().text, text);
    }
    // Nor is a project told which agent it waits for.
    rig.storage.state().knobs.refuse_export = None;
    rig.storage.state().knobs.pending = true;
    let waits = async |caller: &Caller, node: u32| {
        let answer = rig.service.create_attachment(caller, client(volume, node), SHORT).await;
        answer.map_err(in_words).unwrap_err().to_string()
    };
    let (theirs, ours) = (waits(&user, 3).await, waits(&admin(), 4).await);
    assert!(theirs.contains("ask again") && !theirs.contains("agent storage"), "{theirs}");
    assert!(ours.contains("agent storage"), "{ours}");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_told_to_projects_without_the_agents_words() {
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let refused =
        v1::Problem { object: "the session".into(), text: OWN.into(), cure: v1::Cure::Operator.into() };
    rig.hosts[0].state().knobs.broken = Some((v1::ConnectionPhase::Failed, refused));
    let new = native(volume, "host1", Mode::ReadWrite);
    let made = rig.service.create_attachment(&admin(), new, LONG).await.unwrap().id;
    let ours = rig.until_live(made, |live| live.attachment.status == AttachmentStatus::ErrorAttaching).await;
    is_for_operators(ours.attachment.fault.as_deref().unwrap());
    let theirs = rig.service.live(&member("p"), made, None, SHORT).await.unwrap();
    is_for_projects(theirs.attachment.fault.as_deref().unwrap());
    assert!(theirs.problems.iter().all(|text| text.contains("the operator sees")), "{theirs:?}");

    rig.storage.state().knobs.fail_volumes = true;
    let made = rig.service.create_volume(&admin(), new_volume()).await.unwrap().id;
    rig.until_volume(made, VolumeStatus::Error).await;
    let ours = rig.service.volume_state(&admin(), made).await.unwrap().volume.fault.unwrap();
    assert!(ours.contains("a disk is missing"), "{ours}");
    let theirs = rig.service.volume_state(&member("p"), made).await.unwrap().volume.fault.unwrap();
    assert!(!theirs.contains("disk"), "{theirs}");
    is_for_projects(&theirs);
    // The project may hear its own volume's end all the same.
    until("a message", async || {
        let all = rig.service.messages(&member("p"), ListQuery::default()).await.unwrap().items;
        let own = all.iter().any(|one| one.resource_id == Some(made.to_string()));
        if own { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_tells_its_project_of_no_agent() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    let told = async |caller: &Caller, node: u32| match rig
        .service
        .create_attachment(caller, client(volume, node), SHORT)
        .await
    {
        Err(Refusal::Unavailable(text)) => text,
        other => panic!("{other:?}"),
    };
    let (theirs, ours) = (told(&member("p"), 1).await, told(&admin(), 2).await);
    assert!(theirs.contains("ask again when it is up") && !theirs.contains("storage is"), "{theirs}");
    assert!(ours.contains("agent storage is down: "), "{ours}");
    rig.write("UPDATE volumes SET review = 'agent storage keeps a newer one', review_kind = 'ahead'");
    let theirs = told(&member("p"), 1).await;
    assert!(
        theirs.contains("is in review: nothing is changed at it") && !theirs.contains("newer"),
        "{theirs}"
    );
}

/// Checks that a refusal says this.
fn says(refused: Refusal, wanted: &str) -> String {
    let text = in_words(refused).to_string();
    assert!(text.contains(wanted), "{wanted:?}: {text}");
    text
}

/// Checks that a refusal says this, and has none of these words.
fn hides(refused: Refusal, wanted: &str, names: &[&str]) {
    let text = says(refused, wanted);
    for name in names {
        assert!(!text.contains(name), "{name:?}: {text}");
    }
}

async fn rotate(rig: &Rig, caller: &Caller, volume: VolumeId) -> Refusal {
    rig.service.rotate_secrets(caller, volume, NewSecrets::default(), SHORT).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_of_secrets_tells_its_project_of_no_agent() {
    const WAITS: &str = "or its host, is working on it or does not answer";
    let rig = Rig::new(1).await;
    let volume = rig.volume(true).await;
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let (user, operator) = (member("p"), admin());
    let names = ["host1", "agent storage", "storage has", "is down"];
    // First the host does not take the new secret, and then the storage node.
    rig.hosts[0].state().knobs.keeps_one_secret = true;
    rig.storage.state().knobs.pending = true;
    hides(rotate(&rig, &user, volume).await, WAITS, &names);
    says(rotate(&rig, &operator, volume).await, "host1 does not know the new secret");
    rig.hosts[0].state().knobs.keeps_one_secret = false;
    rig.hosts[0].publish_connection(&volume.to_string());
    until("the target's turn", async || {
        let found = rig.service.live(&operator, id, None, SHORT).await.unwrap().secret_rotation;
        if found == Some(Rotating::Target) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    hides(rotate(&rig, &user, volume).await, WAITS, &names);
    says(rotate(&rig, &operator, volume).await, "storage has not shown the new secret");
    rig.storage.set_down(true);
    rig.until_host("storage", |host| !host.up).await;
    hides(rotate(&rig, &user, volume).await, WAITS, &names);
    says(rotate(&rig, &operator, volume).await, "agent storage is down: ");
    rig.hosts[0].set_down(true);
    rig.until_host("host1", |host| !host.up).await;
    hides(rotate(&rig, &user, volume).await, "ask again when it is up", &["host1", "agent "]);
    says(rotate(&rig, &operator, volume).await, "agent host1 is down: ");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_hosts_to_those_only_who_see_them() {
    let (rig, volume, snapshots) = Rig::thin(1).await;
    let (user, operator) = (member("p"), admin());
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let revert = async |caller: &Caller| {
        let to = VolumeAction::Revert(Some(snapshots[0]));
        rig.service.volume_action(caller, volume, to).await.unwrap_err()
    };
    hides(revert(&user).await, &format!("detach attachment {id} (attached)"), &["host1"]);
    says(revert(&operator).await, &format!("detach attachment {id} on host host1 (attached)"));
    let broken = (v1::ConnectionPhase::Recovering, v1::Problem::default());
    rig.hosts[0].state().knobs.broken = Some(broken);
    let refused = rig.service.check_disk(&user, id).await.unwrap_err();
    hides(refused, &format!("attachment {id}: the host has no verified disk"), &["host1"]);

    // The older calls.
    let volume = rig.volume(false).await;
    let act = async |caller: &Caller, action| rig.service.attach_action(caller, volume, action, LONG).await;
    let connect = |host: &str| {
        let mut connector = connector(1);
        connector.insert("host".to_owned(), host.into());
        AttachAction::InitializeConnection { connector }
    };
    let attach = |host: Option<&str>| AttachAction::Attach {
        instance: Some(Uuid::from_u128(7)),
        host: host.map(str::to_owned),
        mountpoint: "/dev/vdb".to_owned(),
        mode: None,
    };
    act(&operator, connect("node1")).await.unwrap();
    let known = "is connected already under this initiator, by attachment ";
    hides(act(&user, connect("elsewhere")).await.unwrap_err(), known, &["on host", "node1"]);
    says(act(&operator, connect("elsewhere")).await.unwrap_err(), " on host node1");
    act(&operator, attach(None)).await.unwrap();
    let known = "is attached to this server already, by attachment ";
    hides(act(&user, attach(Some("elsewhere"))).await.unwrap_err(), known, &["on host", "node1"]);
    says(act(&operator, attach(Some("elsewhere"))).await.unwrap_err(), " on host node1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connect_names_no_agent_and_no_fence_to_a_project() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(true).await;
    let (user, operator) = (member("p"), admin());
    let connect = async |caller: &Caller, new: NewAttachment| {
        rig.service.create_attachment(caller, new, LONG).await.unwrap_err()
    };
    let fc = || {
        let port = "200052540014000b";
        let connector = serde_json::json!({ "host": "node3", "wwpns": [port], "wwnns": [port] });
        let connector = NewConnector::Client(connector.as_object().unwrap().clone());
        NewAttachment { connector, ..client(volume, 3) }
    };
    hides(connect(&user, fc()).await, "no common transport", &["agent storage "]);
    says(connect(&operator, fc()).await, "storage agent storage serves iSCSI");
    let fence = NewFence { reason: Some("rack 4 burns".to_owned()), ..NewFence::default() };
    rig.service.fence_host(&operator, "iqn.2026-01.org.example:node7", fence, LONG).await.unwrap();
    let names = ["rack 4", "unfence"];
    hides(connect(&user, client(volume, 7)).await, "is fenced: ask the operator", &names);
    let ours =
        says(connect(&operator, client(volume, 7)).await, "host unfence iqn.2026-01.org.example:node7");
    assert!(ours.contains("rack 4 burns"), "{ours}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_an_earlier_release_is_named_to_no_project() {
    let rig = Rig::quiet(1);
    {
        let mut state = rig.hosts[0].state();
        (state.knobs.knows_no_cache, state.knobs.knows_no_secrets) = (true, true);
    }
    rig.up().await;
    rig.until_host("host1", |host| host.report.is_some()).await;
    let volume = rig.volume(false).await;
    let id = rig.attach(volume, "host1", Mode::ReadWrite).await.attachment.id;
    let user = member("p");
    hides(rotate(&rig, &user, volume).await, "which secrets it knows", &["host1"]);
    let refused = rig.service.set_cache(&user, id, Cache::Off, SHORT).await.unwrap_err();
    hides(refused, "of an earlier release", &["host1"]);
    let refused = rig.service.check_disk(&user, id).await.unwrap_err();
    hides(refused, "cannot look at disks", &["host1"]);
}
