//! Identities on the wire, on every database, also on one that an earlier release has filled.

use super::*;
use crate::error::Refusal;

const SIX: VolumeId = VolumeId::from_u128(6 << 96);
/// An id with the NAA of `SIX`: they differ only behind the first 25 digits.
const TWIN: VolumeId = VolumeId::from_u128((6 << 96) + 1);
const ALONE: VolumeId = VolumeId::from_u128(7 << 96);
const GONE: VolumeId = VolumeId::from_u128(8 << 96);

async fn insert(place: &Place, id: VolumeId) -> Result<(), Refusal> {
    let work = move |db: &Db<'_>| {
        let type_id = db.type_by_name(DEFAULT_TYPE)?.map(|found| found.id).unwrap_or_default();
        db.insert_volume(&volume(id, type_id, db.now))
    };
    place.store.write("insert", work).await
}

async fn is_known(place: &Place, id: VolumeId) -> bool {
    place.read(move |db| Ok(db.is_known_id(id)?)).await
}

pub(super) async fn an_identity_is_one_volumes_for_ever(place: Place) {
    insert(&place, SIX).await.unwrap();
    for taken in [SIX, TWIN] {
        let refused = insert(&place, taken).await;
        assert!(
            matches!(&refused, Err(Refusal::Conflict(text)) if text.contains(&taken.to_string())),
            "{refused:?}"
        );
    }
    place.write(|db| Ok(db.delete_volume(SIX)?)).await;
    assert!(
        insert(&place, SIX).await.is_err() && insert(&place, TWIN).await.is_err(),
        "also behind its deletion"
    );
    // Ids found at agents are not stored as volumes.
    let found: Vec<_> = (20..320_u128).map(|n| VolumeId::from_u128(n << 96)).collect();
    let noted = found.clone();
    place
        .write(move |db| {
            let mut noted: Vec<_> = noted.iter().map(|id| (naa_of(*id), *id)).collect();
            noted.push((Naa::of_serial("recorded"), ALONE));
            db.note_identities(&noted)?;
            // Repeating the call changes nothing.
            Ok(db.note_identities(&noted)?)
        })
        .await;
    for id in [found[0], found[99], found[100], found[299]] {
        assert!(is_known(&place, id).await && insert(&place, id).await.is_err());
    }
    assert!(!is_known(&place, ALONE).await, "the NAA of an adopted export stands for no id");
    insert(&place, ALONE).await.unwrap();
    // A controller of an earlier release stores no identity: its volumes and specs are known all
    // the same.
    place
        .write(|db| {
            db.keep_spec(GONE, Kind::Volume, &spec_row())?;
            Ok(())
        })
        .await;
    assert!(is_known(&place, GONE).await);
}

fn spec_row() -> SpecRow {
    let content = SpecContent::tombstone(Kind::Volume, true);
    let generation = Generation { epoch: 1, counter: 2 };
    SpecRow {
        stamp: mooring_model::Stamp { generation, digest: content.digest.clone() },
        content,
        settled: false,
    }
}

pub(super) async fn found_volumes_may_share_an_identity(place: Place) {
    let twin_of = async |id| place.read(move |db| Ok(db.twin_of(&db.volume(id)?.unwrap())?)).await;
    place
        .write(|db| {
            let type_id = db.type_by_name(DEFAULT_TYPE)?.map(|found| found.id).unwrap_or_default();
            for id in [SIX, TWIN, ALONE] {
                db.insert_found_volume(&VolumeRow { naa: None, ..volume(id, type_id, db.now) })?;
            }
            Ok(())
        })
        .await;
    assert_eq!(
        (twin_of(SIX).await, twin_of(TWIN).await, twin_of(ALONE).await),
        (Some(TWIN), Some(SIX), None)
    );
    let all = place.read(|db| Ok(db.twins()?)).await;
    assert_eq!(all, [(naa_of(SIX).to_string(), SIX), (naa_of(SIX).to_string(), TWIN)]);
    // The agent's report of an adopted export counts, and nothing else of that volume.
    place.write(|db| Ok(db.set_target(ALONE, &iqn(1), &naa_of(SIX), &[])?)).await;
    assert_eq!(twin_of(ALONE).await, Some(SIX));
    place.write(|db| Ok(db.set_target(ALONE, &iqn(1), &Naa::of_serial("recorded"), &[])?)).await;
    assert_eq!(twin_of(ALONE).await, None);
    // A snapshot has no export.
    place
        .write(|db| {
            Ok(db
                .run("UPDATE volumes SET snapshot_of = ?1 WHERE id = ?2", &values![ALONE, TWIN])
                .map(drop)?)
        })
        .await;
    assert_eq!((twin_of(SIX).await, place.read(|db| Ok(db.twins()?)).await), (None, Vec::new()));
}

