//! A store whose file is damaged where SQLite does not see it: nothing of it is believed, it is said what is wrong and what to do, and
//! what is said leads back to everything as it was, while no session ends and no LV is touched.

use std::path::{Path, PathBuf};

use mooring_agent::store::{FILE_NAME, Store};
use mooring_api::v1;

use crate::rig::*;

/// Changes bytes of a row, as a disk or a memory that fails does: the file is a whole database afterwards.
fn damage(folder: &Path, sql: &str) {
    let conn = rusqlite::Connection::open(folder.join(FILE_NAME)).unwrap();
    assert_eq!(conn.execute(sql, []).unwrap(), 1, "{sql}");
}

/// The store as it is on the disk, for itself: threads of an agent that has crashed may have the other one open still, and then a
/// change stays in its log.
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

/// As the message says.
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

/// What the agent says of a volume, without what only this one knows: receipts, when it has looked, and since when it has seen a
/// session.
fn said(agent: &Agent, v: &str) -> v1::VolumeStatus {
    let mut said = v1::VolumeStatus { receipts: Vec::new(), ..agent.get(v).unwrap() };
    let export = said.export.as_mut().unwrap();
    export.looked_us = 0;
    let sessions = export.grants.iter_mut().flat_map(|grant| &mut grant.sessions);
    sessions.for_each(|session| session.since_us = 0);
    said
}

/// A byte of each row that decides who may do what, and of which the rest of the row is none the wiser.
fn damages(v: &str) -> [(String, [String; 2]); 5] {
    let of = |table: &str, key: &str| [format!("in the table {table}"), key.to_owned()];
    let spec = |set: &str, kind: &str| {
        let sql = format!("UPDATE specs SET {set} WHERE volume_id = '{v}' AND kind = '{kind}'");
        (sql, of("specs", &format!("volume_id \"{v}\", kind \"{kind}\"")))
    };
    // The last byte of the sealed spec, which says who has a grant.
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
        // The same again: a start that was refused has changed nothing.
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
    // The controller: who it is, and all that it wishes, of the generations that it wished before.
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
    // What is kept now is believed at the next start.
    agent.remembers(1);
    agent.crash();
    // With what was written meanwhile in its counters.
    let was = machine();
    let agent = node.start();
    assert!(machine() == was, "as it was");
    let receipts = agent.make(put_export(&v, 3, &[("host2", RO)]));
    assert!(receipts[0].proven && receipts[0].sessions_cut.len() == 1, "{receipts:?}");
    assert_eq!(node.reach(&v), ["host2 ro"]);
}
