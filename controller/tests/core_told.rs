//! Agents' own words: operators read them, and projects read what follows for them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{LONG, Rig, SHORT, admin, client, cured, member, native, new_volume, until};
use mooring_api::v1;
use mooring_controller::domain::{AttachmentStatus, Caller, VolumeStatus};
use mooring_controller::http::in_words;
use mooring_controller::list::ListQuery;
use mooring_controller::service::Refusal;
use mooring_model::Mode;
use tonic::Code;

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
