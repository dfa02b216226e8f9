//! A store with damage that SQLite does not see: the agent believes none of it, and says what is
//! wrong and what to do. The stated cure restores everything, while no session ends and no LV is
//! touched.

use std::path::{Path, PathBuf};

use mooring_agent::store::{FILE_NAME, Store};
use mooring_api::v1;

use crate::rig::*;

/// Changes bytes of a row, as a failing disk or memory would. The file is still a valid database.
fn damage(folder: &Path, sql: &str) {
    let conn = rusqlite::Connection::open(folder.join(FILE_NAME)).unwrap();
    assert_eq!(conn.execute(sql, []).unwrap(), 1, "{sql}");
}

/// Copies the store as it is on the disk. Threads of a crashed agent may still have the original
/// open, and then a change would stay in its log.
fn copy_of(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in [FILE_NAME, &format!("{FILE_NAME}-wal"), "sealing.key"] {
        if folder.join(name).exists() {
            std::fs::copy(folder.join(name), copy.path().join(name)).unwrap();
        }
    }
    drop(Store::open(copy.path()).unwrap());
    copy
}

/// Moves the store aside, as the message says.
fn move_aside(folder: &Path) -> PathBuf {
    let aside = folder.with_extension("aside");
    std::fs::create_dir(&aside).unwrap();
    for end in ["", "-wal", "-shm"] {
        let name = format!("{FILE_NAME}{end}");
        if folder.join(&name).exists() {
            std::fs::rename(folder.join(&name), aside.join(&name)).unwrap();
        }
    }
    aside
}

/// Returns what the agent reports of a volume, without what only one agent knows: receipts, the
/// time of the look, and when it first saw a session.
fn said(agent: &Agent, v: &str) -> v1::VolumeStatus {
    let mut said = v1::VolumeStatus { receipts: Vec::new(), ..agent.get(v).unwrap() };
    let export = said.export.as_mut().unwrap();
    export.looked_us = 0;
    let sessions = export.grants.iter_mut().flat_map(|grant| &mut grant.sessions);
    sessions.for_each(|session| session.since_us = 0);
    said
}

/// Damages to one value of each row that decides about access. Nothing else in the row shows the
/// damage.
fn damages(v: &str) -> [(String, [String; 2]); 5] {
    let of = |table: &str, key: &str| [format!("in the table {table}"), key.to_owned()];
    let spec = |set: &str, kind: &str| {
        let sql = format!("UPDATE specs SET {set} WHERE volume_id = '{v}' AND kind = '{kind}'");
        (sql, of("specs", &format!("volume_id \"{v}\", kind \"{kind}\"")))
    };
    // Last byte of the sealed spec, which says who has a grant.
    let body = "body = CAST(substr(body, 1, length(body) - 1) || CASE substr(body, -1) WHEN x'00' THEN x'01' ELSE x'00' END AS BLOB)";
    [
        spec(body, "export"),
        spec("counter = counter + 4096", "export"),
        spec("made = 0", "volume"),
        (
            "UPDATE receipts SET proven = 1 - proven".to_owned(),
            of("receipts", &format!("id 1, volume_id \"{v}\"")),
        ),
        (
            "UPDATE meta SET value = replace(value, '6a1f', '6a1e') WHERE key = 'cluster_id'".to_owned(),
            of("meta", "key \"cluster_id\""),
        ),
    ]
}

#[test]
fn a_damaged_row_is_named_and_the_store_is_built_anew_under_live_sessions() {
    let (node, v) = (Node::new(), volume(1));
    let folder = node.config.state_dir.clone();
    let grants = [("host1", RW), ("host2", RO)];
    let agent = node.start();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 1, &[("host1", RW), ("host2", RO), ("host3", RO)]));
    let sessions = ["host1", "host2"].map(|host| node.login(&v, host).unwrap());
    let receipts = agent.make(put_export(&v, 2, &grants));
    assert!(receipts.len() == 1 && receipts[0].proven, "{receipts:?}");
    node.fake.blocks().fill(device(&v));
    agent.remembers(1);
    let (id, before) = (agent.hello().agent_id, said(&agent, &v));
    agent.engine().store().flush().unwrap();
    agent.crash();
    let machine = || (node.tree(), node.lvs(), node.reach(&v));
    let was = machine();

    for (sql, [table, key]) in damages(&v) {
        let copy = copy_of(&folder);
        let (copy, file) = (copy.path(), copy.path().join(FILE_NAME));
        damage(copy, &sql);
        let told = Store::open(copy).unwrap_err().to_string();
        for words in [file.to_str().unwrap(), "is damaged", &table, &key, "-wal and -shm aside"] {
            assert!(told.contains(words), "{words:?} is not in {told:?}");
        }
        assert!(!told.contains(SECRET_WORD), "{told}");
        // A second start fails in the same way: a refused start changes nothing.
        assert_eq!(Store::open(copy).unwrap_err().to_string(), told);
    }
    let (sql, _) = &damages(&v)[0];
    damage(&folder, sql);
    Store::open(&folder).unwrap_err();
    assert!(machine() == was, "nobody was let in, nobody was cut");

    move_aside(&folder);
    let agent = node.start();
    let orphan = agent.get(&v).unwrap();
    assert_eq!(orphan.volume.unwrap().phase(), v1::Phase::Orphan, "it is found by its tags");
    assert!(agent.hello().fresh && agent.hello().agent_id != id);
    assert!(machine() == was, "byte for byte");
    let changes = agent.switch.changes();
    // The controller sends the agent's identity and all specs, with their generations.
    agent.adopt(CLUSTER, &id).unwrap();
    agent.make(put_volume(&v, 1));
    agent.make(put_export(&v, 2, &grants));
    assert!(machine() == was, "as it was");
    assert_eq!(
        agent.switch.changes(),
        changes,
        "nothing was made, zeroed or removed: {:?}",
        agent.switch.log()
    );
    assert_eq!((agent.hello().agent_id, said(&agent, &v)), (id, before));
    assert_eq!(agent.capabilities().problems, []);
    for (session, data) in sessions.iter().zip([true, false]) {
        assert!(node.fake.is_live(*session));
        assert_eq!(node.fake.write(*session, 1).is_ok(), data, "each as it was granted");
    }
    assert!(!node.fake.blocks().is_zeroed(device(&v)), "its data is there");
    // The next start believes the new store.
    agent.remembers(1);
    agent.crash();
    // The counters hold what was written meanwhile.
    let was = machine();
    let agent = node.start();
    assert!(machine() == was, "as it was");
    let receipts = agent.make(put_export(&v, 3, &[("host2", RO)]));
    assert!(receipts[0].proven && receipts[0].sessions_cut.len() == 1, "{receipts:?}");
    assert_eq!(node.reach(&v), ["host2 ro"]);
}
