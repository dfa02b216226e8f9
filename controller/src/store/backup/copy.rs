//! Copies of the embedded database: made while a controller works on it, and put back while none
//! does.
//!
//! What must never happen here: a copy that is not one moment of the database; an existing file
//! overwritten; a state folder with neither the old database nor the restored one; pages of the old
//! database's log read as the restored one's.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mooring_systemd::folder;
use mooring_systemd::sealing::{KeyId, Look, Origin};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tempfile::NamedTempFile;

use super::{BackupError, Contents};
use crate::store::sealing::census;
use crate::store::sqlite::{FILE_NAME, Open, check, connect, known, migrate, take_lock};
use crate::store::{Db, SqlError, StoreError, micros, time_of};

/// The key of `meta` for the time of the copy, in microseconds since 1970.
const COPIED: &str = "backed_up_us";

/// The key of `meta` which says that the database was restored from a copy, and that no start has
/// taken note of it yet.
const RESTORED: &str = "restored";

/// Sets a key of `meta`.
const SET: &str =
    "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";

/// Files that SQLite keeps beside a database.
const BESIDE: [&str; 2] = ["-wal", "-shm"];

/// Copies the database of this state folder to a file that must not exist. A controller may work on
/// the database meanwhile, and waits for nothing.
pub(crate) fn back_up(state: &Path, to: &Path, now: SystemTime) -> Result<Contents, BackupError> {
    let source = state.join(FILE_NAME);
    if !source.is_file() {
        return Err(BackupError::NoDatabase(source));
    }
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::Taken(to.to_owned()));
    }
    let write = |error| BackupError::Write { path: to.to_owned(), source: error };
    let copy = folder::unfinished(folder::parent(to)).map_err(write)?;
    let name = copy.path().to_str().ok_or_else(|| BackupError::Name(to.to_owned()))?;
    let copying =
        |error: rusqlite::Error| BackupError::Copy { from: source.clone(), to: to.to_owned(), source: error };
    connect(&source)?.execute("VACUUM INTO ?1", [name]).map_err(copying)?;
    let contents = {
        let conn = Connection::open(copy.path()).map_err(copying)?;
        conn.execute(SET, (COPIED, micros(now).to_string())).map_err(copying)?;
        let schema = whole(&source, &conn)?;
        if schema < known() {
            return Err(BackupError::Older { path: source, schema, known: known() });
        }
        look(&source, &conn)?
    };
    copy.as_file().sync_all().map_err(write)?;
    match copy.persist_noclobber(to) {
        Ok(_) => {}
        Err(refused) if refused.error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(BackupError::Taken(to.to_owned()));
        }
        Err(refused) => return Err(write(refused.error)),
    }
    folder::named(to).map_err(write)?;
    Ok(contents)
}

/// A checked copy in the state folder, without a name of its own yet. No controller can start
/// meanwhile.
pub(crate) struct Ready {
    state: PathBuf,
    copy: NamedTempFile,
    /// The contents of the copy.
    pub(crate) contents: Contents,
    /// The user and group of the state folder, for the files that a controller is to use; `None`
    /// for the caller's own.
    pub(crate) owner: Option<(u32, u32)>,
    _lock: fs::File,
}

/// Copies a backup into the state folder and checks it. The existing database is not changed.
pub(crate) fn prepare(state: &Path, from: &Path) -> Result<Ready, BackupError> {
    let read = |source| BackupError::Read { path: from.to_owned(), source };
    if !fs::metadata(from).map_err(read)?.is_file() {
        return Err(BackupError::NoBackup { path: from.to_owned(), why: "no file".to_owned() });
    }
    let log = beside(from, "-wal");
    if fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
        return Err(BackupError::Log { path: from.to_owned(), log });
    }
    let usable = |source| BackupError::Write { path: state.to_owned(), source };
    if !state.is_dir() {
        return Err(BackupError::NoFolder(state.to_owned()));
    }
    let found = fs::metadata(state).map_err(usable)?;
    let owner = nix::unistd::geteuid().is_root().then_some((found.uid(), found.gid()));
    let lock = take_lock(state)?;
    folder::give(&lock, owner).map_err(usable)?;
    let mut copy = folder::unfinished(state).map_err(usable)?;
    io::copy(&mut fs::File::open(from).map_err(read)?, copy.as_file_mut()).map_err(usable)?;
    let broken =
        |source: rusqlite::Error| BackupError::NoBackup { path: from.to_owned(), why: source.to_string() };
    let contents = {
        let mut conn = Connection::open(copy.path()).map_err(broken)?;
        // One file, without a log beside it.
        conn.pragma_update_and_check(None, "journal_mode", "DELETE", |row| row.get::<_, String>(0))
            .map_err(broken)?;
        whole(from, &conn)?;
        cluster_of(from, &conn)?;
        migrate(copy.path(), &mut conn)?;
        look(from, &conn)?
    };
    folder::give(copy.as_file(), owner).map_err(usable)?;
    Ok(Ready { state: state.to_owned(), copy, contents, owner, _lock: lock })
}

impl Ready {
    /// The cluster of the existing database; `None` if there is none, or it cannot be read.
    pub(crate) fn replaces(&self) -> Option<String> {
        let path = self.state.join(FILE_NAME);
        if !path.is_file() {
            return None;
        }
        peek(&path).ok().and_then(|conn| meta(&conn, "cluster_id").ok().flatten())
    }

