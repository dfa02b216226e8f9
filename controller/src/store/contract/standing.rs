//! Grants and paths of attachments: the rows that every database keeps, and those that an earlier
//! release has left.

use super::*;

contract![databases_keep_the_rows_of_the_table_and_no_others];

/// Returns `true` if the database keeps the row: its status, its number, its flag, `true` for an
/// agent's host, `true` for a known initiator.
async fn is_kept(place: &Place, id: AttachmentId, row: (AttachmentStatus, u32, u32, bool, bool)) -> bool {
    let write = move |db: &Db<'_>| {
        let sql = "UPDATE attachments SET status = ?2, access = ?3, moving = ?4, native = ?5, initiator = ?6 WHERE id = ?1";
        let (status, number, moving, native, named) = row;
        let native = native.then_some(AgentId::from_u128(3));
        let initiator = named.then(|| iqn(1));
        Ok(db.run(sql, &values![id, status.as_str(), number, moving, native, initiator]).map(drop)?)
    };
    place.store.write("test", write).await.is_ok()
}

/// Tries each status with each number, and with each flag; then each legal row without a host, and
/// without an initiator.
async fn databases_keep_the_rows_of_the_table_and_no_others(place: Place) {
    let row = attachment(place.volume().await.id, 1);
    let id = row.id;
    place.write(move |db| Ok(db.put_attachment(&row)?)).await;
    let mut kept = 0;
    for status in AttachmentStatus::ALL.iter().copied() {
        for number in (0..63_u8).chain([99]) {
            let is_legal = Access::legal().any(|one| one == (status, number));
            let rests = matches!(number, 0 | 2 | 20 | 21) && status != AttachmentStatus::Attaching;
            for moving in [0, 1] {
                let found = is_kept(&place, id, (status, number.into(), moving, true, true)).await;
                let wanted = is_legal && (moving == 0) == rests;
                assert_eq!(found, wanted, "{status:?} {number} {moving}");
                kept += u32::from(found);
            }
            if !is_legal {
                continue;
            }
            let moving = u32::from(!rests);
            let of_client = is_kept(&place, id, (status, number.into(), moving, false, true)).await;
            assert_eq!(of_client, number % 10 == 0, "{status:?} {number}: a path needs a host");
            let unnamed = is_kept(&place, id, (status, number.into(), moving, true, false)).await;
            assert_eq!(unnamed, matches!(number, 0 | 50), "{status:?} {number}: a grant needs a name");
        }
    }
    assert_eq!(kept, 23);
}

/// An attachment as releases before kept it: `grant_wanted`, `granted`, `held`, `connect_wanted`,
/// `connect_ever`, `forced`.
#[derive(Debug, Clone, Copy)]
struct Old {
    id: AttachmentId,
    status: AttachmentStatus,
    columns: [bool; 6],
    /// `true` for an attachment of an agent's host.
    native: bool,
    /// `true` if its initiator is known.
    named: bool,
}

const VOLUME: VolumeId = VolumeId::from_u128(2);
const IN_SPEC: Generation = Generation { epoch: 3, counter: 7 };

impl Old {
    /// Each combination that the old tables could hold.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for status in AttachmentStatus::ALL.iter().copied() {
            for bits in 0..256_u32 {
                let bit = |number: u32| (bits >> number) & 1 == 1;
                let columns = [bit(0), bit(1), bit(2), bit(3), bit(4), bit(5)];
                let (native, named) = (bit(6), bit(7));
                if (columns[0] && !named) || (columns[3] && !native) {
                    continue;
                }
                let id = AttachmentId::from_u128(u128::try_from(all.len()).unwrap() + 1);
                all.push(Self { id, status, columns, native, named });
            }
        }
        all
    }

    /// The number that these columns mean, as releases before read them.
    fn number(&self) -> u8 {
        let [wanted, granted, held, path_wanted, path_ever, forced] = self.columns;
        let (path_wanted, path_ever) = (self.native && path_wanted, self.native && path_ever);
        let goes = matches!(self.status, AttachmentStatus::Detaching | AttachmentStatus::ErrorAttaching);
        let grant = match (wanted, goes) {
            _ if forced => 5,
            (true, true) if path_ever => 3,
            (true, false) if granted => 2,
            (true, false) => 1,
            (true, true) => 4,
            (false, _) if held => 4,
            (false, _) => 0,
        };
        let path = match grant {
            0 | 3 if path_wanted || path_ever => 2,
            _ if path_wanted => 1,
            _ if path_ever => 2,
            _ => 0,
        };
        10 * grant + path
    }

    fn is_legal(&self) -> bool {
        let number = self.number();
        let listed = Access::legal().any(|one| one == (self.status, number));
        listed && (self.named || matches!(number, 0 | 50))
    }

    /// A statement that stores the row in the old table.
    fn insert(&self) -> String {
        let Self { id, status, columns, native, named } = self;
        let flags = columns.map(|column| u8::from(column).to_string()).join(", ");
        let native = if *native { format!("'{}'", AgentId::from_u128(3)) } else { "NULL".to_owned() };
        let initiator = if *named { format!("'{}'", iqn(1)) } else { "NULL".to_owned() };
        format!(
            "INSERT INTO attachments (id, volume_id, project, mode, status, native, initiator, grant_wanted, granted, held, \
             connect_wanted, connect_ever, forced, wish_epoch, wish_counter, created_us) VALUES ('{id}', '{VOLUME}', 'p', \
             'ro', '{}', {native}, {initiator}, {flags}, {}, {}, 1);",
            status.as_str(),
            IN_SPEC.epoch,
            IN_SPEC.counter
        )
    }

    /// The row as this release keeps it: access, `moving`, and the generation since which its grant
    /// stands. The spec still has the grant of a row that stood still: zero, the next one's.
    fn taken_over(&self) -> String {
        let number = self.number();
        let rests = matches!(number, 0 | 2 | 20 | 21) && self.status != AttachmentStatus::Attaching;
        let stood_still = self.columns[0] && number >= 40;
        let Generation { epoch, counter } = if stood_still { Generation::ZERO } else { IN_SPEC };
        format!("{} {number} {} {epoch} {counter}", self.id, u8::from(!rests))
    }
}

