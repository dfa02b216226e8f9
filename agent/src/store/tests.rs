//! Laws of the store: what is acknowledged is there after any crash, and nothing is written that
//! was refused.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::AtomicU64;

use mooring_model::limit::TOMBSTONE_KEEP;
use mooring_model::{
    AttachmentId, Cure, Digest, FcPort, Generation, HeldReservation, InitiatorSlot, Iqn, Lun, Proof, Receipt,
    ReservationType, Revoked, SessionReport, Stamp, VolumeId, Wwpn,
};
use mooring_targets::fc::Place;
use proptest::prelude::*;
use rusqlite::ffi;

use super::*;
use crate::lvm::Whole;

mod sums;

fn volume(n: u128) -> VolumeId {
    VolumeId::from_u128(n)
}

fn stamp(epoch: u64, counter: u64, byte: u8) -> Stamp {
    Stamp { generation: Generation { epoch, counter }, digest: Digest::new([byte; 32]).unwrap() }
}

fn spec(text: &str) -> StoredContent {
    StoredContent::Spec(text.as_bytes().to_vec())
}

fn receipt(n: u128, counter: u64, proof: Proof) -> Receipt {
    let initiator: Iqn = "iqn.2026-01.lab:host1".parse().unwrap();
    let began = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001);
    Receipt {
        volume: volume(n),
        initiator: initiator.clone().into(),
        attachments: vec![AttachmentId::from_u128(5)],
        generation: Generation { epoch: 1, counter },
        revoked: Revoked::Nexus,
        sessions: vec![SessionReport {
            initiator,
            isid: "00023d000001".into(),
            id: 4,
            addresses: vec!["10.0.0.7".into()],
            state: "LOGGED_IN".into(),
            in_flight: 8,
            since: Some(UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001)),
        }],
        proof,
        began,
        ended: (proof == Proof::Proven).then_some(began + Duration::from_secs(1)),
        reservation: Some(HeldReservation { kind: Some(ReservationType::ExclusiveAccessRegistrantsOnly) }),
        cause: mooring_model::Cause::Revoke,
    }
}

impl Store {
    /// Keeps the file from growing by more than `more` pages from now on, as if its file system
    /// were full.
    pub(crate) fn limit_pages(&self, more: u32) {
        let main = lock(&self.main);
        let pages: u32 = main.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let limited =
            main.pragma_update_and_check(None, "max_page_count", pages + more, |row| row.get::<_, u32>(0));
        assert_eq!(limited.unwrap(), pages + more);
    }
}

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    (dir, store)
}

fn put(store: &Store, n: u128, counter: u64, text: &str) -> Result<Vec<i64>, StoreError> {
    store.put_spec(Kind::Export, volume(n), &stamp(1, counter, 1), &spec(text), b"opaque", &[])
}

fn body(store: &Store, n: u128) -> Option<String> {
    store.spec(Kind::Export, volume(n)).unwrap().map(|spec| match spec.content {
        StoredContent::Spec(body) => String::from_utf8(body).unwrap(),
        StoredContent::Tombstone { .. } => "tombstone".to_owned(),
        StoredContent::Released => "released".to_owned(),
        StoredContent::Revoked => "revoked".to_owned(),
    })
}

#[test]
fn what_was_put_is_there_after_a_restart() {
    let (dir, store) = store();
    let id = store.agent_id();
    put(&store, 7, 1, "a").unwrap();
    let doomed = StoredContent::Tombstone { destroy: true };
    store.put_spec(Kind::Volume, volume(7), &stamp(u64::MAX, u64::MAX, 9), &doomed, b"", &[]).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.agent_id(), id);
    let specs = store.specs().unwrap();
    assert_eq!(specs.iter().map(|spec| spec.kind).collect::<Vec<_>>(), [Kind::Volume, Kind::Export]);
    assert_eq!((&specs[0].content, &specs[0].stamp), (&doomed, &stamp(u64::MAX, u64::MAX, 9)));
    assert_eq!((&specs[1].content, specs[1].opaque.as_slice()), (&spec("a"), b"opaque".as_slice()));
    assert!(specs[1].updated.elapsed().unwrap() < Duration::from_mins(5));
}

