//! Old records that are deleted, on every database.

use super::*;
use crate::store::prune::Pruned;
use crate::store::{Asked, AttachmentRow, FenceRow, Stater, Taker};

contract![
    what_is_gone_is_pruned_once_nothing_of_it_is_open,
    tombstones_of_a_given_up_host_go_by_age,
    reserved_attachments_are_found_by_their_age,
    receipts_go_when_nothing_names_them,
    a_lifted_fence_goes_with_what_it_took,
];

const DAY: Duration = Duration::from_hours(24);

/// The storage agent of the volumes here.
const STORAGE: AgentId = AgentId::from_u128(0xa);

const HOST: AgentId = AgentId::from_u128(7);

/// Deletes everything that may go by its age; without `all`, only what is older than a day.
async fn prune(place: &Place, all: bool) -> Pruned {
    let prune = move |db: &Db<'_>| {
        let before = if all { db.now + DAY } else { db.now - DAY };
        Ok(db.prune_records(before, before)?)
    };
    place.write(prune).await
}

async fn run(place: &Place, statements: &[&'static str]) {
    let statements = statements.to_vec();
    let run = move |db: &Db<'_>| {
        for sql in &statements {
            db.run(sql, &[])?;
        }
        Ok(())
    };
    place.write(run).await;
}

/// Makes both agents known, as heard after everything that happened.
async fn hear(place: &Place) {
    let hear = |db: &Db<'_>| {
        db.put_agent("s", STORAGE, None, &[], "test")?;
        db.put_agent("h", HOST, None, &[], "test")?;
        Ok(db.run("UPDATE agents SET heard_us = ?1", &values![db.now + DAY]).map(drop)?)
    };
    place.write(hear).await;
}

/// A volume that is gone, with a tombstone of each kind that has come true.
async fn gone(place: &Place) -> VolumeId {
    let id = place.volume().await.id;
    let delete = move |db: &Db<'_>| {
        let connection = Kind::Connection(HOST);
        for kind in [Kind::Volume, Kind::Export, connection] {
            db.put_spec(id, kind, &SpecContent::tombstone(kind, true))?;
        }
        let at = db.generation_of(id, connection)?;
        db.settle_connection(id, HOST, at)?;
        Ok(db.delete_volume(id)?)
    };
    place.write(delete).await;
    hear(place).await;
    id
}

