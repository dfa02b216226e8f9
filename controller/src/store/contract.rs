//! The contract of every database: the same tests run on both.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod audit;
mod counts;
mod enrolments;
mod fenced;
mod filters;
mod identities;
mod numbers;
mod operations;
#[path = "../../tests/support/pg.rs"]
pub(super) mod pg;
mod plans;
mod rotations;
mod specs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mooring_model::{
    AgentId, AttachmentId, Cache, Chap, ChapSide, Generation, Iqn, Mode, Naa, Proof, Receipt, Revoked,
    Secret, Source, VolumeId, Wwpn,
};
use uuid::Uuid;

use self::audit::{
    an_objects_lines_are_found_in_every_block, audit_lines_are_kept_once_and_found,
    old_audit_lines_are_pruned,
};
use self::counts::{texts_are_in_the_order_of_their_bytes, what_is_there_is_counted_by_its_words};
use self::enrolments::{
    a_name_has_one_join_token, a_rotation_has_one_next_authority_and_its_key_is_sealed,
    a_shared_file_is_for_one_machine_and_an_hour, an_enrolment_is_kept_changed_and_revoked,
};
use self::filters::volumes_are_found_by_host_type_and_source;
use self::identities::{an_identity_is_one_volumes_for_ever, found_volumes_may_share_an_identity};
use self::numbers::{
    a_fibre_channel_number_is_given_once, a_fibre_channel_number_is_one_volumes_until_it_is_cut,
};
use self::operations::{
    an_operation_of_a_volume_comes_and_goes_alone, operations_come_and_go_with_their_volume,
    words_of_a_later_release_hide_no_volume,
};
use self::rotations::a_rotation_is_a_part_of_its_nexus;
use self::specs::specs_that_somebody_is_to_know_come_in_pages;
use super::*;
use crate::domain::{AttachStatus, AttachmentStatus, Hints, VolumeStatus, VolumeType};
use crate::list::{self, ListQuery};
use crate::rules::Operation;
use crate::store::places::{Place as PoolPlace, Taken};
use crate::store::reviews::Review;
use crate::store::volumes::Tried;

/// A database, and the way another controller opens it, where that is possible.
struct Place {
    store: Store,
    other: Store,
    _dir: Option<tempfile::TempDir>,
}

fn options(name: &str) -> Database {
    let url = pg::Server::shared().database(name);
    testing::postgres(PostgresOptions::new(&url, None, None, false).unwrap())
}

fn open(database: Database) -> Result<Store, StoreError> {
    Store::open(database, None, Clock::system())
}

fn sqlite() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let store = open(Database::embedded(dir.path().join("state"))).unwrap();
    Place { other: store.clone(), store, _dir: Some(dir) }
}

fn postgres() -> Place {
    let name = Uuid::new_v4().simple().to_string();
    let (store, other) = (open(options(&name)).unwrap(), open(options(&name)).unwrap());
    assert_eq!(store.cluster(), other.cluster());
    Place { store, other, _dir: None }
}

macro_rules! contract {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::sqlite()).await; })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::postgres()).await; })*
        }
    };
}

mod prune;

mod leaving;
mod standing;

contract![
    rows_come_back_as_they_were,
    a_volume_counts_until_a_report_shows_it,
    keys_are_unique,
    a_generation_never_goes_back,
    a_proven_receipt_stays_proven,
    a_settled_connection_is_that_generation,
    specs_that_somebody_is_to_know_come_in_pages,
    credentials_go_with_the_last_attachment,
    a_fibre_channel_number_is_one_volumes_until_it_is_cut,
    a_fibre_channel_number_is_given_once,
    what_is_refused_leaves_nothing_and_takes_nobody_with_it,
    no_update_is_lost,
    texts_are_in_the_order_of_their_bytes,
    statuses_follow_in_one_transaction,
    a_growth_that_is_taken_back_counts_until_it_is_over,
    what_is_there_is_counted_by_its_words,
    volumes_are_found_by_host_type_and_source,
    an_identity_is_one_volumes_for_ever,
    found_volumes_may_share_an_identity,
    audit_lines_are_kept_once_and_found,
    an_objects_lines_are_found_in_every_block,
    old_audit_lines_are_pruned,
    an_enrolment_is_kept_changed_and_revoked,
    a_name_has_one_join_token,
    a_rotation_is_a_part_of_its_nexus,
    a_rotation_has_one_next_authority_and_its_key_is_sealed,
    a_shared_file_is_for_one_machine_and_an_hour,
    an_operation_of_a_volume_comes_and_goes_alone,
    operations_come_and_go_with_their_volume,
    words_of_a_later_release_hide_no_volume,
];

