//! Tests of backups beside writers, of refused restores, and of the files that a crash leaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mooring_model::{Chain, ClusterId};
use mooring_systemd::sealing::{self, Origin};

use super::*;
use crate::clock::Clock;
use crate::store::backup::{back_up as backup, restore};
use crate::store::sqlite::SCHEMAS;
use crate::store::{Database, Store};

struct Site {
    top: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { top: tempfile::tempdir().unwrap() };
        fs::create_dir(site.state()).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.path("state")
    }

    fn database(&self) -> PathBuf {
        self.state().join(FILE_NAME)
    }

    fn origin(&self) -> Origin {
        Origin::own(&self.state())
    }

    fn open(&self) -> Store {
        self.open_as(1)
    }

    fn open_as(&self, cluster: u128) -> Store {
        let cluster = Some(ClusterId::from_u128(cluster));
        Store::open(Database::embedded(self.state()), cluster, Clock::system()).unwrap()
    }

    /// A store that holds this value, closed.
    fn with(value: &'static str) -> Self {
        let site = Self::new();
        set(&site.open(), value);
        site
    }

    fn backup(&self, name: &str) -> Result<PathBuf, BackupError> {
        let to = self.path(name);
        backup(&self.state(), &self.origin(), &to, None, now()).map(|made| made.file)
    }

    fn restore(&self, from: &Path) -> Result<crate::store::backup::Restored, BackupError> {
        restore(&self.state(), &self.origin(), from, None, now())
    }

    fn value(&self) -> Option<String> {
        get(&self.open())
    }

    /// Names in the state folder, without the files that SQLite makes anew.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.state()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| BESIDE.iter().all(|end| !name.ends_with(end)));
        names.sort();
        names
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}

fn set(store: &Store, value: &'static str) {
    store.prepare("set", move |db: &Db<'_>| Ok(db.set_meta("value", value)?)).unwrap();
}

fn get(store: &Store) -> Option<String> {
    store.prepare("get", |db: &Db<'_>| Ok(db.meta("value")?)).unwrap()
}

/// A secret, sealed.
fn seal_something(store: &Store) {
    let text = "INSERT INTO nexuses (volume_id, initiator, chap_user, secret) VALUES ('v', 'i', 'u', ?1)";
    let sealed = store.shared.keys.seal_text(
        sealing::Place { table: "nexuses", column: "secret", row: &["v", "i"] },
        "a secret that is long enough",
    );
    let sealed = sealed.unwrap();
    store.prepare("seal", move |db: &Db<'_>| Ok(db.run(text, &[sealed.as_str().into()])?)).unwrap();
}

fn refused<T>(done: Result<T, BackupError>, words: &[&str]) {
    let Err(error) = done else { panic!("it was done: {words:?}") };
    let text = Chain(&error).to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}\nlacks one of {words:?}");
}

#[test]
fn a_backup_is_one_moment_of_a_database_that_is_written_to() {
    let site = Site::new();
    let store = site.open();
    store
        .prepare("set", |db: &Db<'_>| Ok(db.set_meta("other", "0").and(db.set_meta("value", "0"))?))
        .unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1_u32.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                let text = number.to_string();
                store
                    .prepare("set", move |db: &Db<'_>| {
                        db.set_meta("value", &text)?;
                        Ok(db.set_meta("other", &text)?)
                    })
                    .unwrap();
            }
        });
        let mut last = 0_u32;
        for round in 0..10 {
            let file = site.backup(&format!("{round}.db")).unwrap();
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            let conn = Connection::open(&file).unwrap();
            let (value, other) = (meta(&conn, "value").unwrap(), meta(&conn, "other").unwrap());
            assert_eq!(value, other);
            let value = value.unwrap().parse().unwrap();
            assert!(value >= last, "{value} after {last}");
            last = value;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(site.names().iter().all(|name| !name.starts_with(".mooring-")), "{:?}", site.names());
}