async fn what_is_gone_is_pruned_once_nothing_of_it_is_open(place: Place) {
    let cases: [(&str, &[&'static str]); 7] = [
        ("its connection's end is unknown", &["UPDATE specs SET settled = 0 WHERE kind = 'connection'"]),
        ("its storage agent is silent", &["UPDATE agents SET heard_us = 1 WHERE name = 's'"]),
        ("its host is silent", &["UPDATE agents SET heard_us = 1 WHERE name = 'h'"]),
        ("its storage agent is forgotten", &["DELETE FROM agents WHERE name = 's'"]),
        ("a spec is no tombstone", &["UPDATE specs SET body = digest WHERE kind = 'export'"]),
        (
            "something of it is being taken",
            &["INSERT INTO takings (taker, agent_id, volume_id, initiator) \
               SELECT 't', 'a', volume_id, 'i' FROM gone"],
        ),
        (
            "any silent agent may have been its own",
            &[
                "UPDATE gone SET agent_id = NULL",
                "UPDATE agents SET heard_us = 1, agent_id = 'x' WHERE name = 's'",
            ],
        ),
    ];
    for (why, statements) in cases {
        let id = gone(&place).await;
        run(&place, statements).await;
        assert_eq!(prune(&place, true).await.volumes, 0, "{why}");
        // The control: without that it goes, once it is old enough.
        run(&place, &["UPDATE specs SET settled = 1, body = NULL", "DELETE FROM takings"]).await;
        hear(&place).await;
        assert_eq!(prune(&place, false).await.volumes, 0, "{why}: it is young");
        assert_eq!(prune(&place, true).await.volumes, 1, "{why}");
        let look = move |db: &Db<'_>| {
            let there =
                db.spec(id, Kind::Volume)?.is_some() || db.spec(id, Kind::Connection(HOST))?.is_some();
            let newest = db.generation_of(id, Kind::Export)?;
            // Whatever is specified of the id again is newer than all that any agent has had.
            let (again, _) = db.put_spec(id, Kind::Export, &SpecContent::tombstone(Kind::Export, false))?;
            Ok((there, db.is_known_id(id)?, newest.counter, again > newest))
        };
        assert_eq!(place.write(look).await, (false, true, 1, true), "{why}");
    }
}

async fn tombstones_of_a_given_up_host_go_by_age(place: Place) {
    let (living, alone) = (place.volume().await.id, place.volume().await.id);
    let gone = gone(&place).await;
    let kind = Kind::Connection(HOST);
    let fill = move |db: &Db<'_>| {
        for id in [living, alone] {
            db.put_spec(id, kind, &SpecContent::tombstone(kind, true))?;
        }
        db.put_spec(living, Kind::Export, &SpecContent::tombstone(Kind::Export, false))?;
        Ok(db.renew(living, Kind::Export, Generation { epoch: 1, counter: 9 })?)
    };
    place.write(fill).await;
    let count = async |all: bool| {
        let pruned = prune(&place, all).await;
        (pruned.volumes, pruned.connections)
    };
    run(
        &place,
        &["UPDATE specs SET settled = 0 WHERE kind = 'connection'", "DELETE FROM agents WHERE name = 'h'"],
    )
    .await;
    assert_eq!(count(true).await, (0, 0), "nobody has given the host up");
    let forget = |db: &Db<'_>| {
        let sql = "INSERT INTO forgotten (agent_id, name, storage, open, by_user, by_request, forgotten_us) \
                   VALUES (?1, 'h', 0, 1, 'u', 'r', ?2)";
        Ok(db.run(sql, &values![HOST, db.now]).map(drop)?)
    };
    place.write(forget).await;
    assert_eq!(count(true).await, (0, 0), "other rows of it are left");
    run(&place, &["UPDATE forgotten SET open = 0"]).await;
    assert_eq!(count(false).await, (0, 0), "it was given up just now");
    assert_eq!(count(true).await, (1, 1));
    let left = async |id: VolumeId| {
        place.read(move |db| Ok((db.spec(id, kind)?.is_some(), db.is_known_id(id)?))).await
    };
    assert_eq!(left(living).await, (false, true));
    assert_eq!(left(alone).await, (true, true), "the newest generation of an id stays");
    assert_eq!(left(gone).await, (false, true));
}

async fn reserved_attachments_are_found_by_their_age(place: Place) {
    let (volume, reviewed) = (place.volume().await.id, place.volume().await.id);
    let made = |volume, at| AttachmentRow::reserved(AttachmentId::random(), volume, "p", time_of(at));
    let (old, young) = (made(volume, 10), made(volume, 11));
    let connected =
        AttachmentRow { connector: Some(Connector::of(&serde_json::Map::new())), ..made(volume, 1) };
    let rows = [old.clone(), young, connected, made(reviewed, 1)];
    let fill = move |db: &Db<'_>| {
        for row in &rows {
            db.put_attachment(row)?;
        }
        db.run("UPDATE volumes SET review = 'x' WHERE id = ?1", &values![reviewed])?;
        Ok(())
    };
    place.write(fill).await;
    let found = async |until: i64| {
        let read = move |db: &Db<'_>| Ok(db.reserved_until(time_of(until), 10)?);
        place.read(read).await.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(found(9).await, []);
    assert_eq!(found(10).await, [old.id]);
    assert_eq!(found(11).await.len(), 2);
}