impl Place {
    async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> T {
        self.store.write("test", work).await.unwrap()
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> T {
        // Another controller reads what one has written.
        self.other.read("test", work).await.unwrap()
    }

    async fn volume(&self) -> VolumeRow {
        self.write(|db| {
            let id = VolumeId::random();
            let type_id = db.type_by_name(DEFAULT_TYPE)?.map(|found| found.id).unwrap_or_default();
            db.insert_volume(&volume(id, type_id, db.now))?;
            Ok(db.volume(id)?.unwrap())
        })
        .await
    }
}

fn iqn(number: u32) -> Iqn {
    format!("iqn.2026-01.org.example:node{number}").parse().unwrap()
}

fn volume(id: VolumeId, type_id: Uuid, now: SystemTime) -> VolumeRow {
    VolumeRow {
        id,
        name: Some("Zoë's 'volume' ?1".to_owned()),
        description: Some(String::new()),
        size_gib: 7,
        type_id,
        multiattach: true,
        operation: Some(Operation::Creating),
        status: VolumeStatus::Creating,
        attach_status: AttachStatus::Detached,
        project: "p".to_owned(),
        user: "u".to_owned(),
        metadata: BTreeMap::from([("k\n".to_owned(), "\u{1F512}".to_owned())]),
        agent: AgentId::from_u128(0xa),
        pool: "vg0".to_owned(),
        target: None,
        naa: Some(naa_of(id)),
        portals: Vec::new(),
        fc_ports: BTreeSet::new(),
        review: None,
        created_at: time_of(micros(now)),
        updated_at: None,
        fault: None,
        bootable: true,
        readonly: Some(false),
        zone: "nova".to_owned(),
        reserved: 0,
        reserved_until: None,
        holds: 0,
        holds_until: None,
        said_status: None,
        hints: Hints {
            different_host: vec![VolumeId::from_u128(6), VolumeId::from_u128(7)],
            ..Hints::default()
        },
        tried: vec![Tried { agent: AgentId::from_u128(4), pool: "b".to_owned(), why: "full".to_owned() }],
        grows_from: Some(3),
        snapshot_of: None,
        source: Some(Source::Snapshot(VolumeId::from_u128(5))),
        taken: false,
        kept: KeptOperations::default(),
    }
}

fn attachment(volume: VolumeId, number: u32) -> AttachmentRow {
    let connector = serde_json::json!({ "initiator": iqn(number), "ip": "192.0.2.1" });
    AttachmentRow {
        id: AttachmentId::random(),
        volume,
        project: "p".to_owned(),
        instance: Some(Uuid::from_u128(number.into())),
        mode: Mode::ReadOnly,
        status: AttachmentStatus::Attaching,
        connector: connector.as_object().map(Connector::of),
        initiator: Some(iqn(number).into()),
        host: Some("h".to_owned()),
        mountpoint: None,
        native: Some(AgentId::from_u128(3)),
        access: Access::of(21),
        in_spec_since: Generation { epoch: 3, counter: u64::from(u32::MAX) + 5 },
        steps: vec![("granted".to_owned(), 12)],
        created_at: time_of(1_700_000_000_000_001),
        attached_at: None,
        fault: Some("why".to_owned()),
        mode_asked: true,
        legacy: true,
        asked: Some(Asked {
            user: "u".to_owned(),
            request: "req-1".to_owned(),
            at: time_of(1_700_000_000_000_002),
        }),
        lun: None,
        claimed: true,
        cache: Cache::Off,
    }
}

async fn rows_come_back_as_they_were(place: Place) {
    let made = place.volume().await;
    let id = made.id;
    assert_eq!(made, volume(id, made.type_id, made.created_at));
    let row = attachment(id, 1);
    let kept = row.clone();
    let naa = Naa::from_hex("60014051234567890123456789012345").unwrap();
    let portals = vec!["192.0.2.1:3260".parse().unwrap(), "198.51.100.2:3261".parse().unwrap()];
    let (naa_kept, portals_kept) = (naa.clone(), portals.clone());
    place
        .write(move |db| {
            db.put_attachment(&kept)?;
            db.put_in_review(id, ReviewKind::Lost, "why")?;
            db.set_meta("k", "v")?;
            db.set_fc_ports(id, &BTreeSet::from([Wwpn::from_u64(9).unwrap(), Wwpn::from_u64(5).unwrap()]))?;
            Ok(db.set_target(id, &iqn(9), &naa_kept, &portals_kept)?)
        })
        .await;
    let (seen, rows, meta, none) = place
        .read(move |db| Ok((db.volume(id)?.unwrap(), db.attachments_of(id)?, db.meta("k")?, db.meta("x")?)))
        .await;
    assert_eq!(rows, [row]);
    assert_eq!((seen.target, seen.naa, seen.portals), (Some(iqn(9)), Some(naa), portals));
    assert_eq!(seen.fc_ports.iter().map(|port| port.as_u64()).collect::<Vec<_>>(), [5, 9]);
    let review = Review { kind: ReviewKind::Lost, why: "why".to_owned() };
    assert_eq!((seen.review, meta.as_deref(), none), (Some(review), Some("v"), None));
    let capabilities = mooring_api::v1::Capabilities { host_name: "h".to_owned(), ..Default::default() };
    let sent = capabilities.clone();
    let agents = place
        .write(move |db| {
            db.put_agent("a", AgentId::from_u128(1), None, &["192.0.2.1".to_owned()], "x 1")?;
            db.put_capabilities("a", &sent, Some(time_of(5)))?;
            db.keep_heard(&Heard { name: "a".to_owned(), at: time_of(3), asked_at: None })?;
            db.say_of_agent("a", &Said::Disabled(Some("why".to_owned())))?;
            db.say_of_agent("a", &Said::Drained(true))?;
            Ok(db.agents()?)
        })
        .await;
    assert_eq!(agents[0].capabilities.as_ref(), Some(&capabilities));
    assert_eq!((agents[0].initiator.as_ref(), agents[0].software.as_str()), (None, "x 1"));
    assert_eq!((agents[0].disabled, agents[0].disabled_reason.as_deref()), (true, Some("why")));
    assert!(agents[0].drained);
    assert_eq!(agents[0].reported_at, Some(time_of(5)));
    assert!(agents[0].heard_at > Some(time_of(3)), "nothing goes back");
    let in_motion = place.read(|db| Ok(db.volumes_in_motion()?));
    assert_eq!(in_motion.await, [id]);
    let changed = place
        .write(move |db| {
            let all = db.review_all(ReviewKind::Restored, "all")?;
            let kind = db.volumes_in_review()?[0].review.as_ref().map(|review| review.kind);
            db.end_review(id)?;
            Ok((all, kind, db.volumes_in_review()?.len(), db.delete_spec(Uuid::nil(), "no")?))
        })
        .await;
    assert_eq!(changed, (1, Some(ReviewKind::Restored), 0, false));
}

async fn a_volume_counts_until_a_report_shows_it(place: Place) {
    let made = place.volume().await;
    let id = made.id;
    let one = |agent, pool: &str| {
        vec![Taken { agent, pool: pool.to_owned(), size_gib: made.size_gib.into(), volumes: 1 }]
    };
    let (first, next) = (made.agent, AgentId::from_u128(0xb));
    let seen = async || {
        place.read(move |db| Ok((db.promised()?, db.taken()?, db.is_taken(id)?, db.may_be_sent(id)?))).await
    };
    assert_eq!(seen().await, (one(first, &made.pool), one(first, &made.pool), false, true));
    let to = PoolPlace { agent: next, pool: "vg1".to_owned(), zone: "far".to_owned(), sent: false };
    place.write(move |db| Ok(db.move_volume(id, &to)?)).await;
    assert_eq!(seen().await, (one(next, "vg1"), one(next, "vg1"), false, false));
    let sent = place.write(move |db| Ok((db.unsent()?, db.mark_sent(id, first, "vg1")?))).await;
    assert_eq!(sent, (vec![id], false), "it is not there any more");
    assert!(place.write(move |db| Ok(db.mark_sent(id, next, "vg1")?)).await);
    assert!(seen().await.3);
    place.write(move |db| Ok(db.note_taken(id)?)).await;
    assert_eq!(seen().await, (vec![], one(next, "vg1"), true, true), "its agent never said hello");
    // A volume counts beside an earlier report, and not beside a later one.
    let asked = |at: SystemTime| {
        place.write(move |db| {
            db.put_agent("b", next, None, &[], "")?;
            Ok(db.put_capabilities("b", &mooring_api::v1::Capabilities::default(), Some(at))?)
        })
    };
    asked(time_of(5)).await;
    assert_eq!(seen().await.0, one(next, "vg1"));
    asked(time_of(4_000_000_000_000_000)).await;
    assert_eq!(seen().await.0, []);
    let back = PoolPlace { agent: first, pool: "vg0".to_owned(), zone: "nova".to_owned(), sent: true };
    place
        .write(move |db| {
            db.set_operation(id, None, None)?;
            Ok(db.move_volume(id, &back)?)
        })
        .await;
    assert_eq!(seen().await.1, one(next, "vg1"), "one that is made stays where it is");
}

async fn keys_are_unique(place: Place) {
    let id = place.volume().await.id;
    let first = attachment(id, 1);
    let again = AttachmentRow { id: AttachmentId::random(), ..first.clone() };
    place.write(move |db| Ok(db.put_attachment(&first)?)).await;
    // The same mountpoint of the same volume.
    assert!(place.store.write("test", move |db| Ok(db.put_attachment(&again)?)).await.is_err());
    let agent = |name: &'static str, number: u128, initiator: Option<Iqn>| {
        place.store.write("test", move |db| {
            Ok(db.put_agent(name, AgentId::from_u128(number), initiator.as_ref(), &[], "")?)
        })
    };
    agent("a", 1, Some(iqn(1))).await.unwrap();
    assert!(agent("b", 1, Some(iqn(2))).await.is_err(), "one id, two names");
    assert!(agent("b", 2, Some(iqn(1))).await.is_err(), "one initiator, two names");
    agent("b", 2, None).await.unwrap();
    agent("c", 3, None).await.unwrap();
    let same = |name: &str| VolumeType {
        id: Uuid::new_v4(),
        name: name.to_owned(),
        description: None,
        is_public: true,
        extra_specs: BTreeMap::new(),
    };
    let (one, two) = (same("t"), same("t"));
    place.write(move |db| Ok(db.insert_type(&one)?)).await;
    assert!(place.store.write("test", move |db| Ok(db.insert_type(&two)?)).await.is_err());
    // A type that a volume has cannot be deleted.
    let used = place.read(|db| Ok(db.type_by_name(DEFAULT_TYPE)?.unwrap().id)).await;
    assert!(place.read(move |db| Ok(db.is_type_used(used)?)).await);
    assert!(place.store.write("test", move |db| Ok(db.delete_type(used)?)).await.is_err());
}