#[test]
fn a_restored_database_is_the_backup_and_the_old_one_is_kept() {
    let site = Site::with("old");
    let file = site.backup("copy.db").unwrap();
    set(&site.open(), "new");
    let done = site.restore(&file).unwrap();
    assert_eq!(done.contents.made, Some(now()));
    let aside = done.aside.unwrap();
    let store = site.open();
    assert_eq!(get(&store).as_deref(), Some("old"));
    let told = |store: &Store| store.prepare("look", |db: &Db<'_>| Ok(db.take_restored()?)).unwrap();
    assert_eq!((told(&store), told(&store)), (true, false), "one start is told");
    assert_eq!(meta(&Connection::open(aside).unwrap(), "value").unwrap().as_deref(), Some("new"));
    drop(store);
    // The backup itself is unchanged and may be restored again; each old database has its own name.
    let again = site.restore(&file).unwrap().aside.unwrap();
    assert!(again.is_file() && site.names().iter().filter(|name| name.contains(".replaced-")).count() == 2);
    assert_eq!(site.value().as_deref(), Some("old"));
}

/// A start removes from the state folder what killed writers left, before it finds that a restore
/// is in progress.
#[test]
fn a_start_beside_a_restore_leaves_its_copy_alone() {
    let site = Site::with("old");
    let file = site.backup("copy.db").unwrap();
    let ready = prepare(&site.state(), &file).unwrap();
    assert_eq!(folder::sweep(&site.state()).unwrap(), Vec::<PathBuf>::new());
    ready.put(now()).unwrap();
    assert_eq!(site.value().as_deref(), Some("old"));
}

/// The old database is damaged and has changes only in its log, so that they cannot be moved into
/// its file.
#[test]
fn the_log_of_a_damaged_database_is_not_read_as_the_restored_ones() {
    let site = Site::with("old");
    let file = site.backup("copy.db").unwrap();
    let store = site.open();
    set(&store, "new");
    let (whole, log) = (fs::read(site.database()).unwrap(), beside(&site.database(), "-wal"));
    let kept = fs::read(&log).unwrap();
    assert!(!kept.is_empty());
    drop(store);
    // As after a power cut, on a disk that lost the file's beginning.
    fs::write(site.database(), vec![0x55; whole.len()]).unwrap();
    fs::write(&log, &kept).unwrap();
    let aside = site.restore(&file).unwrap().aside.unwrap();
    assert_eq!(site.value().as_deref(), Some("old"));
    assert_eq!(fs::read(beside(&aside, "-wal")).unwrap(), kept, "what was there is kept");
}

#[test]
fn a_restore_that_a_crash_cut_short_is_made_again() {
    let site = Site::with("old");
    let file = site.backup("copy.db").unwrap();
    set(&site.open(), "new");
    // Killed before the last step: the old database has both names.
    let aside = set_aside(&site.database(), now()).unwrap();
    assert_eq!(site.value().as_deref(), Some("new"), "the old one is there still");
    assert!(aside.is_file());
    site.restore(&file).unwrap();
    assert_eq!(site.value().as_deref(), Some("old"));
}

#[test]
fn what_is_no_backup_is_refused_and_changes_nothing() {
    let site = Site::with("new");
    let good = Site::with("old").backup("copy.db").map(|path| fs::read(path).unwrap());
    // The site's folder is gone: the bytes are enough.
    let good = good.unwrap();
    let file = site.path("file");
    let changed = |sql: &str| {
        fs::write(&file, &good).unwrap();
        Connection::open(&file).unwrap().execute_batch(sql).unwrap();
    };
    let names = site.names();
    refused(site.restore(&file), &["cannot read", "file"]);
    refused(site.restore(site.top.path()), &["is no backup", "no file"]);
    for bytes in [
        &b""[..],
        b"no database at all, but a text that is longer than a header of SQLite is: 100 bytes, and more.",
    ] {
        fs::write(&file, bytes).unwrap();
        refused(site.restore(&file), &["is no backup of a controller's database"]);
    }
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    refused(site.restore(&file), &["file"]);
    let mut torn = good.clone();
    torn[8_192..].fill(0x55);
    fs::write(&file, torn).unwrap();
    refused(site.restore(&file), &["file"]);
    changed("PRAGMA user_version = 999");
    refused(site.restore(&file), &["schema 999", "install the newer controller"]);
    changed("DROP TABLE volumes");
    refused(site.restore(&file), &["is no backup"]);
    changed("DELETE FROM meta WHERE key = 'cluster_id'");
    refused(site.restore(&file), &["is no backup", "no cluster"]);
    changed("UPDATE meta SET value = '00000000-0000-0000-0000-000000000009' WHERE key = 'cluster_id'");
    refused(site.restore(&file), &["00000000-0000-0000-0000-000000000009", "move it away first"]);
    changed("");
    fs::write(beside(&file, "-wal"), "a log").unwrap();
    refused(site.restore(&file), &["has a log beside it", "mooring-controller backup"]);
    fs::remove_file(beside(&file, "-wal")).unwrap();
    refused(
        restore(&site.path("elsewhere"), &site.origin(), &file, None, now()),
        &["no folder", "elsewhere"],
    );
    assert_eq!(site.names(), names);
    assert_eq!(site.value().as_deref(), Some("new"));
    let store = site.open();
    refused(site.restore(&file), &["another controller uses", "stop that one first"]);
    drop(store);
    site.restore(&file).unwrap();
    assert_eq!(site.value().as_deref(), Some("old"));
}

/// A database as the first release made it.
fn first_schema(path: &Path) {
    let conn = Connection::open(path).unwrap();
    conn.execute_batch(SCHEMAS[0]).unwrap();
    conn.execute_batch("PRAGMA user_version = 1; INSERT INTO meta VALUES ('cluster_id', '00000000-0000-0000-0000-000000000001')")
        .unwrap();
}

#[test]
fn a_backup_of_an_older_release_restores_and_its_database_gives_none() {
    let site = Site::new();
    let old = site.path("old.db");
    first_schema(&old);
    let done = site.restore(&old).unwrap();
    assert_eq!((done.contents.made, done.aside), (None, None));
    drop(site.open());
    let site = Site::new();
    first_schema(&site.database());
    refused(site.backup("copy.db"), &["has schema 1", "start the controller once"]);
    assert!(!site.path("copy.db").exists());
}

#[test]
fn a_backup_that_cannot_be_made_leaves_nothing() {
    let site = Site::new();
    refused(site.backup("a.db"), &["there is no database", "state_dir"]);
    set(&site.open(), "v");
    fs::write(site.path("taken.db"), "mine").unwrap();
    refused(site.backup("taken.db"), &["is there already", "taken.db"]);
    assert_eq!(fs::read_to_string(site.path("taken.db")).unwrap(), "mine");
    refused(site.backup("nowhere/a.db"), &["cannot write", "nowhere/a.db"]);
    // No file of keys: the backup is refused before anything is written.
    fs::write(site.path("keys"), "no key").unwrap();
    let keys = site.path("keys");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    refused(backup(&site.state(), &site.origin(), &site.path("a.db"), Some(&keys), now()), &["keys line 1"]);
    let mut left: Vec<_> =
        fs::read_dir(site.top.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["keys", "state", "taken.db"]);
}

#[test]
fn a_backup_comes_back_on_a_new_machine_with_its_keys_only() {
    let site = Site::new();
    seal_something(&site.open());
    let (file, keys) = (site.path("copy.db"), site.path("copy.key"));
    let made = backup(&site.state(), &site.origin(), &file, Some(&keys), now()).unwrap();
    assert_eq!(made.contents.keys, site.origin().load().unwrap().ids().collect::<Vec<_>>());
    // A second backup, after a new key, adds that key to the copy of the keys.
    sealing::rotate(&site.origin()).unwrap();
    drop(site.open());
    let newer = site.path("newer.db");
    backup(&site.state(), &site.origin(), &newer, Some(&keys), now()).unwrap();
    assert_eq!(Origin::Configured(keys.clone()).load().unwrap().ids().count(), 2);
    for from in [&file, &newer] {
        let machine = Site::new();
        refused(machine.restore(from), &["sealed by the key", "sealing.key", "--keys"]);
        let other = machine.path("other.key");
        sealing::make(&other, None).unwrap();
        let wrong = restore(&machine.state(), &machine.origin(), from, Some(&other), now());
        refused(wrong, &["sealed by the key", "other.key"]);
        assert!(
            machine.names().iter().all(|name| name == "mooring-controller.lock"),
            "{:?}",
            machine.names()
        );
        // A controller that ran there once made its own keys, which stay.
        drop(machine.open());
        let own = machine.origin().load().unwrap().first();
        let done = restore(&machine.state(), &machine.origin(), from, Some(&keys), now()).unwrap();
        assert_eq!(done.keys.unwrap().0.len(), 2);
        assert!(machine.origin().load().unwrap().ids().any(|id| id == own));
        drop(machine.open());
    }
}