#[test]
fn generations_are_fenced_and_a_refusal_writes_nothing() {
    let (_dir, store) = store();
    put(&store, 7, 5, "kept").unwrap();
    let begun = [NewReceipt::of(&receipt(7, 4, Proof::Unproven { in_flight: Some(1) }))];
    let stale =
        store.put_spec(Kind::Export, volume(7), &stamp(1, 4, 1), &spec("old"), b"", &begun).unwrap_err();
    assert_eq!(
        stale.to_string(),
        "generation 1.4 of the export of 00000000-0000-0000-0000-000000000007 is older than 1.5, which is kept: read it \
         again"
    );
    let conflict =
        store.put_spec(Kind::Export, volume(7), &stamp(1, 5, 2), &spec("other"), b"", &begun).unwrap_err();
    assert!(
        matches!(conflict, StoreError::Conflict { .. }) && conflict.cure() == Cure::FixSpec,
        "{conflict}"
    );
    // The very same spec again is a retry: no error, nothing written, not even its receipts.
    assert!(
        store
            .put_spec(Kind::Export, volume(7), &stamp(1, 5, 1), &spec("kept"), b"", &begun)
            .unwrap()
            .is_empty()
    );
    assert_eq!(body(&store, 7).unwrap(), "kept");
    assert!(store.unproven_receipts().unwrap().is_empty());
    // The volume's own spec is another object.
    store.put_spec(Kind::Volume, volume(7), &stamp(1, 1, 1), &spec("volume"), b"", &[]).unwrap();
}

#[test]
fn a_cluster_is_pinned_once() {
    let (dir, store) = store();
    let (ours, other) = (ClusterId::from_u128(1), ClusterId::from_u128(2));
    assert_eq!(store.cluster().unwrap(), None);
    store.pin(ours).unwrap();
    store.pin(ours).unwrap();
    assert!(
        matches!(store.pin(other), Err(StoreError::Pinned { kept, arrived }) if kept == ours && arrived == other)
    );
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.cluster().unwrap(), Some(ours));
    store.pin_by_operator(other).unwrap();
    assert_eq!(store.cluster().unwrap(), Some(other));
}

#[test]
fn receipts_begin_with_their_spec_and_are_completed() {
    let (dir, store) = store();
    let open = receipt(7, 1, Proof::Unproven { in_flight: Some(8) });
    let uncounted = receipt(7, 1, Proof::Unproven { in_flight: None });
    let rows = store
        .put_spec(
            Kind::Export,
            volume(7),
            &stamp(1, 1, 1),
            &spec("a"),
            b"",
            &[NewReceipt::of(&open), NewReceipt::of(&uncounted)],
        )
        .unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.unproven_receipts().unwrap(), [(rows[0], open), (rows[1], uncounted.clone())]);
    let open = uncounted;
    let proven = receipt(7, 1, Proof::Proven);
    let commits = store.commits();
    store.prove_receipt(rows[0], &proven);
    // The proof is known at once, and not durable: after a crash the kernel has to show it again.
    assert_eq!(store.commits(), commits);
    assert_eq!(store.unproven_receipts().unwrap(), [(rows[1], open.clone())]);
    assert_eq!(store.receipts(volume(7), usize::MAX).unwrap(), [open.clone(), proven.clone()]);
    assert_eq!(
        store.receipts_of(volume(7), proven.generation).unwrap(),
        store.receipts(volume(7), 9).unwrap()
    );
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.unproven_receipts().unwrap().len(), 2);
    // The next change takes it along in its own transaction; without a change, a tick does.
    for by_change in [true, false] {
        let row = rows[usize::from(!by_change)];
        let commits = store.commits();
        store.prove_receipt(row, &proven);
        assert!(store.has_unwritten());
        if by_change {
            put(&store, 8, 1, "b").unwrap();
        } else {
            store.flush().unwrap();
        }
        assert!(!store.has_unwritten());
        assert_eq!(store.commits(), commits + 1);
        let other = Store::open(dir.path()).unwrap();
        assert!(other.unproven_receipts().unwrap().iter().all(|(unproven, _)| *unproven != row));
    }
    store.flush().unwrap();
    assert_eq!(store.receipts(volume(7), 1).unwrap().len(), 1);
    assert!(store.receipts(volume(8), 9).unwrap().is_empty());
}

