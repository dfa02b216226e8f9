//! Rows of `volume_operations`, on every database.

use mooring_model::{ExistingLv, ImageSource, LvName, Revert, Upload};

use super::*;
use crate::domain::HostImage;
use crate::store::counts::ByWord;
use crate::store::operations::{KeptOperation, OperationKind};
use crate::store::{KeptRevert, KeptUpload};

const CUT_US: i64 = 1_700_000_000_123_456;

fn id<T: std::str::FromStr>(number: u128) -> T {
    Uuid::from_u128(number).to_string().parse().ok().unwrap()
}

fn lv() -> ExistingLv {
    ExistingLv { name: LvName::existing("their-lv").unwrap(), uuid: "abc-def".to_owned() }
}

fn revert() -> KeptRevert {
    KeptRevert { revert: Revert { snapshot: id(8), id: id(9) }, withdrawn: Some("n\u{f6}".to_owned()) }
}

fn image() -> ImageSource {
    ImageSource { name: "a.raw".parse().unwrap(), format: "raw".parse().unwrap() }
}

fn upload() -> KeptUpload {
    let upload = Upload { image: image(), id: id(10) };
    KeptUpload { upload, withdrawn: None, cancelled: true, ended: false }
}

/// A row of each kind, with texts that JSON and SQL have to escape.
fn each() -> Vec<KeptOperation> {
    vec![
        KeptOperation::Isolation(time_of(CUT_US)),
        KeptOperation::GrowthTakenBack,
        KeptOperation::Reservations("a\"b'c]\n\\".to_owned()),
        KeptOperation::Revert(revert()),
        KeptOperation::Takes(lv()),
        KeptOperation::Upload(upload()),
    ]
}

async fn rows(place: &Place, id: VolumeId) -> BTreeMap<OperationKind, KeptOperation> {
    let volume = place.read(move |db| Ok(db.volume(id)?.unwrap())).await;
    volume.kept.iter().map(|kept| (kept.kind(), kept.clone())).collect()
}

/// Each change leaves the rows of other kinds and other volumes alone.
pub(super) async fn an_operation_of_a_volume_comes_and_goes_alone(place: Place) {
    let (own, other) = (place.volume().await.id, place.volume().await.id);
    let mut wanted = BTreeMap::new();
    for kept in each() {
        wanted.insert(kept.kind(), kept.clone());
        // A repeated change leaves one row.
        for _ in 0..2 {
            let kept = kept.clone();
            place.write(move |db| Ok(db.keep_operation(own, &kept)?)).await;
        }
        assert_eq!(rows(&place, own).await, wanted);
    }
    assert_eq!(wanted.len(), OperationKind::ALL.len());
    assert_eq!(rows(&place, other).await, BTreeMap::new());
    for kind in OperationKind::ALL {
        place.write(move |db| Ok(db.drop_operation(own, kind)?)).await;
        wanted.remove(&kind);
        assert_eq!(rows(&place, own).await, wanted);
    }
}

/// Rows come with a volume that is stored with them, and go with it.
pub(super) async fn operations_come_and_go_with_their_volume(place: Place) {
    let id = VolumeId::random();
    let insert = move |db: &Db<'_>| {
        let type_id = db.type_by_name(DEFAULT_TYPE)?.map(|found| found.id).unwrap_or_default();
        let mut row = volume(id, type_id, db.now);
        row.set_takes(&lv());
        row.note_isolation(CUT_US);
        Ok(db.insert_found_volume(&row)?)
    };
    place.write(insert).await;
    let seen = place.read(move |db| Ok(db.volume(id)?.unwrap())).await;
    assert_eq!((seen.takes(), seen.isolated_since()), (Some(lv()), Some(time_of(CUT_US))));
    let left = place.write(move |db| {
        db.delete_volume(id)?;
        Ok(db.one("SELECT COUNT(*) FROM volume_operations", &[], |row| row.get::<u64>(0))?)
    });
    assert_eq!(left.await, Some(0));
}