/// Reads what [`Old::taken_over`] says.
const TAKEN_OVER: &str = "SELECT id || ' ' || access || ' ' || moving || ' ' || wish_epoch || ' ' || wish_counter \
                          FROM attachments ORDER BY id";

/// Statements that give an empty table of attachments its old columns back.
pub(super) fn old_columns() -> String {
    ["grant_wanted", "granted", "held", "connect_wanted", "connect_ever", "forced"]
        .map(|column| format!("ALTER TABLE attachments ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0;"))
        .concat()
}

/// Statements that do so on PostgreSQL, with the old indexes. The database has schema `version`
/// then.
pub(super) fn old_postgres(version: u32) -> String {
    format!(
        "{} DROP INDEX attachments_moving; ALTER TABLE attachments DROP COLUMN access, DROP COLUMN moving; \
         CREATE INDEX attachments_going ON attachments (volume_id) WHERE held = 1 AND grant_wanted = 0; \
         CREATE INDEX attachments_in_motion ON attachments (volume_id) WHERE status NOT IN ('attached', 'reserved'); \
         DELETE FROM schema_version WHERE version > {version};",
        old_columns()
    )
}

fn volume_of_before() -> String {
    let kind = Uuid::from_u128(9);
    format!(
        "INSERT INTO volume_types (id, name, is_public, created_us) VALUES ('{kind}', 'old', 1, 1); \
         INSERT INTO volumes (id, size_gib, type_id, multiattach, status, attach_status, project, user_id, metadata, \
         agent_id, pool, created_us) VALUES ('{VOLUME}', 1, '{kind}', 1, 'available', 'detached', 'p', 'u', '{{}}', \
         '{}', 'vg0', 1);",
        AgentId::from_u128(9)
    )
}

/// Brings an empty file to the schema before, with one volume.
fn fill_older(conn: &rusqlite::Connection) {
    for schema in &sqlite::SCHEMAS[..15] {
        conn.execute_batch(schema).unwrap();
    }
    conn.pragma_update(None, "user_version", 15).unwrap();
    conn.execute_batch(&volume_of_before()).unwrap();
}

