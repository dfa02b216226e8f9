//! Laws of the sums. Whatever has changed in a row behind the agent's back is found and named
//! before anything is believed of it; whatever the agent writes is believed again.

use rusqlite::types::Value;

use super::*;

/// Checks at the end of each store of each test of this crate that it would be believed again.
impl Drop for Store {
    fn drop(&mut self) {
        let damaged = sum::damaged(&lock(&self.main), i64::MAX);
        if let (Ok(Some(why)), false) = (damaged, std::thread::panicking()) {
            panic!("the store was left damaged: {why}");
        }
    }
}

/// Makes a store with something in every column of every table, by every way there is to write it.
fn written() -> tempfile::TempDir {
    let (dir, store) = store();
    store.adopt(ClusterId::from_u128(7), AgentId::from_u128(8)).unwrap();
    store.pin_by_operator(ClusterId::from_u128(9)).unwrap();
    store.keep_prefix(&IqnPrefix::default()).unwrap();
    let content = |kind, n, counter, content: &StoredContent, receipts: &[NewReceipt]| {
        store.put_spec(kind, volume(n), &stamp(1, counter, 1), content, b"opaque", receipts).unwrap()
    };
    for n in 1..=3 {
        content(Kind::Volume, n, 1, &spec("volume"), &[]);
    }
    content(Kind::Connection, 1, 1, &spec("connection"), &[]);
    content(Kind::Connection, 1, 2, &StoredContent::Revoked, &[]);
    let whole =
        |reverted| Whole { mapping: "LVM-1".to_owned(), size: mooring_model::ByteSize(4096), reverted };
    let generation = stamp(1, 1, 1).generation;
    let made = [1, 2, 3].map(|n| (volume(n), generation));
    let reverted = Some(mooring_model::RevertId::from_u128(6));
    let remembered = [(1, reverted), (2, None), (3, None)];
    let rows = remembered.map(|(n, reverted)| (volume(n), Some((generation, whole(reverted)))));
    assert_eq!(store.keep_made(&made, rows.to_vec()).unwrap().len(), 3);
    // That a volume was made stays through a spec, and ends with a tombstone.
    content(Kind::Volume, 1, 2, &spec("larger"), &[]);
    content(Kind::Volume, 2, 2, &StoredContent::Tombstone { destroy: true }, &[]);
    content(Kind::Volume, 3, 2, &StoredContent::Released, &[]);
    store.keep_whole_lvs(vec![(volume(3), None)]).unwrap();
    let open = NewReceipt::of(&receipt(1, 1, Proof::Unproven { in_flight: Some(1) }));
    let first = content(Kind::Export, 1, 1, &spec("export"), &[open.clone(), open.clone(), open.clone()]);
    store.prove_receipt(first[0], &receipt(1, 1, Proof::Proven));
    let second = content(Kind::Export, 1, 2, &spec("export"), &[open]);
    assert_eq!(second, [first[2] + 1], "rows are numbered one after the other");
    store.prove_receipt(first[1], &receipt(1, 1, Proof::Proven));
    store.flush().unwrap();
    store.keep_fc_ports(&["fc/20:00:52:54:00:14:00:0a".parse().unwrap()].into()).unwrap();
    for luns in [[1, 2], [2, 255]] {
        let place = |lun| Place {
            initiator: Wwpn::from_u64(77).unwrap(),
            slot: InitiatorSlot::new(3).unwrap(),
            lun: Lun(lun),
        };
        store.keep_fc_places(volume(1), &luns.map(place).into()).unwrap();
    }
    let lines = "initiator_fabric=iSCSI,initiator_node=iqn.2026-01.lab:host1,initiator_sid=00023d000001,sa_res_key=7,\
                 res_holder=1,res_type=5,res_scope=0,res_all_tg_pt=0,mapped_lun=1,target_fabric=iSCSI,\
                 target_node=iqn.2026-11.dev.mooring:v,tpgt=1,port_rtpi=1,target_lun=1\n";
    let kept = mooring_targets::reservations::parse_kept(lines).unwrap();
    for (n, kept) in [(1, [kept.as_slice(), &kept].concat()), (1, kept.clone()), (2, kept), (2, vec![])] {
        store.keep_reservations(volume(n), &kept).unwrap();
    }
    for (n, id) in [(1, Some(1024)), (2, Some(7)), (1, Some(65535)), (3, Some(7)), (4, Some(9)), (4, None)] {
        store.keep_port_id(volume(n), id).unwrap();
    }
    store.checkpoint().unwrap();
    dir
}