/// A volume with such a word is in error, and nothing is sent for it.
pub(super) async fn words_of_a_later_release_hide_no_volume(place: Place) {
    let (own, other) = (place.volume().await.id, place.volume().await.id);
    let change = move |db: &Db<'_>| {
        let sql = "UPDATE volumes SET operation = 'freezing', status = 'frozen', said_status = 'cold' WHERE id = ?1";
        Ok(db.run(sql, &values![own])?)
    };
    place.write(change).await;
    let seen = place.read(move |db| Ok(db.volume(own)?.unwrap())).await;
    let all = place.read(move |db| Ok(db.volumes_on(db.volume(own)?.unwrap().agent)?)).await;
    assert_eq!((seen.operation, seen.status), (Some(Operation::Unknown), VolumeStatus::Error));
    assert_eq!(seen.said_status, Some(VolumeStatus::Error));
    let review = seen.review.clone().unwrap();
    assert!(review.kind == ReviewKind::Unknown && review.why.contains("\"freezing\""), "{review:?}");
    assert!(all.contains(&seen));
    let other = place.read(move |db| Ok(db.volume(other)?.unwrap())).await;
    assert!(other.review.is_none() && other.operation != Some(Operation::Unknown), "{other:?}");
    // It counts as in review, and its words stay those of that release.
    let reviews = async || {
        place
            .read(|db| {
                let ids: Vec<_> = db.volumes_in_review()?.iter().map(|row| row.id).collect();
                Ok((ids, db.count_reviews()?))
            })
            .await
    };
    let one = ByWord::from([("unknown".to_owned(), 1)]);
    assert_eq!(reviews().await, (vec![own], one.clone()));
    let stored = place.write(move |db| {
        db.derive_status(own)?;
        let sql = "SELECT status || ' ' || said_status FROM volumes WHERE id = ?1";
        Ok(db.one(sql, &values![own], |row| row.get::<String>(0))?)
    });
    assert_eq!(stored.await.as_deref(), Some("frozen cold"));
    // A review of a kind that nobody here knows is one all the same.
    let change = move |db: &Db<'_>| {
        let sql = "UPDATE volumes SET operation = NULL, review = 'why', review_kind = 'odd' WHERE id = ?1";
        Ok(db.run(sql, &values![own])?)
    };
    place.write(change).await;
    let seen = place.read(move |db| Ok(db.volume(own)?.unwrap())).await;
    assert_eq!(
        seen.review.map(|review| (review.kind, review.why)),
        Some((ReviewKind::Unknown, "why".to_owned()))
    );
    assert_eq!(reviews().await, (vec![own], one));
    // So is a volume that is attached in a way that nobody here knows.
    let change = move |db: &Db<'_>| {
        let sql =
            "UPDATE volumes SET review = NULL, review_kind = NULL, attach_status = 'lent' WHERE id = ?1";
        Ok(db.run(sql, &values![own])?)
    };
    place.write(change).await;
    let seen = place.read(move |db| Ok(db.volume(own)?.unwrap())).await;
    assert_eq!((seen.operation, seen.attach_status), (Some(Operation::Unknown), AttachStatus::Attached));
    assert!(seen.review.is_some_and(|review| review.why.contains("\"lent\"")));
}

/// Turns a database into one of the schema before, in which each kind was a key of `hints`.
fn older(full: VolumeId, odd: VolumeId) -> String {
    let hints = serde_json::json!({
        "availability_zone": "z", "different_host": [id::<VolumeId>(6)], "later": { "cut": [1, "x"] },
        "image": { "host": "node1", "image": image() },
        "cut": { "since_us": CUT_US }, "growth_taken_back": true, "reservations": "a\"bc]\n\\",
        "revert": { "snapshot": id::<VolumeId>(8), "id": Uuid::from_u128(9).to_string(), "withdrawn": "n\u{f6}" },
        "takes": { "name": "their-lv", "uuid": "abc-def" },
        "upload": { "id": Uuid::from_u128(10).to_string(), "name": "a.raw", "format": "raw", "withdrawn": null,
                    "cancelled": true, "ended": false },
    });
    let broken = r#"{"cut":{"since_us":"x"},"revert":[],"takes":7,"unknown":null}"#;
    format!(
        "DROP INDEX volumes_reserved; ALTER TABLE volumes DROP COLUMN reserved_until_us; DROP TABLE gone; \
         ALTER TABLE identities DROP COLUMN epoch; ALTER TABLE identities DROP COLUMN counter; \
         DROP INDEX receipts_by_age; DROP INDEX detached_by_receipt; DROP INDEX takings_by_receipt; \
         ALTER TABLE receipts DROP COLUMN kept_us; \
         DROP INDEX receipts_by_nexus; ALTER TABLE receipts DROP COLUMN other_agent; \
         DROP TABLE volume_operations; ALTER TABLE volumes RENAME COLUMN placement_hints TO hints; \
         UPDATE volumes SET hints = '{hints}' WHERE id = '{full}'; \
         UPDATE volumes SET hints = '{broken}' WHERE id = '{odd}'"
    )
}