async fn a_generation_never_goes_back(place: Place) {
    let id = VolumeId::random();
    let content =
        |text: &str| SpecContent::spec(&mooring_api::v1::VolumeSpec::default(), text.as_bytes().to_vec());
    let put = async |content: SpecContent| {
        place.write(move |db| Ok(db.put_spec(id, Kind::Export, &content)?.0)).await
    };
    let first = put(content("a")).await;
    assert_eq!(put(content("a")).await, first, "the same spec is the same generation");
    let second = put(content("b")).await;
    let third = put(SpecContent::tombstone(Kind::Export, false)).await;
    let fourth = put(content("a")).await;
    assert!(first < second && second < third && third < fourth, "{first} {second} {third} {fourth}");
    let epoch = place.write(|db| Ok(db.raise_epoch(7)?)).await;
    assert_eq!(epoch, 7);
    let fifth = put(content("b")).await;
    assert!(fifth > fourth && fifth.epoch == 7);
    place.write(move |db| Ok(db.renew(id, Kind::Export, Generation { epoch: 1, counter: 100 })?)).await;
    let seen = place.read(move |db| Ok(db.spec(id, Kind::Export)?.unwrap())).await;
    assert!(seen.stamp.generation > fifth && seen.stamp.generation.counter > 100);
    assert_eq!(seen.content, content("b"));
}