#[test]
fn old_proven_receipts_go_and_unproven_ones_stay() {
    let (_dir, store) = store();
    let open = NewReceipt::of(&receipt(7, 1, Proof::Unproven { in_flight: Some(8) }));
    let first =
        store.put_spec(Kind::Export, volume(7), &stamp(1, 1, 1), &spec("a"), b"", &[open]).unwrap()[0];
    let many = vec![NewReceipt::of(&receipt(7, 2, Proof::Proven)); 700];
    for counter in 2..5 {
        store.put_spec(Kind::Export, volume(7), &stamp(1, counter, 1), &spec("a"), b"", &many).unwrap();
    }
    let kept = store.receipts(volume(7), usize::MAX).unwrap().len();
    assert_eq!(kept, RECEIPTS_PER_VOLUME_KEPT as usize + 1);
    assert_eq!(store.unproven_receipts().unwrap()[0].0, first);
}

#[test]
fn tombstones_go_after_90_days_if_their_object_is_gone() {
    let (_dir, store) = store();
    let doomed = StoredContent::Tombstone { destroy: true };
    for n in 1..=2 {
        let proven = [NewReceipt::of(&receipt(n, 1, Proof::Proven))];
        store.put_spec(Kind::Volume, volume(n), &stamp(1, 1, 1), &doomed, b"", &proven).unwrap();
    }
    put(&store, 3, 1, "wanted").unwrap();
    let later = SystemTime::now() + TOMBSTONE_KEEP + Duration::from_mins(1);
    assert_eq!(store.purge(SystemTime::now(), |_, _| true).unwrap(), 0);
    assert_eq!(store.purge(later, |_, id| id == volume(1)).unwrap(), 1);
    let left: Vec<_> = store.specs().unwrap().iter().map(|spec| spec.volume).collect();
    assert_eq!(left, [volume(2), volume(3)]);
    assert!(store.receipts(volume(1), 9).unwrap().is_empty());
    assert_eq!(store.receipts(volume(2), 9).unwrap().len(), 1);
}

/// Copies what is on the disk, the log cut at `wal_bytes`, followed by what a torn write may leave.
fn power_cut(from: &Path, wal_bytes: usize, tail: &[u8]) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for file in [FILE_NAME, "sealing.key"] {
        fs::copy(from.join(file), to.path().join(file)).unwrap();
    }
    let wal = format!("{FILE_NAME}-wal");
    if let Ok(bytes) = fs::read(from.join(&wal)) {
        let mut cut = bytes[..wal_bytes.min(bytes.len())].to_vec();
        cut.extend_from_slice(tail);
        fs::write(to.path().join(&wal), cut).unwrap();
    }
    to
}

