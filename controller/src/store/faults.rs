//! Tests of the embedded database's errors when its file, its disk or its folder is faulty.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::fs;
use std::path::Path;

use mooring_model::Chain;

use super::*;

fn open(dir: &Path) -> Result<Store, StoreError> {
    Store::open(Database::embedded(dir.to_owned()), None, Clock::system())
}

/// Checks that a write fails. The start and the log name the file and the remedy; a caller of the
/// API is told neither.
async fn takes_nothing(store: &Store, words: &[&str]) {
    let write =
        |db: &Db<'_>| Ok((0..200).try_for_each(|n| db.set_meta(&format!("k{n}"), &"v".repeat(4_096)))?);
    let refused = store.write("test the store", write).await.unwrap_err();
    let Refusal::Unavailable(told) = &refused else { panic!("{refused:?}") };
    assert!(told.contains("its log says what to do") && !told.contains('/'), "{told}");
    let error = store.prepare("test the store", write).unwrap_err();
    let text = Chain(&error).to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

/// Checks that nothing refused was stored, and that the store goes on.
async fn goes_on(store: &Store) {
    assert_eq!(store.read("read", |db| Ok(db.meta("k0")?)).await.unwrap(), None);
    store.write("go on", |db| Ok(db.set_meta("k0", "v")?)).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let Engine::Sqlite(sqlite) = &store.shared.engine else { panic!("it is embedded") };
    sqlite.fill();
    let file = dir.path().join(sqlite::FILE_NAME);
    takes_nothing(&store, &["cannot test the store", file.to_str().unwrap(), "is full; free some space"])
        .await;
}

#[tokio::test]
async fn a_folder_that_goes_is_noticed_and_no_more_writes_are_taken() {
    let top = tempfile::tempdir().unwrap();
    let (dir, aside) = (top.path().join("state"), top.path().join("aside"));
    let store = open(&dir).unwrap();
    fs::rename(&dir, &aside).unwrap();
    let file = dir.join(sqlite::FILE_NAME);
    let words = ["is not there any more", file.to_str().unwrap(), "--restored", "rebuild"];
    takes_nothing(&store, &words).await;
    assert!(matches!(store.read("read", |db| Ok(db.epoch()?)).await, Err(Refusal::Unavailable(_))));
    // A second controller may have begun another file in its place, which is not read either.
    drop(open(&dir).unwrap());
    takes_nothing(&store, &words).await;
    assert!(matches!(store.read("read", |db| Ok(db.epoch()?)).await, Err(Refusal::Unavailable(_))));
    fs::remove_dir_all(&dir).unwrap();
    fs::rename(&aside, &dir).unwrap();
    goes_on(&store).await;
}

/// A change that is refused after a write makes the group run again in savepoints.
#[tokio::test]
async fn a_transaction_that_sqlite_ends_by_itself_keeps_no_change_of_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let write = |key: &'static str| move |db: &Db<'_>| Ok(db.set_meta(key, "v")?);
    for refused_first in [false, true] {
        let refuse = move |db: &Db<'_>| {
            db.set_meta("k1", "v")?;
            Err(Refusal::Conflict("no".to_owned()).into())
        };
        let mut group = Vec::new();
        if refused_first {
            group.push(store.queue(None, refuse));
        }
        group.push(store.queue(None, write("k2")));
        // SQLite does this on some errors.
        group.push(store.queue(None, |db: &Db<'_>| Ok(db.run("ROLLBACK", &[]).map(drop)?)));
        group.push(store.queue(None, write("k3")));
        store.combine();
        for answered in group {
            assert!(answered.await.unwrap().is_err());
        }
        for key in ["k1", "k2", "k3"] {
            assert_eq!(store.read("read", move |db| Ok(db.meta(key)?)).await.unwrap(), None, "{key}");
        }
    }
    goes_on(&store).await;
}

#[test]
fn a_damaged_file_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let file = dir.path().join(sqlite::FILE_NAME);
    let whole = fs::read(&file).unwrap();
    let mut torn = whole.clone();
    torn[8_192..].fill(0x55);
    for bytes in [b"no database at all, but some text that is longer than its header".repeat(9), torn] {
        fs::write(&file, &bytes).unwrap();
        let error = open(dir.path()).unwrap_err();
        let text = Chain(&error).to_string();
        let words = [file.to_str().unwrap(), "is damaged", "restore the last backup", "--restored"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
}