fn receipt(volume: VolumeId, counter: u64, proof: Proof) -> Receipt {
    Receipt {
        volume,
        initiator: iqn(1).into(),
        attachments: vec![AttachmentId::from_u128(counter.into())],
        generation: Generation { epoch: 1, counter },
        revoked: Revoked::Nexus,
        sessions: Vec::new(),
        proof,
        began: time_of(1_000_000),
        ended: None,
        reservation: None,
        cause: mooring_model::Cause::Revoke,
    }
}

async fn a_proven_receipt_stays_proven(place: Place) {
    let id = VolumeId::random();
    let keep = async |receipt: Receipt| place.write(move |db| Ok(db.keep_receipt(&receipt)?)).await;
    let unproven = Proof::Unproven { in_flight: Some(3) };
    let uncounted = receipt(VolumeId::random(), 5, Proof::Unproven { in_flight: None });
    let of = uncounted.clone();
    let row = place
        .write(move |db| {
            db.keep_receipt(&of)?;
            let found = db.receipt_since(of.volume, &of.initiator, Generation { epoch: 1, counter: 4 })?;
            Ok(found.map(|(row, _)| row))
        })
        .await;
    assert_eq!(place.read(move |db| Ok(db.receipt(row.unwrap())?)).await, Some(uncounted));
    assert!(keep(receipt(id, 5, unproven)).await);
    assert!(!keep(receipt(id, 5, unproven)).await);
    assert!(keep(receipt(id, 5, Proof::Proven)).await);
    assert!(!keep(receipt(id, 5, unproven)).await);
    assert!(keep(receipt(id, 9, Proof::Proven)).await);
    let since = async |counter: u64| {
        place
            .read(move |db| Ok(db.receipt_since(id, &iqn(1).into(), Generation { epoch: 1, counter })?))
            .await
    };
    let (row, found) = since(4).await.unwrap();
    assert_eq!(found, receipt(id, 5, Proof::Proven), "the oldest that is not older");
    assert_eq!(place.read(move |db| Ok(db.receipt(row)?)).await, Some(found));
    assert_eq!(since(6).await.unwrap().1.generation.counter, 9);
    assert!(since(10).await.is_none());
}