#[test]
fn whatever_is_written_is_believed_again() {
    let dir = written();
    let store = Store::open(dir.path()).unwrap();
    for table in sum::ALL {
        let sql = format!("SELECT COUNT(*) FROM {}", table.name);
        let rows: i64 = lock(&store.main).query_row(&sql, [], |row| row.get(0)).unwrap();
        assert!(rows > 0, "nothing is in {}", table.name);
    }
    assert_eq!((made(&store, 1), made(&store, 2), made(&store, 3)), (Some(true), Some(false), Some(false)));
    // Old rows are removed, and leave nothing that is wrong.
    let later = SystemTime::now() + TOMBSTONE_KEEP + Duration::from_mins(1);
    assert_eq!(store.purge(later, |_, _| true).unwrap(), 3);
    drop(store);
    Store::open(dir.path()).unwrap();
}

/// Opens a connection that knows nothing of sums: what it writes is sound to SQLite.
fn stranger(dir: &Path) -> Connection {
    let conn = Connection::open(dir.join(FILE_NAME)).unwrap();
    conn.execute_batch("PRAGMA ignore_check_constraints = ON; PRAGMA synchronous = OFF").unwrap();
    conn
}

/// Returns every column of every row of a table: its name and its value.
fn rows_of(conn: &Connection, table: &str) -> Vec<Vec<(String, Value)>> {
    let mut statement = conn.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let names: Vec<_> = statement.column_names().into_iter().map(str::to_owned).collect();
    let row = |row: &rusqlite::Row<'_>| {
        names.iter().enumerate().map(|(at, name)| Ok((name.clone(), row.get(at)?))).collect()
    };
    statement.query_map([], row).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Returns this value with one of its bytes changed, for each byte of a short one and a sample of a
/// long one; and something instead of nothing.
fn flips(value: &Value) -> Vec<Value> {
    let flip = |bytes: &[u8]| -> Vec<Vec<u8>> {
        let step = if bytes.len() > 24 { 5 } else { 1 };
        let changed = |at: usize| {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= 1 << (at % 8);
            bytes
        };
        (0..bytes.len()).step_by(step).map(changed).collect()
    };
    match value {
        Value::Null => vec![Value::Blob(vec![0])],
        Value::Integer(number) => {
            (0..8).map(|byte| Value::Integer(number ^ (1 << (8 * byte + byte % 3)))).collect()
        }
        Value::Text(text) => flip(text.as_bytes()).into_iter().map(Value::Blob).collect(),
        Value::Blob(blob) => flip(blob).into_iter().map(Value::Blob).collect(),
        Value::Real(_) => panic!("no table has any"),
    }
}

/// Writes a value into one column of one row, past what would refuse it. Returns `false`, and
/// writes nothing, if the value is the key of another row.
fn overwrite(
    dir: &Path,
    table: &sum::Table,
    row: &[(String, Value)],
    column: &str,
    old: &Value,
    new: &Value,
) -> bool {
    // Text is bound as bytes: damaged text need not be UTF-8.
    let text = matches!(old, Value::Text(_)) || (table.name, column) == ("whole_lvs", "reverted");
    let to = if text { "CAST(?1 AS TEXT)" } else { "?1" };
    let keys: Vec<_> = row.iter().filter(|(name, _)| table.key.contains(&name.as_str())).collect();
    let is: Vec<_> =
        keys.iter().enumerate().map(|(at, (name, _))| format!("{name} IS ?{}", at + 2)).collect();
    let sql = format!("UPDATE OR IGNORE {} SET {column} = {to} WHERE {}", table.name, is.join(" AND "));
    let values = std::iter::once(new).chain(keys.iter().map(|(_, value)| value));
    stranger(dir).execute(&sql, rusqlite::params_from_iter(values)).unwrap() == 1
}