fn texts(conn: &rusqlite::Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

/// All statuses with all flags: 6 times 64, of clients and of agents' hosts, with a name and
/// without one.
#[test]
fn each_row_of_before_has_its_number_or_stops_the_upgrade() {
    let (legal, lost): (Vec<_>, Vec<_>) = Old::all().into_iter().partition(Old::is_legal);
    // Every row of the table comes from some row of before.
    let met: BTreeSet<_> = legal.iter().map(|old| (old.status.as_str(), old.number())).collect();
    assert_eq!(met.len(), Access::legal().count(), "{met:?}");
    let conn = rusqlite::Connection::open_in_memory().unwrap();
    fill_older(&conn);
    for old in &lost {
        conn.execute_batch(&format!("BEGIN; {}", old.insert())).unwrap();
        let error = conn.execute_batch(sqlite::SCHEMAS[15]).unwrap_err().to_string();
        assert!(error.contains(&format!("attachment {} has", old.id)), "{old:?}: {error}");
        conn.execute_batch("ROLLBACK").unwrap();
    }
    for old in &legal {
        conn.execute_batch(&old.insert()).unwrap();
    }
    conn.execute_batch(sqlite::SCHEMAS[15]).unwrap();
    assert_eq!(texts(&conn, TAKEN_OVER), legal.iter().map(Old::taken_over).collect::<Vec<_>>());
}

/// Both databases take rows over by the same words.
#[test]
fn both_upgrades_read_the_old_columns_alike() {
    let [one, other] =
        [include_str!("../schema/16.sql"), include_str!("../schema/pg/15.sql")].map(|schema| {
            let words = schema.split_whitespace().collect::<Vec<_>>().join(" ");
            let from = words.find("SELECT id, 10 * grant_no").unwrap();
            let until = words.find(") AS six").unwrap();
            words[from..until].to_owned()
        });
    assert_eq!(one, other);
}

/// A row of before that no job moved: its host never had a path, and its grant was given back.
const STOOD_STILL: Old = Old {
    id: AttachmentId::from_u128(0x51),
    status: AttachmentStatus::Detaching,
    columns: [true, false, true, false, false, false],
    native: true,
    named: true,
};

/// A row that no release writes: it is reserved, and has a grant.
const LOST: Old = Old {
    id: AttachmentId::from_u128(0x52),
    status: AttachmentStatus::Reserved,
    columns: [true, true, true, false, false, false],
    native: false,
    named: true,
};

/// Checks that the store does not open, and names the attachment and what to do.
fn check_stopped(opened: Result<Store, StoreError>) {
    let error = opened.map(drop).unwrap_err();
    let text = mooring_model::Chain(&error).to_string();
    assert!(text.contains(&LOST.id.to_string()) && text.contains("start the earlier release"), "{text}");
}

/// Checks that the row which stood still is revoked by the next spec, and by no look at the old
/// one.
fn check_taken_over(store: &Store) {
    let read = |db: &Db<'_>| Ok((db.attachments(None)?, db.volumes_in_motion()?));
    let (rows, in_motion) = store.prepare("read", read).unwrap();
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((row.id, row.in_spec_since, in_motion), (STOOD_STILL.id, Generation::ZERO, vec![VOLUME]));
    assert!(row.is_revoking() && !row.is_forced() && row.status == AttachmentStatus::Detaching, "{row:?}");
}

#[test]
fn an_older_sqlite_with_a_row_of_no_release_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(sqlite::FILE_NAME);
    let place = || Database::embedded(dir.path().to_owned());
    let conn = rusqlite::Connection::open(&file).unwrap();
    fill_older(&conn);
    conn.execute_batch(&[STOOD_STILL.insert(), LOST.insert()].concat()).unwrap();
    drop(conn);
    check_stopped(open(place()));
    let conn = rusqlite::Connection::open(&file).unwrap();
    assert_eq!(texts(&conn, "SELECT id FROM attachments WHERE grant_wanted = 1").len(), 2);
    let version: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 15);
    conn.execute_batch(&format!("DELETE FROM attachments WHERE id = '{}'", LOST.id)).unwrap();
    drop(conn);
    check_taken_over(&open(place()).unwrap());
}

#[test]
fn an_older_postgresql_with_a_row_of_no_release_stays_as_it_was() {
    let (server, name) = (pg::Server::shared(), Uuid::new_v4().simple().to_string());
    drop(open(options(&name)).unwrap());
    server.psql(&name, &old_postgres(14));
    let rows = [volume_of_before(), STOOD_STILL.insert(), LOST.insert()].concat();
    server.psql(&name, &rows);
    check_stopped(open(options(&name)));
    let left = server.psql(&name, "SELECT COUNT(*) FROM attachments WHERE grant_wanted = 1");
    let version = server.psql(&name, "SELECT MAX(version) FROM schema_version");
    assert_eq!((left.as_str(), version.as_str()), ("2", "14"));
    server.psql(&name, &format!("DELETE FROM attachments WHERE id = '{}'", LOST.id));
    check_taken_over(&open(options(&name)).unwrap());
}

#[test]
fn each_legal_row_of_an_older_postgresql_has_its_number() {
    let (server, name) = (pg::Server::shared(), Uuid::new_v4().simple().to_string());
    drop(open(options(&name)).unwrap());
    server.psql(&name, &old_postgres(14));
    let legal: Vec<_> = Old::all().into_iter().filter(Old::is_legal).collect();
    server.psql(&name, &volume_of_before());
    // An argument of a command has a longest length.
    for some in legal.chunks(100) {
        server.psql(&name, &some.iter().map(Old::insert).collect::<String>());
    }
    drop(open(options(&name)).unwrap());
    let seen = server.psql(&name, TAKEN_OVER);
    assert_eq!(seen.lines().collect::<Vec<_>>(), legal.iter().map(Old::taken_over).collect::<Vec<_>>());
}
