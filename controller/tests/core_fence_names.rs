//! Names of initiators: whose word about them counts, and what a fence by a host's name takes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use crate::support::{LONG, Rig, admin, client, connector, member, reserve};
use mooring_controller::domain::{
    Attachment, Caller, FenceState, HostFence, NewAttachment, NewConnector, NewFence,
};
use mooring_controller::http::in_words;
use mooring_controller::service::Refusal;
use mooring_model::VolumeId;

/// The compute service, for a user.
fn service() -> Caller {
    Caller { service: true, ..member("p") }
}

fn iqn(number: u32) -> String {
    format!("iqn.2026-01.org.example:node{number}")
}

/// An attachment of a host with this name that logs in under this initiator.
fn named(volume: VolumeId, host: &str, initiator: u32) -> NewAttachment {
    let mut connector = connector(initiator);
    connector.insert("host".to_owned(), host.into());
    NewAttachment { connector: NewConnector::Client(connector), ..client(volume, initiator) }
}

async fn attach(rig: &Rig, caller: &Caller, new: NewAttachment) -> Result<Attachment, Refusal> {
    rig.service.create_attachment(caller, new, LONG).await
}

async fn fence(rig: &Rig, name: &str, also: &[u32]) -> HostFence {
    let also = also.iter().map(|number| iqn(*number).parse().unwrap()).collect();
    rig.service.fence_host(&admin(), name, NewFence { reason: None, also }, LONG).await.unwrap()
}

fn cut(fence: &HostFence) -> usize {
    fence.parts.iter().filter(|part| matches!(part.state, FenceState::Cut(Some(_)))).count()
}

/// A user claims a hypervisor's name for another initiator, before that hypervisor is attached
/// anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_does_not_choose_who_is_fenced_with_a_hypervisor() {
    for caller in [service(), admin()] {
        let rig = Rig::new(0).await;
        let (own, one, two) = (rig.volume(true).await, rig.volume(true).await, rig.volume(true).await);
        let planted = attach(&rig, &member("p"), named(own, "node1", 2)).await.unwrap();
        let first = attach(&rig, &caller, client(one, 1)).await.unwrap();
        attach(&rig, &caller, client(two, 2)).await.unwrap();

        let fenced = fence(&rig, "node1", &[]).await;
        assert!(fenced.is_proven() && cut(&fenced) == 1 && fenced.parts.len() == 1, "{fenced:?}");
        assert_eq!(fenced.parts[0].attachment, first.id);
        assert_eq!((rig.storage.granted(one), rig.storage.granted(two)), (vec![], vec![iqn(2)]));
        assert_eq!(rig.storage.granted(own), [iqn(2)]);
        let [claim] = fenced.disputed.as_slice() else { panic!("{fenced:?}") };
        assert_eq!(
            (claim.initiator.to_string(), claim.hosts.as_slice()),
            (iqn(2), &["node2".to_owned()][..])
        );
        assert_eq!(claim.attachments, [(planted.id, own)]);

        // The control: the operator confirms the claim.
        let fenced = fence(&rig, "node1", &[2]).await;
        assert!(fenced.is_proven() && cut(&fenced) == 3 && fenced.disputed.is_empty(), "{fenced:?}");
        assert!(rig.storage.granted(two).is_empty() && rig.storage.granted(own).is_empty());
    }
}

/// A compute service without a token of its own is a user like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_unproven_while_only_users_say_whose_a_name_is() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    attach(&rig, &member("p"), client(volume, 1)).await.unwrap();
    let fenced = fence(&rig, "node1", &[]).await;
    assert!(!fenced.is_proven() && fenced.parts.is_empty(), "{fenced:?}");
    assert!(fenced.disputed.len() == 1 && fenced.disputed[0].hosts.is_empty(), "{fenced:?}");
    assert_eq!(rig.storage.granted(volume), [iqn(1)]);
    let refused = rig.service.unfence_host(&admin(), "node1", false).await.map_err(in_words).unwrap_err();
    assert!(matches!(&refused, Refusal::Conflict(why) if why.contains(&iqn(1))), "{refused:?}");
    let fenced = fence(&rig, "node1", &[1]).await;
    assert!(fenced.is_proven() && cut(&fenced) == 1, "{fenced:?}");
    rig.service.unfence_host(&admin(), "node1", false).await.unwrap();
}

/// Cloned machines: the one that may only read would write.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_host_under_one_initiator_is_refused() {
    let rig = Rig::new(0).await;
    let (one, two) = (rig.volume(true).await, rig.volume(true).await);
    attach(&rig, &service(), client(one, 1)).await.unwrap();
    for volume in [one, two] {
        for caller in [service(), admin(), member("p")] {
            let refused = attach(&rig, &caller, named(volume, "clone", 1)).await.unwrap_err();
            assert!(matches!(&refused, Refusal::OtherHost(why) if why.contains(&iqn(1))), "{refused:?}");
            let reserved = rig.service.create_attachment(&caller, reserve(volume), LONG).await.unwrap();
            let NewConnector::Client(connector) = named(volume, "clone", 1).connector else { panic!() };
            let refused =
                rig.service.update_attachment(&caller, reserved.id, connector, LONG).await.unwrap_err();
            assert!(matches!(refused, Refusal::OtherHost(_)), "{refused:?}");
        }
    }
    assert!(rig.storage.granted(two).is_empty());
    // The same host may attach as often as it likes, also without its name.
    attach(&rig, &service(), client(one, 1)).await.unwrap();
    attach(&rig, &service(), client(two, 1)).await.unwrap();
    let mut nameless = connector(1);
    nameless.remove("host");
    let new = NewAttachment { connector: NewConnector::Client(nameless), ..client(two, 1) };
    attach(&rig, &service(), new).await.unwrap();
}

/// A user's claim blocks others only on the user's own volume.
#[tokio::test(flavor = "multi_thread")]
async fn a_users_word_takes_no_initiator_from_its_host() {
    let rig = Rig::new(0).await;
    let (own, other) = (rig.volume(true).await, rig.volume(true).await);
    attach(&rig, &member("p"), named(own, "mine", 1)).await.unwrap();
    attach(&rig, &service(), client(other, 1)).await.unwrap();
    let refused = attach(&rig, &service(), client(own, 1)).await.unwrap_err();
    assert!(matches!(refused, Refusal::OtherHost(_)), "one would have what the other may do: {refused:?}");
    let refused = attach(&rig, &member("p"), named(other, "mine", 1)).await.unwrap_err();
    assert!(matches!(refused, Refusal::OtherHost(_)), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_share_an_initiator_where_the_setting_allows_it() {
    let rig = Rig::quiet_with(0, |options| options.shared_initiators = true);
    rig.up().await;
    let volume = rig.volume(true).await;
    attach(&rig, &service(), client(volume, 1)).await.unwrap();
    attach(&rig, &service(), named(volume, "alias", 1)).await.unwrap();
    assert_eq!(rig.storage.granted(volume), [iqn(1)]);
    // A fence by either name takes all access of this initiator.
    let fenced = fence(&rig, "alias", &[]).await;
    assert!(fenced.is_proven() && cut(&fenced) == 2, "{fenced:?}");
}