async fn a_settled_connection_is_that_generation(place: Place) {
    let (id, agent) = (VolumeId::random(), AgentId::from_u128(5));
    let kind = Kind::Connection(agent);
    let content =
        async |content: SpecContent| place.write(move |db| Ok(db.put_spec(id, kind, &content)?.0)).await;
    let settle = async |at: Generation| place.write(move |db| Ok(db.settle_connection(id, agent, at)?)).await;
    let spec = SpecContent::spec(&mooring_api::v1::ConnectionSpec::default(), Vec::new());
    let first = content(spec.clone()).await;
    assert!(!settle(first).await, "a spec is not settled");
    let gone = content(SpecContent::tombstone(kind, false)).await;
    assert!(!settle(first).await);
    assert!(settle(gone).await);
    assert!(!settle(gone).await, "once");
    assert_eq!(place.read(move |db| Ok(db.connections_on(agent)?)).await, []);
    content(spec).await;
    assert!(!settle(gone).await, "an older answer does not settle a newer spec");
    assert_eq!(place.read(move |db| Ok(db.connections_on(agent)?)).await, [id]);
    assert_eq!(place.read(move |db| Ok(db.connections_of(id)?)).await, [agent]);
}

async fn credentials_go_with_the_last_attachment(place: Place) {
    let id = place.volume().await.id;
    let (one, two) = (attachment(id, 1), AttachmentRow { instance: None, ..attachment(id, 1) });
    let side = |text: &str| ChapSide { user: text.to_owned(), secret: Secret::new(text.to_owned()) };
    let nexus = Nexus(Chap { initiator: side("i"), mutual: Some(side("m")) });
    let (rows, kept) = ([one.clone(), two.clone()], nexus.clone());
    place
        .write(move |db| {
            db.insert_nexus(id, &iqn(1), &kept)?;
            rows.iter().try_for_each(|row| db.put_attachment(row)).map_err(Abort::from)
        })
        .await;
    let seen = async || place.read(move |db| Ok(db.nexus(id, &iqn(1))?)).await;
    place.write(move |db| Ok(db.detach(&one, Some(4), one.is_forced())?)).await;
    assert!(seen().await == Some(nexus));
    let last = two.id;
    place.write(move |db| Ok(db.detach(&two, None, two.is_forced())?)).await;
    assert!(seen().await.is_none());
    let gone = place.read(move |db| Ok(db.detached(last)?.unwrap())).await;
    assert_eq!((gone.volume, gone.receipt), (id, None));
}