/// Two volumes of a new database.
fn two_volumes(store: &Store) -> (VolumeId, VolumeId) {
    let ids = (VolumeId::random(), VolumeId::random());
    let insert = move |db: &Db<'_>| {
        let type_id = db.type_by_name(DEFAULT_TYPE)?.map(|found| found.id).unwrap_or_default();
        for id in [ids.0, ids.1] {
            db.insert_volume(&volume(id, type_id, db.now))?;
        }
        Ok(())
    };
    store.prepare("insert", insert).unwrap();
    ids
}

/// Checks that what an older release kept is there, each thing in its place.
fn check_migrated(store: &Store, (full, odd): (VolumeId, VolumeId)) {
    let read = move |db: &Db<'_>| {
        let sql = "SELECT placement_hints FROM volumes WHERE id = ?1";
        let mut rows = Vec::new();
        for id in [full, odd] {
            let hints = db.one(sql, &values![id], |row| row.json::<serde_json::Value>(0))?.unwrap();
            let keys: Vec<_> = hints.as_object().unwrap().keys().cloned().collect();
            rows.push((db.volume(id)?.unwrap(), hints, keys.join(" ")));
        }
        let sql = "SELECT MIN(since_us) FROM volume_operations WHERE kind <> 'cut'";
        Ok((rows, db.one(sql, &[], |row| row.get::<i64>(0))?.unwrap()))
    };
    let (rows, since) = store.prepare("read", read).unwrap();
    let [(full, kept, keys), (odd, _, odd_keys)] = rows.as_slice() else { panic!("two are asked for") };
    assert_eq!((full.isolated_since(), full.growth_is_taken_back()), (Some(time_of(CUT_US)), true));
    assert_eq!(full.reservations_copy(), "a\"bc]\n\\");
    assert_eq!((full.revert(), full.takes(), full.upload()), (Some(revert()), Some(lv()), Some(upload())));
    let image = HostImage { host: "node1".to_owned(), image: image() };
    assert_eq!((full.hints.zone.as_deref(), full.image()), (Some("z"), Some(image)));
    assert_eq!(full.hints.different_host, [id::<VolumeId>(6)]);
    // A key that this release does not know stays where it is.
    assert_eq!(kept["later"], serde_json::json!({ "cut": [1, "x"] }));
    assert_eq!(keys, "availability_zone different_host image later");
    assert_eq!(since, micros(full.created_at));
    // What said nothing before says nothing now.
    let none = (odd.isolated_since(), odd.revert(), odd.takes(), odd.upload(), odd.growth_is_taken_back());
    assert_eq!((none, odd_keys.as_str()), ((None, None, None, None, false), "unknown"));
}

#[test]
fn hints_of_an_older_sqlite_become_operations() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let store = open(Database::embedded(state.clone())).unwrap();
    let (full, odd) = two_volumes(&store);
    drop(store);
    let conn = rusqlite::Connection::open(state.join(sqlite::FILE_NAME)).unwrap();
    conn.execute_batch(&older(full, odd)).unwrap();
    conn.execute_batch(&super::standing::old_columns()).unwrap();
    conn.pragma_update(None, "user_version", 14).unwrap();
    drop(conn);
    check_migrated(&open(Database::embedded(state)).unwrap(), (full, odd));
}

#[test]
fn hints_of_an_older_postgresql_become_operations() {
    let name = Uuid::new_v4().simple().to_string();
    let store = open(options(&name)).unwrap();
    let (full, odd) = two_volumes(&store);
    drop(store);
    let back = format!("{}; {}", older(full, odd), super::standing::old_postgres(13));
    pg::Server::shared().psql(&name, &back);
    check_migrated(&open(options(&name)).unwrap(), (full, odd));
}
