//! Tests of sealing: stores in clear, kills between the steps, keys that are gone, bodies that were
//! moved.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mooring_model::{Digest, Generation, Stamp};
use mooring_systemd::sealing::KeysError;

use super::*;
use crate::store::{FILE_NAME, Store, StoredContent, lock};

const VOLUMES: u128 = 500;

/// Number of exports and connections that are no tombstones.
const ALL: u64 = 2 * 500;

const SECRET: &str = "a-secret-in-clear-";

fn stamp(counter: u64) -> Stamp {
    Stamp { generation: Generation { epoch: 1, counter }, digest: Digest::new([1; 32]).unwrap() }
}

fn body(kind: Kind, volume: VolumeId) -> Vec<u8> {
    let secret = if kind == Kind::Volume { "vg0" } else { SECRET };
    format!("\n{secret}{volume}{kind}").into_bytes()
}

fn all() -> impl Iterator<Item = (Kind, VolumeId)> {
    let kinds = [Kind::Volume, Kind::Export, Kind::Connection];
    (1..=VOLUMES).flat_map(move |volume| kinds.map(|kind| (kind, VolumeId::from_u128(volume))))
}

fn fill(folder: &Path) {
    let store = Store::open(folder).unwrap();
    std::thread::scope(|scope| {
        for part in 0..8 {
            let (all, store) = (all().skip(part).step_by(8), &store);
            scope.spawn(move || {
                for (kind, volume) in all {
                    let content = StoredContent::Spec(body(kind, volume));
                    store.put_spec(kind, volume, &stamp(1), &content, b"opaque", &[]).unwrap();
                }
            });
        }
    });
    let gone = StoredContent::Tombstone { destroy: false };
    store.put_spec(Kind::Export, VolumeId::from_u128(9999), &stamp(1), &gone, b"", &[]).unwrap();
}

fn check(store: &Store) {
    let specs = store.specs().unwrap();
    assert_eq!(specs.len(), 3 * 500 + 1);
    for spec in specs.iter().filter(|spec| spec.volume != VolumeId::from_u128(9999)) {
        assert!(spec.content == StoredContent::Spec(body(spec.kind, spec.volume)), "{spec:?}");
    }
    let one = store.spec(Kind::Export, VolumeId::from_u128(3)).unwrap().unwrap();
    assert!(one.content == StoredContent::Spec(body(Kind::Export, one.volume)));
}

/// Opens a connection with the agent's settings, without a store.
fn connection(folder: &Path) -> Connection {
    let conn = crate::store::connect(&folder.join(FILE_NAME)).unwrap();
    crate::store::configure(&conn).unwrap();
    conn
}

/// Makes a store as agents that do not seal have written it: every body in clear.
fn in_clear() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let conn = connection(folder.path());
    conn.execute_batch("BEGIN").unwrap();
    for (kind, volume) in all() {
        let row = params![volume.to_string(), kind.as_str(), body(kind, volume)];
        conn.prepare_cached(&REPLACE).unwrap().execute(row).unwrap();
    }
    conn.execute_batch("COMMIT").unwrap();
    assert_eq!(census(&conn).unwrap(), Census::new());
    folder
}

fn keys(folder: &Path) -> SealingKeys {
    Origin::own(folder).load().unwrap()
}

fn has_bytes(folder: &Path, bytes: &str) -> bool {
    let files = fs::read_dir(folder).unwrap();
    let bytes = bytes.as_bytes();
    files
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .any(|content| content.windows(bytes.len()).any(|window| window == bytes))
}

#[test]
fn what_is_kept_is_sealed_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let store = Store::open(folder.path()).unwrap();
    check(&store);
    let sealed = Census::from([(Look::Sealed(keys(folder.path()).first()), ALL)]);
    assert_eq!(census(&lock(&store.main)).unwrap(), sealed);
    assert!(!has_bytes(folder.path(), SECRET) && has_bytes(folder.path(), "vg0"));
    let mode = fs::metadata(folder.path().join("sealing.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn a_store_in_clear_is_sealed_by_its_next_start() {
    let folder = in_clear();
    assert!(has_bytes(folder.path(), SECRET), "the control");
    let store = Store::open(folder.path()).unwrap();
    check(&store);
    assert!(!has_bytes(folder.path(), SECRET), "clear bytes are left");
    let sealed = Census::from([(Look::Sealed(keys(folder.path()).first()), ALL)]);
    assert_eq!(census(&lock(&store.main)).unwrap(), sealed);
    assert_eq!(meta(&lock(&store.main), REMAINS).unwrap(), None);
    drop(store);
    check(&Store::open(folder.path()).unwrap());
}

#[test]
fn a_sealing_that_was_killed_is_gone_on_with() {
    kill_and_go_on(in_clear(), true);
}

#[test]
fn a_change_of_keys_that_was_killed_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    sealing::rotate(&Origin::own(folder.path())).unwrap();
    kill_and_go_on(folder, false);
}