fn wal_bytes(dir: &Path) -> usize {
    fs::metadata(dir.join(format!("{FILE_NAME}-wal"))).map_or(0, |meta| usize::try_from(meta.len()).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn an_acknowledged_put_survives_a_power_cut(
        puts in proptest::collection::vec((1_u128..4, 0_usize..3000), 1..12),
        at in any::<prop::sample::Index>(),
        beyond in 0_usize..9000,
        tail in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let (dir, store) = store();
        let mut acknowledged = vec![(wal_bytes(dir.path()), Vec::new())];
        let mut counter = 0;
        for (n, length) in puts {
            counter += 1;
            let text = format!("{counter}:{}", "x".repeat(length));
            put(&store, n, counter, &text).unwrap();
            let mut now: Vec<(u128, u64, String)> = acknowledged.last().unwrap().1.clone();
            now.retain(|(other, ..)| *other != n);
            now.push((n, counter, text));
            acknowledged.push((wal_bytes(dir.path()), now));
        }
        // The log only grows here: if it is cut anywhere behind what was synced for the put, the
        // put stays whole.
        let (synced, wanted) = at.get(&acknowledged);
        let copy = power_cut(dir.path(), synced + beyond, &tail);
        let store = Store::open(copy.path()).unwrap();
        for (n, counter, text) in wanted {
            let kept = store.spec(Kind::Export, volume(*n)).unwrap().unwrap();
            prop_assert!(kept.stamp.generation.counter >= *counter);
            if kept.stamp.generation.counter == *counter {
                prop_assert_eq!(body(&store, *n), Some(text.clone()));
            }
        }
    }
}

/// Makes changes with checkpoints between them, each followed by a power cut: the last stored spec
/// is there.
fn loses_nothing_around_checkpoints(dir: &Path, store: &Store) {
    for counter in 1..=40 {
        put(store, u128::from(counter % 3), counter, &format!("{counter}")).unwrap();
        if counter % 7 == 0 {
            store.checkpoint().unwrap();
        }
        let copy = power_cut(dir, usize::MAX, &[]);
        let again = Store::open(copy.path()).unwrap();
        assert_eq!(body(&again, u128::from(counter % 3)).unwrap(), format!("{counter}"));
    }
}

#[test]
fn a_power_cut_around_a_checkpoint_loses_nothing() {
    let (dir, store) = store();
    loses_nothing_around_checkpoints(dir.path(), &store);
}

#[test]
fn a_change_never_checkpoints_and_a_checkpoint_needs_a_change() {
    let (dir, store) = store();
    store.checkpoint().unwrap();
    let database = || {
        let meta = fs::metadata(dir.path().join(FILE_NAME)).unwrap();
        (meta.mtime(), meta.mtime_nsec(), meta.len())
    };
    let before = (database(), wal_bytes(dir.path()));
    for counter in 1..300 {
        put(&store, 1, counter, "a").unwrap();
    }
    assert_eq!(database(), before.0, "the database itself was written by a change");
    assert!(wal_bytes(dir.path()) > before.1);
    store.checkpoint().unwrap();
    assert_ne!(database(), before.0);
    // The log was started anew: as many changes again fit into the same file, so no sync has to
    // lengthen it.
    let (checkpointed, log) = (database(), wal_bytes(dir.path()));
    store.checkpoint().unwrap();
    assert_eq!(database(), checkpointed, "a checkpoint without a change did something");
    for counter in 300..500 {
        put(&store, 1, counter, "a").unwrap();
    }
    assert_eq!(wal_bytes(dir.path()), log);
}

#[test]
fn files_are_for_the_agent_alone() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("a/b");
    let store = Store::open(&state).unwrap();
    put(&store, 1, 1, "secret").unwrap();
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in fs::read_dir(&state).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
    let debug = format!("{:?} {:?}", store.specs().unwrap(), spec("secret"));
    assert!(!debug.contains("secret") && debug.contains("6 bytes"), "{debug}");
    drop(store);
    fs::set_permissions(&state, fs::Permissions::from_mode(0o770)).unwrap();
    let error = Store::open(&state).unwrap_err();
    assert!(error.to_string().ends_with("(mode 0770): run chmod go-w on it"), "{error}");
}

#[test]
fn a_damaged_file_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE_NAME), vec![b'x'; 8192]).unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }) && error.cure() == Cure::Operator, "{error:?}");
    assert!(
        error.to_string().contains("mooring-agent.db is damaged (") && error.to_string().contains("aside")
    );

    // A page in the middle was overwritten.
    let (dir, store) = store();
    for n in 1..200 {
        put(&store, n, 1, &"x".repeat(400)).unwrap();
    }
    drop(store);
    let file = dir.path().join(FILE_NAME);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    fs::write(&file, bytes).unwrap();
    assert!(matches!(Store::open(dir.path()), Err(StoreError::Corrupt { .. })));
}

#[test]
fn a_store_of_a_newer_agent_is_left_alone() {
    let (dir, store) = store();
    drop(store);
    let file = dir.path().join(FILE_NAME);
    Connection::open(&file).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let before = fs::read(&file).unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("has schema 99, and this agent knows schemas up to 9"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn a_full_disk_takes_nothing_and_loses_nothing() {
    let (_dir, store) = store();
    put(&store, 1, 1, "kept").unwrap();
    store.limit_pages(0);
    let begun = vec![NewReceipt::of(&receipt(1, 2, Proof::Unproven { in_flight: Some(1) })); 64];
    let big = spec(&"x".repeat(100_000));
    let error = store.put_spec(Kind::Export, volume(1), &stamp(1, 2, 1), &big, b"", &begun).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }) && error.cure() == Cure::Operator, "{error:?}");
    assert!(error.to_string().starts_with("cannot keep the export spec of 00000000-"), "{error}");
    assert_eq!(body(&store, 1).unwrap(), "kept");
    assert!(store.unproven_receipts().unwrap().is_empty());
    // Space again: the same generation is taken.
    store.limit_pages(100_000);
    assert_eq!(
        store.put_spec(Kind::Export, volume(1), &stamp(1, 2, 1), &big, b"", &begun).unwrap().len(),
        64
    );
}