async fn what_is_refused_leaves_nothing_and_takes_nobody_with_it(place: Place) {
    let mut going = tokio::task::JoinSet::new();
    for number in 0..60_u32 {
        let store = if number % 2 == 0 { &place.store } else { &place.other }.clone();
        going.spawn(async move {
            let write = move |db: &Db<'_>| {
                db.set_meta(&format!("n{number}"), "1")?;
                match number % 3 {
                    0 => Err(Refusal::Conflict("no".to_owned()).into()),
                    // The database itself refuses.
                    1 => {
                        db.run("INSERT INTO meta (key, value) VALUES (?1, NULL)", &values!["x"])?;
                        Ok(())
                    }
                    _ => Ok(()),
                }
            };
            (number, store.write("test", write).await)
        });
    }
    for (number, done) in going.join_all().await {
        assert_eq!(done.is_ok(), number % 3 == 2, "{number}: {done:?}");
        assert_eq!(matches!(done, Err(Refusal::Conflict(_))), number % 3 == 0);
        let kept = place.read(move |db| Ok(db.meta(&format!("n{number}"))?)).await;
        assert_eq!(kept.is_some(), number % 3 == 2, "{number}");
    }
}

/// Reads a number, then stores it plus one.
fn increment(db: &Db<'_>) -> Result<u64, Abort> {
    let next = db.meta("count")?.map_or(0, |text| text.parse::<u64>().unwrap()) + 1;
    db.set_meta("count", &next.to_string())?;
    Ok(next)
}

async fn no_update_is_lost(place: Place) {
    let mut going = tokio::task::JoinSet::new();
    for number in 0..8 {
        let store = if number % 2 == 0 { &place.store } else { &place.other }.clone();
        going.spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..50 {
                seen.push(store.write("test", increment).await.unwrap());
            }
            seen
        });
    }
    let seen: Vec<u64> = going.join_all().await.into_iter().flatten().collect();
    assert_eq!(seen.iter().copied().collect::<BTreeSet<_>>(), (1..=400).collect());
    assert_eq!(place.read(|db| Ok(db.meta("count")?)).await.as_deref(), Some("400"));
}

async fn statuses_follow_in_one_transaction(place: Place) {
    let id = place.volume().await.id;
    let row = attachment(id, 1);
    place
        .write(move |db| {
            db.put_attachment(&row)?;
            Ok(db.set_operation(id, None, None)?)
        })
        .await;
    let seen = place.read(move |db| Ok(db.volume(id)?.unwrap())).await;
    assert_eq!((seen.status, seen.operation), (VolumeStatus::Attaching, None));
    let refused = place.store.write("test", move |db| {
        db.set_operation(id, Some(Operation::Deleting), None)?;
        Err::<(), _>(Refusal::Conflict("no".to_owned()).into())
    });
    assert!(refused.await.is_err());
    assert_eq!(place.read(move |db| Ok(db.volume(id)?.unwrap())).await.status, VolumeStatus::Attaching);
    let all = place.read(|db| {
        let of = |project: &str| ListQuery { project: Some(project.to_owned()), ..ListQuery::default() };
        let volumes = |project| Ok::<_, Abort>(db.volume_page(&of(project))?.unwrap().len());
        Ok((volumes("p")?, volumes("x")?, db.attachment_page(&of("p"))?.unwrap().len()))
    });
    assert_eq!(all.await, (1, 0, 1));
}

