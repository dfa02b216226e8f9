//! Records of what has ended, which go by age.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use crate::support::*;
use mooring_controller::domain::{NewVolume, VolumeStatus, WantedId};
use mooring_controller::service::Refusal;
use mooring_model::{Mode, VolumeId};

/// More seconds than records are kept.
const YEAR_AND_MORE: u64 = 400 * 86_400;

/// The kinds of a volume's specs.
fn specs(rig: &Rig, id: VolumeId) -> Vec<String> {
    rig.texts(&format!("SELECT kind FROM specs WHERE volume_id = '{id}' ORDER BY kind"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_whose_specs_were_pruned_stays_refused_and_nothing_is_an_orphan() {
    let mut rig = Rig::new(1).await;
    let gone = rig.volume(false).await;
    let attached = rig.attach(gone, "host1", Mode::ReadWrite).await.attachment.id;
    rig.service.delete_attachment(&admin(), attached, false, LONG).await.unwrap();
    let stays = rig.volume(false).await;
    let kept = rig.attach(stays, "host1", Mode::ReadWrite).await.attachment.id;
    rig.service.delete_volume(&admin(), gone).await.unwrap();
    rig.until_deleted(gone).await;
    let open = format!(
        "SELECT kind FROM specs WHERE volume_id = '{gone}' AND (body IS NOT NULL OR (kind = 'connection' AND settled = 0))"
    );
    until("the end of all specs", async || match rig.texts(&open) {
        open if open.is_empty() => Ok(()),
        open => Err(format!("{open:?}")),
    })
    .await;
    // From now on the agents were heard after that. Younger than a year, all of it stays.
    rig.restart().await;
    assert_eq!(rig.service.prune_records().await.unwrap(), 0);
    assert_eq!(specs(&rig, gone), ["connection", "export", "volume"]);
    put_forward(YEAR_AND_MORE);
    assert!(rig.service.prune_records().await.unwrap() > 0);
    assert_eq!(specs(&rig, gone), Vec::<String>::new());
    assert_eq!(specs(&rig, stays), ["connection", "export", "volume"]);
    // The agents still have their tombstones: nothing is in review, and nothing is an orphan.
    rig.restart().await;
    for host in rig.service.hosts(&admin()).await.unwrap() {
        assert!(!host.problems.iter().any(|text| text.contains(&gone.to_string())), "{host:?}");
    }
    let again = NewVolume { id: Some(WantedId::Given(gone)), ..new_volume() };
    let refused = rig.service.create_volume(&admin(), again).await;
    assert!(matches!(refused, Err(Refusal::Conflict(_))), "{refused:?}");
    assert_eq!(rig.service.volume(&admin(), stays).await.unwrap().status, VolumeStatus::InUse);
    rig.service.delete_attachment(&admin(), kept, false, LONG).await.unwrap();
    rig.until_volume(stays, VolumeStatus::Available).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_kept_for_ever_where_that_is_asked_for() {
    let mut rig = Rig::quiet_with(0, |options| options.keep_records = None);
    rig.up().await;
    let gone = rig.volume(false).await;
    rig.service.delete_volume(&admin(), gone).await.unwrap();
    rig.until_deleted(gone).await;
    rig.restart().await;
    put_forward(YEAR_AND_MORE);
    assert_eq!(rig.service.prune_records().await.unwrap(), 0);
    assert!(!specs(&rig, gone).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_ahead_deletes_nothing_for_a_day() {
    let mut rig = Rig::new(0).await;
    let gone = rig.volume(false).await;
    rig.service.delete_volume(&admin(), gone).await.unwrap();
    rig.until_deleted(gone).await;
    rig.restart().await;
    put_forward(2 * 86_400);
    assert_eq!(rig.service.prune_records().await.unwrap(), 0, "nothing is old");
    set_clock(i64::try_from(YEAR_AND_MORE).unwrap());
    assert_eq!(rig.service.prune_records().await.unwrap(), 0, "the clock was set");
    put_forward(3_600);
    assert_eq!(rig.service.prune_records().await.unwrap(), 0, "it has run evenly for an hour only");
    // A controller that starts with that clock waits as well.
    rig.restart().await;
    assert_eq!(rig.service.prune_records().await.unwrap(), 0, "it has just started");
    assert!(!specs(&rig, gone).is_empty());
    // The control: the same clock, once it has run evenly for a day.
    put_forward(86_400);
    assert!(rig.service.prune_records().await.unwrap() > 0);
    assert_eq!(specs(&rig, gone), Vec::<String>::new());
}

const DAY: u64 = 86_400;

#[tokio::test(flavor = "multi_thread")]
async fn a_reserved_attachment_ends_at_the_age_that_is_asked_for() {
    let rig = Rig::quiet_with(0, |options| {
        options.expire_reserved = Some(std::time::Duration::from_secs(10 * DAY));
    });
    rig.up().await;
    let (held, used) = (rig.volume(false).await, rig.volume(false).await);
    let waits = rig.service.create_attachment(&admin(), reserve(held), LONG).await.unwrap().id;
    let connected = rig.service.create_attachment(&admin(), client(used, 1), LONG).await.unwrap().id;
    put_forward(9 * DAY);
    assert_eq!(rig.service.expire_reserved().await.unwrap(), 0, "it is young");
    put_forward(DAY);
    assert_eq!(rig.service.expire_reserved().await.unwrap(), 1);
    let gone = rig.service.attachment(&admin(), waits).await;
    assert!(matches!(gone, Err(Refusal::NotFound { .. })), "{gone:?}");
    rig.until_volume(held, VolumeStatus::Available).await;
    // Its record says who ended it.
    let asked = format!("SELECT asked_user || ' ' || asked_request FROM detached WHERE id = '{waits}'");
    assert_eq!(rig.texts(&asked), ["mooring-controller attachments.expire_reserved_days"]);
    // One with a connector never ends so.
    put_forward(YEAR_AND_MORE);
    assert_eq!(rig.service.expire_reserved().await.unwrap(), 0);
    rig.service.attachment(&admin(), connected).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserved_attachment_stays_unless_the_configuration_ends_it() {
    let rig = Rig::new(0).await;
    let volume = rig.volume(false).await;
    let waits = rig.service.create_attachment(&admin(), reserve(volume), LONG).await.unwrap().id;
    put_forward(YEAR_AND_MORE);
    assert_eq!(rig.service.expire_reserved().await.unwrap(), 0);
    rig.service.attachment(&admin(), waits).await.unwrap();
}