#[test]
fn what_sqlite_says_has_a_meaning() {
    let meaning = |code| {
        let source = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        StoreError::of(Path::new("/s/db"), "keep it", source)
    };
    for (code, want, cure) in [
        (ffi::SQLITE_READONLY, "cannot keep it: /s/db cannot be written to", Cure::Operator),
        (ffi::SQLITE_IOERR_FSYNC, "cannot keep it: the disk under /s/db failed", Cure::Operator),
        (ffi::SQLITE_BUSY, "cannot keep it: another program holds /s/db", Cure::Retry),
        (ffi::SQLITE_CANTOPEN, "cannot open the store /s/db", Cure::Operator),
        (ffi::SQLITE_CORRUPT, "the store /s/db is damaged", Cure::Operator),
        (ffi::SQLITE_MISUSE, "cannot keep it in /s/db: this is a defect", Cure::Bug),
    ] {
        let error = meaning(code);
        assert!(error.to_string().starts_with(want), "{error}");
        assert_eq!(error.cure(), cure);
    }
}

#[test]
fn a_state_folder_that_cannot_be() {
    let error = Store::open(Path::new("/proc/self/mooring")).unwrap_err();
    assert!(error.to_string().starts_with("cannot use the state folder /proc/self/mooring"), "{error}");
}