async fn receipts_go_when_nothing_names_them(place: Place) {
    let volume = place.volume().await.id;
    let unproven = Proof::Unproven { in_flight: Some(1) };
    let said = [(1, Proof::Proven), (2, unproven), (3, Proof::Proven)]
        .map(|(counter, proof)| receipt(volume, counter, proof));
    let rows = [attachment(volume, 1), attachment(volume, 2)];
    let keep = move |db: &Db<'_>| {
        for one in &said {
            db.keep_receipt(one)?;
        }
        // One of an agent that does not serve the volume is not the newest, and does not stay.
        db.keep_receipt_of(Stater::Other(AgentId::from_u128(99)), &receipt(volume, 4, unproven))?;
        for (row, counter) in rows.iter().zip([3, 2]) {
            let since = Generation { epoch: 1, counter };
            let named = db.receipt_since(volume, &iqn(1).into(), since)?.map(|(id, _)| id);
            db.put_attachment(row)?;
            db.detach(row, named, false)?;
        }
        Ok(())
    };
    place.write(keep).await;
    let left = async || {
        let sql = "SELECT counter FROM receipts ORDER BY counter";
        place.read(move |db| Ok(db.all(sql, &[], |row| row.get::<u64>(0))?)).await
    };
    assert_eq!(prune(&place, false).await, Pruned::default(), "all of it is young");
    // The newest of an initiator stays, and what may still be proven, with its record.
    let pruned = prune(&place, true).await;
    assert_eq!((pruned.detached, pruned.receipts, left().await), (1, 2, vec![2, 3]));
    assert_eq!(prune(&place, true).await, Pruned::default());
    place.write(move |db| Ok(db.delete_volume(volume)?)).await;
    let pruned = prune(&place, true).await;
    assert_eq!((pruned.detached, pruned.receipts, left().await), (1, 2, vec![]));
}

async fn a_lifted_fence_goes_with_what_it_took(place: Place) {
    let volume = place.volume().await.id;
    let asked = Asked { user: "u".to_owned(), request: "r".to_owned(), at: time_of(1) };
    let fence = |number: u32, lifted: bool| FenceRow {
        id: Uuid::from_u128(number.into()),
        name: format!("h{number}"),
        reason: None,
        asked: asked.clone(),
        lifted_at: lifted.then(|| time_of(2)),
    };
    let fences = [fence(1, true), fence(2, false), fence(3, true)];
    let rows = [1, 2, 3].map(|number| attachment(volume, number));
    let fill = move |db: &Db<'_>| {
        for (fence, row) in fences.iter().zip(&rows) {
            db.insert_fence(fence)?;
            db.fence_initiator(fence.id, &iqn(1).into())?;
            db.note_fence_node(fence.id, "s")?;
            db.fence_part(fence.id, row.id, volume)?;
            db.put_attachment(row)?;
            db.detach(row, None, true)?;
            db.take_nexus(Taker::Fence(fence.id), STORAGE, volume, &iqn(1).into())?;
        }
        db.run("UPDATE takings SET done = 1 WHERE taker <> ?1", &values![Uuid::from_u128(3)])?;
        Ok(())
    };
    place.write(fill).await;
    assert_eq!(prune(&place, false).await.detached, 0, "the detach is young");
    let left = async || {
        let read = |db: &Db<'_>| {
            let taken = |number| Ok::<_, Abort>(db.takings_for(Taker::Fence(Uuid::from_u128(number)))?.len());
            Ok((db.fences(true, 10)?.len(), [taken(1)?, taken(2)?, taken(3)?]))
        };
        place.read(read).await
    };
    // The first fence went by its age. One is in force, and one still takes something.
    assert_eq!(left().await, (2, [0, 1, 1]));
    assert_eq!(prune(&place, true).await.detached, 1);
    run(&place, &["UPDATE takings SET done = 1"]).await;
    let pruned = prune(&place, true).await;
    assert_eq!((pruned.fences, pruned.detached, left().await), (1, 1, (1, [0, 1, 0])));
}