async fn a_growth_that_is_taken_back_counts_until_it_is_over(place: Place) {
    let kept = place.volume().await;
    let (id, has) = (kept.id, kept.size_gib);
    let sizes = async || {
        let row = place.read(move |db| Ok(db.volume(id)?.unwrap())).await;
        (row.size_gib, row.served_gib(), row.spec_gib(), row.hints)
    };
    let was = kept.hints.clone();
    let begin = move |db: &Db<'_>| {
        db.end_growth(id)?;
        Ok(db.begin_growth(id, has + 2)?)
    };
    place.write(begin).await;
    assert_eq!(sizes().await, (has + 2, has, has + 2, was.clone()));
    for back in [true, false, true] {
        place.write(move |db| Ok(db.take_growth_back(&db.volume(id)?.unwrap(), back)?)).await;
        let seen = sizes().await;
        assert_eq!((seen.0, seen.1, seen.2), (has + 2, has, if back { has } else { has + 2 }));
        assert_eq!(seen.3, was, "no hint is lost");
    }
    let end = move |db: &Db<'_>| {
        db.take_growth_back(&db.volume(id)?.unwrap(), false)?;
        Ok(db.return_growth(id)?)
    };
    place.write(end).await;
    assert_eq!(sizes().await, (has, has, has, was));
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_refuses_what_it_cannot_keep() {
    let place = postgres();
    let nul = place.store.write("test", |db| Ok(db.set_meta("k", "a\0b")?)).await;
    assert!(matches!(nul, Err(Refusal::Invalid(_))), "{nul:?}");
    // A change that goes on after a failed statement: the server would answer its commit with a
    // rollback.
    let on = place.store.write("test", |db| {
        db.set_meta("on", "1")?;
        drop(db.run("INSERT INTO meta (key, value) VALUES (?1, NULL)", &values!["x"]));
        Ok(())
    });
    assert!(matches!(on.await, Err(Refusal::Internal(_))));
    assert_eq!(place.read(|db| Ok(db.meta("on")?)).await, None);
    // Reads write nothing.
    assert!(place.store.read("test", |db| Ok(db.set_meta("read", "1")?)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_row_is_shown_by_an_error() {
    let place = postgres();
    let id = place.volume().await.id;
    let sql = "INSERT INTO nexuses (volume_id, initiator, chap_user, secret) VALUES (?1, NULL, 'u', 'geheim-geheim')";
    let failed = place.store.shared.engine.change(move |to| Ok(to.run(sql, &values![id]).map(drop)?));
    let Err(Abort::Store(error)) = failed else { panic!("it was kept") };
    let text = format!("{} {error:?}", mooring_model::Chain(&error));
    assert!(text.contains("23502") && !text.contains("geheim"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_schemas_and_clusters_are_refused() {
    let name = Uuid::new_v4().simple().to_string();
    let cluster = open(options(&name)).unwrap().cluster();
    let other = Store::open(options(&name), Some(ClusterId::from_u128(1)), Clock::system()).unwrap_err();
    assert!(matches!(&other, StoreError::Cluster { kept, .. } if *kept == cluster.to_string()), "{other}");
    pg::Server::shared().psql(&name, "INSERT INTO schema_version VALUES (99)");
    let newer = open(options(&name)).unwrap_err();
    assert!(matches!(newer, StoreError::Newer { found: 99, .. }), "{newer}");
    let Database::Postgres { options: wrong, .. } = options(&name) else { panic!("it is PostgreSQL") };
    let missing = open(testing::postgres(wrong.with_database("nosuch"))).unwrap_err();
    assert!(matches!(missing, StoreError::Reach { .. }), "{missing}");
}

/// Tables as text, with their columns (kind, nullability) and unique indexes.
fn shape_of_sqlite() -> BTreeSet<String> {
    let dir = tempfile::tempdir().unwrap();
    drop(open(Database::embedded(dir.path().join("state"))).unwrap());
    let conn = rusqlite::Connection::open(dir.path().join("state").join(sqlite::FILE_NAME)).unwrap();
    let lines = |sql: &str| {
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        rows.collect::<Result<Vec<_>, _>>().unwrap()
    };
    let columns = lines(
        "SELECT m.name || '.' || c.name || ' ' || c.type || CASE WHEN c.\"notnull\" OR c.pk THEN ' NOT NULL' ELSE '' END \
         FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%'",
    );
    let indexes = lines(
        "SELECT m.name || ' ' || i.name || CASE i.\"unique\" WHEN 1 THEN ' UNIQUE' ELSE '' END || \
         CASE i.partial WHEN 1 THEN ' PARTIAL' ELSE '' END FROM sqlite_schema m, pragma_index_list(m.name) i \
         WHERE m.type = 'table' AND i.origin = 'c'",
    );
    let kind = |line: String| line.replace(" INTEGER", " BIGINT").replace(" BLOB", " BYTEA");
    columns.into_iter().map(kind).chain(indexes).collect()
}

#[test]
fn both_schemas_mean_the_same() {
    let name = Uuid::new_v4().simple().to_string();
    drop(open(options(&name)).unwrap());
    let own = "('schema_version', 'controllers', 'leases', 'commit_marks')";
    let columns = format!(
        "SELECT table_name || '.' || column_name || ' ' || upper(data_type) || \
         CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END FROM information_schema.columns \
         WHERE table_schema = 'public' AND table_name NOT IN {own}"
    );
    let indexes = format!(
        "SELECT t.relname || ' ' || i.relname || CASE WHEN x.indisunique THEN ' UNIQUE' ELSE '' END || \
         CASE WHEN x.indpred IS NOT NULL THEN ' PARTIAL' ELSE '' END FROM pg_index x \
         JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid \
         JOIN pg_namespace n ON n.oid = t.relnamespace \
         WHERE n.nspname = 'public' AND NOT x.indisprimary AND t.relname NOT IN {own}"
    );
    let seen: BTreeSet<String> = [columns, indexes]
        .iter()
        .flat_map(|sql| pg::Server::shared().psql(&name, sql).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let wanted = shape_of_sqlite();
    assert!(wanted.len() > 100, "{wanted:?}");
    assert_eq!(seen.symmetric_difference(&wanted).collect::<Vec<_>>(), Vec::<&String>::new());
    // Every text compares by its bytes.
    let others = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'public' AND data_type = 'text' \
         AND collation_name IS DISTINCT FROM 'C'";
    assert_eq!(pg::Server::shared().psql(&name, others), "0");
}

/// The keys that one client has written: acknowledged, of unknown outcome, refused.
type Written = (Vec<String>, Vec<String>, Vec<String>);

/// Writes a key of its own and a shared key, again and again, until it is told to stop.
async fn write_on(store: Store, client: u32, stop: Arc<AtomicBool>, made: Arc<AtomicUsize>) -> Written {
    let (mut kept, mut unknown, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0_u32.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{client}.{round}");
        let name = key.clone();
        let done = store.write("test", move |db| {
            db.set_meta(&name, "1")?;
            increment(db)
        });
        match done.await {
            Ok(_) => {
                made.fetch_add(1, Ordering::Relaxed);
                kept.push(key);
            }
            Err(Refusal::Unavailable(text)) if text.contains("not known") => unknown.push(key),
            Err(Refusal::Unavailable(_)) => refused.push(key),
            Err(other) => panic!("{other}"),
        }
    }
    (kept, unknown, refused)
}

/// Kills, stops and starts the server under load. Acknowledged changes are there; refused ones are
/// not, unless the refusal says that the outcome is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_loses_nothing_that_was_acknowledged() {
    let server = Arc::new(pg::Server::new());
    let options = PostgresOptions::new(&server.database("load"), None, None, false).unwrap();
    let store = open(testing::postgres(options)).unwrap();
    let (stop, made) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let mut going = tokio::task::JoinSet::new();
    for client in 0..6 {
        going.spawn(write_on(store.clone(), client, Arc::clone(&stop), Arc::clone(&made)));
    }
    // Lets some changes happen before each blow, however slow the machine is.
    let some = || async {
        let until = made.load(Ordering::Relaxed) + 10;
        while made.load(Ordering::Relaxed) < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    for round in 0..3 {
        some().await;
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || {
            if round == 1 {
                server.stop();
            } else {
                server.kill();
            }
            server.start();
        })
        .await
        .unwrap();
    }
    some().await;
    stop.store(true, Ordering::Relaxed);
    let (mut all, mut unknown) = (0_usize, 0);
    for (kept, maybe, refused) in going.join_all().await {
        all += kept.len();
        unknown += maybe.len();
        let (there, gone) = store
            .read("test", move |db| {
                let there = |keys: Vec<String>| {
                    keys.iter().map(|key| Ok(db.meta(key)?.is_some())).collect::<Result<Vec<_>, Abort>>()
                };
                Ok((there(kept)?, there(refused)?))
            })
            .await
            .unwrap();
        assert!(there.iter().all(|found| *found), "an acknowledged change is lost");
        assert!(gone.iter().all(|found| !*found), "a refused change is there");
    }
    let count =
        store.read("test", |db| Ok(db.meta("count")?)).await.unwrap().unwrap().parse::<usize>().unwrap();
    assert!((all..=all + unknown).contains(&count), "{all} kept, {unknown} unknown, counted {count}");
}

/// A waiting change may hold the store. Once no thread will run it, it does not keep the file from
/// its next user.
#[test]
fn a_runtime_that_ends_gives_the_file_back() {
    let dir = tempfile::tempdir().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).enable_all().build().unwrap();
    let (busy, ends) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || ends.recv().is_err());
    let place = || Database::embedded(dir.path().to_owned());
    let store = open(place()).unwrap();
    let held = store.clone();
    let write = store.write("test", move |db| {
        let _holds = &held;
        increment(db)
    });
    runtime.block_on(async { tokio::time::timeout(Duration::from_millis(10), write).await.unwrap_err() });
    assert!(matches!(open(place()), Err(StoreError::Locked { .. })), "the control");
    runtime.shutdown_background();
    drop((store, busy));
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while open(place()).is_err() {
        assert!(std::time::Instant::now() < until, "its lock is held for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
}