#[test]
fn changes_from_many_threads() {
    let (_dir, store) = store();
    let (taken, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (store, taken, refused) = (&store, &taken, &refused);
            scope.spawn(move || {
                for counter in 1..=50 {
                    put(store, 100 + u128::from(thread), counter, "own").unwrap();
                    // All threads write volume 1, each with its own content.
                    match store.put_spec(
                        Kind::Export,
                        volume(1),
                        &stamp(1, counter, thread),
                        &spec("shared"),
                        b"",
                        &[],
                    ) {
                        Ok(_) => taken.fetch_add(1, Ordering::Relaxed),
                        Err(StoreError::Stale { .. } | StoreError::Conflict { .. }) => {
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                        Err(error) => panic!("{error}"),
                    };
                    if counter % 10 == 0 {
                        store.checkpoint().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(taken.into_inner() + refused.into_inner(), 200);
    assert_eq!(store.spec(Kind::Export, volume(1)).unwrap().unwrap().stamp.generation.counter, 50);
    assert_eq!(store.specs().unwrap().len(), 5);
}

#[test]
fn a_row_that_makes_no_sense_is_named() {
    let (_dir, store) = store();
    put(&store, 1, 1, "a").unwrap();
    let set = sum::SPECS.set(&[("digest", "x'00'")]);
    lock(&store.main).execute(&format!("UPDATE specs SET {set}"), []).unwrap();
    let error = store.specs().unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the export spec of 00000000-0000-0000-0000-000000000001 is kept in a form"),
        "{error}"
    );
    assert!(put(&store, 1, 2, "b").is_err());
}

/// A store as the first release has written it, unchanged, so that every later schema is tried on
/// it.
#[test]
fn a_store_of_schema_1_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let conn = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    conn.execute_batch(include_str!("fixtures/schema-1.sql")).unwrap();
    drop(conn);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.agent_id().to_string(), "0a9b8c7d-1111-4222-8333-000000000001");
    assert_eq!(store.cluster().unwrap(), Some("0a9b8c7d-1111-4222-8333-000000000002".parse().unwrap()));
    let specs = store.specs().unwrap();
    let contents: Vec<_> =
        specs.iter().map(|spec| (spec.kind, spec.stamp.generation.counter, spec.content.clone())).collect();
    assert_eq!(
        contents,
        [
            (
                Kind::Volume,
                3,
                StoredContent::Spec(vec![
                    0x0a, 0x03, b'v', b'g', b'0', 0x10, 0x80, 0x80, 0x80, 0x02, 0x18, 0x01
                ])
            ),
            (Kind::Export, 9, StoredContent::Tombstone { destroy: false }),
            (Kind::Volume, 4, StoredContent::Tombstone { destroy: true }),
        ]
    );
    let open = store.unproven_receipts().unwrap();
    assert_eq!(
        (open.len(), open[0].0, open[0].1.initiator.to_string()),
        (1, 2, "iqn.2026-01.lab:host2".to_owned())
    );
    assert_eq!(store.receipts(open[0].1.volume, 9).unwrap().len(), 2);
    put(&store, 7, 1, "new").unwrap();
}

/// A store as the second release has written it.
#[test]
fn a_store_of_schema_2_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let conn = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    conn.execute_batch(include_str!("fixtures/schema-2.sql")).unwrap();
    drop(conn);
    let store = Store::open(dir.path()).unwrap();
    let contents: Vec<_> = store.specs().unwrap().into_iter().map(|spec| (spec.kind, spec.content)).collect();
    assert_eq!(
        contents,
        [
            (Kind::Connection, StoredContent::Revoked),
            (Kind::Volume, StoredContent::Tombstone { destroy: true }),
            (Kind::Connection, StoredContent::Tombstone { destroy: false }),
            (Kind::Connection, StoredContent::Spec(vec![0x0a, 0x01, b'x'])),
        ]
    );
}

#[test]
fn places_and_ports_are_kept() {
    let (dir, store) = store();
    assert_eq!((store.fc_ports().unwrap().len(), store.fc_places().unwrap()), (0, vec![]));
    let ports: BTreeSet<FcPort> = ["fc/20:00:52:54:00:14:00:0a", "qla2xxx/21:00:00:24:ff:00:00:01"]
        .map(|text| text.parse().unwrap())
        .into();
    store.keep_fc_ports(&ports).unwrap();
    let place = |number: u16, lun| Place {
        initiator: Wwpn::from_u64(u64::from(number)).unwrap(),
        slot: InitiatorSlot::new(number).unwrap(),
        lun: Lun(lun),
    };
    store.keep_fc_places(volume(1), &BTreeSet::from([place(1, 1), place(65535, 255)])).unwrap();
    store.keep_fc_places(volume(2), &BTreeSet::from([place(1, 2)])).unwrap();
    store.keep_fc_places(volume(1), &BTreeSet::from([place(65535, 255), place(2, 1)])).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.fc_ports().unwrap(), ports);
    let kept = [(volume(1), place(2, 1)), (volume(1), place(65535, 255)), (volume(2), place(1, 2))];
    assert_eq!(store.fc_places().unwrap(), kept);
    store.keep_fc_places(volume(1), &BTreeSet::new()).unwrap();
    assert_eq!(store.fc_places().unwrap(), kept[2..]);
}

#[test]
fn connections_are_kept_beside_volumes_and_exports() {
    let (dir, store) = store();
    let put = |n, counter, content: &StoredContent| {
        store.put_spec(Kind::Connection, volume(n), &stamp(1, counter, 1), content, b"opaque", &[])
    };
    super::tests::put(&store, 1, 9, "export").unwrap();
    put(1, 1, &spec("connection")).unwrap();
    put(2, 1, &StoredContent::Tombstone { destroy: false }).unwrap();
    put(3, 1, &spec("gone soon")).unwrap();
    put(3, 2, &StoredContent::Revoked).unwrap();
    assert!(matches!(put(3, 1, &spec("back")), Err(StoreError::Stale { kind: Kind::Connection, .. })));
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    let kept = |n| store.spec(Kind::Connection, volume(n)).unwrap().unwrap();
    assert_eq!(kept(1).content, spec("connection"));
    assert_eq!(kept(1).opaque, b"opaque");
    assert_eq!(kept(2).content, StoredContent::Tombstone { destroy: false });
    assert_eq!((kept(3).content, kept(3).stamp.generation.counter), (StoredContent::Revoked, 2));
    assert_eq!(body(&store, 1).as_deref(), Some("export"));
    // Tombstones go after their time, each by the answer for its own kind; a spec never does.
    let later = SystemTime::now() + TOMBSTONE_KEEP + Duration::from_mins(1);
    assert_eq!(store.purge(later, |kind, _| kind == Kind::Export).unwrap(), 0);
    assert_eq!(store.purge(later, |kind, id| kind == Kind::Connection && id != volume(2)).unwrap(), 1);
    assert!(store.spec(Kind::Connection, volume(3)).unwrap().is_none());
    assert_eq!(kept(1).content, spec("connection"));
}

#[test]
fn the_released_schemas_apply_one_after_another() {
    let mut conn = Connection::open_in_memory().unwrap();
    sum::teach(&conn).unwrap();
    Migrations::new(SCHEMAS.map(M::up).to_vec()).to_latest(&mut conn).unwrap();
}

#[test]
fn the_prefix_of_target_names_never_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (first, other) = (IqnPrefix::default(), "iqn.2030-01.org.other".parse::<IqnPrefix>().unwrap());
    store.keep_prefix(&first).unwrap();
    store.keep_prefix(&first).unwrap();
    drop(store);
    let error = Store::open(dir.path()).unwrap().keep_prefix(&other).unwrap_err();
    assert!(error.to_string().contains(first.as_str()), "{error}");
}

