//! Tests of sealing, on both databases: values in clear, kills between the steps, missing keys,
//! moved rows.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use data_encoding::HEXLOWER;
use mooring_api::v1;
use mooring_model::{AgentId, AttachmentId, ClusterId};
use mooring_systemd::sealing::KeysError;
use uuid::Uuid;

use super::*;
use crate::clock::Clock;
use crate::domain::NextAuthority;
use crate::initiators::Initiators;
use crate::store::contract::pg;
use crate::store::{AttachmentRow, Database, Nexus, PostgresOptions, SpecContent, Store, sqlite, testing};

/// The number of test volumes. Each has two nexuses, an export and a connection: more than one step
/// for each column.
const VOLUMES: u32 = 250;

const CLEAR: &str = "a-secret-in-clear-";

/// A database, with its keys in a file.
struct Site {
    dir: tempfile::TempDir,
    /// The database's name at the server; `None` for the embedded database.
    name: Option<String>,
}

impl Site {
    fn both() -> [Self; 2] {
        [None, Some(Uuid::new_v4().simple().to_string())]
            .map(|name| Self { dir: tempfile::tempdir().unwrap(), name })
    }

    fn sqlite() -> Self {
        let [sqlite, _] = Self::both();
        sqlite
    }

    fn keys(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    fn origin(&self) -> Origin {
        Origin::Configured(self.keys())
    }

    fn database(&self) -> Database {
        let keys = self.origin();
        match &self.name {
            None => Database::Embedded { folder: self.dir.path().join("state"), keys },
            Some(name) => {
                let url = pg::Server::shared().database(name);
                let options = Box::new(PostgresOptions::new(&url, None, None, false).unwrap());
                Database::Postgres { options, keys }
            }
        }
    }

    fn open(&self) -> Result<Store, StoreError> {
        Store::open(self.database(), None, Clock::system())
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("state").join(sqlite::FILE_NAME)
    }

    /// Reads one column of an answer, beside the controller.
    fn ask(&self, sql: &str) -> Vec<String> {
        if let Some(name) = &self.name {
            return pg::Server::shared().psql(name, sql).lines().map(str::to_owned).collect();
        }
        let conn = rusqlite::Connection::open(self.file()).unwrap();
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    fn write(&self, sql: &str) {
        match &self.name {
            Some(name) => drop(pg::Server::shared().psql(name, sql)),
            None => rusqlite::Connection::open(self.file()).unwrap().execute_batch(sql).unwrap(),
        }
    }

    /// Makes the database, and puts its sealed values in clear, as controllers without sealing
    /// stored them.
    fn in_clear(&self) {
        sealing::make(&self.keys(), None).unwrap();
        drop(fill(self.open().unwrap()));
        let mut sql = Vec::new();
        for (volume, initiator) in nexuses() {
            let (secret, mutual) = secrets(volume, &initiator);
            sql.push(format!(
                "UPDATE nexuses SET secret = '{secret}', mutual_secret = '{mutual}' WHERE volume_id = '{volume}' AND \
                 initiator = '{initiator}';"
            ));
        }
        for (volume, kind) in specs() {
            let body = HEXLOWER.encode(&body(volume, kind));
            let body = if self.name.is_some() { format!("'\\x{body}'") } else { format!("X'{body}'") };
            let (word, agent) = (kind.word(), kind.agent());
            sql.push(format!(
                "UPDATE specs SET body = {body} WHERE volume_id = '{volume}' AND kind = '{word}' AND agent_id = '{agent}';"
            ));
        }
        // The length of a command line is limited.
        for some in sql.chunks(100) {
            self.write(&format!("BEGIN; {} COMMIT;", some.concat()));
        }
    }

    /// Everything that may be sealed, as it is stored.
    fn kept(&self) -> Vec<String> {
        let hex = if self.name.is_some() { "encode(body, 'hex')" } else { "lower(hex(body))" };
        let mut kept =
            self.ask("SELECT secret || ' ' || mutual_secret FROM nexuses ORDER BY volume_id, initiator");
        kept.extend(self.ask(&format!("SELECT {hex} FROM specs ORDER BY volume_id, kind, agent_id")));
        kept
    }

    /// Takes the last line out of the file of keys.
    fn drop_last_key(&self) {
        let text = fs::read_to_string(self.keys()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let (_, without) = lines.split_last().unwrap();
        fs::write(self.keys(), without.join("\n")).unwrap();
    }

    /// The number of values that each key has sealed.
    fn census(&self) -> Census {
        let store = self.open().unwrap();
        store.shared.engine.look(|sql| Ok(census(sql)?)).unwrap()
    }

    /// Ends an engine as a kill does: its files are not tidied when they are closed.
    fn kill(&self, engine: Engine) {
        if self.name.is_some() {
            return;
        }
        let (folder, copy) = (self.dir.path().join("state"), self.dir.path().join("copy"));
        fs::create_dir(&copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o700)).unwrap();
        for file in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
        drop(engine);
        fs::remove_dir_all(&folder).unwrap();
        fs::rename(copy, folder).unwrap();
    }

    /// Returns `true` if the files of the embedded database contain these bytes.
    fn has_bytes(&self, bytes: &[u8]) -> bool {
        let files = fs::read_dir(self.dir.path().join("state")).unwrap();
        files
            .map(|file| fs::read(file.unwrap().path()).unwrap())
            .any(|content| content.windows(bytes.len()).any(|window| window == bytes))
    }
}

fn volumes() -> impl Iterator<Item = VolumeId> {
    (1..=VOLUMES).map(|number| VolumeId::from_u128(number.into()))
}

fn initiator(number: u8) -> Iqn {
    format!("iqn.2026-11.dev.mooring:host.{number}").parse().unwrap()
}

fn nexuses() -> impl Iterator<Item = (VolumeId, Iqn)> {
    volumes().flat_map(|volume| [1, 2].map(|number| (volume, initiator(number))))
}

fn secrets(volume: VolumeId, initiator: &Iqn) -> (String, String) {
    (format!("{CLEAR}{volume}{initiator}"), format!("mutual-{CLEAR}{volume}{initiator}"))
}

fn nexus(volume: VolumeId, initiator: &Iqn) -> Nexus {
    let (secret, mutual) = secrets(volume, initiator);
    let side = |user: &str, secret: String| ChapSide { user: user.to_owned(), secret: Secret::new(secret) };
    Nexus(Chap { initiator: side("u", secret), mutual: Some(side("m", mutual)) })
}

fn specs() -> impl Iterator<Item = (VolumeId, Kind)> {
    let host = Kind::Connection(AgentId::from_u128(7));
    volumes().flat_map(move |volume| [Kind::Volume, Kind::Export, host].map(|kind| (volume, kind)))
}

/// A body whose content does not matter, except its length and its secret. A volume's has none.
fn body(volume: VolumeId, kind: Kind) -> Vec<u8> {
    let text = match kind {
        Kind::Volume => "vg0".to_owned(),
        Kind::Export | Kind::Connection(_) => format!("{CLEAR}{volume} in a spec"),
    };
    [&[10, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn fill(store: Store) -> Store {
    store
        .prepare("fill", |db| {
            for (volume, initiator) in nexuses() {
                db.insert_nexus(volume, &initiator, &nexus(volume, &initiator))?;
            }
            for (volume, kind) in specs() {
                let content = SpecContent {
                    body: Some(body(volume, kind)),
                    ..SpecContent::spec(&v1::ExportSpec::default(), Vec::new())
                };
                db.put_spec(volume, kind, &content)?;
            }
            let gone = SpecContent::tombstone(Kind::Export, false);
            db.put_spec(VolumeId::from_u128(u128::from(VOLUMES) + 1), Kind::Export, &gone)?;
            Ok(())
        })
        .unwrap();
    store
}

/// Checks that everything is read as it was written.
fn check(store: &Store) {
    store
        .prepare("check", |db| {
            for (volume, initiator) in nexuses() {
                assert_eq!(db.nexus(volume, &initiator)?, Some(nexus(volume, &initiator)));
            }
            for (volume, kind) in specs() {
                let kept = db.spec(volume, kind)?.unwrap().content.body;
                assert!(kept == Some(body(volume, kind)), "{volume} {kind:?}");
            }
            let gone = db.spec(VolumeId::from_u128(u128::from(VOLUMES) + 1), Kind::Export)?.unwrap();
            assert_eq!(gone.content.body, None);
            Ok(())
        })
        .unwrap();
}

/// The number of sealed values when everything is sealed.
const ALL: u64 = 6 * 250;

#[test]
fn what_is_written_is_sealed_and_read_again() {
    for site in Site::both() {
        sealing::make(&site.keys(), None).unwrap();
        check(&fill(site.open().unwrap()));
        check(&site.open().unwrap());
        let first = site.origin().load().unwrap().first();
        assert_eq!(site.census(), Census::from([(Look::Sealed(first), ALL)]));
        assert!(site.kept().iter().all(|kept| !kept.contains(CLEAR)));
        if site.name.is_none() {
            assert!(!site.has_bytes(CLEAR.as_bytes()) && site.has_bytes(b"vg0"));
        }
    }
}

#[test]
fn a_database_in_clear_is_sealed_by_its_next_start() {
    for site in Site::both() {
        site.in_clear();
        let kept = site.kept();
        assert!(kept.iter().any(|kept| kept.contains(CLEAR)), "the control");
        if site.name.is_none() {
            assert!(site.has_bytes(CLEAR.as_bytes()), "the control");
        }
        let store = site.open().unwrap();
        check(&store);
        assert!(site.kept().iter().all(|kept| !kept.contains(CLEAR)));
        if site.name.is_none() {
            // The controller still runs: its log is read, too.
            assert!(!site.has_bytes(CLEAR.as_bytes()), "clear bytes are left");
        }
        assert_eq!(site.ask("SELECT key FROM meta WHERE key = 'sealing_remains'"), Vec::<String>::new());
        drop(store);
        let sealed = site.kept();
        check(&site.open().unwrap());
        assert_eq!(site.kept(), sealed, "what is sealed is left alone");
    }
}

#[test]
fn a_sealing_that_was_killed_is_gone_on_with() {
    for site in Site::both() {
        site.in_clear();
        kill_and_go_on(&site, true);
    }
}

#[test]
fn a_change_of_keys_that_was_killed_is_gone_on_with() {
    for site in Site::both() {
        sealing::make(&site.keys(), None).unwrap();
        drop(fill(site.open().unwrap()));
        sealing::rotate(&site.origin()).unwrap();
        kill_and_go_on(&site, false);
    }
}

/// Kills a start after one step, then after two more, and so on; then before the file is written
/// anew.
fn kill_and_go_on(site: &Site, clear: bool) {
    let first = site.origin().load().unwrap().first();
    let mut sealed = Vec::new();
    while sealed.last() != Some(&ALL) {
        let keys = Arc::new(site.origin().load().unwrap());
        let killed = engine(site);
        let mut next = Cursor::at(0);
        for _ in 0..=sealed.len() {
            let Some(from) = next else { break };
            (_, next) = killed.seal_step(&keys, from).unwrap();
        }
        site.kill(killed);
        assert!(!clear || site.name.is_some() || site.has_bytes(CLEAR.as_bytes()), "the control");
        let next = engine(site);
        let by_key = next.look(|sql| Ok(census(sql)?)).unwrap();
        sealed.push(by_key.get(&Look::Sealed(first)).copied().unwrap_or_default());
        site.kill(next);
        assert_eq!(site.ask("SELECT key FROM meta WHERE key = 'sealing_remains'").len(), 1);
    }
    assert!(sealed.len() > 2 && sealed.is_sorted(), "{sealed:?}");
    check(&site.open().unwrap());
    assert_eq!(site.census(), Census::from([(Look::Sealed(first), ALL)]));
    if site.name.is_none() {
        assert!(!site.has_bytes(CLEAR.as_bytes()));
    }
}

/// The database without a store on top.
fn engine(site: &Site) -> Engine {
    match site.database() {
        Database::Embedded { folder, .. } => Engine::Sqlite(Arc::new(sqlite::Sqlite::open(&folder).unwrap())),
        Database::Postgres { options, .. } => {
            Engine::Postgres(crate::store::postgres::Postgres::open(*options).unwrap())
        }
    }
}

#[test]
fn without_its_key_a_database_is_refused_and_not_changed() {
    for site in Site::both() {
        site.in_clear();
        // A part is still in clear: not even that part is sealed by another key.
        let half = nexuses().next().unwrap().0;
        drop(site.open().unwrap());
        let clear = secrets(half, &initiator(1)).0;
        site.write(&format!(
            "UPDATE nexuses SET secret = '{clear}' WHERE volume_id = '{half}' AND initiator LIKE '%1'"
        ));
        let (kept, key) = (site.kept(), site.origin().load().unwrap().first());
        let right = site.dir.path().join("right");
        fs::rename(site.keys(), &right).unwrap();
        let gone = site.open().unwrap_err();
        assert!(matches!(&gone, StoreError::Keys(_)), "{gone}");
        sealing::make(&site.keys(), None).unwrap();
        let wrong = site.open().unwrap_err();
        let text = wrong.to_string();
        assert!(
            matches!(&wrong, StoreError::Keys(KeysError::Missing { values, .. }) if *values == ALL - 1),
            "{text}"
        );
        for part in [key.to_string(), site.keys().display().to_string(), "No secret was changed".to_owned()] {
            assert!(text.contains(&part), "{text}");
        }
        assert_eq!(site.kept(), kept);
        fs::rename(right, site.keys()).unwrap();
        check(&site.open().unwrap());
    }
}

#[test]
fn a_key_is_made_only_where_nothing_is_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("state");
    let file = folder.join("sealing.key");
    let open = || Store::open(Database::embedded(folder.clone()), None, Clock::system());
    check(&fill(open().unwrap()));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    let aside = folder.join("aside");
    fs::rename(&file, &aside).unwrap();
    let error = open().unwrap_err().to_string();
    assert!(error.contains("sealing.key") && error.contains("docs/operations.md"), "{error}");
    assert!(!file.exists(), "another key would seal what comes then");
    fs::rename(&aside, &file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(open().unwrap_err().to_string().contains("chmod 600"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    check(&open().unwrap());
}

#[test]
fn a_new_first_key_seals_everything_anew() {
    for site in Site::both() {
        sealing::make(&site.keys(), None).unwrap();
        drop(fill(site.open().unwrap()));
        let old = site.origin().load().unwrap().first();
        let new = sealing::rotate(&site.origin()).unwrap().id;
        let before = site.kept();
        check(&site.open().unwrap());
        assert!(
            site.kept().iter().zip(&before).filter(|(now, before)| now != before).count() >= before.len() / 2
        );
        assert_eq!(site.census(), Census::from([(Look::Sealed(new), ALL)]));
        site.drop_last_key();
        let keys = site.origin().load().unwrap();
        assert_eq!((keys.first(), keys.ids().any(|id| id == old)), (new, false));
        check(&site.open().unwrap());
    }
}

/// A rotation of the authority is under way while the sealing key is changed.
#[test]
fn a_new_first_key_seals_the_next_authority_anew() {
    for site in Site::both() {
        sealing::make(&site.keys(), None).unwrap();
        let next = NextAuthority { certificate: "cert".to_owned(), key: format!("{CLEAR}authority") };
        let offered = next.clone();
        let store = site.open().unwrap();
        store.prepare("offer", move |db| Ok(db.offer_next_authority(&offered)?)).unwrap();
        drop(store);
        let new = sealing::rotate(&site.origin()).unwrap().id;
        assert_eq!(site.census(), Census::from([(Look::Sealed(new), 1)]));
        site.drop_last_key();
        let kept = site.open().unwrap().prepare("look", |db| Ok(db.next_authority()?)).unwrap();
        assert!(kept == Some(next), "the key of the next authority is lost");
    }
}

#[test]
fn a_secret_that_was_moved_to_another_row_is_refused() {
    for site in Site::both() {
        sealing::make(&site.keys(), None).unwrap();
        let store = fill(site.open().unwrap());
        let (one, other) = (VolumeId::from_u128(1), VolumeId::from_u128(2));
        site.write(&format!(
            "UPDATE nexuses SET secret = (SELECT secret FROM nexuses WHERE volume_id = '{one}' AND initiator LIKE '%1') \
             WHERE volume_id = '{other}' AND initiator LIKE '%1'; \
             UPDATE specs SET body = (SELECT body FROM specs WHERE volume_id = '{one}' AND kind = 'export') \
             WHERE volume_id = '{other}' AND kind = 'export';"
        ));
        let refused = |done: Result<(), StoreError>| {
            let text = Chain(&done.unwrap_err()).to_string();
            assert!(
                text.contains("was changed, or sealed for another row") && !text.contains(CLEAR),
                "{text}"
            );
        };
        let nexus = move |db: &Db<'_>| Ok(db.nexus(other, &initiator(1)).map(drop)?);
        refused(store.prepare("look", nexus));
        refused(store.prepare("look", move |db| Ok(db.spec(other, Kind::Export).map(drop)?)));
        // In clear, the moved value is not believed either.
        site.write(&format!("UPDATE nexuses SET secret = 'in-clear-in-clear' WHERE volume_id = '{other}'"));
        let text = Chain(&store.prepare("look", nexus).unwrap_err()).to_string();
        assert!(text.contains("is not sealed") && !text.contains("in-clear"), "{text}");
    }
}

#[test]
fn an_attachment_whose_secret_was_changed_hides_no_other() {
    for site in Site::both() {
        sealing::make(&site.keys(), None).unwrap();
        let store = fill(site.open().unwrap());
        let ids = [1, 2].map(AttachmentId::from_u128);
        store
            .prepare("attach", move |db| {
                for (id, volume) in ids.into_iter().zip(volumes()) {
                    testing::insert_volume(db, volume, AgentId::from_u128(9), &BTreeMap::new())?;
                    let initiator = Some(Initiators::Iscsi(initiator(1)));
                    let row = AttachmentRow::reserved(id, volume, "p", db.now);
                    db.put_attachment(&AttachmentRow { initiator, ..row })?;
                }
                Ok(())
            })
            .unwrap();
        let shown = || {
            let nexuses = store.prepare("list", move |db| Ok(db.nexuses_of(&ids)?)).unwrap();
            ids.map(|id| nexuses.get(&id).map(|nexus| nexus.0.initiator.secret.expose().to_owned()))
        };
        let [one, other] = [1, 2].map(|volume| secrets(VolumeId::from_u128(volume), &initiator(1)).0);
        assert_eq!(shown(), [Some(one), Some(other.clone())]);
        let first = VolumeId::from_u128(1);
        site.write(&format!("UPDATE nexuses SET secret = mutual_secret WHERE volume_id = '{first}'"));
        assert_eq!(shown(), [None, Some(other)]);
    }
}

#[test]
fn another_clusters_database_is_refused_before_it_is_sealed() {
    for site in Site::both() {
        site.in_clear();
        let kept = site.kept();
        let other = Store::open(site.database(), Some(ClusterId::from_u128(1)), Clock::system());
        assert!(matches!(other, Err(StoreError::Cluster { .. })), "{other:?}");
        assert_eq!(site.kept(), kept);
    }
}

/// Two rows of one key exchanged their values while the key was changed: they are lost, and the
/// others are sealed anew.
#[test]
fn a_damaged_row_does_not_keep_the_others_from_a_new_key() {
    let site = Site::sqlite();
    sealing::make(&site.keys(), None).unwrap();
    drop(fill(site.open().unwrap()));
    let old = site.origin().load().unwrap().first();
    let one = VolumeId::from_u128(1);
    site.write(&format!(
        "UPDATE nexuses SET secret = (SELECT secret FROM nexuses WHERE volume_id <> '{one}' LIMIT 1) WHERE volume_id = '{one}' AND \
         initiator LIKE '%1'"
    ));
    let new = sealing::rotate(&site.origin()).unwrap().id;
    let other = VolumeId::from_u128(2);
    let store = site.open().unwrap();
    let found = store.prepare("look", move |db| Ok(db.nexus(other, &initiator(1))?)).unwrap();
    assert_eq!(found, Some(nexus(other, &initiator(1))));
    drop(store);
    // The old key is still needed, as far as can be known.
    assert_eq!(site.census(), Census::from([(Look::Sealed(new), ALL - 1), (Look::Sealed(old), 1)]));
}

#[test]
fn a_later_form_is_refused() {
    let site = Site::sqlite();
    sealing::make(&site.keys(), None).unwrap();
    drop(fill(site.open().unwrap()));
    site.write(
        "UPDATE specs SET body = X'004d5302aabbccddeeff0011' WHERE kind = 'export' AND body IS NOT NULL",
    );
    let error = site.open().unwrap_err();
    assert!(matches!(error, StoreError::Keys(KeysError::Newer { form: 2, .. })), "{error}");
}

/// Two controllers of one database read each other's secrets, and refuse a key that only one has.
#[test]
fn controllers_that_share_a_database_share_its_keys() {
    let [_, site] = Site::both();
    sealing::make(&site.keys(), None).unwrap();
    let one = fill(site.open().unwrap());
    check(&site.open().unwrap());
    let other = Site { dir: tempfile::tempdir().unwrap(), name: site.name.clone() };
    sealing::make(&other.keys(), None).unwrap();
    assert!(matches!(other.open(), Err(StoreError::Keys(KeysError::Missing { .. }))));
    check(&one);
}