/// Kills a start after one step, then after two more, and so on; then before the file is rewritten.
fn kill_and_go_on(mut folder: tempfile::TempDir, clear: bool) {
    let keys = keys(folder.path());
    let mut sealed = Vec::new();
    while sealed.last() != Some(&ALL) {
        let mut conn = connection(folder.path());
        let mut next = Some(Cursor::default());
        for _ in 0..=sealed.len() {
            let Some(after) = next else { break };
            let Ok((_, then)) = step(&mut conn, &keys, &after) else { panic!("a step failed") };
            next = then;
        }
        let by_key = census(&conn).unwrap();
        sealed.push(by_key.get(&Look::Sealed(keys.first())).copied().unwrap_or_default());
        assert!(meta(&conn, REMAINS).unwrap().is_some());
        // As a kill leaves it: nothing is tidied.
        let killed = tempfile::tempdir().unwrap();
        for file in fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), killed.path().join(file.file_name())).unwrap();
        }
        drop(conn);
        folder = killed;
        assert!(!clear || has_bytes(folder.path(), SECRET), "the control");
    }
    assert!(sealed.len() > 2 && sealed.is_sorted(), "{sealed:?}");
    let store = Store::open(folder.path()).unwrap();
    check(&store);
    assert_eq!(census(&lock(&store.main)).unwrap(), Census::from([(Look::Sealed(keys.first()), ALL)]));
    assert!(!has_bytes(folder.path(), SECRET));
}

#[test]
fn without_its_key_a_store_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let (file, aside) = (folder.path().join("sealing.key"), folder.path().join("aside"));
    let key = keys(folder.path()).first();
    let rows = || -> Vec<Vec<u8>> {
        let conn = connection(folder.path());
        let mut statement = conn.prepare("SELECT body FROM specs WHERE body IS NOT NULL").unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    let before = rows();
    fs::rename(&file, &aside).unwrap();
    for other in [false, true] {
        if other {
            sealing::make(&file, None).unwrap();
        }
        let error = Store::open(folder.path()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(&error, StoreError::Keys(KeysError::Missing { values: ALL, .. })), "{text}");
        assert!(text.contains(&key.to_string()) && text.contains("sealing.key"), "{text}");
        assert_eq!((rows() == before, file.exists()), (true, other), "no key is made");
    }
    fs::rename(&aside, &file).unwrap();
    check(&Store::open(folder.path()).unwrap());
}

#[test]
fn a_new_first_key_seals_everything_anew() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let origin = Origin::own(folder.path());
    let new = sealing::rotate(&origin).unwrap().id;
    let store = Store::open(folder.path()).unwrap();
    check(&store);
    assert_eq!(census(&lock(&store.main)).unwrap(), Census::from([(Look::Sealed(new), ALL)]));
    drop(store);
    let text = fs::read_to_string(origin.path()).unwrap();
    let (rest, _) = text.trim_end().rsplit_once('\n').unwrap();
    fs::write(origin.path(), rest).unwrap();
    assert_eq!(keys(folder.path()).ids().collect::<Vec<_>>(), [new]);
    check(&Store::open(folder.path()).unwrap());
}

/// The checksum is right: whoever can write one has no key.
#[test]
fn a_body_that_was_moved_to_another_row_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let conn = connection(folder.path());
    let (one, other) = (VolumeId::from_u128(1), VolumeId::from_u128(2));
    let sql = "SELECT body FROM specs WHERE volume_id = ?1 AND kind = 'export'";
    let body: Vec<u8> = conn.query_row(sql, [one.to_string()], |row| row.get(0)).unwrap();
    conn.prepare(&REPLACE).unwrap().execute(params![other.to_string(), "export", body]).unwrap();
    drop(conn);
    let store = Store::open(folder.path()).unwrap();
    for refused in [store.spec(Kind::Export, other).map(drop), store.specs().map(drop)] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("was changed, or sealed for another row") && !text.contains(SECRET), "{text}");
    }
    assert!(store.spec(Kind::Export, one).is_ok());
}

/// A start after a reboot reads every spec once; `cargo xtask bench node` measures that.
#[test]
fn all_bodies_of_a_full_store_open_with_the_keys() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let keys = keys(folder.path());
    let conn = connection(folder.path());
    let mut statement = conn
        .prepare("SELECT volume_id, kind, body FROM specs WHERE kind <> 'volume' AND body IS NOT NULL")
        .unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    let rows: Vec<(String, String, Vec<u8>)> = rows.collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), 1000);
    for (volume, kind, body) in &rows {
        keys.open(place(&[volume, kind]), body).unwrap();
    }
}