#[test]
fn that_a_volume_was_unmanaged_is_kept_and_a_later_spec_takes_its_place() {
    let (dir, first) = store();
    let keep = |store: &Store, counter: u64, content: &StoredContent| {
        store.put_spec(Kind::Volume, volume(1), &stamp(1, counter, 1), content, b"", &[]).unwrap();
    };
    let kept = |store: &Store| store.spec(Kind::Volume, volume(1)).unwrap().unwrap().content;
    keep(&first, 1, &spec("a"));
    keep(&first, 2, &StoredContent::Released);
    drop(first);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(kept(&store), StoredContent::Released);
    keep(&store, 3, &StoredContent::Tombstone { destroy: true });
    assert_eq!(kept(&store), StoredContent::Tombstone { destroy: true });
}

#[test]
fn what_is_remembered_of_lvs_is_kept_as_it_was_said_last() {
    let (dir, store) = store();
    let whole = |n: u64| Whole {
        mapping: format!("LVM-{n}"),
        size: mooring_model::ByteSize(u64::MAX - n),
        reverted: (n > 1).then(|| mooring_model::RevertId::from_u128(n.into())),
    };
    let said = |n: u64| (Generation { epoch: u64::MAX, counter: n }, whole(n));
    store.keep_whole_lvs(vec![(volume(1), Some(said(1))), (volume(2), Some(said(2)))]).unwrap();
    store.keep_whole_lvs(vec![(volume(1), Some(said(3))), (volume(2), None), (volume(4), None)]).unwrap();
    store.keep_whole_lvs(vec![(volume(5), Some(said(5)))]).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    let (first, fifth) = (said(3), said(5));
    let kept = [(volume(1), first.0, first.1), (volume(5), fifth.0, fifth.1)];
    assert_eq!(store.whole_lvs().unwrap(), kept);
    // It concerns nothing else: the store is as fresh as before, and one unreadable row makes no
    // other unreadable.
    assert!(store.is_fresh());
    let set = sum::WHOLE_LVS.set(&[("reverted", "'x'")]);
    lock(&store.main).execute(&format!("UPDATE whole_lvs SET {set} WHERE counter = 3"), []).unwrap();
    assert_eq!(store.whole_lvs().unwrap(), kept[1..]);
}

/// Returns whether the store says that this volume was made. `None` if it has no row.
fn made(store: &Store, n: u128) -> Option<bool> {
    store.spec(Kind::Volume, volume(n)).unwrap().map(|spec| spec.made)
}

#[test]
fn that_a_volume_was_made_stays_through_its_specs_and_ends_with_it() {
    let (dir, store) = store();
    let content = |n, counter, content: &StoredContent| {
        store.put_spec(Kind::Volume, volume(n), &stamp(1, counter, 1), content, b"", &[]).unwrap();
    };
    let was_made =
        |n: u128, counter| store.keep_made(&[(volume(n), stamp(1, counter, 1).generation)], vec![]);
    for n in 1..5 {
        content(n, 1, &spec("new"));
        assert_eq!(made(&store, n), Some(false));
    }
    // Nothing is recorded for another spec than the stored one, nor for a volume without a row.
    assert_eq!(
        (was_made(1, 2).unwrap(), was_made(9, 1).unwrap(), made(&store, 1)),
        (vec![], vec![], Some(false))
    );
    let all: Vec<_> = (1..4).map(|n| (volume(n), stamp(1, 1, 1).generation)).collect();
    assert_eq!(store.keep_made(&all, vec![]).unwrap(), [volume(1), volume(2), volume(3)]);
    for (n, end) in [
        (1, spec("larger")),
        (2, StoredContent::Tombstone { destroy: false }),
        (3, StoredContent::Released),
        (4, spec("larger")),
    ] {
        content(n, 2, &end);
    }
    assert_eq!((1..5).map(|n| made(&store, n)).collect::<Vec<_>>(), [true, false, false, false].map(Some));
    assert_eq!(was_made(2, 2).unwrap(), [], "what has ended");
    // A new volume under the id of one that has ended.
    content(2, 3, &spec("new"));
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!((made(&store, 1), made(&store, 2)), (Some(true), Some(false)));
}