#[test]
fn a_byte_that_has_changed_in_any_row_is_found_and_the_row_is_named() {
    let dir = written();
    let file = dir.path().join(FILE_NAME);
    let whole = fs::read(&file).unwrap();
    let mut tried = 0;
    for table in sum::ALL {
        let rows = rows_of(&stranger(dir.path()), table.name);
        for row in rows {
            for (column, old) in &row {
                for new in flips(old) {
                    if !overwrite(dir.path(), &table, &row, column, old, &new) {
                        assert!(
                            matches!(old, Value::Integer(..9)),
                            "{column} of {} is not written",
                            table.name
                        );
                        continue;
                    }
                    let error = Store::open(dir.path()).unwrap_err();
                    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
                    let said = error.to_string();
                    let named = format!("in the table {}, the row of {} ", table.name, table.key[0]);
                    assert!(said.contains(&named) && said.contains("aside"), "{column}: {said}");
                    for (key, value) in &row {
                        let told = match value {
                            Value::Integer(number) => format!("{key} {number}"),
                            Value::Text(text) => format!("{key} {text:?}"),
                            _ => continue,
                        };
                        let is_said = table.key.contains(&key.as_str()) && key != column;
                        assert!(!is_said || said.contains(&told), "{column}: {told} is not in {said}");
                    }
                    assert!(!said.contains("opaque"), "{said}");
                    fs::write(&file, &whole).unwrap();
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 1000, "{tried}");
    Store::open(dir.path()).unwrap();
}

#[test]
fn a_row_without_a_sum_is_damaged_and_the_others_are_counted() {
    let dir = written();
    stranger(dir.path()).execute_batch("UPDATE specs SET sum = NULL WHERE kind = 'volume'").unwrap();
    let said = Store::open(dir.path()).unwrap_err().to_string();
    let words = [
        "in the table specs, the row of volume_id \"00000000-0000-0000-0000-000000000001\", kind \"volume\", is not as it was",
        "and 2 more rows are not",
        "move this file and its -wal and -shm aside",
    ];
    for word in words {
        assert!(said.contains(word), "{said}");
    }
}

/// A query by an index misses what the index has lost: of all things, a receipt that is not proven.
#[test]
fn an_index_that_has_lost_a_receipt_is_found() {
    let dir = written();
    let conn = stranger(dir.path());
    let sql = "PRAGMA writable_schema = ON;
               UPDATE sqlite_schema SET sql = replace(sql, 'proven = 0', 'proven = 9') WHERE name = 'receipts_unproven';
               PRAGMA writable_schema = RESET;
               REINDEX receipts_unproven;
               PRAGMA writable_schema = ON;
               UPDATE sqlite_schema SET sql = replace(sql, 'proven = 9', 'proven = 0') WHERE name = 'receipts_unproven'";
    conn.execute_batch(sql).unwrap();
    drop(conn);
    let said = Store::open(dir.path()).unwrap_err().to_string();
    assert!(said.contains("receipts_unproven"), "{said}");
}

/// A change of a part of a row does not make the rest of it right.
#[test]
fn a_change_of_a_damaged_row_leaves_it_damaged() {
    let (dir, store) = store();
    let open = NewReceipt::of(&receipt(1, 1, Proof::Unproven { in_flight: Some(1) }));
    store.put_spec(Kind::Volume, volume(1), &stamp(1, 1, 1), &spec("a"), b"", &[]).unwrap();
    let rows = store.put_spec(Kind::Export, volume(1), &stamp(1, 1, 1), &spec("a"), b"", &[open]).unwrap();
    let conn = stranger(dir.path());
    conn.execute_batch("UPDATE specs SET made = 1 - made, opaque = x'01'; UPDATE receipts SET counter = 2")
        .unwrap();
    store.keep_made(&[(volume(1), stamp(1, 1, 1).generation)], vec![]).unwrap();
    store.put_spec(Kind::Export, volume(1), &stamp(1, 2, 1), &spec("b"), b"", &[]).unwrap();
    store.prove_receipt(rows[0], &receipt(1, 1, Proof::Proven));
    store.flush().unwrap();
    let damaged = sum::damaged(&lock(&store.main), i64::MAX).unwrap().unwrap();
    assert!(damaged.ends_with("and 2 more rows are not"), "{damaged}");
    // Dropping the store would report the damage.
    std::mem::forget(store);
}

#[test]
fn no_two_rows_that_look_alike_have_one_sum() {
    let conn = Connection::open_in_memory().unwrap();
    sum::teach(&conn).unwrap();
    let sums: BTreeSet<i64> = [
        "'ab', 'c'",
        "'a', 'bc'",
        "'abc'",
        "'abc', ''",
        "'abc', NULL",
        "x'616263'",
        "1",
        "'1'",
        "1, 0",
        "NULL",
        "''",
        "x''",
    ]
    .map(|values| conn.query_row(&format!("SELECT row_sum({values})"), [], |row| row.get(0)).unwrap())
    .into();
    assert_eq!(sums.len(), 12);
    // Fixed for ever: rows with another sum would be called damaged.
    let sum: i64 =
        conn.query_row("SELECT row_sum('specs', NULL, -1, x'00ff')", [], |row| row.get(0)).unwrap();
    assert_eq!(sum, 3_164_888_315);
}

/// The number of the schema is in the file's head, of which no row has a sum.
#[test]
fn a_store_that_claims_an_older_schema_is_damaged_and_left_alone() {
    let dir = written();
    for version in (0..9).rev() {
        stranger(dir.path()).pragma_update(None, "user_version", version).unwrap();
        let error = Store::open(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{version}: {error}");
    }
    stranger(dir.path()).pragma_update(None, "user_version", 9).unwrap();
    assert_eq!(Store::open(dir.path()).unwrap().specs().unwrap().len(), 5);
}

/// A store as schema 7 has it: its rows are summed as they are.
#[test]
fn an_older_store_is_summed_once() {
    let dir = written();
    let conn = stranger(dir.path());
    conn.execute_batch("DROP TABLE port_ids").unwrap();
    let tables = || sum::ALL.into_iter().filter(|table| table.since == 8);
    for table in tables() {
        conn.execute_batch(&format!("ALTER TABLE {} DROP COLUMN sum", table.name)).unwrap();
    }
    conn.pragma_update(None, "user_version", 7).unwrap();
    let before: Vec<_> = tables().map(|table| rows_of(&conn, table.name)).collect();
    drop(conn);
    Store::open(dir.path()).unwrap();
    Store::open(dir.path()).unwrap();
    let after = tables().map(|table| {
        let mut rows = rows_of(&stranger(dir.path()), table.name);
        for row in &mut rows {
            assert!(matches!(row.pop(), Some((_, Value::Integer(1..)))));
        }
        rows
    });
    assert_eq!(before, after.collect::<Vec<_>>());
}

/// The start that brings the next schema finds a byte that had changed before.
#[test]
fn a_damaged_row_of_the_schema_before_is_found_at_the_upgrade() {
    let dir = written();
    let conn = stranger(dir.path());
    conn.execute_batch("DROP TABLE port_ids").unwrap();
    conn.pragma_update(None, "user_version", 8).unwrap();
    drop(conn);
    Store::open(dir.path()).unwrap();
    let conn = stranger(dir.path());
    conn.execute_batch("DROP TABLE port_ids; UPDATE reservations SET kept = kept || ' '").unwrap();
    conn.pragma_update(None, "user_version", 8).unwrap();
    drop(conn);
    let error = Store::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("in the table reservations"), "{error}");
}