/// Rows as an earlier release left them: two volumes with one NAA, a single adopted volume, and the
/// spec of a deleted one.
fn rows_of_before() -> String {
    let type_id = Uuid::nil();
    let volume = |id: VolumeId, naa: &str| {
        format!(
            "INSERT INTO volumes (id, size_gib, type_id, multiattach, status, attach_status, project, user_id, metadata, agent_id, \
             pool, created_us, naa) VALUES ('{id}', 1, '{type_id}', 0, 'available', 'detached', 'p', 'u', '{{}}', \
             '00000000-0000-0000-0000-000000000009', 'vg0', 1, {naa});"
        )
    };
    let digest = "00".repeat(32);
    [
        format!("INSERT INTO volume_types (id, name, is_public, created_us) VALUES ('{type_id}', 'old', 1, 1);"),
        volume(SIX, "NULL"),
        volume(TWIN, &format!("'{}'", naa_of(TWIN))),
        volume(ALONE, &format!("'{}'", Naa::of_serial("recorded"))),
        format!(
            "INSERT INTO specs (volume_id, kind, agent_id, epoch, counter, digest, body, opaque, hard, settled) \
             VALUES ('{GONE}', 'volume', '', 1, 2, X'{digest}', NULL, X'', 1, 0);"
        ),
    ]
    .concat()
}

/// Nothing is lost, nothing fails, and volumes that share an NAA are found.
async fn filled_by_an_earlier_release(store: Store) {
    let place = Place { other: store.clone(), store, _dir: None };
    let all = place.read(|db| Ok(db.twins()?)).await;
    assert_eq!(all.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [SIX, TWIN]);
    let alone = place.read(|db| Ok(db.volume(ALONE)?.unwrap())).await;
    assert_eq!(alone.naa, Some(Naa::of_serial("recorded")));
    for id in [SIX, TWIN, ALONE, GONE] {
        assert!(is_known(&place, id).await && insert(&place, id).await.is_err(), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_of_schema_5_with_equal_naas_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let private: fn(u32) -> std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(&state, private(0o700)).unwrap();
    let conn = rusqlite::Connection::open(state.join(sqlite::FILE_NAME)).unwrap();
    for schema in [
        include_str!("../schema/1.sql"),
        include_str!("../schema/2.sql"),
        include_str!("../schema/3.sql"),
        include_str!("../schema/4.sql"),
        include_str!("../schema/5.sql"),
    ] {
        conn.execute_batch(schema).unwrap();
    }
    conn.pragma_update(None, "user_version", 5).unwrap();
    conn.execute_batch(&rows_of_before()).unwrap();
    drop(conn);
    std::fs::set_permissions(state.join(sqlite::FILE_NAME), private(0o600)).unwrap();
    filled_by_an_earlier_release(open(Database::embedded(state)).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_of_schema_4_with_equal_naas_is_taken_over() {
    let name = Uuid::new_v4().simple().to_string();
    let place = options(&name);
    let server = pg::Server::shared();
    server.psql(&name, "CREATE TABLE schema_version (version BIGINT PRIMARY KEY)");
    for (version, schema) in (1..).zip([
        include_str!("../schema/pg/1.sql"),
        include_str!("../schema/pg/2.sql"),
        include_str!("../schema/pg/3.sql"),
        include_str!("../schema/pg/4.sql"),
    ]) {
        server.psql(&name, schema);
        server.psql(&name, &format!("INSERT INTO schema_version (version) VALUES ({version})"));
    }
    server.psql(&name, &rows_of_before().replace("X'", "'\\x"));
    filled_by_an_earlier_release(open(place).unwrap()).await;
}