/// A volume counts as made if its memory belongs to the stored spec.
#[test]
fn a_store_of_schema_6_knows_what_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let mut conn = Connection::open(dir.path().join(FILE_NAME)).unwrap();
    Migrations::new(SCHEMAS[..6].iter().map(|schema| M::up(schema)).collect()).to_latest(&mut conn).unwrap();
    // Memory of the stored spec, of an earlier one, of a tombstone, and none.
    for (n, counter, tombstone, remembered) in [(1, 2, 0, 2), (2, 2, 0, 1), (3, 2, 1, 2), (4, 2, 0, 0)] {
        let id = volume(n).to_string();
        let body = (tombstone == 0).then_some("spec");
        let sql = "INSERT INTO specs (volume_id, kind, epoch, counter, digest, body, opaque, tombstone, destroy, updated_us)
                   VALUES (?1, 'volume', 1, ?2, zeroblob(32), CAST(?3 AS BLOB), x'', ?4, 0, 0)";
        conn.execute(sql, (&id, counter, body, tombstone)).unwrap();
        let sql =
            "INSERT INTO whole_lvs (volume_id, epoch, counter, mapping, size) VALUES (?1, 1, ?2, 'LVM-', 1)";
        if remembered > 0 {
            conn.execute(sql, (&id, remembered)).unwrap();
        }
    }
    drop(conn);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!((1..5).map(|n| made(&store, n)).collect::<Vec<_>>(), [true, false, false, false].map(Some));
}

/// Returns the bytes of the log on the disk.
fn log_of(dir: &Path) -> Vec<u8> {
    fs::read(dir.join(format!("{FILE_NAME}-wal"))).unwrap()
}

#[test]
fn a_log_with_room_does_not_grow() {
    let (dir, roomless) = store();
    let before = wal_bytes(dir.path());
    put(&roomless, 1, 1, "a").unwrap();
    assert!(wal_bytes(dir.path()) > before, "without room it grows with each change");
    let (dir, store) = store();
    assert!(store.lacks_room());
    store.make_room().unwrap();
    assert!(!store.lacks_room());
    let long = wal_bytes(dir.path());
    assert!(long as u64 >= room::LOG_BYTES);
    loses_nothing_around_checkpoints(dir.path(), &store);
    assert_eq!(wal_bytes(dir.path()), long);
    store.make_room().unwrap();
    assert_eq!(wal_bytes(dir.path()), long, "once");
}

/// A change may be torn anywhere: what was acknowledged before it is there, and it is there as a
/// whole or not at all.
#[test]
fn a_change_torn_in_the_log_s_room_takes_nothing_with_it() {
    let (dir, store) = store();
    store.make_room().unwrap();
    // The second round writes over frames of the first.
    for round in 0..2 {
        let counter = round * 2 + 1;
        put(&store, 1, counter, "kept").unwrap();
        let before = log_of(dir.path());
        put(&store, 1, counter + 1, &"torn".repeat(1500)).unwrap();
        let after = log_of(dir.path());
        assert_eq!(before.len(), after.len());
        let differ: Vec<_> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
        let (first, last) = (differ[0], *differ.last().unwrap());
        let mut seen = BTreeSet::new();
        let cuts = (0..=24).map(|part| first + (last + 1 - first) * part / 24);
        for cut in cuts {
            let copy = power_cut(dir.path(), 0, &[]);
            let torn = [&after[..cut], &before[cut..]].concat();
            fs::write(copy.path().join(format!("{FILE_NAME}-wal")), torn).unwrap();
            let found = body(&Store::open(copy.path()).unwrap(), 1).unwrap();
            assert!(found == "kept" || found == "torn".repeat(1500), "cut at {cut}: {} bytes", found.len());
            seen.insert(found);
        }
        assert_eq!(seen.len(), 2, "both were seen: the cuts are where they should be");
        store.checkpoint().unwrap();
    }
}

#[test]
fn a_log_that_is_gone_gets_no_room() {
    let (dir, store) = store();
    fs::remove_file(dir.path().join(format!("{FILE_NAME}-wal"))).unwrap();
    assert!(matches!(store.make_room(), Err(StoreError::Look { .. })));
    assert!(!dir.path().join(format!("{FILE_NAME}-wal")).exists());
    assert!(!store.lacks_room(), "it is tried once");
}