    /// Puts the copy in the place of the database. Keeps the old one under another name, and
    /// returns that name. A crash leaves one or the other.
    pub(crate) fn put(self, now: SystemTime) -> Result<Option<PathBuf>, BackupError> {
        let path = self.state.join(FILE_NAME);
        let write = |source| BackupError::Write { path: path.clone(), source };
        let made = self.contents.made.map_or_else(|| "?".to_owned(), |made| micros(made).to_string());
        {
            let marking =
                |source| BackupError::Copy { from: self.copy.path().to_owned(), to: path.clone(), source };
            let conn = Connection::open(self.copy.path()).map_err(marking)?;
            conn.execute("DELETE FROM meta WHERE key = ?1", [COPIED]).map_err(marking)?;
            conn.execute(SET, (RESTORED, made)).map_err(marking)?;
        }
        self.copy.as_file().sync_all().map_err(write)?;
        let aside = if path.is_file() { Some(set_aside(&path, now).map_err(write)?) } else { None };
        // A log that a crash left does not belong to the copy.
        for end in BESIDE {
            remove(&beside(&path, end)).map_err(write)?;
        }
        folder::named(&path).map_err(write)?;
        self.copy.persist(&path).map_err(|refused| write(refused.error))?;
        folder::named(&path).map_err(write)?;
        Ok(aside)
    }
}

/// Opens a database that may be damaged, and leaves its log alone.
fn peek(path: &Path) -> Result<Connection, StoreError> {
    let conn = connect(path)?;
    let open = |source| StoreError::Open { path: path.to_owned(), source };
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(open)?;
    Ok(conn)
}

/// Gives the database and its log a second name. First moves an intact database's log into its
/// file, so that the file alone is complete when the log's own name goes.
fn set_aside(path: &Path, now: SystemTime) -> io::Result<PathBuf> {
    if let Ok(conn) = peek(path)
        && check(path, &conn).is_ok()
    {
        // A log that cannot be moved into the file stays under the second name.
        let _ = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    }
    for number in 0_u32.. {
        let more = if number == 0 { String::new() } else { format!("-{number}") };
        let aside = beside(path, &format!(".replaced-{}{more}", micros(now) / 1_000_000));
        match fs::hard_link(path, &aside) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
        let log = beside(path, "-wal");
        if fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
            fs::hard_link(&log, beside(&aside, "-wal"))?;
        }
        return Ok(aside);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn no_backup(path: &Path) -> impl Fn(rusqlite::Error) -> BackupError + Copy {
    move |source| BackupError::NoBackup { path: path.to_owned(), why: source.to_string() }
}

/// Checks that a database is intact. Returns its schema, which this version knows.
fn whole(path: &Path, conn: &Connection) -> Result<i64, BackupError> {
    let other = no_backup(path);
    let schema: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(other)?;
    if schema > known() {
        return Err(BackupError::Newer { path: path.to_owned(), schema, known: known() });
    }
    let verdict: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(other)?;
    if verdict != "ok" {
        return Err(BackupError::Damaged { path: path.to_owned(), why: verdict });
    }
    Ok(schema)
}

/// The cluster that a database belongs to. Fails if the database is not a controller's.
fn cluster_of(path: &Path, conn: &Connection) -> Result<String, BackupError> {
    let other = no_backup(path);
    let types = "SELECT COUNT(*) FROM volume_types";
    conn.query_row(types, [], |row| row.get::<_, i64>(0)).map_err(other)?;
    let cluster = meta(conn, "cluster_id").map_err(other)?;
    cluster
        .ok_or_else(|| BackupError::NoBackup { path: path.to_owned(), why: "it names no cluster".to_owned() })
}

/// Reads the contents of a controller's database of the newest schema.
fn look(path: &Path, conn: &Connection) -> Result<Contents, BackupError> {
    let other = no_backup(path);
    let cluster = cluster_of(path, conn)?;
    let count = |table: &str| -> Result<u32, BackupError> {
        conn.query_row(&format!("SELECT COUNT(*) FROM {table}"), [], |row| row.get(0)).map_err(other)
    };
    let (volumes, attachments) = (count("volumes")?, count("attachments")?);
    let sealed = census(&Open::on(conn))
        .map_err(|error| BackupError::NoBackup { path: path.to_owned(), why: error.to_string() })?;
    let mut keys = Vec::new();
    for look in sealed.into_keys() {
        match look {
            Look::Sealed(id) => keys.push(id),
            Look::Newer(form) => return Err(BackupError::Form { path: path.to_owned(), form }),
            Look::Clear => {}
        }
    }
    let made = meta(conn, COPIED).map_err(other)?.and_then(|text| text.parse().ok()).map(time_of);
    Ok(Contents { cluster, volumes, attachments, keys, made })
}

fn meta(conn: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let found = conn.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0));
    match found {
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        found => found.map(Some),
    }
}

impl Db<'_> {
    /// Returns `true` if this database was restored from a copy since the last start, and clears
    /// the note.
    pub(crate) fn take_restored(&self) -> Result<bool, SqlError> {
        self.drop_meta(RESTORED)
    }
}

/// The keys among these that this origin lacks.
pub(crate) fn lacked(keys: &[KeyId], origin: &Origin) -> Result<Vec<KeyId>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let there = match origin.load() {
        Ok(keys) => keys.ids().collect(),
        Err(_) if !origin.path().exists() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok(keys.iter().filter(|id| !there.contains(id)).copied().collect())
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
